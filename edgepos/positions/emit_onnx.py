"""Tables as small ONNX graphs: the integers as initializers behind DequantizeLinear, opset 23, for ONNX Runtime.

| table | inputs | output |
|---|---|---|
| rotary | x [batch, heads, seq, head_dim], position_ids [batch, seq] (with coordinates [batch, seq, axes]) | y, as x |
| ALiBi, T5 | query_positions [q], key_positions [k]; Q, K, V [batch, heads, q or k, head_dim] | bias [heads, q, k] in natural units; Y: Attention with it |
| relative | rows [q, k] of the table; Q, K, V | bias [heads, q, k]; Y |
| learned, sinusoidal | position_ids [batch, seq] (2-D sinusoidal: [batch, seq, 2]: row, column) | embedding [batch, seq, dim] |

A learned bias with a table per layer takes the number of the layer as `layer` (scalar). Keys after the query are hidden from Y where the
encoding is causal. Scores are Q·K / sqrt(head_dim), for T5 Q·K.
"""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .alibi_plan import BiasTablePlan
from .bias_plan import LearnedBiasPlan
from .learned import LearnedPlan
from .plan import TablePlan
from .relative import T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal2D, SinusoidalPlan

OPSET = 23
IR_VERSION = 11
NEVER = -1e9  # what a saturated entry becomes: weight 0 in a float softmax
HIDDEN = -1e38  # what a key after the query gets: below every saturated entry


def graph_of(plan) -> bytes | None:
    """The ONNX file of a plan that `emit` has a table of; None where there is none."""
    if isinstance(plan, TablePlan) and isinstance(plan.spec, Rotation):
        return rope_model(plan)
    makers = {BiasTablePlan: alibi_model, LearnedBiasPlan: bias_model, LearnedPlan: learned_model, SinusoidalPlan: sinusoidal_model}
    return makers[type(plan)](plan) if type(plan) in makers else None


def rope_model(plan: TablePlan) -> bytes:
    """The ONNX file of a RoPE table; the attention factor is in the tables' scale, so it touches rotated components only."""
    spec = plan.spec
    scale = np.float32(spec.attention_factor / plan.full_scale)
    initializers = [_tensor("cos", plan.cos), _tensor("sin", plan.sin), _tensor("scale", scale)]
    nodes = [
        helper.make_node("DequantizeLinear", ["cos", "scale"], ["cos_cache"]),
        helper.make_node("DequantizeLinear", ["sin", "scale"], ["sin_cache"]),
    ]
    operands, shape = ["x", "cos_cache", "sin_cache", "position_ids"], ["batch", "seq"]
    if spec.axes is not None:
        shape.append(max(spec.axes, default=0) + 1)
        initializers += [_tensor("axis", np.array(spec.axes, dtype=np.int64)), _tensor("flat", np.array([-1, spec.pairs], dtype=np.int64))]
        nodes += _rows_per_pair()
        operands = ["x", "cos_rows", "sin_rows"]
    rotary = {} if spec.rotary_dim == spec.head_dim else {"rotary_embedding_dim": spec.rotary_dim}
    nodes.append(helper.make_node("RotaryEmbedding", operands, ["y"], interleaved=int(spec.layout == "interleaved"), **rotary))
    vector = ["batch", "heads", "seq", spec.head_dim]
    inputs = [_value("x", TensorProto.FLOAT, vector), _value("position_ids", TensorProto.INT64, shape)]
    return _model(f"rope_int{plan.bits}", nodes, inputs, [_value("y", TensorProto.FLOAT, vector)], initializers)


def _rows_per_pair() -> list[onnx.NodeProto]:
    """cos and sin [batch, seq, pairs] when pair j turns with coordinate axis[j]."""
    nodes = [
        helper.make_node("Gather", ["position_ids", "axis"], ["of_pairs"], axis=2),
        helper.make_node("Shape", ["of_pairs"], ["shape"]),
        helper.make_node("Reshape", ["of_pairs", "flat"], ["rows"]),
    ]
    for name in ("cos", "sin"):
        nodes.append(helper.make_node("GatherElements", [f"{name}_cache", "rows"], [f"{name}_flat"], axis=0))
        nodes.append(helper.make_node("Reshape", [f"{name}_flat", "shape"], [f"{name}_rows"]))
    return nodes


