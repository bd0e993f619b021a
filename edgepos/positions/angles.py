"""What every encoding made of angles shares: exact frequencies, phases, float64 cos and sin.

An angle is position · frequency. Frequencies are mpmath numbers to 256 bits; a phase is an angle in turns · 2^64, so that range
reduction is exact at every position below 2^31.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError
from ..fixedpoint import round_half_up
from .enclosure import enclosed_cos_sin, reduced, turned
from .spec import POSITION_LIMIT, Spec, check_count, check_positions

EXACT_PREC = 256  # bits: 96 behind the point of a turn, 32 in front of it, the rest to spare
FREQUENCY_LIMIT = 2**32
CHECK_PREC = 2 * EXACT_PREC
LOST_BITS = 96  # of EXACT_PREC that a scaling's parameters may cancel


class Angles(Spec, ABC):
    """Base of the specs whose values are cos and sin of position · frequency.

    A subclass gives `pairs` and `frequencies(seq_len)`, and `axes` when positions have several coordinates. linear False: its angles are no
    multiples of the position, so that it has no frequencies (AngleRope).
    """

    linear: ClassVar[bool] = True

    @property
    def length_dependent(self) -> bool:
        """True when the frequencies depend on the session's length."""
        return False

    @property
    def reach(self) -> int:
        """Positions that have an angle are 0 … reach − 1."""
        return POSITION_LIMIT

    @property
    def axes(self) -> tuple[int, ...] | None:
        """Which coordinate of a position each pair turns with; None when a position is one number."""
        return None

    @abstractmethod
    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        """Radians per position of each pair, in the working precision."""

    @property
    @abstractmethod
    def pairs(self) -> int:
        """Number of frequencies."""

    def exact_inv_freq(self, seq_len: int | None = None) -> tuple[mpmath.mpf, ...]:
        """Radians per position of each pair to more than 200 bits, from theta and the factors as exact float64 numbers.

        Computed with 512 bits. Raises FormatError where 256 bits would lose more than 96 of them: the parameters cancel each other.
        """
        if seq_len is not None:
            seq_len = check_count("seq_len", seq_len, 1, 2**31)
        return _exact_inv_freq(self, seq_len if self.length_dependent else None)

    def inv_freq(self, seq_len: int | None = None) -> np.ndarray:
        """Radians per position of each pair, float64 [pairs], each correctly rounded.

        seq_len matters to the length-dependent scalings only; None is the length of training.
        """
        return np.array([float(f) for f in self.exact_inv_freq(seq_len)], dtype=np.float64)

    def exact_angle(self, position: int, pair: int, seq_len: int | None = None) -> mpmath.mpf:
        """The angle of a pair in radians, in the working precision."""
        return int(position) * self.exact_inv_freq(seq_len)[pair]

    def increments(self, seq_len: int | None = None) -> np.ndarray:
        """Turns · 2^64 per position of each pair, uint64 [pairs], rounded half up from the exact formula."""
        return np.array(_turns(self, seq_len if self.length_dependent else None, 64), dtype=np.uint64)

    def pair_positions(self, positions, limit: int = POSITION_LIMIT) -> np.ndarray:
        """The position each pair turns with, int64 [..., pairs] or [..., 1] where all turn with the same.

        positions: whole numbers [...], or [..., axes] when the spec has axes. Raises ContextError, FormatError.
        """
        p = check_positions(positions, limit)
        if self.axes is None:
            return p[..., None]
        count = max(self.axes, default=-1) + 1
        if p.ndim == 0 or p.shape[-1] < count:
            raise FormatError(f"positions have shape {p.shape}; their last axis must hold {count} coordinates")
        return p[..., list(self.axes)]

    def diagonal(self, positions: np.ndarray) -> np.ndarray:
        """Positions [n] in every coordinate, [n, axes]; as they are where a position is one number."""
        return positions if self.axes is None else np.repeat(positions[:, None], max(self.axes, default=0) + 1, axis=1)

    def phase_of_pairs(self, p: np.ndarray, seq_len: int | None = None) -> np.ndarray:
        """Angle of each pair in turns · 2^64 mod 2^64, uint64 [..., pairs], from `pair_positions`; error below 1.25 units.

        Formed of 96-bit increments: the reference must be better than the 64-bit increments it judges.
        """
        p = p.astype(np.uint64)
        wide = _turns(self, seq_len if self.length_dependent else None, 96)
        high = np.array([w >> 32 for w in wide], dtype=np.uint64)
        low = np.array([w & 0xFFFFFFFF for w in wide], dtype=np.uint64)
        with np.errstate(over="ignore"):
            return p * high + ((p * low) >> np.uint64(32))

    def cos_sin_of_pairs(self, p: np.ndarray, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin, float64 [..., pairs] each, from `pair_positions`. Error below 4·10^−16, at every position."""
        quadrant, angle = reduced(self.phase_of_pairs(p, seq_len))
        return turned(quadrant, np.cos(angle), np.sin(angle))

    def enclosed_cos_sin(self, p: np.ndarray, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin within `enclosure.RADIUS`, proven and the same on every machine, float64 [..., pairs] each, from `pair_positions`."""
        return enclosed_cos_sin(self.phase_of_pairs(p, seq_len))

    def cos_sin(self, positions, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of position · inv_freq without any factor, float64 [n, pairs] each.

        positions: whole numbers [n] (any shape) in 0 … 2^31 − 1; [n, axes] where a position has coordinates.
        Error below 4·10^−16, at every position. Raises ContextError for a position out of range.
        """
        return self.cos_sin_of_pairs(self.pair_positions(positions), seq_len)


@lru_cache(maxsize=64)
def _exact_inv_freq(spec: Angles, seq_len: int | None) -> tuple[mpmath.mpf, ...]:
    with mpmath.workprec(EXACT_PREC):
        narrow = spec.frequencies(seq_len)
    with mpmath.workprec(CHECK_PREC):
        result = spec.frequencies(seq_len)
        for j, (f, rough) in enumerate(zip(result, narrow)):
            if not 0 <= f < FREQUENCY_LIMIT:
                raise FormatError(f"inv_freq of pair {j} is {mpmath.nstr(f, 6)}; allowed is 0 to below 2^32 radians per position")
            if abs(f - rough) > mpmath.ldexp(f, LOST_BITS - EXACT_PREC):
                raise FormatError(
                    f"inv_freq of pair {j} is {mpmath.nstr(f, 6)}, of which 256-bit arithmetic has fewer than 160 bits right; "
                    "allowed are parameters of the scaling that lie further apart"
                )
    return tuple(result)


@lru_cache(maxsize=64)
def _turns(spec: Angles, seq_len: int | None, bits: int) -> tuple[int, ...]:
    """inv_freq / 2π in units of 2^−bits turns, rounded half up, modulo one turn."""
    with mpmath.workprec(EXACT_PREC):
        unit = mpmath.ldexp(1, bits) / (2 * mpmath.pi)
        return tuple(round_half_up(f * unit) % 2**bits for f in spec.exact_inv_freq(seq_len))
