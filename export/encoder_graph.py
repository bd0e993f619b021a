"""EncoderGraph: the canonical graph of a model that turns a text into one row of numbers.

Attention goes in both directions, or is causal, and keeps no cache: the whole text is one call. Texts are not padded, so there is no mask of
padding. What follows the pooling is of shape [1, width].
"""

from __future__ import annotations

import json
import math

import numpy as np
import onnx_ir as ir

from edgepos.positions import T5Bias
from edgepos.positions.distances import distance_rows

from .graph import GraphBuilder
from .tensor_set import Weight

OUTPUT = "embedding"
POOLINGS = ("mean", "first", "last", "max", "token", "largest_id")


class EncoderGraph(GraphBuilder):
    """Builds one canonical graph with the output ``embedding`` [1, d]."""

    def embed(self, weight: Weight) -> ir.Value:
        """Rows of ``weight`` [vocab, d] for ``input_ids`` -> [1, S, d]; the model notes how many there are."""
        self._metadata["edgepos.vocabulary"] = str(weight.shape[0])
        return super().embed(weight)

    def relative_bias(self, table: Weight, spec: T5Bias) -> ir.Value:
        """The mask of a learned bias ``table`` [rows, heads], [1, heads, S, S]; layers with one table share it.

        The graph holds the table by key position − query position, −r … r, its ends for everything beyond.
        """
        if table.name not in self._biases:
            rows = distance_rows(spec, both=True)
            n, heads = len(rows), table.shape[1]
            by_distance = Weight(f"{table.name}.by_distance", np.asarray(table.array, np.float32)[rows], (n, heads))
            int64, prefix, shape = ir.DataType.INT64, f"bias.{len(self._biases)}", (1, "S", "S")
            reach = n // 2
            query_axis = self._constant("bias.query_axis", np.array([2], np.int64))
            key_axis = self._constant("bias.key_axis", np.array([1], np.int64))
            row = self._op("Unsqueeze", [self.position_ids, key_axis], f"{prefix}.keys", (1, 1, "S"), dtype=int64)
            column = self._op("Unsqueeze", [self.position_ids, query_axis], f"{prefix}.queries", (1, "S", 1), dtype=int64)
            away = self._op("Sub", [row, column], f"{prefix}.away", shape, dtype=int64)
            limits = [self._constant(f"{prefix}.{what}", np.array(value, np.int64)) for what, value in (("least", -reach), ("most", reach))]
            near = self._op("Clip", [away, *limits], f"{prefix}.near", shape, dtype=int64)
            place = self._op("Add", [near, limits[1]], f"{prefix}.row", shape, dtype=int64)
            values = self._op("Gather", [self._weight(by_distance), place], f"{prefix}.values", (*shape, heads), axis=0)
            metadata = {"edgepos.relative_bias": json.dumps(spec.to_json())}
            self._biases[table.name] = self._op("Transpose", [values], f"{prefix}.mask", (1, heads, "S", "S"), metadata=metadata, perm=[0, 3, 1, 2])
        return self._biases[table.name]

    def self_attention(
        self, q: ir.Value, k: ir.Value, v: ir.Value, name: str, *, heads: int, mask: ir.Value | None = None, causal: bool = False
    ) -> ir.Value:
        """Attention of all tokens to all tokens, or causal without a mask, q, k, v [1, S, heads*head_dim] -> the same shape."""
        scale = 1.0 / math.sqrt(int(q.shape[2]) // heads)
        inputs = [q, k, v] if mask is None else [q, k, v, mask]
        return self._op("Attention", inputs, name, tuple(q.shape), q_num_heads=heads, kv_num_heads=heads, scale=scale, is_causal=int(causal))

    def pool(self, x: ir.Value, kind: str, *, token: int = 0, output: str | None = None) -> ir.Value:
        """One row of all rows of x, [1, S, d] -> [1, d]; ``kind`` of POOLINGS, ``token`` the id that "token" looks for."""
        shape = (1, x.shape[2])
        if kind in ("mean", "max"):
            axes = self._constant("pool.axes", np.array([1], np.int64))
            return self._op("ReduceMean" if kind == "mean" else "ReduceMax", [x, axes], "pool", shape, output=output, keepdims=0)
        if kind in ("token", "largest_id"):
            return self._op("Gather", [x, self._found_token(kind, token)], "pool", shape, output=output, axis=1)
        index = self._constant("pool.index", np.array(0 if kind == "first" else -1, np.int64))
        return self._op("Gather", [x, index], "pool", shape, output=output, axis=1)

    def _found_token(self, kind: str, token: int) -> ir.Value:
        """The first token whose id is ``token`` (the first of all where there is none), or the first with the largest id; a number."""
        ids = self.input_ids
        if kind == "token":
            wanted = self._constant("pool.token", np.array([token], np.int64))
            same = self._op("Equal", [ids, wanted], "pool.same", (1, "S"), dtype=ir.DataType.BOOL)
            ids = self._op("Cast", [same], "pool.marks", (1, "S"), dtype=ir.DataType.INT32, to=int(ir.DataType.INT32))
        at = self._op("ArgMax", [ids], "pool.found", (1,), dtype=ir.DataType.INT64, axis=1, keepdims=0)
        return self._op("Squeeze", [at, self._constant("pool.axis", np.array([0], np.int64))], "pool.at", (), dtype=ir.DataType.INT64)

    def unit(self, x: ir.Value, name: str, *, output: str | None = None) -> ir.Value:
        """x over its Euclidean norm."""
        return self._op("LpNormalization", [x], name, tuple(x.shape), output=output, axis=-1, p=2)
