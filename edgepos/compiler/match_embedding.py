"""What makes an embedding in the canonical graph: the pooling of all tokens to one row, and the Euclidean norm."""

from __future__ import annotations

import onnx_ir as ir

from .nodes import attributes, describe, input_count, refuse

EMBEDDING = "embedding"  # the output of such a graph
POOL_OPS = {"ReduceMean": "mean", "ReduceMax": "max"}
ENDS = {0: "first", -1: "last"}


def pool_kind(node: ir.Node) -> str:
    """The kind of POOL of a ReduceMean or ReduceMax over the tokens, or of the Gather of the first or last one.

    Raises UnsupportedError naming the node.
    """
    input_count(node, 2)
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
