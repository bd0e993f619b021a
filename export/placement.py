"""Placement: the position encoding of a decoder, as a spec, put into the canonical graph.

A decoder's token has one position, so M-RoPE turns as it does in a text: all coordinates equal, which is its inner Rope.
"""

from __future__ import annotations

import onnx_ir as ir

from edgepos.errors import UnsupportedError
from edgepos.positions import (
    Alibi, AngleRope, AxialRope, Hybrid, Learned, MRope, NoPosition, RelativeBias, Rope, Sinusoidal, Sinusoidal2D, Spec, T5Bias,
)  # fmt: skip

from .graph import GraphBuilder
from .tensor_set import TensorSet

POSITION_ROWS = "model.embed_positions.weight"
BIAS_ROWS = "model.relative_attention_bias.weight"
LAYER_BIAS_ROWS = "model.layers.{i}.relative_attention_bias.weight"
# specs without a place in a decoder, and why
NO_PLACE = {
    AxialRope: "it turns by coordinates of an image, and a decoder's token has one position",
    Sinusoidal2D: "its rows are those of coordinates of an image, and a decoder's token has one position",
}


class Placement:
    """Adds to embeddings, rotates q and k, gives the mask: whatever ``encoding`` says for a layer.

    Learned values are the tensors ``model.embed_positions.weight`` [count, d] and ``model.relative_attention_bias.weight``
    [rows, heads] for all layers, or one of each layer (spec.layers). Raises UnsupportedError for a spec that has no form here.
    """

    def __init__(self, graph: GraphBuilder, encoding: Spec, tensors: TensorSet, *, layers: int, heads: int, head_dim: int):
        self._graph, self._tensors = graph, tensors
        self._heads, self._head_dim = heads, head_dim
        if isinstance(encoding, Hybrid):
            self._added, self._layers = encoding.embedding, encoding.layers
            if len(self._layers) != layers:
                raise UnsupportedError(f"hybrid positions describe {len(self._layers)} layers of {layers}; give one spec per layer")
        elif isinstance(encoding, (Learned, Sinusoidal)):
            self._added, self._layers = encoding, (NoPosition(),)
        else:
            self._added, self._layers = NoPosition(), (encoding,)
        self._layers = tuple(spec.rope if isinstance(spec, MRope) else spec for spec in self._layers)
        for spec in dict.fromkeys((self._added, *self._layers)):
            self._check(spec)
        biases = {spec for spec in self._layers if isinstance(spec, (T5Bias, RelativeBias))}
        if len(biases) > 1:
            raise UnsupportedError("hybrid positions with two different biases; supported: one, in any layers")
        for bias in biases:
            users = layers if len(self._layers) == 1 else self._layers.count(bias)
            if bias.layers not in (None, users):
                raise UnsupportedError(f"positions {bias}: tables for {bias.layers} layers, but {users} have this bias; give one table per layer")

    def _check(self, spec: Spec) -> None:
        """Refuse what the graph or the integer runtime cannot express."""
        known = {
            Learned: lambda: spec.pad_id is None,
            Sinusoidal: lambda: True,
            NoPosition: lambda: True,
            Rope: lambda: spec.pairs > 0 and spec.head_dim == self._head_dim,
            AngleRope: lambda: spec.pairs > 0 and spec.head_dim == self._head_dim,
            Alibi: lambda: spec.heads == self._heads,
            T5Bias: lambda: not spec.bidirectional,
            RelativeBias: lambda: len(spec.extents) == 1,
        }
        if type(spec) in NO_PLACE:
            raise UnsupportedError(f"positions {spec}: not supported in a decoder: {NO_PLACE[type(spec)]}; edgepos.export.position_graph makes its graph")
        if type(spec) not in known or not known[type(spec)]():
            raise UnsupportedError(
                f"positions {spec}: not supported in a decoder; supported: learned without pad_id, sinusoidal, rope over the "
                f"whole head of {self._head_dim} or its first part, alibi of {self._heads} heads, causal t5, relative over one coordinate, none"
            )

    def _layer(self, layer: int) -> Spec:
        """The spec of a layer; one that all share is kept once, because a broken config may ask for 10^9 layers."""
        return self._layers[layer if len(self._layers) > 1 else 0]

    def add(self, x: ir.Value, dim: int) -> ir.Value:
        """The embeddings x [1, S, dim] with their positions."""
        if isinstance(self._added, Learned):
            table = self._tensors.take(POSITION_ROWS, (self._added.count, dim))
            return self._graph.learned_positions(x, table, self._added)
        if isinstance(self._added, Sinusoidal):
            if self._added.dim != dim:
                raise UnsupportedError(f"sinusoidal positions have dim {self._added.dim} for embeddings of {dim}; they must be equal")
            return self._graph.sinusoidal_positions(x, self._added)
        return x

    def rotate(self, x: ir.Value, name: str, layer: int, heads: int) -> ir.Value:
        """q or k of a layer, rotated where its spec is a Rope."""
        spec = self._layer(layer)
        if not isinstance(spec, (Rope, AngleRope)):
            return x
        return self._graph.rope(x, name, heads=heads, spec=spec)

    def mask(self, layer: int) -> ir.Value | None:
        """The attention mask of a layer, or None."""
        spec = self._layer(layer)
        if isinstance(spec, Alibi):
            return self._graph.alibi(self._heads, spec.slopes())
        if isinstance(spec, (T5Bias, RelativeBias)):
            name = BIAS_ROWS if spec.layers is None else LAYER_BIAS_ROWS.format(i=layer)
            return self._graph.relative_bias(self._tensors.take(name, (spec.rows, self._heads)), spec)
        return None
