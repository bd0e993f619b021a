"""Embedding models: one row from all rows of a text, and its normalization."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .looks import module_of
from .sources import Linear, Row
from .values import Form, Function, Source, Statistic, pure

UNIT_EPSILON = 1e-18  # of a mean square: the guard of a normalization against rows of zeros is below it


@dataclass(frozen=True, eq=False)
class TokenSum:
    """The sum of the rows of x over its tokens."""

    x: Form
    shape: tuple[int, ...]


class EncoderFound(Exception):
    """Attention goes in both directions, or a text becomes one row: the graph is to be read as an encoder."""


def token_axis(reader, x: Form, axes: list[int]) -> bool:
    """Whether `axes` is the axis of tokens of x [1, S, width]."""
    return len(x.shape) == 3 and x.shape[:2] == (1, reader.length) and axes in ([1], [-2])


def reduced(reader, node: ir.Node, x: Form, keep: bool):
    """A reduction of x [1, S, width] over its tokens."""
    if node.op_type == "ReduceSum":
        return TokenSum(x, (1, 1, x.shape[2]) if keep else (1, x.shape[2]))
    kind = {"ReduceMean": "mean", "ReduceMax": "max"}.get(node.op_type)
    return None if kind is None else pooled(reader, x, kind, keep)


def pooled(reader, x: Form, kind: str, keep: bool = False, token: int = 0) -> Form:
    """One row of all rows of x."""
    writer = reader.writer
    if not writer.encoder:
        raise EncoderFound
    return _made_row(writer, writer.graph.pool(writer.value(x), kind, token=token), keep)


def row_form(source: Source, lead: tuple[int, ...]) -> Form:
    """A source of one row, which is its token 0, as a tensor [*lead, width]."""
    codes = source.base + np.arange(source.width, dtype=np.int64)
    return pure(codes.reshape(*lead, source.width))


def _made_row(writer, value: ir.Value, keep: bool) -> Form:
    """A value [1, width] of the canonical graph as a tensor."""
    return row_form(writer.sources.new(Row(value), int(value.shape[1])), (1, 1) if keep else (1,))


def mean_of(reader, total: TokenSum, divisor: np.ndarray) -> Form | None:
    """A sum over tokens divided by their number."""
    if not (divisor == reader.length).all():
        return None
    return pooled(reader, total.x, "mean", len(total.shape) == 3)


def row_of(writer, x: Form | Function) -> ir.Value | None:
    """The value [1, width] that x is, or None; the first or last token of a text is one, too."""
    if isinstance(x, Function) and (row := row_of(writer, pure(x.codes))) is not None:
        return writer.activation(row, x)
    if not isinstance(x, Form) or len(x.codes) != 1 or (x.codes < 0).any() or (len(x.shape) > 1 and x.shape[-2] != 1):
        return None
    used = writer.sources.used(x.codes)
    if len(used) == 1 and isinstance(used[0].what, Linear) and len(used[0].what.x.shape) == 2:
        return writer.linear_row(used[0], x)
    if not x.is_pure:
        return None
    number, token, component = writer.sources.decode(x.codes[0].ravel())
    if len(used) != 1 or component.size != used[0].width or (component != np.arange(used[0].width)).any() or (token != token[0]).any():
        return None
    if isinstance(used[0].what, Row):
        return used[0].what.value
    if writer.encoder and token[0] in (0, writer.length - 1):
        key = ("row", used[0].base, int(token[0]))
        if key not in writer.cache:
            rows = writer.value(writer.sources.form(used[0]))
            writer.cache[key] = writer.graph.pool(rows, "first" if token[0] == 0 else "last")
        return writer.cache[key]
    return None


def unit(reader, x: Form, statistic: Statistic, epsilon: float) -> Form | None:
    """A row over its Euclidean norm."""
    value = row_of(reader.writer, x)
    if value is None or epsilon > UNIT_EPSILON:
        return None
    return _made_row(reader.writer, reader.writer.graph.unit(value, "normalize"), len(x.shape) == 3)


def normed_row(reader, node: ir.Node, row: ir.Value, shape: tuple[int, ...], gamma: np.ndarray, beta: np.ndarray | None, center: bool) -> Form:
    """The norm that an operator names, of one row."""
    writer = reader.writer
    if not center and beta is not None:
        raise writer.refuse("an RMS norm with a bias", "a bias in layer norms only")
    epsilon, name = float(np.float32(node.attributes.get_float("epsilon", 1e-5))), writer.name(module_of(node))
    g, *b = (writer.weight(f"{name}.{part}", w.ravel().astype(np.float32)) for part, w in (("weight", gamma), ("bias", beta)) if w is not None)
    value = writer.graph.layer_norm(row, name, g, b[0] if b else None, epsilon) if center else writer.graph.rms_norm(row, name, g, epsilon)
    return _made_row(reader.writer, value, len(shape) == 3)
