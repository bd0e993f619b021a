"""The proof of the phase method's error bound.

sincos_q15 (docs/arithmetic.md) reads a 257-entry quarter wave with linear interpolation at a 28-bit phase. Its error
against 32767·sin and 32767·cos of the exact angle is at most the sum of four terms, in units of 1/32767:

* output rounding: 1/2;
* interpolation: max over the quarter wave of |chord − 32767·sin|, with the integer entries as they are. On a segment
  [x0, x0 + h] the difference e = chord − 32767·sin is convex (−sin is, for 0 ≤ x ≤ π/2), so its maximum is at an end, and
  every tangent of e is below e: the tangent at a point next to the minimum bounds it from below. Both are evaluated in
  interval arithmetic, on the real segment, which holds every phase there is;
* phase rounding: at most 2^−29 turns, times the slope 32767·2π per turn;
* increment: position · 2^−65 turns, likewise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np

from ..fixedpoint import quarter_table, sincos_q15
from .enclosure import IV

FULL_SCALE = 32767
# exhaustive_error() for the runtime's table: what the proof's 1/2 + interpolation bounds from above.
EXHAUSTIVE_MAX = 0.576969


@dataclass(frozen=True)
class Interpolation:
    """Upper bounds in units of 1/32767: the worst segment and its error, and the error of every segment."""

    worst: float
    segment: int
    per_segment: tuple[float, ...]


def interpolation_error(table: np.ndarray) -> Interpolation:
    """A proven upper bound of |chord − 32767·sin| on each segment of a quarter wave; table int [segments + 1], scaled by 32767·2^15."""
    segments = len(table) - 1
    h = IV.pi / (2 * segments)
    errors = [_segment_error(i, h, int(table[i]), int(table[i + 1])) for i in range(segments)]
    worst = int(np.argmax(errors))
    return Interpolation(errors[worst], worst, tuple(errors))


def _segment_error(i: int, h, first: int, last: int) -> float:
    """The bound on the segment [i·h, (i + 1)·h] with the entries `first` and `last`."""
    x0, left = i * h, IV.mpf(first) / 2**15
    slope = (IV.mpf(last) / 2**15 - left) / h

    def error(x):
        return left + slope * (x - x0) - FULL_SCALE * IV.sin(x)

    cosine = mpmath.mpf((slope / FULL_SCALE).mid)
    x = IV.mpf(mpmath.acos(min(cosine, mpmath.mpf(1))))  # where e is least; any point would do for the proof
    tangent = abs(slope - FULL_SCALE * IV.cos(x)) * max(abs(x - x0).b, abs(x - x0 - h).b)
    ends = max(abs(error(x0)).b, abs(error(x0 + h)).b)
    return rounded_up(max(ends, (abs(error(x)) + tangent).b))


@lru_cache(maxsize=1)
def runtime_interpolation() -> Interpolation:
    """The interpolation error of the table every runtime uses."""
    return interpolation_error(quarter_table())


def bound_of(terms: dict[str, float]) -> float:
    """The sum of a bound's terms, rounded up."""
    return float(np.nextafter(math.fsum(terms.values()), np.inf))


def phase_terms(max_position: int, interpolation: Interpolation | None = None) -> dict[str, float]:
    """The terms of the bound for positions up to `max_position`, each rounded up to a float64, in units of 1/32767."""
    interpolation = interpolation or runtime_interpolation()
    per_turn = FULL_SCALE * 2 * IV.pi
    return {
        "output_rounding": 0.5,
        "interpolation": interpolation.worst,
        "phase_rounding": rounded_up((per_turn / 2**29).b),
        "increment": rounded_up((per_turn * int(max_position) / 2**65).b),
    }


def rounded_up(x) -> float:
    """The interval end x as a float64 that is not below it."""
    return float(np.nextafter(float(mpmath.mpf(x)), np.inf))


def exhaustive_error(chunk: int = 2**20) -> float:
    """max |S(j) − 32767·sin(j·2^−26·π/2)| over all 2^26 + 1 phases of the quarter wave, measured in float64 (± 10^−10)."""
    worst = 0.0
    for start in range(0, 2**26 + 1, chunk):
        j = np.arange(start, min(start + chunk, 2**26 + 1), dtype=np.uint64)
        _, sine = sincos_q15(j << np.uint64(36))
        worst = max(worst, float(np.abs(sine - FULL_SCALE * np.sin(j * (np.pi / 2**27))).max()))
    return worst
