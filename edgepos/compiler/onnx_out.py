"""model.onnx: the canonical graph with its weights replaced by the program's integers behind DequantizeLinear.

Integer tensors are external data inside model.gguf, so that they exist once. ONNX Runtime computes in float: for the figures to
compare, set the session option session.qdq_matmulnbits_accuracy_level to 1.
"""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir

from ..positions import Rope, TablePlan
from ..program import GROUP, NONE, W4G32, W16G32, Operation, Program
from .dequantize import own_rows
from .steps import Attend, Embed, FloatProgram, Linear, Norm, Place, Rotate
from .weights import row_scales

LOCATION = "model.gguf"
TABLE_SCALE = 32767


def write(path: str | os.PathLike, model: ir.Model, source: FloatProgram, program: Program, data_start: int) -> None:
    """Write model.onnx beside model.gguf, whose tensor data starts at byte `data_start`."""
    ir.save(build(model, source, program, data_start), path)


def build(model: ir.Model, source: FloatProgram, program: Program, data_start: int) -> ir.Model:
    """The graph; weights of `model` are shared where they stay."""
    model = model.clone()
    rewriter = _Rewriter(model.graph, program, data_start)
    steps = {step.name: step for step in source.steps}
    for op in program.ops:
        step = steps.get(op.name)
        if isinstance(step, (Embed, Linear)):
            rewriter.matrix(step.weight, op, source.shapes[step.weight][1])
        if isinstance(step, Linear) and step.bias is not None:
            rewriter.vector(step.bias, op.tensors[3], 2.0 ** -program.values[op.out].f)
        if isinstance(step, Norm):
            bits = op.params["out_shift"] + program.values[op.out].f
            rewriter.vector(step.gamma, op.tensors[0], 2.0**-bits / np.sqrt(step.width // step.groups))
            if step.beta is not None:
                rewriter.vector(step.beta, op.tensors[1], 2.0 ** -program.values[op.out].f)
        if isinstance(step, Attend) and step.slopes is not None:
            rewriter.slopes(step.slopes, op)
        if isinstance(step, Attend) and step.bias is not None:
            rewriter.bias(step.bias, op)
        if isinstance(step, Place):
            rewriter.matrix(step.table, op, step.width)
    rotations = {step.spec: step.name for step in reversed(source.steps) if isinstance(step, Rotate)}
    for rotation, name in rotations.items():
        rewriter.tables(rotation, name, program.header.context)
    rewriter.finish()
    model.metadata_props["edgepos.context"] = str(program.header.context)
    return model


class _Rewriter:
    """Replaces initializers of one graph, each once."""

    def __init__(self, graph: ir.Graph, program: Program, data_start: int):
        self.graph, self.program, self.data_start = graph, program, data_start
        self.offsets = program.offsets()
        self.nodes: list[ir.Node] = []
        self.replaced: dict[str, ir.Value] = {}

    def finish(self) -> None:
        """Put the new nodes in front of the others."""
        if self.nodes:
            self.graph.insert_before(self.graph[0], self.nodes)

    # ---- pieces

    def external(self, index: int, name: str, dtype: ir.DataType | None = None, part: int = 0, parts: int = 1) -> ir.Value:
        """An initializer that reads tensor `index` of the program out of model.gguf, or one of several equal parts of its rows; as UINT4,
        two numbers a byte."""
        array = self.program.arrays[index]
        size, rows = array.nbytes // parts, array.shape[0] // parts
        shape = (rows, *array.shape[1:]) if dtype is None else (rows, 2 * array.shape[1])
        tensor = ir.ExternalTensor(
            LOCATION,
            self.data_start + self.offsets[index] + part * size,
            size,
            dtype or ir.DataType.from_numpy(array.dtype),
            shape=ir.Shape(shape),
            name=name,
        )
        return self._initializer(name, tensor)

    def constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self._initializer(name, ir.Tensor(array, name=name))

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def node(self, op: str, inputs: list[ir.Value], name: str, shape: tuple[int, ...], **attributes) -> ir.Value:
        out = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        self.nodes.append(ir.node(op, inputs, attributes, outputs=[out], name=name))
        return out

    def replace(self, name: str, value: ir.Value) -> None:
        """Let `value` take the place and the name of initializer `name`."""
        old = self.graph.initializers.pop(name)
        for user, index in tuple(old.uses()):
            user.replace_input_with(index, value)
        value.name = name
        self.replaced[name] = value

    # ---- what is replaced

    def matrix(self, name: str, op: Operation, cols: int) -> None:
        """int8 (of positions: int16) rows with float row scales, or with int16 group scales times float row scales."""
        if name in self.replaced:
            return
        w, groups, rows = op.tensors[0], op.tensors[1], own_rows(self.program, op)
        scale = row_scales(self.program.arrays[rows]).astype(np.float32)
        shape = (len(scale), self.program.arrays[w].shape[1])
        if op.params["form"] == W4G32:
            shape = (shape[0], 2 * shape[1])
            value = self._nibbles(name, w, groups, scale, shape)
        elif op.params["form"] == W16G32:
            value = self._two_parts(name, w, groups, scale, shape)
        else:
            data = self.external(w, f"{name}.{self.program.arrays[w].dtype.name}")
            if groups == NONE:
                value = self.node("DequantizeLinear", [data, self.constant(f"{name}.row", scale)], f"{name}.full", shape, axis=0)
            else:
                scales = self._group_scales(name, groups, scale)
                value = self.node("DequantizeLinear", [data, scales], f"{name}.full", shape, axis=1, block_size=GROUP)
        if cols != shape[1]:
            bounds = [self.constant(f"{name}.{what}", np.array([n], np.int64)) for what, n in (("from", 0), ("to", cols), ("axis", 1))]
            value = self.node("Slice", [value, *bounds], f"{name}.cut", (shape[0], cols))
        self.replace(name, value)

    def _two_parts(self, name: str, w: int, groups: int, scale: np.ndarray, shape: tuple[int, int]) -> ir.Value:
        """The coarse int8 rows plus the fine ones, each with its group scales."""
        parts = []
        for part, what in enumerate(("coarse", "fine")):
            data = self.external(w, f"{name}.{what}.int8", part=part, parts=2)
            scales = self._group_scales(f"{name}.{what}", groups, scale, part, 2)
            parts.append(self.node("DequantizeLinear", [data, scales], f"{name}.{what}", shape, axis=1, block_size=GROUP))
        return self.node("Add", parts, f"{name}.full", shape)

    def _group_scales(self, name: str, groups: int, scale: np.ndarray, part: int = 0, parts: int = 1) -> ir.Value:
        """int16 group scales (of w4g32: scales and minima) times the float scale of their row."""
        shape = (len(scale), self.program.arrays[groups].shape[1])
        wide = self.node("Cast", [self.external(groups, f"{name}.int16", part=part, parts=parts)], f"{name}.group", shape, to=int(ir.DataType.FLOAT))
        return self.node("Mul", [wide, self.constant(f"{name}.row", scale[:, None])], f"{name}.scale", shape)

    def _nibbles(self, name: str, w: int, groups: int, scale: np.ndarray, shape: tuple[int, int]) -> ir.Value:
        """4-bit codes, which ONNX packs as model.gguf does, times their group's scale plus its minimum."""
        rows, n = shape[0], shape[1] // GROUP
        both = self._group_scales(name, groups, scale)
        pairs = self.node("Reshape", [both, self.ints(f"{name}.pairs", rows, n, 2)], f"{name}.paired", (rows, n, 2))
        scales, minima = (
            self.node("Gather", [pairs, self.constant(f"{name}.{what}", np.array(i, np.int64))], f"{name}.{what}.values", (rows, n), axis=2)
            for i, what in enumerate(("of_scale", "of_minimum"))
        )
        codes = self.node("DequantizeLinear", [self.external(w, f"{name}.uint4", ir.DataType.UINT4), scales], f"{name}.steps", shape, axis=1, block_size=GROUP)
        cut = self.node("Reshape", [codes, self.ints(f"{name}.groups", rows, n, GROUP)], f"{name}.grouped", (rows, n, GROUP))
        least = self.node("Unsqueeze", [minima, self.ints(f"{name}.last", 2)], f"{name}.least", (rows, n, 1))
        full = self.node("Add", [cut, least], f"{name}.raised", (rows, n, GROUP))
        return self.node("Reshape", [full, self.ints(f"{name}.shape", *shape)], f"{name}.full", shape)

    def ints(self, name: str, *values: int) -> ir.Value:
        return self.constant(name, np.array(values, np.int64))

    def vector(self, name: str, index: int, scale: float) -> None:
        """γ, β or a bias from int32."""
        if name in self.replaced:
            return
        data = self.external(index, f"{name}.int32")
        step = self.constant(f"{name}.scale", np.array(scale, np.float32))
        self.replace(name, self.node("DequantizeLinear", [data, step], f"{name}.full", self.program.arrays[index].shape))

    def slopes(self, name: str, op: Operation) -> None:
        """ALiBi slopes from their uint32, which DequantizeLinear does not take: as float32, [1, heads, 1, 1]."""
        if name in self.replaced:
            return
        integers = self.program.arrays[op.tensors[0]].view(np.uint32).astype(np.float64)
        slopes = np.ldexp(integers, -16 - op.params["alibi_shift"]) * np.log(2)
        value = self.constant(f"{name}.float", slopes.astype(np.float32).reshape(1, -1, 1, 1))
        old = self.graph.initializers.pop(name)
        for user, index in tuple(old.uses()):
            user.replace_input_with(index, value)
        self.replaced[name] = value

    def bias(self, name: str, op: Operation) -> None:
        """A relative bias from its int32 [heads, n], as [n, heads] in natural units."""
        if name in self.replaced:
            return
        data = self.external(op.tensors[1], f"{name}.int32")
        heads, n = self.program.arrays[op.tensors[1]].shape
        step = self.constant(f"{name}.scale", np.array(np.log(2) * 2.0**-16, np.float32))
        natural = self.node("DequantizeLinear", [data, step], f"{name}.heads", (heads, n))
        self.replace(name, self.node("Transpose", [natural], f"{name}.full", (n, heads), perm=[1, 0]))

    def tables(self, spec: Rope, name: str, context: int) -> None:
        """cos and sin of the node `name` as int16 [context, pairs], correctly rounded."""
        user = next(node for node in self.graph if node.name == name)
        names = [value.name for value in user.inputs[1:3]]
        for name, table in zip(names, TablePlan(spec, context, 16).cos_sin(np.arange(context))):
            data = self.constant(f"{name}.int16", table.astype(np.int16))
            scale = self.constant(f"{name}.scale", np.array(spec.attention_factor / TABLE_SCALE, np.float32))
            self.replace(name, self.node("DequantizeLinear", [data, scale], f"{name}.full", table.shape))
