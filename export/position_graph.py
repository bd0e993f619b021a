"""Each position encoding alone, as a canonical float graph: what `GraphBuilder` puts into a model, and what no decoder can hold.

| encoding | inputs | output |
|---|---|---|
| Rope, AngleRope | x [1, S, heads·head_dim], position_ids [1, S] | y, as x |
| MRope, AxialRope | x, position_coordinates [1, S, axes] | y, as x |
| Alibi, T5Bias, RelativeBias over one coordinate | position_ids [1, S], key_position_ids [1, K] | mask [1, heads, S, K] |
| Alibi, padded=True | attention_mask [1, K], 0 for padding | mask [1, heads, K, K] |
| RelativeBias over more | position_coordinates [1, S, axes], key_position_coordinates [1, K, axes] | mask [1, heads, S, K] |
| Learned, Sinusoidal | position_ids [1, S] | rows [1, S, d] |
| Learned with a padding id | input_ids [1, S], tokens_before [1] | rows [1, S, d] |
| Sinusoidal2D | position_coordinates [1, S, 2] (row, column) | rows [1, S, d] |

Positions and token ids are int64, the rest is float32. A mask is added to the scores; hiding keys is the attention's business.
"""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import (
    Alibi, AngleRope, AxialRope, Hybrid, Learned, MRope, NoPosition, RelativeBias, Rope, Sinusoidal, Sinusoidal2D, Spec, T5Bias,
)  # fmt: skip
from edgepos.positions.spec import check_context, check_count

from .graph import GraphBuilder
from .tensor_set import Weight

INT64 = ir.DataType.INT64
ENCODING = "edgepos.position_encoding"  # metadata of the model: the JSON of the spec


def position_graph(spec: Spec, context: int, *, heads: int = 1, table: np.ndarray | None = None, padded: bool = False) -> ir.Model:
    """The canonical graph of one encoding, opset 23.

    context: positions 0 … context − 1 of each coordinate have rows in its tables; length-dependent rotations take it for the session's
    length. heads: of x, where the spec does not say.
    table: the learned numbers, [rows, heads] of a bias (of one layer, where each has its own), [count, d] of positions. padded: Alibi by a padding mask.
    Raises UnsupportedError for what computes nothing or is several encodings, FormatError for a table of another shape.
    """
    check_context(context), check_count("heads", heads, 1, 2**16)
    if isinstance(spec, (Hybrid, NoPosition)):
        raise UnsupportedError(f"{spec.encoding} has no graph of its own; make one for each encoding of a hybrid")
    if padded and not isinstance(spec, Alibi):
        raise UnsupportedError(f"padded is for alibi, not for {spec.encoding}; learned positions have a pad_id instead")
    if isinstance(spec, AngleRope) and callable(spec.angles):
        spec = spec.tabulated(context)
    builder = _PositionGraph(spec, context)
    if isinstance(spec, (Learned, T5Bias, RelativeBias)):
        table = _checked(spec, table)
    elif table is not None:
        raise FormatError(f"{spec.encoding} has no learned table; leave table out")
    if isinstance(spec, (Rope, AngleRope, MRope, AxialRope)):
        return builder.model(builder.rotation(heads))
    if isinstance(spec, Alibi):
        return builder.model(builder.alibi_mask(padded))
    if isinstance(spec, (T5Bias, RelativeBias)):
        return builder.model(builder.learned_mask(table))
    return builder.model(builder.rows(table))


def _checked(spec: Learned | T5Bias | RelativeBias, table) -> np.ndarray:
    rows = spec.count if isinstance(spec, Learned) else spec.rows
    array = None if table is None else np.asarray(table, np.float32)
    if array is None or array.ndim != 2 or array.shape[0] != rows or not array.shape[1]:
        found = "missing" if array is None else f"of shape {list(array.shape)}"
        raise FormatError(f"the learned table is {found}; {spec.encoding} needs [{rows}, {'d' if isinstance(spec, Learned) else 'heads'}]")
    return array


