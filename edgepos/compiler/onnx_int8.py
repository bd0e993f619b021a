"""model.int8.onnx: a faster form of model.onnx for ONNX Runtime, whose linears multiply integers.

Each linear becomes DynamicQuantizeLinear of its input and MatMulInteger with uint8 weights around 128 (one scale per output row),
which are in model.int8.bin. The tokens of the input are divided by their largest magnitude first and multiplied by it at the end:
without that, one large token sets the step of all (SmolLM2: KL 0.5). Weights are unsigned because ONNX Runtime's kernels for
signed ones saturate on processors without VNNI. The rest is model.onnx. Its logits are coarser than the runtime's: a token's
largest component sets the step of all the others; `edgepos report` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from ..program import Program
from .dequantize import dequantized_weights
from .onnx_out import build
from .steps import FloatProgram, Linear

NAME, WEIGHTS = "model.int8.onnx", "model.int8.bin"
ZERO = 128
ALIGN = 64
LEAST = 1e-30  # of a token's largest magnitude, so that a token of zeros can be divided by it


def write(folder: Path, model: ir.Model, source: FloatProgram, program: Program, data_start: int) -> None:
    """Write model.int8.onnx and model.int8.bin beside model.gguf, whose tensor data starts at byte `data_start`."""
    fast = build(model, source, program, data_start)
    floats = dequantized_weights(program)
    graph, made, inputs = fast.graph, {}, {}
    nodes = {node.name: node for node in graph}
    with open(folder / WEIGHTS, "wb") as file:
        for step in source.steps:
            if isinstance(step, Linear):
                product = _product(nodes[step.name])
                if step.weight not in made:
                    weight, scale = quantized(floats[step.weight])
                    made[step.weight] = (_external(graph, f"{step.weight}.uint8", weight, file), _constant(graph, f"{step.weight}.scale8", scale))
                _replace(graph, product, made[step.weight], inputs)
    common.RemoveUnusedNodesPass()(fast)
    ir.save(fast, folder / NAME)


def quantized(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """weight [out, in] → (uint8 [in, out] around ZERO, float32 scale [out]): the largest magnitude of a row is 127 steps."""
    largest = np.abs(weight).max(axis=1)
    scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
    steps = np.floor(weight / scale[:, None] + 0.5)
    return np.ascontiguousarray((np.clip(steps, -127, 127) + ZERO).astype(np.uint8).T), scale


def _product(node: ir.Node) -> ir.Node:
    """The MatMul of a linear whose last node is `node`: itself, or behind a bias or a soft cap."""
    while node.op_type != "MatMul":
        producers = (v.producer() for v in node.inputs if v is not None)
        node = next(p for p in producers if p is not None and p.op_type in ("MatMul", "Add", "Tanh", "Div"))
    return node


def _replace(graph: ir.Graph, product: ir.Node, weight: tuple[ir.Value, ir.Value], inputs: dict[ir.Value, list[ir.Value]]) -> None:
    """Let a MatMul multiply integers; `inputs` holds what has been quantized already."""
    x, (matrix, row_scale), name = product.inputs[0], weight, product.name
    if x not in inputs:
        inputs[x] = _quantize(graph, product, x)
    q, step, zero, largest = inputs[x]
    middle = graph.initializers.get("int8.zero") or _constant(graph, "int8.zero", np.array(ZERO, np.uint8))
    total = _value(f"{name}.int32", ir.DataType.INT32)
    wide, scale, even = (_value(f"{name}.{what}", ir.DataType.FLOAT) for what in ("float", "scale", "even"))
    old, new = product.outputs[0], _value(f"{name}.product", ir.DataType.FLOAT)
    new.shape = old.shape
    parts: Iterable[ir.Node] = (
        ir.node("MatMulInteger", [q, matrix, zero, middle], outputs=[total], name=f"{name}.integer"),
        ir.node("Cast", [total], {"to": int(ir.DataType.FLOAT)}, outputs=[wide], name=f"{name}.cast"),
        ir.node("Mul", [step, row_scale], outputs=[scale], name=f"{name}.scales"),
        ir.node("Mul", [wide, scale], outputs=[even], name=f"{name}.scaled"),
        ir.node("Mul", [even, largest], outputs=[new], name=f"{name}.token"),
    )
    graph.insert_before(product, parts)
    for user, index in tuple(old.uses()):
        user.replace_input_with(index, new)
    for index, value in enumerate(graph.outputs):
        if value is old:
            graph.outputs[index] = new
    graph.remove(product, safe=True)
    new.name, old.name = old.name, f"{old.name}.replaced"


def _quantize(graph: ir.Graph, before: ir.Node, x: ir.Value) -> list[ir.Value]:
    """[uint8 of x with each token over its largest magnitude, step, zero point, those magnitudes]."""
    axes = graph.initializers.get("int8.axes") or _constant(graph, "int8.axes", np.array([-1], np.int64))
    least = graph.initializers.get("int8.least") or _constant(graph, "int8.least", np.array(LEAST, np.float32))
    sizes, top, largest, even, step = (_value(f"{x.name}.{what}", ir.DataType.FLOAT) for what in ("sizes", "top", "largest", "over_largest", "step"))
    q, zero = (_value(f"{x.name}.{what}", ir.DataType.UINT8) for what in ("uint8", "zero"))
    parts = (
        ir.node("Abs", [x], outputs=[sizes], name=f"{x.name}.abs"),
        ir.node("ReduceMax", [sizes, axes], {"keepdims": 1}, outputs=[top], name=f"{x.name}.max"),
        ir.node("Max", [top, least], outputs=[largest], name=f"{x.name}.not_zero"),
        ir.node("Div", [x, largest], outputs=[even], name=f"{x.name}.divided"),
        ir.node("DynamicQuantizeLinear", [even], outputs=[q, step, zero], name=f"{x.name}.quantize"),
    )
    graph.insert_before(before, parts)
    return [q, step, zero, largest]


def _value(name: str, dtype: ir.DataType) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype))


def _constant(graph: ir.Graph, name: str, array: np.ndarray) -> ir.Value:
    return _register(graph, name, ir.Tensor(array, name=name))


def _external(graph: ir.Graph, name: str, array: np.ndarray, file) -> ir.Value:
    """An initializer whose bytes go to the end of `file`."""
    file.write(bytes(-file.tell() % ALIGN))
    tensor = ir.ExternalTensor(WEIGHTS, file.tell(), array.nbytes, ir.DataType.UINT8, shape=ir.Shape(array.shape), name=name)
    file.write(array.tobytes())
    return _register(graph, name, tensor)


def _register(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value
