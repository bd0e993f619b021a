"""Positions that are added to the embeddings: a learned table, or sines and cosines."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir

from edgepos.positions import Learned, Sinusoidal

from ..tensor_set import Weight
from .precision import rounding_of

EXACT = 1e-6


def add_positions(writer, x: ir.Value, const: np.ndarray) -> ir.Value:
    """x plus a constant [S, width] that differs by position, whose values for the whole context come from the graph."""
    if writer.placed:
        raise writer.refuse("a second constant that differs by position", "one table of positions, added once")
    for value, array in writer.lengthy.items():
        if array.size != const.size:
            continue
        rest = const - array.reshape(const.shape)
        if np.abs(rest - rest[:1]).max() <= EXACT * max(1.0, np.abs(const).max()):
            break
    else:
        raise writer.refuse("a sum with a constant that differs by position and is no table of the graph", "a table of positions added to the embeddings")
    return place(writer, x, writer.whole(value).reshape(-1, const.shape[1]).astype(np.float64) + rest[0])


def place(writer, x: ir.Value, rows: np.ndarray) -> ir.Value:
    """x plus the rows float64 [positions, width] by position."""
    writer.placed = True
    spec = _sinusoidal(rows)
    if spec is not None:
        y = writer.graph.sinusoidal_positions(x, spec)
        if rounding_of(rows):
            writer.narrow[y.producer().inputs[1].producer().inputs[0].name] = rounding_of(rows)
        return y
    rows = rows.astype(np.float32)
    return writer.graph.learned_positions(x, Weight(writer.name("position_embeddings.weight"), rows, rows.shape), Learned(len(rows)))


def _sinusoidal(rows: np.ndarray) -> Sinusoidal | None:
    """The sinusoidal encoding with these rows, or None."""
    count, dim = rows.shape
    if dim % 2 or dim < 4 or np.abs(rows).max() > 1 + EXACT:
        return None
    few, exact = np.arange(min(count, 5)), max(EXACT, rounding_of(rows))
    kinds = itertools.product(("interleaved", "concatenated"), ("half", "half_minus_one"), ("sin", "cos"), (0, 1, 2))
    for convention, denominator, first, start in kinds:
        spec = Sinusoidal(dim, convention=convention, denominator=denominator, first=first, start=start)
        if np.abs(spec.table(few) - rows[: len(few)]).max() > exact:
            continue
        # float32 angles are off by their own rounding.
        if np.all(np.abs(spec.table(np.arange(count)) - rows) <= exact + 2e-7 * np.maximum(1, np.arange(count))[:, None]):
            return spec
    return None
