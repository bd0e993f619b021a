"""Products with constant matrices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from . import attention
from .constants import FLOATS
from .looks import module_of
from .sources import Linear
from .values import Form, Function, Scores

THROUGH = ("Transpose", "Cast", "Identity", "DequantizeLinear", "Reshape", "Squeeze")


def _matmul(reader, node: ir.Node, arguments: list):
    a, b = arguments
    if isinstance(a, (Form, Function)) and isinstance(b, np.ndarray):
        return linear(reader, node, a, b, node.inputs[1])
    if isinstance(a, (Form, Function, Scores)) and isinstance(b, (Form, Function)):
        return attention.product(reader, node, a, b)
    raise reader.unknown(node, arguments)


def _gemm(reader, node: ir.Node, arguments: list):
    a, b = arguments[:2]
    c = arguments[2] if len(arguments) > 2 else None
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")) and not node.attributes.get_int("transA", 0)
    if not plain or not isinstance(a, (Form, Function)) or not isinstance(b, np.ndarray) or not (c is None or isinstance(c, np.ndarray)):
        raise reader.unknown(node, arguments)
    return linear(reader, node, a, b.T if node.attributes.get_int("transB", 0) else b, node.inputs[1], c)


def linear(reader, node: ir.Node, x: Form | Function, weight: np.ndarray, origin: ir.Value | None, bias: np.ndarray | None = None) -> Form:
    """x times weight [in, out] plus bias."""
    writer = reader.writer
    weight = weight.reshape(weight.shape[-2:]) if weight.ndim > 2 and weight.size == np.prod(weight.shape[-2:]) else weight
    if weight.ndim != 2 or weight.shape[0] != x.shape[-1] or 0 in weight.shape:
        raise reader.unknown(node, [x, weight])
    value = writer.value(x)
    if value.shape[2] != weight.shape[0]:
        raise writer.refuse(f"a product over {weight.shape[0]} of {value.shape[2]} components", "all components of a token")
    if bias is not None and bias.size not in (1, weight.shape[1]):
        raise reader.unknown(node, [x, weight, bias])
    name, stored = _root(origin, weight)
    embedding = writer.embedding
    if embedding is not None and weight.shape == embedding[1].shape[::-1] and np.array_equal(weight.T, embedding[1]):
        stored = embedding[0]
    added = None if bias is None else np.broadcast_to(bias.ravel().astype(np.float64), weight.shape[1:])
    what = Linear(value, weight, added, name or module_of(node), stored)
    return reader.sources.form(reader.sources.new(what, weight.shape[1]), (*x.shape[:-1], weight.shape[1]))


def _root(value: ir.Value | None, weight: np.ndarray) -> tuple[str | None, str | None]:
    """(name of the module, name of the initializer) that a weight is, or None where it is computed."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in THROUGH:
            return None, None
        value = producer.inputs[0]
    if value is None or not value.name:
        return None, None
    tensor = value.const_value
    whole = tensor.dtype in FLOATS and tensor.size == weight.size
    return (value.name.removesuffix(".weight") if value.name.endswith(".weight") else None), value.name if whole else None


OPERATORS = {"MatMul": _matmul, "Gemm": _gemm}