def alibi_model(plan: BiasTablePlan) -> bytes:
    """The ONNX file of an ALiBi bias table; saturated entries become −10^9. Distances beyond the table count as its last."""
    initializers = [
        _tensor("table", plan.table),
        _tensor("saturated", np.array(plan.saturated, dtype=plan.table.dtype)),
        _tensor("scale", np.float32(plan.scale * math.log(2))),
        _tensor("never", np.float32(NEVER)),
        _tensor("last", np.int64(plan.context - 1)),
        *_AXES,
    ]
    nodes = [
        *_difference("query_positions", "key_positions"),
        *_distance(plan.spec.symmetric),
        helper.make_node("Min", ["distance", "last"], ["row"]),
        helper.make_node("Gather", ["table", "row"], ["entries"], axis=1),
        helper.make_node("DequantizeLinear", ["entries", "scale"], ["finite"]),
        helper.make_node("Cast", ["entries"], ["entries32"], to=TensorProto.INT32),
        helper.make_node("Cast", ["saturated"], ["saturated32"], to=TensorProto.INT32),
        helper.make_node("Equal", ["entries32", "saturated32"], ["gone"]),
        helper.make_node("Where", ["gone", "never", "finite"], ["bias"]),
    ]
    return _attention_model(f"alibi_int{plan.bits}", nodes, _POSITION_INPUTS, plan.spec.heads, initializers, not plan.spec.symmetric)


def bias_model(plan: LearnedBiasPlan) -> bytes:
    """The ONNX file of a learned bias: T5's with its bucket rule, any other from the rows the caller gives."""
    spec, heads = plan.spec, plan.heads
    columns = plan.table if spec.layers is None else np.moveaxis(plan.table, 0, 1).reshape(spec.rows, -1)  # a layer's heads side by side
    unit = np.float64(plan.scale) * math.log(2)
    per_column = {} if plan.factors is None else {"axis": 1}
    if per_column:
        unit = np.broadcast_to(unit, plan.table.shape[:-2] + (heads,)).reshape(-1)
    initializers = [_tensor("table", columns), _tensor("scale", np.asarray(unit, dtype=np.float32))]
    nodes, inputs = [], [_value("rows", TensorProto.INT64, ["q", "k"])]
    causal = isinstance(spec, T5Bias) and not spec.bidirectional
    if isinstance(spec, T5Bias):
        inputs = list(_POSITION_INPUTS)
        nodes, constants = _buckets(spec)
        initializers += constants
    nodes += [
        helper.make_node("DequantizeLinear", ["table", "scale"], ["values"], **per_column),
        helper.make_node("Gather", ["values", "rows"], ["by_key"], axis=0),
    ]
    chosen = "by_key"
    if spec.layers is not None:
        inputs.append(_value("layer", TensorProto.INT64, []))
        initializers.append(_tensor("by_layer", np.array([0, 0, spec.layers, heads], dtype=np.int64)))
        nodes.append(helper.make_node("Reshape", ["by_key", "by_layer"], ["of_layers"]))
        nodes.append(helper.make_node("Gather", ["of_layers", "layer"], ["of_layer"], axis=2))
        chosen = "of_layer"
    nodes.append(helper.make_node("Transpose", [chosen], ["bias"], perm=[2, 0, 1]))
    stem = "bias" if plan.factors is None else f"int{plan.bits}"
    scale = {"scale": 1.0} if isinstance(spec, T5Bias) else {}
    return _attention_model(f"{spec.encoding}_{stem}", nodes, inputs, heads, initializers, causal, **scale)


