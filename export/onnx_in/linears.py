"""Products with constant matrices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..block_rows import BlockRows
from . import attention
from .constants import FLOATS
from .looks import module_of
from .pooling import row_form, row_of
from .sources import Heads, Linear
from .values import Form, Function, Scores

THROUGH = ("Transpose", "Cast", "Identity", "DequantizeLinear", "Reshape", "Squeeze")


def _matmul(reader, node: ir.Node, arguments: list):
    a, b = arguments
    if isinstance(a, (Form, Function)) and isinstance(b, np.ndarray):
        flat = b.reshape(b.shape[-2:]) if b.ndim > 2 and b.size == np.prod(b.shape[-2:]) else b
        if flat.ndim > 2:
            raise reader.writer.refuse(f"a product of a tensor {list(a.shape)} with matrices {list(b.shape)}, as of positions that are keys", "one matrix for all tokens")
        return linear(reader, node, a, flat.T, node.inputs[1])
    if isinstance(a, (Form, Function, Scores)) and isinstance(b, (Form, Function)):
        return attention.product(reader, node, a, b)
    raise reader.unknown(node, arguments)


def _gemm(reader, node: ir.Node, arguments: list):
    a, b = arguments[:2]
    c = arguments[2] if len(arguments) > 2 else None
    plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta")) and not node.attributes.get_int("transA", 0)
    if not plain or not isinstance(a, (Form, Function)) or not isinstance(b, np.ndarray) or not (c is None or isinstance(c, np.ndarray)):
        raise reader.unknown(node, arguments)
    return linear(reader, node, a, b if node.attributes.get_int("transB", 0) else b.T, node.inputs[1], c)


def linear(reader, node: ir.Node, x: Form | Function, rows: np.ndarray | BlockRows, origin: ir.Value | None, bias: np.ndarray | None = None) -> Form:
    """x times the transpose of rows [out, in] plus bias."""
    writer = reader.writer
    if rows.ndim != 2 or rows.shape[1] != x.shape[-1] or 0 in rows.shape:
        raise reader.unknown(node, [x, rows])
    row = row_of(writer, x)
    cuts = [] if row is not None else joints(reader, x)
    if cuts and isinstance(rows, np.ndarray):
        return _of_parts(reader, node, x, rows, cuts, bias)
    value = writer.value(x) if row is None else row
    n_out, n_in = rows.shape
    if value.shape[-1] != n_in:
        raise writer.refuse(f"a product over {n_in} of {value.shape[-1]} components", "all components of a token")
    if bias is not None and bias.size not in (1, n_out):
        raise reader.unknown(node, [x, rows, bias])
    name, stored = _root(origin, n_out * n_in)
    if writer.embedding is not None and same_rows(rows, writer.embedding[1]):
        stored = writer.embedding[0]
    added = None if bias is None else np.broadcast_to(bias.ravel().astype(np.float64), (n_out,))
    what = Linear(value, rows, added, name or module_of(node), stored)
    source = reader.sources.new(what, n_out)
    if row is not None:
        return row_form(source, x.shape[:-1])
    return reader.sources.form(source, (*x.shape[:-1], n_out))


def joints(reader, x: Form | Function) -> list[int]:
    """Where components of different results stand side by side: the first of each but the first result."""
    if not isinstance(x, Form) or len(x.codes) != 1 or (x.codes < 0).any():
        return []
    number = reader.sources.decode(x.codes[0].reshape(-1, x.shape[-1])[0])[0]

    def result(n: int) -> object:
        what = reader.sources.numbered(n).what
        return Heads if isinstance(what, Heads) else what.x if isinstance(what, Linear) else n

    return [i for i in np.flatnonzero(np.diff(number)) + 1 if result(number[i]) != result(number[i - 1])]


def _of_parts(reader, node: ir.Node, x: Form, rows: np.ndarray, cuts: list[int], bias: np.ndarray | None) -> Form:
    """The product with results side by side, as of attention and MLP: the sum of the products with each."""
    total = None
    for start, end in zip([0, *cuts], [*cuts, x.shape[-1]]):
        part = linear(reader, node, x.moved(lambda array, a=start, b=end: array[..., a:b]), np.ascontiguousarray(rows[:, start:end]), None, bias if total is None else None)
        total = part if total is None else total.joined(part)
    return total


def same_rows(a: np.ndarray | BlockRows, b: np.ndarray | BlockRows) -> bool:
    """Whether two matrices are equal, and held alike."""
    if isinstance(a, BlockRows):
        return a.same_as(b)
    return isinstance(b, np.ndarray) and a.shape == b.shape and np.array_equal(a, b)


def _root(value: ir.Value | None, size: int) -> tuple[str | None, str | None]:
    """(name of the module, name of the initializer) that a weight of so many elements is, or None where it is computed."""
    while value is not None and value.const_value is None:
        producer = value.producer()
        if producer is None or producer.op_type not in THROUGH:
            return None, None
        value = producer.inputs[0]
    if value is None or not value.name:
        return None, None
    tensor = value.const_value
    whole = tensor.dtype in FLOATS and tensor.size == size
    return (value.name.removesuffix(".weight") if value.name.endswith(".weight") else None), value.name if whole else None


OPERATORS = {"MatMul": _matmul, "Gemm": _gemm}
