"""Sums, products and functions of single numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from . import norms, pooling
from .activations import OPERATORS as FUNCTIONS
from .found_token import FoundToken
from .sources import Row
from .values import GRID, Form, Function, MaskStep, Mean, Scores, Statistic

BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Max": np.maximum, "Min": np.minimum,
}  # fmt: skip
LEAST_BOUND = 6e4  # of a guard against the overflow of float16
HIDDEN = -1e4  # a score at or below this is hidden


def _binary(reader, node: ir.Node, arguments: list):
    if len(arguments) != 2:
        raise reader.unknown(node, arguments)
    a, b = arguments
    op = node.op_type
    with np.errstate(all="ignore"):
        if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
            result = _with_constant(reader, node, op, a, b)
        else:
            result = _of_two(reader, node, op, a, b)
    if result is None:
        raise reader.unknown(node, arguments)
    return result


def _with_constant(reader, node: ir.Node, op: str, a, b):
    first = isinstance(a, np.ndarray)
    constant, x = (a, b) if first else (b, a)
    constant = constant.astype(np.float64)
    if isinstance(x, pooling.TokenSum):
        return pooling.mean_of(reader, x, constant) if op == "Div" and not first else None
    if isinstance(x, FoundToken):  # in a batch of one the first place of a text is 0
        return x if op == "Add" and not constant.any() and np.broadcast_shapes(constant.shape, x.shape) == x.shape else None
    # A constant of size 1 may add axes; a larger one may also repeat the tensor.
    if isinstance(x, Scores):
        return _scores_with(reader, node, op, x, constant, first)
    if isinstance(x, Statistic) and constant.size == 1:
        samples = BINARY[op](constant.item(), x.samples) if first else BINARY[op](x.samples, constant.item())
        return replace(x, samples=samples)
    if isinstance(x, Mean):
        return None
    if isinstance(x, Form) and op in ("Add", "Sub", "Mul", "Div") and not (op == "Div" and first):
        reader.use_constant(node.inputs[0 if first else 1], constant)
        return reader.writer.settle(_linear(op, x, constant, first))
    if isinstance(x, Form) and op in ("Max", "Min") and _guards(reader, constant):
        return x
    if constant.size != 1 and not (constant == constant.flat[0]).all():
        return None
    x = as_function(reader, x)
    if isinstance(x, Function):
        c = float(constant.flat[0])
        return replace(x, samples=BINARY[op](c, x.samples) if first else BINARY[op](x.samples, c))
    return None


def _linear(op: str, x: Form, constant: np.ndarray, first: bool) -> Form:
    if op == "Mul":
        return x.scaled(constant)
    if op == "Div":
        return x.scaled(1 / constant)
    if op == "Add":
        return x.plus(constant)
    return x.scaled(np.float64(-1)).plus(constant) if first else x.plus(-constant)


def _scores_with(reader, node: ir.Node, op: str, x: Scores, constant: np.ndarray, first: bool) -> Scores | None:
    value = node.inputs[0 if first else 1]
    if op in ("Mul", "Div") and constant.size == 1 and not (op == "Div" and first) and not x.probabilities:
        factor = constant.item() if op == "Mul" else 1 / constant.item()
        steps = tuple(replace(s, factor=s.factor * factor) for s in x.steps)
        if any(s.kind == "where" for s in steps) or not factor > 0:
            return None
        return replace(x, samples=x.samples * factor, steps=steps)
    if op == "Max" and constant.size == 1 and constant.item() <= HIDDEN and not x.probabilities:
        return x  # a floor under hidden scores
    if op in ("Add", "Sub") and not (op == "Sub" and first) and not x.probabilities:
        return masked(reader, x, MaskStep("add", value, 1.0 if op == "Add" else -1.0), constant)
    return None


def masked(reader, x: Scores, step: MaskStep, array: np.ndarray) -> Scores | None:
    """Scores after a mask, if it broadcasts to them without adding heads."""
    try:
        fits = np.broadcast_shapes(array.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    return replace(x, steps=(*x.steps, replace(step, lead=x.lead))) if fits else None


def _of_two(reader, node: ir.Node, op: str, a, b):
    if isinstance(a, Form) and isinstance(b, Mean):
        return norms.centered(reader, a, b) if op == "Sub" else None
    if isinstance(b, Statistic) and isinstance(a, Form):
        samples = b.samples if op == "Mul" else 1 / b.samples if op == "Div" else None
        return None if samples is None else norms.normed(reader, node, a, replace(b, samples=samples))
    if isinstance(a, Statistic) and isinstance(b, Form) and op == "Mul":
        return norms.normed(reader, node, b, a)
    if not isinstance(a, (Form, Function)) or not isinstance(b, (Form, Function)):
        return None
    if isinstance(a, Form) and isinstance(b, Form) and op in ("Add", "Sub"):
        return _sum(reader, node, op, a, b)
    f, g = as_function(reader, a), as_function(reader, b)
    if isinstance(f, Function) and isinstance(g, Function) and np.array_equal(f.codes, g.codes):
        return replace(f, samples=BINARY[op](f.samples, g.samples))
    if a.shape != b.shape:
        _check_rows(reader, a, b)
        return None
    writer = reader.writer
    if op == "Mul":
        return writer.made(writer.product(a, b, _label(node)), a.shape)
    if op == "Add":
        return writer.made(writer.add(a, b, _label(node)), a.shape)
    return None


def _sum(reader, node: ir.Node, op: str, a: Form, b: Form):
    used = set(reader.sources.used(a.codes))
    if used & set(reader.sources.used(b.codes)):
        if a.shape != b.shape:
            return None
        return a.joined(b if op == "Add" else b.scaled(np.float64(-1)))
    if op != "Add" or a.shape != b.shape:
        _check_rows(reader, a, b)
        return None
    return reader.writer.made(reader.writer.add(a, b, _label(node)), a.shape)


def _check_rows(reader, a: Form | Function, b: Form | Function) -> None:
    """Name the mixing of tokens outside attention."""
    pooled = [any(isinstance(source.what, Row) for source in reader.sources.used(x.codes)) for x in (a, b)]
    if pooled[0] != pooled[1]:
        raise reader.writer.refuse("one row for a whole text, together with the rows of its tokens", "such a row at the end of a model")


def _label(node: ir.Node) -> str:
    """A name for a sum or product: residuals of a module are told apart by their own names."""
    return node.name or node.outputs[0].name or node.op_type.lower()


def as_function(reader, x) -> Function | object:
    """A tensor as a function of its components, where one factor and one constant are on all of them; others are made first."""
    if not isinstance(x, Form):
        return x
    single = len(x.codes) == 1 and not (x.codes < 0).any()
    factor = x.coefs.flat[0] if x.coefs.size else 1.0
    constant = 0.0 if x.const is None else float(np.ravel(x.const)[0])
    if single and (x.coefs == factor).all() and (x.const is None or (x.const == constant).all()):
        return Function(x.codes[0], factor * GRID + constant)
    x = reader.writer.remade(x)
    return Function(x.codes[0], GRID.copy())


def _unary(reader, node: ir.Node, arguments: list):
    x = arguments[0]
    if len([a for a in arguments if a is not None]) != 1:
        raise reader.unknown(node, arguments)
    function = FUNCTIONS[node.op_type]
    with np.errstate(all="ignore"):
        if isinstance(x, Form) and node.op_type == "Neg":
            return x.scaled(np.float64(-1))
        if isinstance(x, Statistic):
            return replace(x, samples=function(x.samples, node))
        if isinstance(x, Scores) and not x.steps and not x.probabilities:
            return replace(x, samples=function(x.samples, node))
        if isinstance(x, (Form, Function)):
            x = as_function(reader, x)
            return replace(x, samples=function(x.samples, node))
    raise reader.unknown(node, arguments)


def _where(reader, node: ir.Node, arguments: list):
    condition, a, b = arguments
    if isinstance(condition, Scores) and condition.nans:
        # softmax rows that were wholly hidden: 0 instead of NaN
        if isinstance(a, np.ndarray) and not a.any() and isinstance(b, Scores) and b.probabilities:
            return b
    if isinstance(condition, np.ndarray):
        if condition.all():
            return _if_whole(reader, node, arguments, a, condition)
        if not condition.any():
            return _if_whole(reader, node, arguments, b, condition)
        for x, fill, inverted in ((a, b, False), (b, a, True)):
            if isinstance(x, Scores) and not x.probabilities and isinstance(fill, np.ndarray) and (fill <= HIDDEN).all():
                result = masked(reader, x, MaskStep("where", node.inputs[0], inverted=inverted), condition)
                if result is not None:
                    return result
    raise reader.unknown(node, arguments)


def _if_whole(reader, node: ir.Node, arguments: list, x, condition: np.ndarray):
    """The chosen branch. Scores keep a note of the mask, which may hide something at another length."""
    inverted = not condition.any()
    if isinstance(x, Scores):
        return masked(reader, x, MaskStep("where", node.inputs[0], inverted=inverted), condition) or reader.unknown(node, arguments)
    if isinstance(x, np.ndarray) or np.broadcast_shapes(x.shape, condition.shape) != x.shape:
        raise reader.unknown(node, arguments)
    reader.use_constant(node.inputs[0], condition)
    return x


def _isnan(reader, node: ir.Node, arguments: list):
    if not isinstance(arguments[0], Scores) or not arguments[0].probabilities:
        raise reader.unknown(node, arguments)
    return replace(arguments[0], nans=True)


def _isinf(reader, node: ir.Node, arguments: list) -> np.ndarray:
    """Whether 16 bits overflow: no, in float32."""
    x = arguments[0]
    if not isinstance(x, (Form, Function)) or not reader.constants.rounding:
        raise reader.unknown(node, arguments)
    return np.zeros(x.shape, bool)


def _guards(reader, bound) -> bool:
    """Whether a bound of a tensor is one against the overflow of 16 bits."""
    return reader.constants.rounding > 0 and isinstance(bound, np.ndarray) and bound.size > 0 and bool(np.abs(bound).min() >= LEAST_BOUND)


def _clip(reader, node: ir.Node, arguments: list):
    """Bounds on a statistic or a function; those of float16 bound nothing in float32."""
    x, low, high = [*arguments, None, None][:3]
    bounds = [a for a in (low, high) if a is not None]
    if isinstance(x, Form) and all(_guards(reader, a) for a in bounds):
        return x
    if not isinstance(x, (Statistic, Function)) or any(a is not None and not isinstance(a, np.ndarray) for a in (low, high)):
        raise reader.unknown(node, arguments)
    samples = x.samples if low is None else np.maximum(x.samples, low.item())
    return replace(x, samples=samples if high is None else np.minimum(samples, high.item()))


OPERATORS = {name: _binary for name in BINARY} | {name: _unary for name in FUNCTIONS} | {"Where": _where, "IsInf": _isinf, "IsNaN": _isnan, "Clip": _clip}