def _buckets(spec: T5Bias) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """query_positions, key_positions → rows [q, k] by T5's rule, and the constants it needs."""
    constants = [
        _tensor("thresholds", np.array(spec.thresholds, dtype=np.int64)),
        _tensor("exact", np.int64(spec.exact_buckets)),
        _tensor("side", np.int64(spec.side_buckets if spec.bidirectional else 0)),
        *_AXES,
        _tensor("axis_last", np.array([2], dtype=np.int64)),
    ]
    nodes = [
        *_difference("query_positions", "key_positions"),
        *_distance(spec.bidirectional),
        helper.make_node("Unsqueeze", ["distance", "axis_last"], ["distance_column"]),
        helper.make_node("GreaterOrEqual", ["distance_column", "thresholds"], ["passed"]),
        helper.make_node("Cast", ["passed"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones", "axis_last"], ["steps"], keepdims=0),
        helper.make_node("Min", ["distance", "exact"], ["near"]),
        helper.make_node("Add", ["near", "steps"], ["bucket"]),
        helper.make_node("Sub", ["difference", "difference"], ["none"]),
        helper.make_node("Less", ["difference", "none"], ["after"]),
        helper.make_node("Where", ["after", "side", "none"], ["shift"]),
        helper.make_node("Add", ["bucket", "shift"], ["rows"]),
    ]
    return nodes, constants


def _hidden(causal: bool) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """bias → mask, where a key after the query is never seen in a causal encoding, and the constants that takes."""
    if not causal:
        return [helper.make_node("Identity", ["bias"], ["mask"])], []
    nodes = [
        helper.make_node("Sub", ["difference", "difference"], ["nowhere"]),
        helper.make_node("Less", ["difference", "nowhere"], ["future"]),
        helper.make_node("Where", ["future", "hidden", "bias"], ["mask"]),
    ]
    return nodes, [_tensor("hidden", np.float32(HIDDEN))]


def _attention_model(name: str, nodes, inputs, heads: int, initializers, causal: bool, **attributes) -> bytes:
    """The file of a bias: its graph, and Attention that adds it to the scores. Key and value heads may be fewer than the query's."""
    hiding, constants = _hidden(causal)
    nodes = [*nodes, *hiding, helper.make_node("Attention", ["Q", "K", "V", "mask"], ["Y"], **attributes)]
    vectors = {"Q": [heads, "q"], "K": ["kv_heads", "k"], "V": ["kv_heads", "k"], "Y": [heads, "q"]}
    values = {key: _value(key, TensorProto.FLOAT, ["batch", *shape, "head_dim"]) for key, shape in vectors.items()}
    outputs = [_value("bias", TensorProto.FLOAT, [heads, "q", "k"]), values.pop("Y")]
    return _model(name, nodes, [*inputs, *values.values()], outputs, [*initializers, *constants])


def learned_model(plan: LearnedPlan) -> bytes:
    """The ONNX file of learned positions: position_ids 0, 1, … → rows, by the spec's offset and modulo."""
    spec = plan.spec
    scales = plan.scale.astype(np.float32)
    initializers = [_tensor("rows", plan.table), _tensor("scale", scales if plan.per == "row" else scales[0])]
    initializers.append(_tensor("offset", np.int64(spec.offset)))
    nodes, at = [], "position_ids"
    if spec.modulo is not None:
        initializers.append(_tensor("modulo", np.int64(spec.modulo)))
        nodes.append(helper.make_node("Mod", [at, "modulo"], ["place"]))
        at = "place"
    axis = {"axis": 0} if plan.per == "row" else {}
    nodes += [
        helper.make_node("Add", [at, "offset"], ["row"]),
        helper.make_node("DequantizeLinear", ["rows", "scale"], ["values"], **axis),
        helper.make_node("Gather", ["values", "row"], ["embedding"], axis=0),
    ]
    return _embedding(f"learned_int{plan.bits}", nodes, ["batch", "seq"], plan.table.shape[1], initializers)


def sinusoidal_model(plan: SinusoidalPlan) -> bytes:
    """The ONNX file of sinusoidal positions; of a 2-D encoding both coordinates read one table."""
    spec = plan.spec
    initializers = [_tensor("rows", plan.rows(np.arange(plan.context))), _tensor("scale", np.float32(plan.scale))]
    nodes = [helper.make_node("DequantizeLinear", ["rows", "scale"], ["values"])]
    shape: list = ["batch", "seq"]
    if isinstance(spec, Sinusoidal2D):
        shape.append(2)
        order = ("row", "column") if spec.row_first else ("column", "row")
        for axis, name in enumerate(("row", "column")):
            initializers.append(_tensor(f"axis_{name}", np.int64(axis)))
            nodes.append(helper.make_node("Gather", ["position_ids", f"axis_{name}"], [name], axis=2))
            nodes.append(helper.make_node("Gather", ["values", name], [f"{name}_half"], axis=0))
        nodes.append(helper.make_node("Concat", [f"{name}_half" for name in order], ["embedding"], axis=-1))
    else:
        nodes.append(helper.make_node("Gather", ["values", "position_ids"], ["embedding"], axis=0))
    return _embedding(f"{spec.encoding}_int{plan.bits}", nodes, shape, spec.dim, initializers)


def _embedding(name: str, nodes, position_shape: list, dim: int, initializers) -> bytes:
    inputs = [_value("position_ids", TensorProto.INT64, position_shape)]
    return _model(name, nodes, inputs, [_value("embedding", TensorProto.FLOAT, ["batch", "seq", dim])], initializers)


def _difference(query: str, key: str) -> list[onnx.NodeProto]:
    """query − key, int64 [q, k]."""
    return [
        helper.make_node("Unsqueeze", [query, "axis_q"], ["q"]),
        helper.make_node("Unsqueeze", [key, "axis_k"], ["k"]),
        helper.make_node("Sub", ["q", "k"], ["difference"]),
    ]


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


_AXES = (_tensor("axis_q", np.array([1], dtype=np.int64)), _tensor("axis_k", np.array([0], dtype=np.int64)))
_POSITION_INPUTS = [_value("query_positions", TensorProto.INT64, ["q"]), _value("key_positions", TensorProto.INT64, ["k"])]


def _model(name: str, nodes, inputs, outputs, initializers) -> bytes:
    graph = helper.make_graph(nodes, name, inputs, outputs, initializers)
    model = helper.make_model(graph, producer_name="edgepos", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)])
    onnx.checker.check_model(model)
    return model.SerializeToString(deterministic=True)
