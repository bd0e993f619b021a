"""Correctly rounded tables of cos and sin: the same integers on every machine.

float64 gives scale·cos to about 10^−11, far finer than needed unless the number lies next to a rounding tie. Those few
entries are decided with 256-bit arithmetic, so no libm can change a table.
"""

from __future__ import annotations

import mpmath
import numpy as np

from ..fixedpoint import round_half_up
from .angles import EXACT_PREC, Angles

TIE_SLACK = 1e-6  # five orders above the error of float64 here


def exact_cos_sin(spec: Angles, position: int, pair: int, seq_len: int | None = None) -> tuple[mpmath.mpf, mpmath.mpf]:
    """cos and sin of one pair at one position to about 190 bits."""
    with mpmath.workprec(EXACT_PREC):
        angle = spec.exact_angle(position, pair, seq_len)
        return mpmath.cos(angle), mpmath.sin(angle)


def rounded_cos_sin(spec: Angles, context: int, scale: int, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """`rounded_cos_sin_at` the positions 0 … context − 1."""
    return rounded_cos_sin_at(spec, np.arange(context), scale, seq_len)


def rounded_cos_sin_at(
    spec: Angles, positions: np.ndarray, scale: int, seq_len: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """floor(scale·cos + 1/2) and floor(scale·sin + 1/2), exactly, int64 [n, pairs] each, for positions [n]; scale ≤ 2^30."""
    slack = max(TIE_SLACK, scale * 4e-15)
    results = []
    for which, values in enumerate(spec.cos_sin_of_pairs(positions[:, None], seq_len)):
        scaled = scale * values + 0.5
        rounded = np.floor(scaled)
        part = scaled - rounded
        for n, pair in np.argwhere((part < slack) | (part > 1 - slack)):
            with mpmath.workprec(EXACT_PREC):
                rounded[n, pair] = round_half_up(scale * exact_cos_sin(spec, positions[n], pair, seq_len)[which])
        results.append(rounded.astype(np.int64))
    return results[0], results[1]