class _PositionGraph(GraphBuilder):
    """Builds one graph; inputs that nothing reads are left out of it."""

    def __init__(self, spec: Spec, context: int):
        super().__init__(name=spec.encoding, family="positions", context=context)
        self._spec = spec

    def model(self, output: ir.Value) -> ir.Model:
        self._inputs = [value for value in self._inputs if value.uses()]
        model = self.finish(output)
        model.metadata_props[ENCODING] = json.dumps(self._spec.to_json())
        return model

    def _integers(self, op: str, inputs: list, name: str, shape: tuple, **attributes) -> ir.Value:
        return self._op(op, inputs, name, shape, dtype=INT64, **attributes)

    def _number(self, name: str, value) -> ir.Value:
        return self._constant(name, np.array(value, np.int64))

    def _coordinates(self, axes: int) -> ir.Value:
        return self._input("position_coordinates", INT64, (1, "S", axes))

    # ---- rotation

    def rotation(self, heads: int) -> ir.Value:
        spec = self._spec
        x = self._input("x", ir.DataType.FLOAT, (1, "S", heads * spec.head_dim))
        if spec.axes is None:
            return self.rope(x, "y", heads=heads, spec=spec)
        return self._rotation_by_coordinates(x, heads)

    def _rotation_by_coordinates(self, x: ir.Value, heads: int) -> ir.Value:
        """cos and sin of pair j at the coordinate that turns it."""
        spec, pairs = self._spec, self._spec.pairs
        if not pairs:
            raise UnsupportedError(f"{spec.encoding} turns no pair; there is nothing to compute")
        at = self._coordinates(max(spec.axes) + 1)
        axis = self._number("rope.axes", spec.axes)
        of_pairs = self._integers("Gather", [at, axis], "rope.of_pairs", (1, "S", pairs), axis=2)
        flat = self._integers("Reshape", [of_pairs, self._number("rope.flat", [-1, pairs])], "rope.rows", ("S", pairs))
        first = self._number("rope.first", [0])
        parts = []
        for name, values in zip(("cos", "sin"), spec.cos_sin(self._along_all_axes(), self._context)):
            table = self._constant(f"rope.{name}", (values * spec.attention_factor).astype(np.float32))
            rows = self._op("GatherElements", [table, flat], f"rope.{name}_rows", ("S", pairs), axis=0)
            parts.append(self._op("Unsqueeze", [rows, first], f"rope.{name}_at", (1, "S", pairs)))
        partial = {} if spec.rotary_dim == spec.head_dim else {"rotary_embedding_dim": spec.rotary_dim}
        turned = {"num_heads": heads, "interleaved": int(spec.layout == "interleaved"), **partial}
        return self._op("RotaryEmbedding", [x, *parts], "y", tuple(x.shape), **turned)

    def _along_all_axes(self) -> np.ndarray:
        """The positions (p, p, …) for p < context: pair j of row p is then what coordinate p does to it."""
        return np.repeat(np.arange(self._context)[:, None], max(self._spec.axes) + 1, axis=1)

    # ---- masks

    def _away(self, queries: ir.Value, keys: ir.Value, trail: tuple = ()) -> ir.Value:
        """key − query [1, S, K, …] of positions [1, S, …] and [1, K, …]."""
        column = self._integers("Unsqueeze", [queries, self._number("mask.query_axis", [2])], "mask.queries", (1, "S", 1, *trail))
        row = self._integers("Unsqueeze", [keys, self._number("mask.key_axis", [1])], "mask.keys", (1, 1, "K", *trail))
        return self._integers("Sub", [row, column], "mask.away", (1, "S", "K", *trail))

    def alibi_mask(self, padded: bool) -> ir.Value:
        """−slope · distance; padded: positions count the tokens that are not padding, which sits at position 0."""
        spec, zero = self._spec, self._number("mask.zero", 0)
        if padded:
            given = self._input("attention_mask", INT64, (1, "K"))
            axis, one = self._number("mask.axis", 1), self._number("mask.one", 1)
            count = self._integers("CumSum", [given, axis], "mask.count", (1, "K"))
            rank = self._integers("Sub", [count, one], "mask.rank", (1, "K"))
            queries = keys = self._integers("Mul", [rank, given], "mask.positions", (1, "K"))
        else:
            queries, keys = self.position_ids, self._input("key_position_ids", INT64, (1, "K"))
        away = self._away(queries, keys)
        if spec.symmetric:
            far = self._integers("Abs", [away], "mask.distance", (1, "S", "K"))
            far = self._integers("Neg", [far], "mask.signed", (1, "S", "K"))
        else:
            far = self._integers("Min", [away, zero], "mask.signed", (1, "S", "K"))
        steps = self._op("Cast", [far], "mask.steps", (1, "S", "K"), to=int(ir.DataType.FLOAT))
        steps = self._op("Unsqueeze", [steps, self._number("mask.head_axis", [1])], "mask.heads", (1, 1, "S", "K"))
        slopes = self._constant("mask.slopes", spec.slopes().astype(np.float32).reshape(1, -1, 1, 1))
        return self._op("Mul", [slopes, steps], "mask", (1, spec.heads, "S", "K"))

    def learned_mask(self, table: np.ndarray) -> ir.Value:
        axes = 1 if isinstance(self._spec, T5Bias) else len(self._spec.extents)
        values, rows = self._by_difference(table) if axes == 1 else self._by_coordinates(table, axes)
        entries = self._op("Gather", [values, rows], "mask.entries", (1, "S", "K", table.shape[1]), axis=0)
        return self._op("Transpose", [entries], "mask", (1, table.shape[1], "S", "K"), perm=[0, 3, 1, 2])

    def _by_difference(self, table: np.ndarray) -> tuple[ir.Value, ir.Value]:
        """The table by key − query, −r … r, its ends for everything beyond; the row of each pair."""
        reach = self._reach()
        rows = self._spec.bucket(np.arange(-reach, reach + 1))
        values = self._weight(Weight("mask.table", table[rows], (len(rows), table.shape[1])))
        away = self._away(self.position_ids, self._input("key_position_ids", INT64, (1, "K")))
        most = self._number("mask.most", reach)
        near = self._integers("Clip", [away, self._number("mask.least", -reach), most], "mask.near", (1, "S", "K"))
        return values, self._integers("Add", [near, most], "mask.row", (1, "S", "K"))

    def _reach(self) -> int:
        """The first distance that shares its row with all greater ones."""
        if isinstance(self._spec, RelativeBias):
            return self._spec.extents[0]
        return self._spec.thresholds[-1] if self._spec.thresholds else self._spec.exact_buckets

    def _by_coordinates(self, table: np.ndarray, axes: int) -> tuple[ir.Value, ir.Value]:
        """Differences clipped to the extents, then a row-major number."""
        spec, shape = self._spec, (1, "S", "K", axes)
        queries, keys = self._coordinates(axes), self._input("key_position_coordinates", INT64, (1, "K", axes))
        away = self._away(queries, keys, (axes,))
        if spec.query_minus_key:
            away = self._integers("Neg", [away], "mask.turned", shape)
        extents = np.array(spec.extents, np.int64)
        most, least = self._number("mask.most", extents), self._number("mask.least", -extents)
        near = self._integers("Max", [self._integers("Min", [away, most], "mask.below", shape), least], "mask.near", shape)
        sizes = 2 * extents + 1
        strides = self._number("mask.strides", [int(np.prod(sizes[a + 1 :])) for a in range(axes)])
        parts = self._integers("Mul", [self._integers("Add", [near, most], "mask.places", shape), strides], "mask.parts", shape)
        row = self._integers("ReduceSum", [parts, self._number("mask.last", [3])], "mask.row", (1, "S", "K"), keepdims=0)
        return self._weight(Weight("mask.table", table, table.shape)), row

    # ---- rows for the embeddings

    def rows(self, table: np.ndarray | None) -> ir.Value:
        spec = self._spec
        if isinstance(spec, Sinusoidal2D):
            return self._two_halves()
        if isinstance(spec, Sinusoidal):
            values = self._constant("rows.table", spec.table(np.arange(self._context)).astype(np.float32))
            return self._op("Gather", [values, self.position_ids], "rows", (1, "S", spec.dim), axis=0)
        values = self._weight(Weight("rows.table", table, table.shape))
        at = self._counted() if spec.pad_id is not None else self._repeated(self.position_ids)
        if spec.pad_id is None:
            at = self._integers("Add", [at, self._number("rows.offset", spec.offset)], "rows.row", (1, "S"))
        return self._op("Gather", [values, at], "rows", (1, "S", table.shape[1]), axis=0)

    def _repeated(self, at: ir.Value) -> ir.Value:
        if self._spec.modulo is None:
            return at
        return self._integers("Mod", [at, self._number("rows.modulo", self._spec.modulo)], "rows.repeated", (1, "S"))

    def _counted(self) -> ir.Value:
        """The row of each token: padding has the one before the first, the others are counted from tokens_before on."""
        before = self._input("tokens_before", INT64, (1,))
        padding = self._op("Equal", [self.input_ids, self._number("rows.pad", self._spec.pad_id)], "rows.padding", (1, "S"), dtype=ir.DataType.BOOL)
        real = self._op("Not", [padding], "rows.real", (1, "S"), dtype=ir.DataType.BOOL)
        ones = self._integers("Cast", [real], "rows.ones", (1, "S"), to=int(INT64))
        count = self._integers("CumSum", [ones, self._number("rows.axis", 1)], "rows.count", (1, "S"))
        rank = self._integers("Add", [count, before], "rows.rank", (1, "S"))
        last = self._integers("Sub", [rank, self._number("rows.one", 1)], "rows.position", (1, "S"))
        row = self._integers("Add", [self._repeated(last), self._number("rows.offset", self._spec.offset)], "rows.row", (1, "S"))
        return self._integers("Where", [padding, self._number("rows.pad_row", self._spec.offset - 1), row], "rows.chosen", (1, "S"))

    def _two_halves(self) -> ir.Value:
        part = self._spec.part
        values = self._constant("rows.table", part.table(np.arange(self._context)).astype(np.float32))
        at, halves = self._coordinates(2), {}
        for axis, name in enumerate(("row", "column")):
            place = self._integers("Gather", [at, self._number(f"rows.{name}_axis", axis)], f"rows.{name}", (1, "S"), axis=2)
            halves[name] = self._op("Gather", [values, place], f"rows.{name}_half", (1, "S", part.dim), axis=0)
        order = ("row", "column") if self._spec.row_first else ("column", "row")
        return self._op("Concat", [halves[name] for name in order], "rows", (1, "S", self._spec.dim), axis=-1)
