"""Tables as small ONNX graphs: the integers as initializers behind DequantizeLinear, opset 23, for ONNX Runtime.

Rotary: x [batch, heads, seq, head_dim] and position_ids [batch, seq] → y, by RotaryEmbedding. ALiBi: query_positions [q] and key_positions
[k] → bias [heads, q, k] in natural units for Attention's mask. Not available where positions have coordinates: RotaryEmbedding has one
position per token.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..errors import UnsupportedError
from .alibi_plan import BiasTablePlan
from .plan import TablePlan

OPSET = 23
IR_VERSION = 11
NEVER = -1e9  # what a saturated entry becomes: weight 0 in a float softmax


def rope_model(plan: TablePlan) -> bytes:
    """The ONNX file of a RoPE table; the attention factor is in the tables' scale, so it touches rotated components only."""
    spec = plan.spec
    if spec.axes is not None:
        raise UnsupportedError(f"{spec.encoding} has positions with coordinates; ONNX's RotaryEmbedding has one per token")
    scale = np.float32(spec.attention_factor / plan.full_scale)
    initializers = [_tensor("cos", plan.cos), _tensor("sin", plan.sin), _tensor("scale", scale)]
    rotary = {} if spec.rotary_dim == spec.head_dim else {"rotary_embedding_dim": spec.rotary_dim}
    nodes = [
        helper.make_node("DequantizeLinear", ["cos", "scale"], ["cos_cache"]),
        helper.make_node("DequantizeLinear", ["sin", "scale"], ["sin_cache"]),
        helper.make_node(
            "RotaryEmbedding",
            ["x", "cos_cache", "sin_cache", "position_ids"],
            ["y"],
            interleaved=int(spec.layout == "interleaved"),
            **rotary,
        ),
    ]
    vector = ["batch", "heads", "seq", spec.head_dim]
    inputs = [_value("x", TensorProto.FLOAT, vector), _value("position_ids", TensorProto.INT64, ["batch", "seq"])]
    return _model(f"rope_int{plan.bits}", nodes, inputs, _value("y", TensorProto.FLOAT, vector), initializers)


def alibi_model(plan: BiasTablePlan) -> bytes:
    """The ONNX file of an ALiBi bias table; saturated entries become −10^9. Distances beyond the table count as its last."""
    initializers = [
        _tensor("table", plan.table),
        _tensor("saturated", np.array(plan.saturated, dtype=plan.table.dtype)),
        _tensor("scale", np.float32(plan.scale * math.log(2))),
        _tensor("never", np.float32(NEVER)),
        _tensor("last", np.int64(plan.context - 1)),
        _tensor("axis_q", np.array([1], dtype=np.int64)),
        _tensor("axis_k", np.array([0], dtype=np.int64)),
    ]
    nodes = [
        helper.make_node("Unsqueeze", ["query_positions", "axis_q"], ["q"]),
        helper.make_node("Unsqueeze", ["key_positions", "axis_k"], ["k"]),
        helper.make_node("Sub", ["q", "k"], ["difference"]),
        *_distance(plan.spec.symmetric),
        helper.make_node("Min", ["distance", "last"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["entries"], axis=1),
        helper.make_node("DequantizeLinear", ["entries", "scale"], ["finite"]),
        helper.make_node("Cast", ["entries"], ["entries32"], to=TensorProto.INT32),
        helper.make_node("Cast", ["saturated"], ["saturated32"], to=TensorProto.INT32),
        helper.make_node("Equal", ["entries32", "saturated32"], ["gone"]),
        helper.make_node("Where", ["gone", "never", "finite"], ["bias"]),
    ]
    inputs = [_value("query_positions", TensorProto.INT64, ["q"]), _value("key_positions", TensorProto.INT64, ["k"])]
    output = _value("bias", TensorProto.FLOAT, [plan.spec.heads, "q", "k"])
    return _model(f"alibi_int{plan.bits}", nodes, inputs, output, initializers)


def _distance(symmetric: bool) -> list[onnx.NodeProto]:
    """difference → distance: its absolute value, or the larger of it and 0."""
    if symmetric:
        return [helper.make_node("Abs", ["difference"], ["distance"])]
    zero = helper.make_node("Sub", ["difference", "difference"], ["zero"])
    return [zero, helper.make_node("Max", ["difference", "zero"], ["distance"])]


def _tensor(name: str, array) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def _value(name: str, kind: int, shape: list) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(name: str, nodes, inputs, output, initializers) -> bytes:
    graph = helper.make_graph(nodes, name, inputs, [output], initializers)
    model = helper.make_model(graph, producer_name="edgepos", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)
