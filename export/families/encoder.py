"""Encoders with a norm behind each sum: BERT, RoBERTa, XLM-RoBERTa, MPNet. One builder; a family is a table of module names and settings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgepos.positions import Learned, T5Bias

from ..encoder_graph import EncoderGraph
from ..sentence_head import SentenceHead
from ..tensor_set import TensorSet, Weight


@dataclass(frozen=True)
class EncoderShape:
    """The numbers that decide the graph.

    positions: rows of the table of positions; offset: row of the first one. types: rows of the token types' table, 0: there is none.
    activation: a method of EncoderGraph. bias: a relative one on the scores, which all layers share.
    """

    vocab_size: int
    dim: int
    hidden_dim: int
    layers: int
    heads: int
    context: int
    positions: int
    offset: int
    types: int
    epsilon: float
    activation: str
    bias: T5Bias | None = None


@dataclass(frozen=True)
class EncoderNames:
    """Module names, without ".weight" and ".bias"; ``{i}`` is the layer."""

    embed: str
    positions: str
    types: str
    embed_norm: str
    q: str
    k: str
    v: str
    out: str
    attn_norm: str
    up: str
    down: str
    mlp_norm: str
    bias: str = ""


def build(shape: EncoderShape, tensors: TensorSet, names: EncoderNames, head: SentenceHead, name: str, *, family: str) -> ir.Model:
    """The canonical graph; takes every tensor it needs from ``tensors``."""
    s = shape
    graph = EncoderGraph(name=name, family=family, context=s.context)

    def weight(module: str, *dims: int) -> Weight:
        return tensors.take(f"{module}.weight", dims)

    def norm(x: ir.Value, node: str, module: str) -> ir.Value:
        return graph.layer_norm(x, node, weight(module, s.dim), tensors.take(f"{module}.bias", (s.dim,)), s.epsilon)

    def linear(x: ir.Value, node: str, module: str, rows: int, columns: int) -> ir.Value:
        return graph.linear(x, node, weight(module, rows, columns), tensors.take(f"{module}.bias", (rows,)))

    x = graph.embed(weight(names.embed, s.vocab_size, s.dim))
    table = _position_rows(s, weight(names.positions, s.positions, s.dim), weight(names.types, s.types, s.dim) if s.types else None)
    x = norm(graph.learned_positions(x, table, Learned(s.positions, s.offset)), "embed_norm", names.embed_norm)
    mask = graph.relative_bias(weight(names.bias, s.bias.rows, s.heads), s.bias) if s.bias else None
    for i in range(s.layers):
        layer = f"layers.{i}."
        q, k, v = (linear(x, f"{layer}attn.{part}", getattr(names, part).format(i=i), s.dim, s.dim) for part in "qkv")
        y = graph.self_attention(q, k, v, f"{layer}attn", heads=s.heads, mask=mask)
        y = linear(y, f"{layer}attn.out", names.out.format(i=i), s.dim, s.dim)
        x = norm(graph.add(x, y, f"{layer}attn.residual"), f"{layer}attn_norm", names.attn_norm.format(i=i))
        y = linear(x, f"{layer}mlp.up", names.up.format(i=i), s.hidden_dim, s.dim)
        y = getattr(graph, s.activation)(y, f"{layer}mlp.act")
        y = linear(y, f"{layer}mlp.down", names.down.format(i=i), s.dim, s.hidden_dim)
        x = norm(graph.add(x, y, f"{layer}mlp.residual"), f"{layer}mlp_norm", names.mlp_norm.format(i=i))
    return graph.finish(head.add(graph, x))


def _position_rows(shape: EncoderShape, positions: Weight, types: Weight | None) -> Weight:
    """The table of positions, plus the row of token type 0, which every token of a single text has; their sum is rounded once."""
    if types is None:
        return positions
    row = np.asarray(types.array[:1], np.float32).reshape(1, shape.dim).astype(np.float64)
    rows = np.asarray(positions.array, np.float32).reshape(positions.shape).astype(np.float64) + row
    return Weight(f"{positions.name.removesuffix('.weight')}.with_type.weight", rows.astype(np.float32), positions.shape)
