"""The largest error of integers that stand for cos and sin, found from every one of them.

Each entry is compared with an enclosure of the exact value; those that could be the largest, and those that could pass half a unit, are
decided in interval arithmetic. The integers are taken as they are, however they were made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import mpmath
import numpy as np

from .angles import EXACT_PREC, Angles
from .enclosure import IV, SCALED_RADIUS, interval_cos_sin
from .phase_proof import rounded_up

CHUNK = 2**17  # entries at a time
CONTENDERS = 64  # entries that are decided in interval arithmetic at most, besides those near half a unit
PRODUCTS = 4096  # likewise of products with a constant
PRODUCT_RADIUS = 2.0**-51  # of float64 products with a rounded constant, relative: two roundings, and a third of the sum with 1/2
FUNCTIONS = ("cos", "sin")
GRID = 2.0**-32  # bounds are multiples of it, so that a check in float64 does not seem to pass them


@dataclass(frozen=True)
class WorstEntry:
    """bound: no entry is further from the exact value, in units of 1/scale, a multiple of GRID; where the largest error found is: position, pair and
    function ("cos", "sin"). entries: how many were compared, decided: of them in interval arithmetic."""

    bound: float
    position: int
    pair: int
    function: str
    entries: int
    decided: int

    def to_json(self) -> dict:
        """The fields as JSON data."""
        return asdict(self)


def worst_entry(
    spec: Angles, integers: Callable[[int, int], tuple[np.ndarray, np.ndarray]], positions: np.ndarray, scale: int, seq_len: int | None
) -> WorstEntry:
    """The largest |integer − scale · cos| and |integer − scale · sin| over all pairs at positions [n].

    integers(a, b) gives cos and sin [b − a, pairs] of positions[a:b]. scale at most 2^30; errors below 2^17.
    """
    radius = scale * SCALED_RADIUS
    step = max(1, CHUNK // max(1, spec.pairs))
    top, kept = 0.0, []
    for start in range(0, len(positions), step):
        stop = min(start + step, len(positions))
        exact = spec.enclosed_cos_sin(positions[start:stop, None], seq_len)
        for which, (found, value) in enumerate(zip(integers(start, stop), exact)):
            error = np.abs(found - scale * value)
            top = max(top, float(error.max(initial=0.0)))
            near = (error >= top - 2 * radius) | (np.abs(error - 0.5) <= 2 * radius)
            kept += [
                (float(error[n, pair]), int(positions[start + n]), pair, which, int(found[n, pair])) for n, pair in np.argwhere(near).tolist()
            ]
    kept = [k for k in kept if k[0] >= top - 2 * radius or (top < 1 and abs(k[0] - 0.5) <= 2 * radius)]
    kept.sort(key=lambda k: (abs(k[0] - 0.5) > 2 * radius, -k[0], k[1:4]))
    close = sum(abs(k[0] - 0.5) <= 2 * radius for k in kept)
    decided = kept[: max(close, CONTENDERS)]
    errors = [interval_error(spec, *k[1:], scale, seq_len) for k in decided] + [k[0] + radius for k in kept[len(decided) :]]
    if not errors:
        return WorstEntry(0.0, 0, 0, "cos", 0, 0)
    worst = max(errors)
    _, position, pair, which, _ = kept[errors.index(worst)]
    return WorstEntry(math.ceil(worst / GRID) * GRID, position, pair, FUNCTIONS[which], 2 * len(positions) * spec.pairs, len(decided))


def interval_error(spec: Angles, position: int, pair: int, which: int, integer: int, scale: int, seq_len: int | None) -> float:
    """An upper end of |integer − scale · cos| (which = 0) or sin (1) at one entry, from interval arithmetic."""
    with mpmath.workprec(EXACT_PREC):
        values = interval_cos_sin(spec.exact_angle(position, pair, seq_len))
    end = mpmath.mpf(abs(IV.mpf(integer) - scale * values[which]).b)
    return rounded_up(end) if end else 0.0


def worst_product(factors: np.ndarray, step: mpmath.mpf, entries: np.ndarray) -> tuple[float, int]:
    """(bound, index): no |entry − factor · step| is larger, and where the largest is. factors float64 [n], entries integers [n],
    step a number known to 2^−200 of itself.

    float64 products (two roundings each) find the candidates, 256-bit ones decide them.
    """
    if not len(factors):
        return 0.0, 0
    products = factors * float(step)
    errors, radius = np.abs(products - entries), np.abs(products) * PRODUCT_RADIUS
    least = float((errors - radius).max())
    near = (errors + radius >= least) | (np.abs(errors - 0.5) <= radius)
    candidates = np.flatnonzero(near)
    decided = candidates[np.argsort(-errors[candidates], kind="stable")][:PRODUCTS]
    with mpmath.workprec(EXACT_PREC):
        found = [
            float(abs(mpmath.mpf(f) * step - e) + abs(f * step) * mpmath.ldexp(1, -200)) for f, e in zip(factors[decided].tolist(), entries[decided].tolist())
        ]
    rest = np.setdiff1d(candidates, decided)
    bound = max(max(found), float((errors + radius)[rest].max(initial=0.0)))
    return math.ceil(bound / GRID) * GRID, int(decided[int(np.argmax(found))])
