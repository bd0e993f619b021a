"""LayerNorm and RMSNorm, as one operator or written out."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from . import pooling
from .looks import module_of
from .sources import Centered, Norm
from .values import GRID, SQUARES, Form, Function, Mean, OfRows, Statistic, pure

MOST_EPSILON = 1.0  # none at all is fine: PyTorch's exporter drops one of 1e-8


def _axes(node: ir.Node, arguments: list) -> tuple[list[int], bool, bool]:
    """(axes of a reduction, whether that is the last alone, whether it is kept)."""
    x = arguments[0]
    axes = arguments[1] if len(arguments) > 1 else None
    axes = np.ravel(axes).tolist() if axes is not None else list(node.attributes.get_ints("axes", []))
    return axes, axes in ([-1], [len(x.shape) - 1]), bool(node.attributes.get_int("keepdims", 1))


def _reduce(reader, node: ir.Node, arguments: list):
    x = arguments[0]
    if len(arguments) > 1 and arguments[1] is not None and not isinstance(arguments[1], np.ndarray):
        raise reader.unknown(node, arguments)
    axes, last, keep = _axes(node, arguments)
    op = node.op_type
    if isinstance(x, Form) and pooling.token_axis(reader, x, axes):
        result = pooling.reduced(reader, node, x, keep)
        if result is not None:
            return result
    if last and isinstance(x, Form):
        # One factor on all components changes a mean in proportion; only tensors as they are keep it simple.
        x = x if x.is_pure else reader.writer.remade(x)
        codes, rows = _rows_of(x.codes[0], keep)
        n = x.shape[-1]
        if op == "ReduceMean":
            return Mean(codes, rows)
        if op == "ReduceSumSquare":
            return Statistic(codes, rows, SQUARES * n)
        if op == "ReduceL2":
            return Statistic(codes, rows, np.sqrt(SQUARES * n))
    if last and isinstance(x, Function) and op in ("ReduceMean", "ReduceSum"):
        k = x.samples[-1] / GRID[-1] ** 2
        if np.all(np.abs(x.samples - k * GRID**2) <= 1e-7 * k * GRID[-1] ** 2) and k > 0:
            return Statistic(*_rows_of(x.codes, keep), SQUARES * k * (x.shape[-1] if op == "ReduceSum" else 1))
    raise reader.unknown(node, arguments)


def _rows_of(codes: np.ndarray, keep: bool) -> tuple[np.ndarray, np.ndarray]:
    """`codes` and `rows` of an OfRows over the last axis of codes [*, n], which stays with size 1 if kept."""
    rows = codes.reshape(-1, codes.shape[-1])
    return rows, np.arange(len(rows)).reshape(codes.shape[:-1] + ((1,) if keep else ()))


def centered(reader, x: Form, mean: Mean) -> Form | None:
    """x minus its mean."""
    if not x.is_pure or not _same_rows(x.codes[0], mean):
        return None
    codes = x.codes[0].reshape(-1, x.shape[-1])
    source = reader.sources.new(Centered(codes), codes.size // reader.length)
    return reader.sources.form(source, x.shape)


def _same_rows(codes: np.ndarray, statistic: OfRows) -> bool:
    """Whether a statistic [*, 1], or repeated over the last axis, is of the rows of codes [*, n]."""
    try:
        rows = np.broadcast_to(statistic.rows, codes.shape)
        if (rows != rows[..., :1]).any():
            return False
        rows = rows[..., 0]
    except ValueError:
        return False
    return statistic.codes.shape[-1] == codes.shape[-1] and np.array_equal(statistic.codes[rows], codes)


def normed(reader, node: ir.Node, x: Form, statistic: Statistic) -> Form | None:
    """x times c / sqrt(mean square + epsilon), which is what the statistic must be."""
    if len(x.codes) != 1 or x.const is not None or not _same_rows(x.codes[0], statistic):
        return None
    with np.errstate(all="ignore"):
        inverse = statistic.samples**-2.0
        low, high = len(SQUARES) // 2, len(SQUARES) - 1
        slope = (inverse[high] - inverse[low]) / (SQUARES[high] - SQUARES[low])
        epsilon = inverse[0] / slope
        row = pooling.unit(reader, x, statistic, epsilon) if abs(slope * x.shape[-1] - 1) < 1e-9 or abs(slope / x.shape[-1] - 1) < 1e-9 else None
        if row is not None:
            return row
        fits = np.all(np.abs(inverse - slope * (SQUARES + epsilon)) <= 1e-9 * slope * (SQUARES + epsilon))
    if not fits or not slope > 0 or not 0 <= epsilon < MOST_EPSILON:
        raise reader.writer.refuse("a product of a tensor and a function of its mean square that is no norm", "x / sqrt(mean(x²) + epsilon)")
    used = reader.sources.used(x.codes)
    center = len(used) == 1 and isinstance(used[0].what, Centered)
    if any(isinstance(s.what, Centered) for s in used) and not center:
        return None
    factor = x.coefs[0] * slope**-0.5
    result = _norm(reader, node, x.codes[0], center, float(np.float32(epsilon)))
    return reader.writer.settle(result.scaled(factor))


def _norm(reader, node: ir.Node, codes: np.ndarray, center: bool, epsilon: float, gamma: np.ndarray | None = None, beta: np.ndarray | None = None) -> Form:
    """A norm over the last axis of components, waiting for its weights."""
    n = codes.shape[-1]
    if center:
        source = reader.sources.used(codes)[0]
        codes_of = source.what.rows.ravel()
        codes = codes_of[codes - source.base]
    rows = codes.reshape(-1, n)
    _, token, _ = reader.sources.decode(rows)
    if (token != token[:, :1]).any():
        raise reader.writer.refuse("a norm over components of several tokens", "norms over the components of one token or head")
    order = np.argsort(token[:, 0], kind="stable")
    groups = len(rows) // reader.length
    x = reader.writer.value(pure(rows[order].reshape(1, reader.length, groups * n)))
    what = Norm(x, groups, center, epsilon, np.ones(n) if gamma is None else gamma, beta, module_of(node))
    source = reader.sources.new(what, groups * n)
    places = np.empty(len(rows), np.int64)
    places[order] = np.arange(len(rows))
    return pure((source.base + places[:, None] * n + np.arange(n)).reshape(codes.shape))


def _layer_norm(reader, node: ir.Node, arguments: list):
    return _norm_operator(reader, node, arguments, center=True)


def _rms_norm(reader, node: ir.Node, arguments: list):
    return _norm_operator(reader, node, arguments, center=False)


def _norm_operator(reader, node: ir.Node, arguments: list, *, center: bool):
    refuse_statistics(reader, node)
    return norm_of(reader, node, arguments[0], arguments[1], arguments[2] if len(arguments) > 2 else None, center=center)


def refuse_statistics(reader, node: ir.Node) -> None:
    """Refuse a norm whose mean or deviation is read."""
    if any(value.uses() or value in reader.graph.outputs for value in node.outputs[1:3]):
        raise reader.writer.refuse("its second output is used", "the normalized output only")


def norm_of(reader, node: ir.Node, x, gamma, beta, *, center: bool, usual: float = 1e-5):
    """The norm an operator names, with its weights. usual: its epsilon where the node has none."""
    if not isinstance(x, (Form, Function)) or not isinstance(gamma, np.ndarray) or not (beta is None or isinstance(beta, np.ndarray)):
        raise reader.unknown(node, [x, gamma, beta])
    row = pooling.row_of(reader.writer, x)
    if row is None and (isinstance(x, Function) or not x.is_pure):
        x = reader.writer.remade(x)
    axis, n = node.attributes.get_int("axis", -1), x.shape[-1]
    if axis not in (-1, len(x.shape) - 1) or gamma.size != n or (beta is not None and beta.size != n):
        raise reader.unknown(node, [x, gamma, beta])
    if row is not None:
        return pooling.normed_row(reader, node, row, x.shape, gamma, beta, center)
    codes = x.codes[0]
    if center:
        source = reader.sources.new(Centered(codes.reshape(-1, n)), codes.size // reader.length)
        codes = reader.sources.form(source, x.shape).codes[0]
    epsilon = float(np.float32(node.attributes.get_float("epsilon", usual)))
    weights = [None if w is None else w.ravel().astype(np.float64) for w in (gamma, beta)]
    return _norm(reader, node, codes, center, epsilon, *weights)


OPERATORS = {
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceSumSquare": _reduce,
    "ReduceL2": _reduce,
    "ReduceMax": _reduce,
    "LayerNormalization": _layer_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
}
