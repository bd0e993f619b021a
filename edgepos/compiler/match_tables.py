"""Positions in the canonical graph that are learned or read from tables: rows added to embeddings, and attention biases."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir

from .. import positions
from ..errors import EdgePosError
from ..positions import Learned, RelativeBias, Sinusoidal, Spec, T5Bias
from ..positions.distances import distance_rows
from .match_positions import ROWS, TABLE_TOLERANCE
from .nodes import attributes, const_shape, describe, float_initializer, input_count, refuse

POSITION, BIAS = "edgepos.position", "edgepos.relative_bias"
BIAS_FORM = "Transpose(Gather(table [n, heads], Clip(Unsqueeze(position_ids) − Unsqueeze(key_position_ids), 0, n − 1)))"
BOTH_FORM = "Transpose(Gather(table [2r + 1, heads], Clip(Unsqueeze(position_ids) − Unsqueeze(position_ids), −r, r) + r)): key − query"


def is_part(node: ir.Node, inputs: dict[str, ir.Value]) -> bool:
    """True for a node that only makes sense as a part of one of the forms below."""
    if BIAS in node.metadata_props or node.op_type == "Clip":
        return True
    if node.op_type in ("Add", "Mod"):
        x = node.inputs[0]
        return _is_place(node.outputs[0]) or x is not None and (x is inputs.get("position_ids") or node.op_type == "Add" and _op(x) == "Mod")
    return node.op_type == "Gather" and len(node.inputs) == 2 and (_op(node.inputs[1]) == "Clip" or _is_place(node.inputs[1]))


def _is_place(value: ir.Value | None) -> bool:
    """True for the sum that makes a row number of a distance in either direction."""
    return _op(value) == "Add" and _op(value.producer().inputs[0]) == "Clip"


def rows_of(node: ir.Node, inputs: dict[str, ir.Value]) -> tuple[str, Learned | Sinusoidal, int, list[ir.Node]]:
    """(table, spec, offset of the first position's row, nodes that make the row) of Gather(table, Add(x, offset)), where x is
    position_ids or Mod(position_ids, modulo).

    Raises UnsupportedError naming the node.
    """
    add = node.inputs[1].producer()
    attributes(add)
    nodes, modulo = [add], None
    if _op(add.inputs[0]) == "Mod":
        mod = add.inputs[0].producer()
        attributes(mod, fmod=0)
        modulo = _integer(mod.inputs[1])
        if mod.inputs[0] is not inputs.get("position_ids") or modulo is None:
            raise refuse(mod, f"inputs {describe(mod.inputs[0])}, {describe(mod.inputs[1])}", "position_ids and an INT64 initializer")
        nodes.append(mod)
    offset = add.inputs[1].const_value if add.inputs[1] is not None else None
    if offset is None or offset.dtype != ir.DataType.INT64 or tuple(offset.shape) != (1,) or not 0 <= int(offset.numpy()[0]) <= 2**20:
        raise refuse(add, f"offset is {describe(add.inputs[1])}", "an INT64 initializer [1] with a number from 0 to 2^20")
    offset = int(offset.numpy()[0])
    name = float_initializer(node, 0, rank=2)
    rows, width = const_shape(node.inputs[0])
    spec = _spec(node, POSITION, (Learned, Sinusoidal))
    if isinstance(spec, Learned):
        if (spec.count, spec.offset, spec.modulo, spec.pad_id) != (rows, offset, modulo, None):
            found = f"{spec} for a table of {rows} rows, offset {offset} and modulo {modulo}"
            raise refuse(node, found, "count, offset and modulo that agree, no pad_id")
    elif spec.dim != width or offset or modulo is not None:
        raise refuse(node, f"{spec} for a table of width {width} and offset {offset}", "dim that agrees, offset 0 (start is in the table)")
    else:
        _check_sinusoids(node, spec, node.inputs[0].const_value.numpy())
    return name, spec, offset, nodes


def bias_of(
    attention: ir.Node, mask: ir.Value, heads: int, inputs: dict[str, ir.Value], both: bool = False
) -> tuple[str, T5Bias | RelativeBias, list[ir.Node]]:
    """(table [n, heads] by distance, spec, nodes that make the mask) of an attn_mask of the form BIAS_FORM, both: BOTH_FORM.

    Rows whose distances share a bucket must be equal. Raises UnsupportedError naming the part that differs.
    """
    transpose = mask.producer()
    spec, form = _spec(transpose, BIAS, (T5Bias, RelativeBias)), BOTH_FORM if both else BIAS_FORM
    try:
        rows = distance_rows(spec, both)
    except EdgePosError as error:
        raise refuse(transpose, f"metadata {BIAS}: {error}", form) from None
    least, most = (-(len(rows) // 2), len(rows) // 2) if both else (0, len(rows) - 1)
    nodes = []

    def producer(value: ir.Value | None, op: str, count: int, **allowed) -> ir.Node:
        if _op(value) != op:
            raise refuse(attention, f"{describe(value)} where {op} is expected", form)
        node = value.producer()
        attributes(node, **allowed)
        input_count(node, count)
        nodes.append(node)
        return node

    producer(mask, "Transpose", 1, perm=[0, 3, 1, 2])
    gather = producer(transpose.inputs[0], "Gather", 2, axis=0)
    table = float_initializer(gather, 0, dims=(len(rows), heads))
    place = gather.inputs[1]
    if both:
        add = producer(place, "Add", 2)
        if _integer(add.inputs[1]) != most:
            raise refuse(add, f"{describe(add.inputs[1])} is added", f"the number {most}")
        place = add.inputs[0]
    clip = producer(place, "Clip", 3)
    limits = [_integer(value) for value in clip.inputs[1:]]
    if limits != [least, most]:
        raise refuse(clip, f"limits {limits}", f"{least} and {most}")
    sub = producer(clip.inputs[0], "Sub", 2)
    operands = (("position_ids", [1]), ("position_ids", [2])) if both else (("position_ids", [2]), ("key_position_ids", [1]))
    for value, (source, axes) in zip(sub.inputs, operands):
        unsqueeze = producer(value, "Unsqueeze", 2)
        x, axis = unsqueeze.inputs
        if x is None or x is not inputs.get(source) or axis.const_value is None or axis.const_value.numpy().tolist() != axes:
            raise refuse(unsqueeze, f"inputs {describe(x)}, {describe(axis)}", f"{source} with axes {axes}")
    values = gather.inputs[0].const_value.numpy()
    first = np.unique(rows, return_index=True, return_inverse=True)
    wrong = (values != values[first[1]][first[2]]).any(axis=1)
    if wrong.any():
        raise refuse(gather, f"'{table}' differs inside the bucket of distance {int(np.argmax(wrong))}", f"one row per bucket of {spec}")
    return table, spec, nodes


def _op(value: ir.Value | None) -> str | None:
    producer = value.producer() if value is not None else None
    return None if producer is None else producer.op_type


def _integer(value: ir.Value | None) -> int | None:
    """The number in an INT64 scalar initializer."""
    tensor = value.const_value if value is not None else None
    return int(tensor.numpy()) if tensor is not None and tensor.dtype == ir.DataType.INT64 and tensor.size == 1 else None


def _spec(node: ir.Node, key: str, allowed: tuple[type, ...]) -> Spec:
    """The spec in metadata `key`."""
    wanted = f"the JSON of {' or '.join(cls.__name__ for cls in allowed)}"
    text = node.metadata_props.get(key)
    try:
        spec = positions.from_json(json.loads(text)) if text is not None else None
    except (ValueError, EdgePosError) as error:
        raise refuse(node, f"metadata {key}: {error}", wanted) from None
    if not isinstance(spec, allowed):
        raise refuse(node, f"metadata {key} is {text!r}", wanted)
    return spec


def _check_sinusoids(node: ir.Node, spec: Sinusoidal, table: np.ndarray) -> None:
    for start in range(0, len(table), ROWS):
        part = table[start : start + ROWS]
        exact = spec.table(np.arange(start, start + len(part)))
        wrong = ~(np.abs(part - exact) <= TABLE_TOLERANCE * spec.scale)
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise refuse(
                node,
                f"its table holds {part[row, column]} at position {start + row}, component {column}, but its metadata gives {exact[row, column]:.9g}",
                "a table that agrees with the metadata",
            )
