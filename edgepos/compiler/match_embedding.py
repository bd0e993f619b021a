"""What makes an embedding in the canonical graph: the pooling of all tokens to one row, and the Euclidean norm."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from .nodes import attributes, describe, input_count, refuse

EMBEDDING = "embedding"  # the output of such a graph
POOL_OPS = {"ReduceMean": "mean", "ReduceMax": "max"}
ENDS = {0: "first", -1: "last"}
FOUND = "Squeeze(ArgMax(input_ids)), or Squeeze(ArgMax(Cast(Equal(input_ids, id))))"


def pooling_of(node: ir.Node, inputs: Mapping[str, ir.Value], vocab: int) -> tuple[str, int, list[ir.Node]]:
    """(kind of POOL, its token id or 0, nodes that find the token) of a ReduceMean or ReduceMax over the tokens, or of the Gather of
    one of them: the first, the last, the first with an id, the first with the largest id.

    Raises UnsupportedError naming the node.
    """
    input_count(node, 2)
    index = node.inputs[1].producer() if node.inputs[1] is not None else None
    if node.op_type == "Gather" and index is not None and index.op_type == "Squeeze":
        attributes(node, axis=1)
        return _found_token(node, index, inputs, vocab)
    return _plain_kind(node), 0, []


def _found_token(node: ir.Node, squeeze: ir.Node, inputs: Mapping[str, ir.Value], vocab: int) -> tuple[str, int, list[ir.Node]]:
    """Gather(x, Squeeze(ArgMax(ids))), where ids is input_ids, or Cast(Equal(input_ids, id))."""
    parts = [squeeze]

    def producer(value: ir.Value | None, op: str, count: int, **allowed) -> ir.Node:
        found = value.producer() if value is not None else None
        if found is None or found.op_type != op:
            raise refuse(node, f"{describe(value)} where {op} is expected", f"the row of a token: {FOUND}")
        attributes(found, **allowed)
        input_count(found, count)
        parts.append(found)
        return found

    attributes(squeeze)
    input_count(squeeze, 2)
    if not _is_int64(squeeze.inputs[1], [0]):
        raise refuse(squeeze, f"axes {describe(squeeze.inputs[1])}", "axes [0]")
    largest = producer(squeeze.inputs[0], "ArgMax", 1, axis=1, keepdims=0, select_last_index=0)
    if largest.attributes.get_int("axis", 0) != 1 or largest.attributes.get_int("keepdims", 1) != 0:
        raise refuse(largest, "its axis or keepdims", "axis 1 and keepdims 0: over the tokens")
    if largest.inputs[0] is inputs.get("input_ids"):
        return "largest_id", 0, parts
    cast = producer(largest.inputs[0], "Cast", 1, to=int(ir.DataType.INT32), saturate=1)
    equal = producer(cast.inputs[0], "Equal", 2)
    constant = equal.inputs[1].const_value if equal.inputs[1] is not None else None
    if equal.inputs[0] is not inputs.get("input_ids") or constant is None or constant.dtype != ir.DataType.INT64 or constant.size != 1:
        raise refuse(equal, f"inputs {describe(equal.inputs[0])}, {describe(equal.inputs[1])}", "input_ids and an INT64 initializer with one id")
    token = int(constant.numpy().item())
    if not 0 <= token < vocab:
        raise refuse(equal, f"the id {token}", f"an id of the vocabulary, 0 to {vocab - 1}")
    return "token", token, parts


def _is_int64(value: ir.Value | None, wanted: list[int]) -> bool:
    constant = value.const_value if value is not None else None
    return constant is not None and constant.dtype == ir.DataType.INT64 and constant.numpy().tolist() == wanted


def _plain_kind(node: ir.Node) -> str:
    constant = node.inputs[1].const_value if node.inputs[1] is not None else None
    values = constant.numpy().tolist() if constant is not None and constant.dtype == ir.DataType.INT64 else None
    if node.op_type in POOL_OPS:
        if attributes(node, keepdims=0, noop_with_empty_axes=(0, 1)).get("keepdims", 1) != 0 or values != [1]:
            raise refuse(node, f"axes {describe(node.inputs[1])}, keepdims", "axes [1] and keepdims 0: over the tokens")
        return POOL_OPS[node.op_type]
    if attributes(node, axis=1).get("axis", 0) != 1 or values not in ENDS:
        raise refuse(node, f"a Gather of {describe(node.inputs[1])}", "one index, 0 or -1, on axis 1: the first or the last token")
    return ENDS[values]


def attributes_of_unit(node: ir.Node) -> None:
    """Refuse an LpNormalization that is not the Euclidean norm of the last axis."""
    attributes(node, axis=(-1, 1), p=2)
    input_count(node, 1)
