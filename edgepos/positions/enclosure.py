"""Enclosures of cos and sin without a math library: float64 additions and multiplications only.

IEEE 754 fixes these two bit for bit, so the numbers are the same on every machine and their distance from cos and sin can be proven
(docs/positions.md, "How entries are proven"). `interval_cos_sin` decides what lies too close to call.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from math import factorial

import mpmath
import numpy as np
from mpmath.ctx_iv import MPIntervalContext

RADIUS = 2.0**-50  # of the enclosures of cos and sin
SCALED_RADIUS = 2.0**-49  # of scale · cos, relative to the scale: the product, a sum and a difference are rounded too
PHASE_ERROR = 4  # units of 2^−64 turns that RADIUS allows a phase to be off
IV = MPIntervalContext()
IV.prec = 320
_RELATIVE = mpmath.mpf(2) ** -200  # of an angle from `exact_angle`: 256 bits less what a dozen operations lose

_TURN_BITS = 1280
_SINE = tuple(float(Fraction((-1) ** k, factorial(2 * k + 1))) for k in range(1, 9))
_COSINE = tuple(float(Fraction((-1) ** k, factorial(2 * k))) for k in range(1, 10))


def reduced(phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(quadrant, x) of a phase in turns · 2^64: the angle is x + quadrant · π/2 with x in ±π/4 radians, float64."""
    with np.errstate(over="ignore"):
        octant = phase + np.uint64(2**61)  # quadrants centred on the axes
    quadrant = (octant >> np.uint64(62)).astype(np.int64)
    offset = (octant & np.uint64(2**62 - 1)).astype(np.int64) - 2**61
    return quadrant, offset * (np.pi * 2.0**-63)


def turned(quadrant: np.ndarray, c: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of x + quadrant · π/2 from those of x."""
    odd = (quadrant & 1).astype(bool)
    cosine, sine = np.where(odd, s, c), np.where(odd, c, s)
    return np.where((quadrant + 1) & 2, -cosine, cosine) + 0.0, np.where(quadrant & 2, -sine, sine) + 0.0


def enclosed_cos_sin(phase: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Float64 numbers within RADIUS of cos and sin of every angle within PHASE_ERROR of `phase`, uint64 turns · 2^64."""
    quadrant, x = reduced(phase)
    z = x * x
    c, s = np.full_like(z, _COSINE[-1]), np.full_like(z, _SINE[-1])
    for series, terms in ((c, _COSINE), (s, _SINE)):
        for term in terms[-2::-1]:
            series *= z
            series += term
        series *= z
    s *= x
    s += x
    c += 1.0
    return turned(quadrant, c, s)


@lru_cache(maxsize=4096)
def _turns_of_power(exponent: int) -> tuple[int, int]:
    """(high, low): 2^exponent radians in turns · 2^96 modulo one turn, rounded down, as high · 2^32 + low."""
    with mpmath.workprec(_TURN_BITS + 64):
        unit = int(mpmath.floor(mpmath.ldexp(1, _TURN_BITS) / (2 * mpmath.pi)))
    shift = exponent + 96 - _TURN_BITS
    whole = (unit << shift if shift >= 0 else unit >> -shift) % 2**96
    return whole >> 32, whole & 0xFFFFFFFF


def radian_phase(angles: np.ndarray) -> np.ndarray:
    """Turns · 2^64 modulo one turn of angles in radians, finite float64 of any size taken as exact; uint64, error below 3.1 units.

    A float64 is (h · 2^32 + l) · 2^e with h < 2^21: each half times a power of two whose turns are known to 96 bits.
    """
    mantissa, exponent = np.frexp(np.abs(angles))
    whole = np.ldexp(mantissa, 53).astype(np.uint64)
    exponent = exponent.astype(np.int64) - 53
    first = int(exponent.min(initial=0))
    parts = [_turns_of_power(e) for e in range(first, int(exponent.max(initial=0)) + 33)]
    high, low = (np.array([p[k] for p in parts], dtype=np.uint64) for k in (0, 1))
    phase = np.zeros(whole.shape, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for half, at in ((whole >> np.uint64(32), exponent + 32 - first), (whole & np.uint64(0xFFFFFFFF), exponent - first)):
            phase += half * high[at] + ((half * low[at]) >> np.uint64(32))
        return np.where(angles < 0, np.uint64(0) - phase, phase)


def interval_cos_sin(angle: mpmath.mpf):
    """Intervals that hold cos and sin of an angle of which `angle` is a 2^−200th part off at most."""
    width = abs(angle) * _RELATIVE
    x = IV.mpf([angle - width, angle + width])
    return IV.cos(x), IV.sin(x)
