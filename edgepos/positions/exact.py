"""Correctly rounded tables of cos and sin: the same integers on every machine.

The enclosures of `enclosure.py` settle all entries but those next to a rounding tie; these few are decided in interval arithmetic.
"""

from __future__ import annotations

import mpmath
import numpy as np

from ..fixedpoint import round_half_up
from .angles import EXACT_PREC, Angles
from .enclosure import SCALED_RADIUS, interval_cos_sin


def exact_cos_sin(spec: Angles, position: int, pair: int, seq_len: int | None = None) -> tuple[mpmath.mpf, mpmath.mpf]:
    """cos and sin of one pair at one position to about 190 bits."""
    with mpmath.workprec(EXACT_PREC):
        angle = spec.exact_angle(position, pair, seq_len)
        return mpmath.cos(angle), mpmath.sin(angle)


def rounded_cos_sin_at(
    spec: Angles, positions: np.ndarray, scale: int, seq_len: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """floor(scale·cos + 1/2) and floor(scale·sin + 1/2), exactly, int64 [n, pairs] each, for positions [n]; scale ≤ 2^30."""
    slack = scale * SCALED_RADIUS
    results = []
    for which, values in enumerate(spec.enclosed_cos_sin(positions[:, None], seq_len)):
        scaled = scale * values + 0.5
        rounded = np.floor(scaled)
        part = scaled - rounded
        for n, pair in np.argwhere((part < slack) | (part > 1 - slack)):
            rounded[n, pair] = _decided(spec, int(positions[n]), int(pair), which, scale, seq_len)
        results.append(rounded.astype(np.int64))
    return results[0], results[1]


def _decided(spec: Angles, position: int, pair: int, which: int, scale: int, seq_len: int | None) -> int:
    """One entry from an interval, whose ends round to the same number: cos of an algebraic angle other than 0 is no tie."""
    with mpmath.workprec(EXACT_PREC):
        value = scale * interval_cos_sin(spec.exact_angle(position, pair, seq_len))[which]
        low, high = round_half_up(mpmath.mpf(value.a)), round_half_up(mpmath.mpf(value.b))
    if low != high:
        raise ArithmeticError(f"position {position}, pair {pair}: 190 bits do not tell {low} from {high}")
    return low
