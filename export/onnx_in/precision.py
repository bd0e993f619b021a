"""Graphs of 16-bit floats: read as float32 graphs that hold the same numbers.

What float16 or bfloat16 rounds between operators is no part of a model: weights, tables and scales keep their 16-bit numbers, everything that is
computed from them is computed in float32, and casts between float types do nothing.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .files import graphs_of

ROUNDING = {ir.DataType.FLOAT16: 2.0**-12, ir.DataType.BFLOAT16: 2.0**-9}  # of a number in 0.5 … 1, at most
TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype", "softmax_precision")
CACHED = 2**16  # elements up to which a tensor is converted once


class Widened(ir.LazyTensor):
    """A float32 tensor of 16-bit numbers. stored: as it is in the file; rounding: what a number near 1 in it may be off by."""

    def __init__(self, stored: ir.TensorProtocol):
        def convert() -> ir.TensorProtocol:
            return ir.Tensor(np.asarray(stored.numpy()).astype(np.float32), name=stored.name)

        super().__init__(convert, ir.DataType.FLOAT, ir.Shape(stored.shape), cache=stored.size <= CACHED, name=stored.name)
        self.stored, self.rounding = stored, ROUNDING[stored.dtype]


def rounding_of(array: np.ndarray) -> float:
    """What numbers near 1 in an array may be off by where all of it is numbers of 16 bits, else 0."""
    with np.errstate(all="ignore"):
        small = np.ascontiguousarray(array, np.float32)
        if not (small.view(np.uint32) & 0xFFFF).any():
            return ROUNDING[ir.DataType.BFLOAT16]  # near 1 each of these is a float16, too
        return ROUNDING[ir.DataType.FLOAT16] if np.array_equal(small.astype(np.float16), small) else 0.0


def rounding_in(graph: ir.Graph) -> float:
    """The same of the coarsest initializer of a graph that was widened."""
    return max((v.const_value.rounding for v in graph.initializers.values() if isinstance(v.const_value, Widened)), default=0.0)


def widen(model: ir.Model) -> None:
    """Turn the 16-bit floats of a graph without functions into float32, in place."""
    for graph in graphs_of(model.graph):
        for value in graph.initializers.values():
            if value.const_value.dtype in ROUNDING:
                value.const_value = Widened(value.const_value)
        for value in (*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)):
            if value.dtype in ROUNDING:
                value.dtype = ir.DataType.FLOAT
        for node in graph:
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype in ROUNDING:
                    node.attributes[name] = ir.AttrTensor(name, Widened(attribute.value))
                elif attribute.type == ir.AttributeType.INT and name in TYPE_ATTRIBUTES and attribute.value in ROUNDING:
                    node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))


def narrowed(model: ir.Model, names: dict[str, float]) -> ir.Model:
    """A copy of a canonical model with these constants rounded as they are in the graph it stands for: name → `rounding_of`."""
    if not names:
        return model
    copy = model.clone()
    for name, rounding in names.items():
        tensor = copy.graph.initializers[name].const_value
        kind = next(kind for kind, r in ROUNDING.items() if r == rounding)
        rounded = tensor.numpy().astype(kind.numpy()).astype(np.float32)
        copy.graph.initializers[name].const_value = ir.Tensor(rounded, name=name)
    return copy
