"""Decoders with layer norms and a plain MLP: GPT-2, GPT-NeoX, Phi, MPT.

One builder; a family is a table of module names, its settings, and how fused tensors come apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgepos.errors import UnsupportedError
from edgepos.positions import Spec

from ..graph import GraphBuilder
from ..placement import Placement
from ..shorten import shorten
from ..tensor_set import TensorSet, Weight

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
}  # of transformers -> method of GraphBuilder


@dataclass(frozen=True)
class DecoderShape:
    """The numbers that decide the graph.

    parallel: attention and MLP both read the block's input and are added to it together; else one after the other.
    activation: a value of ACTIVATIONS.
    """

    vocab_size: int
    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    epsilon: float
    activation: str
    tied: bool
    parallel: bool = False
    norm_bias: bool = True
    attention_bias: bool = True
    mlp_bias: bool = True
    head_bias: bool = False


@dataclass(frozen=True)
class DecoderNames:
    """Module names, without ".weight" and ".bias"; ``{i}`` is the layer. mlp_norm "": the MLP reads the attention's norm."""

    embed: str
    attn_norm: str
    q: str
    k: str
    v: str
    out: str
    mlp_norm: str
    up: str
    down: str
    final_norm: str
    head: str


def read_activation(origin: str, key: str, name: str) -> str:
    """The method of GraphBuilder for an activation of transformers; raises UnsupportedError naming the key."""
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"{origin}: {key} {shorten(name)} is not supported; supported: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def build(shape: DecoderShape, tensors: TensorSet, names: DecoderNames, name: str, *, family: str, encoding: Spec) -> ir.Model:
    """The canonical graph; takes every tensor it needs from ``tensors``."""
    s = shape
    graph = GraphBuilder(name=name, family=family, context=s.context)
    place = Placement(graph, encoding, tensors, layers=s.layers, heads=s.heads, head_dim=s.head_dim)
    q_dim, kv_dim = s.heads * s.head_dim, s.kv_heads * s.head_dim

    def norm(x: ir.Value, node: str, module: str) -> ir.Value:
        beta = tensors.take(f"{module}.bias", (s.dim,)) if s.norm_bias else None
        return graph.layer_norm(x, node, tensors.take(f"{module}.weight", (s.dim,)), beta, s.epsilon)

    embed = tensors.take(f"{names.embed}.weight", (s.vocab_size, s.dim))
    x = place.add(graph.embed(embed), s.dim)
    for i in range(s.layers):
        layer = f"layers.{i}."

        def linear(y: ir.Value, node: str, module: str, rows: int, columns: int, bias: bool) -> ir.Value:
            module = module.format(i=i)
            added: Weight | None = tensors.take(f"{module}.bias", (rows,)) if bias else None
            return graph.linear(y, f"layers.{i}.{node}", tensors.take(f"{module}.weight", (rows, columns)), added)

        h = norm(x, layer + "attn_norm", names.attn_norm.format(i=i))
        q = place.rotate(linear(h, "attn.q", names.q, q_dim, s.dim, s.attention_bias), layer + "attn.q.rope", i, s.heads)
        k = place.rotate(linear(h, "attn.k", names.k, kv_dim, s.dim, s.attention_bias), layer + "attn.k.rope", i, s.kv_heads)
        v = linear(h, "attn.v", names.v, kv_dim, s.dim, s.attention_bias)
        y = graph.attention(q, k, v, i, heads=s.heads, kv_heads=s.kv_heads, head_dim=s.head_dim, mask=place.mask(i))
        y = linear(y, "attn.out", names.out, s.dim, q_dim, s.attention_bias)
        attended = graph.add(x, y, layer + "attn.residual")

        if names.mlp_norm:
            h = norm(x if s.parallel else attended, layer + "mlp_norm", names.mlp_norm.format(i=i))
        y = linear(h, "mlp.up", names.up, s.hidden_dim, s.dim, s.mlp_bias)
        y = getattr(graph, s.activation)(y, f"{layer}mlp.act")
        y = linear(y, "mlp.down", names.down, s.dim, s.hidden_dim, s.mlp_bias)
        x = graph.add(attended, y, layer + "mlp.residual")

    x = norm(x, "final_norm", names.final_norm)
    head = embed if s.tied else tensors.take(f"{names.head}.weight", (s.vocab_size, s.dim))
    bias = tensors.take(f"{names.head}.bias", (s.vocab_size,)) if s.head_bias else None
    return graph.finish(graph.linear(x, "head", head, bias, output="logits"))
