"""Llama: RMS norm, rotary positions, grouped-query attention, SwiGLU.

One builder for every source with this block: the Hugging Face folder and the
llama2.c file differ only in tensor names and in the rotary pairing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import Rope, Spec

from ..config import Config
from ..graph import GraphBuilder
from ..placement import Placement
from ..rope_config import read_rope_theta
from ..shorten import shorten
from ..tensor_set import TensorSet, Weight

MODEL_TYPE = "llama"
DEFAULT_BOS, DEFAULT_EOS = (1,), (2,)  # of the config class, when the file does not say


@dataclass(frozen=True)
class LlamaShape:
    """The numbers that decide a Llama graph; ``layout`` is "half" or "interleaved".

    attention_bias: of q, k, v and, unless output_bias says otherwise, of the output. head_norm: RMS norms over each head
    of q and k. window: keys a token sees, its own included, one number or one per layer; 0: all.
    gate: method of GraphBuilder for the MLP's product. post_norms: norms of what attention and MLP add. norm_offset: added to
    every γ. embed_scale, score_scale, score_softcap, head_softcap: as GraphBuilder names them; 0 or None: none.
    """

    vocab_size: int
    dim: int
    hidden_dim: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    theta: float
    epsilon: float
    layout: str
    tied: bool
    attention_bias: bool = False
    mlp_bias: bool = False
    output_bias: bool | None = None
    head_norm: bool = False
    window: int | tuple[int, ...] = 0

    gate: str = "swiglu"
    post_norms: bool = False
    norm_offset: float = 0.0
    embed_scale: float | None = None
    score_scale: float | None = None
    score_softcap: float = 0.0
    head_softcap: float = 0.0

    def layer_window(self, layer: int) -> int:
        """The window of a layer; 0 where it would not hide anything within the context."""
        window = self.window if isinstance(self.window, int) else self.window[layer]
        return window if window < self.context else 0


@dataclass(frozen=True)
class LlamaNames:
    """How a source spells its tensors; ``{i}`` is the layer."""

    embed: str
    attn_norm: str
    q: str
    k: str
    v: str
    out: str
    mlp_norm: str
    gate: str
    up: str
    down: str
    final_norm: str
    head: str
    q_norm: str = ""
    k_norm: str = ""
    attn_post_norm: str = ""
    mlp_post_norm: str = ""


HF_NAMES = LlamaNames(
    embed="model.embed_tokens.weight",
    attn_norm="model.layers.{i}.input_layernorm.weight",
    q="model.layers.{i}.self_attn.q_proj.weight",
    k="model.layers.{i}.self_attn.k_proj.weight",
    v="model.layers.{i}.self_attn.v_proj.weight",
    out="model.layers.{i}.self_attn.o_proj.weight",
    mlp_norm="model.layers.{i}.post_attention_layernorm.weight",
    gate="model.layers.{i}.mlp.gate_proj.weight",
    up="model.layers.{i}.mlp.up_proj.weight",
    down="model.layers.{i}.mlp.down_proj.weight",
    final_norm="model.norm.weight",
    head="lm_head.weight",
    q_norm="model.layers.{i}.self_attn.q_norm.weight",
    k_norm="model.layers.{i}.self_attn.k_norm.weight",
)


def read_heads(config: Config) -> tuple[int, int, int, int]:
    """(width, query heads, KV heads, head_dim) of a Hugging Face config. Raises FormatError naming the key."""
    dim = config.size("hidden_size")
    heads = config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise FormatError(
            f"{config.origin}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}; "
            "every KV head must serve the same number of query heads"
        )
    head_dim = config.size("head_dim", default=None)
    if head_dim is None:
        if dim % heads:
            raise FormatError(
                f"{config.origin}: hidden_size {dim} is not a multiple of num_attention_heads {heads}; "
                "give head_dim explicitly or correct the head count"
            )
        head_dim = dim // heads
    check_head_dim(config.origin, head_dim)
    return dim, heads, kv_heads, head_dim


def read_config(
    config: Config, context: int | None, encoding: Rope | None = None, activation: tuple[str, str] = ("hidden_act", "silu")
) -> LlamaShape:
    """The shape from a Hugging Face ``config.json``; defaults are those of LlamaConfig.

    ``encoding``: the rotation, where it is more than theta over whole heads. ``activation``: the key and the one value supported.

    Raises FormatError or UnsupportedError naming the key.
    """
    dim, heads, kv_heads, head_dim = read_heads(config)
    key, needed = activation
    act = config.text(key, default=needed)
    if act != needed:
        raise UnsupportedError(f"{config.origin}: {key} {shorten(act)} is not supported; supported: {needed}")
    limit = config.size("max_position_embeddings", default=2048)
    context = config.context(context, limit)
    return LlamaShape(
        vocab_size=config.size("vocab_size"),
        dim=dim,
        hidden_dim=config.size("intermediate_size"),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        theta=read_rope_theta(config) if encoding is None else encoding.theta,
        epsilon=config.epsilon("rms_norm_eps", default=1e-6),
        layout="half",
        tied=config.flag("tie_word_embeddings", default=False),
        attention_bias=config.flag("attention_bias", default=False),
        mlp_bias=config.flag("mlp_bias", default=False),
        window=config.size("sliding_window", default=0),
    )


def check_head_dim(origin: str, head_dim: int) -> None:
    """Raise FormatError when rotary pairs cannot be formed."""
    if head_dim % 2:
        raise FormatError(f"{origin}: head_dim {head_dim} is odd; rotary positions turn pairs, so it must be even")


def build(
    shape: LlamaShape,
    tensors: TensorSet,
    names: LlamaNames,
    name: str,
    *,
    family: str = MODEL_TYPE,
    encoding: Spec | None = None,
) -> ir.Model:
    """The canonical graph of any Llama block stack; takes every tensor it needs from ``tensors``.

    ``encoding`` replaces the rotation by theta and layout that ``shape`` describes.
    """
    graph = GraphBuilder(name=name, family=family, context=shape.context)
    if encoding is None:
        encoding = Rope(shape.head_dim, theta=shape.theta, layout=shape.layout)
    place = Placement(graph, encoding, tensors, layers=shape.layers, heads=shape.heads, head_dim=shape.head_dim)
    q_dim, kv_dim = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    output_bias = shape.attention_bias if shape.output_bias is None else shape.output_bias

    embed = tensors.take(names.embed, (shape.vocab_size, shape.dim))
    x = graph.embed(embed)
    if shape.embed_scale is not None:
        x = graph.scaled(x, "embed.scaled", shape.embed_scale)
    x = place.add(x, shape.dim)

    def gamma(template: str, dim: int, i: int) -> Weight:
        weight = tensors.take(template.format(i=i), (dim,))
        if not shape.norm_offset:
            return weight
        return Weight(weight.name, np.asarray(weight.array, np.float32) + np.float32(shape.norm_offset), weight.shape)

    for i in range(shape.layers):

        def take(template: str, *dims: int) -> Weight:
            return tensors.take(template.format(i=i), dims)

        def linear(y: ir.Value, node: str, template: str, rows: int, columns: int, bias: bool) -> ir.Value:
            weight = take(template, rows, columns)
            added = take(template.removesuffix("weight") + "bias", rows) if bias else None
            return graph.linear(y, f"layers.{i}.{node}", weight, added)

        def rope(y: ir.Value, node: str, heads: int, norm: str) -> ir.Value:
            if shape.head_norm:
                y = graph.head_norm(y, f"layers.{i}.attn.{node}.norm", gamma(norm, shape.head_dim, i), shape.epsilon, heads)
            return place.rotate(y, f"layers.{i}.attn.{node}.rope", i, heads)

        h = graph.rms_norm(x, f"layers.{i}.attn_norm", gamma(names.attn_norm, shape.dim, i), shape.epsilon)
        q = rope(linear(h, "attn.q", names.q, q_dim, shape.dim, shape.attention_bias), "q", shape.heads, names.q_norm)
        k = rope(linear(h, "attn.k", names.k, kv_dim, shape.dim, shape.attention_bias), "k", shape.kv_heads, names.k_norm)
        v = linear(h, "attn.v", names.v, kv_dim, shape.dim, shape.attention_bias)
        y = graph.attention(
            q, k, v, i, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, mask=place.mask(i),
            window=shape.layer_window(i), scale=shape.score_scale, softcap=shape.score_softcap,
        )  # fmt: skip
        y = linear(y, "attn.out", names.out, shape.dim, q_dim, output_bias)
        if shape.post_norms:
            y = graph.rms_norm(y, f"layers.{i}.attn_post_norm", gamma(names.attn_post_norm, shape.dim, i), shape.epsilon)
        x = graph.add(x, y, f"layers.{i}.attn.residual")

        h = graph.rms_norm(x, f"layers.{i}.mlp_norm", gamma(names.mlp_norm, shape.dim, i), shape.epsilon)
        gate = linear(h, "mlp.gate", names.gate, shape.hidden_dim, shape.dim, shape.mlp_bias)
        up = linear(h, "mlp.up", names.up, shape.hidden_dim, shape.dim, shape.mlp_bias)
        y = getattr(graph, shape.gate)(gate, up, f"layers.{i}.mlp")
        y = linear(y, "mlp.down", names.down, shape.dim, shape.hidden_dim, shape.mlp_bias)
        if shape.post_norms:
            y = graph.rms_norm(y, f"layers.{i}.mlp_post_norm", gamma(names.mlp_post_norm, shape.dim, i), shape.epsilon)
        x = graph.add(x, y, f"layers.{i}.mlp.residual")

    x = graph.rms_norm(x, "final_norm", gamma(names.final_norm, shape.dim, 0), shape.epsilon)
    head = embed if shape.tied else tensors.take(names.head, (shape.vocab_size, shape.dim))
    if not shape.head_softcap:
        return graph.finish(graph.linear(x, "head", head, output="logits"))
    return graph.finish(graph.softcap(graph.linear(x, "head", head), "head.softcap", shape.head_softcap, output="logits"))
