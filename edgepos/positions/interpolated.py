"""Phase plans with other quarter waves than the runtime's: 64 … 1024 entries, linear or quadratic interpolation.

The runtime's own is 256 entries, linear (`PhasePlan`); these say what smaller tables cost and larger ones give.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np

from ..errors import UnsupportedError
from ..fixedpoint import rope_phase, round_half_up, rshift_round
from .enclosure import IV
from .phase_proof import FULL_SCALE, bound_of, interpolation_error, phase_terms, rounded_up
from .plan import RotationPlan
from .rope import Rotation
from .spec import POSITION_LIMIT, check_choice, check_context

ENTRIES = (64, 128, 256, 512, 1024)
ORDERS = {1: "linear", 2: "quadratic"}
ENTRY_BITS = 15  # entries are in units of 2^−15/32767


@lru_cache(maxsize=None)
def wave(entries: int, order: int) -> np.ndarray:
    """sin(j·h)·32767·2^15, h = π/(2·entries), int64 [entries + order]; scaled by 1 + h²/16 for linear interpolation, which
    puts the chord's error on both sides. Quadratic interpolation reads one entry beyond the quarter."""
    with mpmath.workdps(50):
        h = mpmath.pi / (2 * entries)
        scale = FULL_SCALE * 2**ENTRY_BITS * (1 + h * h / 16 if order == 1 else 1)
        return np.array([round_half_up(scale * mpmath.sin(j * h)) for j in range(entries + order)], dtype=np.int64)


def quarter_sine(j: np.ndarray, entries: int, order: int) -> np.ndarray:
    """32767·sin of j · 2^−26 quarter turns, 0 ≤ j ≤ 2^26, int64. The last entry is read as the end of the last segment."""
    q = wave(entries, order)
    b = 26 - (entries.bit_length() - 1)
    i = np.minimum(j >> b, entries - 1)
    f = j - (i << b)
    step = q[i + 1] - q[i]
    if order == 2:
        bend = q[i + 2] - 2 * q[i + 1] + q[i]
        step = step + rshift_round(bend * (f - (1 << b)), b + 1)
    return np.minimum(rshift_round((q[i] << b) + step * f, b + ENTRY_BITS), FULL_SCALE)


@lru_cache(maxsize=None)
def interpolation_bound(entries: int, order: int) -> float:
    """A proven upper bound of the interpolation's error in units of 1/32767, without the output rounding.

    Linear: `phase_proof.interpolation_error` of the entries as they are. Quadratic through 0, h, 2h, read on [0, h]: the
    polynomial is off by at most 32767 · h³/(9·√3) (the third derivative of sin is at most 1), entries that are off by half a
    unit move it by at most 5/4 of that, and the inner rounding by half a unit more.
    """
    if order == 1:
        return interpolation_error(wave(entries, 1)).worst
    h = IV.pi / (2 * entries)
    rounding = (IV.mpf(5) / 8 + IV.mpf(1) / 2) / 2**ENTRY_BITS
    return rounded_up((FULL_SCALE * h**3 / (9 * IV.sqrt(3)) + rounding).b)


@dataclass(frozen=True)
class InterpolatedPlan(RotationPlan):
    """64-bit phase increments and a quarter wave of `entries` segments, interpolated to `order` 1 (linear) or 2 (quadratic)."""

    spec: Rotation
    context: int = POSITION_LIMIT
    entries: int = 256
    order: int = 1

    bits = 16
    full_scale = FULL_SCALE

    def __post_init__(self):
        check_context(self.context)
        check_choice("entries", self.entries, ENTRIES)
        if self.order not in ORDERS:
            raise UnsupportedError(f"order is {self.order!r}; known are 1 (linear), 2 (quadratic)")

    @property
    def method(self) -> str:
        """The method's name with its parameters."""
        return f"phase-{self.entries}-{ORDERS[self.order]}"

    @property
    def bytes(self) -> int:
        """Increments and the quarter wave."""
        return 8 * self.spec.pairs + 4 * (self.entries + self.order)

    @property
    def operations(self) -> int:
        """Integer operations per pair."""
        return 23 if self.order == 1 else 33

    def terms(self) -> dict[str, float]:
        return phase_terms(self.context - 1) | {"interpolation": interpolation_bound(self.entries, self.order)}

    @property
    def bound(self) -> float:
        return bound_of(self.terms())

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        p = self.spec.pair_positions(positions, self.context)
        phase = rope_phase(p, self.spec.increments(self.seq_len))
        with np.errstate(over="ignore"):
            p28 = ((phase + np.uint64(2**35)) >> np.uint64(36)).astype(np.int64)
        return self._sine(p28 + 2**26).astype(np.int16), self._sine(p28).astype(np.int16)

    def _sine(self, p28: np.ndarray) -> np.ndarray:
        quadrant, j = (p28 >> 26) & 3, p28 & (2**26 - 1)
        value = quarter_sine(np.where(quadrant & 1, 2**26 - j, j), self.entries, self.order)
        return np.where(quadrant & 2, -value, value)
