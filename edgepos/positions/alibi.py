"""ALiBi, attention with linear biases: spec and float64 reference.

Source: Press et al., Train Short, Test Long, arXiv 2108.12409, and its published code for head counts that are no power of
two; `bias_max` as in MPT (8 is the paper's). The score of a key at distance d gets −slope·d, in natural units.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError
from .angles import EXACT_PREC
from .spec import Spec, check_count, check_flag, check_positions, check_positive, check_row

MAX_HEADS = 2**16


@dataclass(frozen=True)
class Alibi(Spec):
    """Which bias each head adds to its scores.

    heads: attention heads. bias_max: the exponent of the smallest power-of-two slope, 2^−bias_max. symmetric: distance
    |query − key| (encoders) instead of max(0, query − key). user_slopes: slopes to use instead of the rule, one per
    head, each finite and at least 0. Raises FormatError naming the field.
    """

    heads: int
    bias_max: float = 8.0
    symmetric: bool = False
    user_slopes: tuple[float, ...] | None = None

    encoding: ClassVar[str] = "alibi"

    def __post_init__(self):
        object.__setattr__(self, "heads", check_count("heads", self.heads, 1, MAX_HEADS))
        object.__setattr__(self, "bias_max", check_positive("bias_max", self.bias_max))
        check_flag("symmetric", self.symmetric)
        if self.user_slopes is not None:
            slopes = check_row("user_slopes", self.user_slopes, zero=True)
            if len(slopes) != self.heads:
                raise FormatError(f"user_slopes has {len(slopes)} entries; heads is {self.heads}")
            object.__setattr__(self, "user_slopes", slopes)

    def exact_slopes(self) -> tuple[mpmath.mpf, ...]:
        """The slope of each head to 256 bits."""
        return _exact_slopes(self)

    def slopes(self) -> np.ndarray:
        """The slope of each head, float64 [heads], correctly rounded, in natural units per position."""
        return np.array([float(s) for s in self.exact_slopes()], dtype=np.float64)

    def distance(self, query_positions, key_positions) -> np.ndarray:
        """How far each key is from each query, int64 [q, k]; 0 for keys in the future unless symmetric."""
        q, k = np.atleast_1d(check_positions(query_positions), check_positions(key_positions))
        away = q[:, None] - k[None, :]
        return np.abs(away) if self.symmetric else np.maximum(away, 0)

    def bias(self, query_positions, key_positions) -> np.ndarray:
        """What is added to the scores, float64 [heads, q, k], in natural units.

        A key in the future gets 0 in the causal form: hiding it is the causal mask's business.
        Raises ContextError for a position out of range.
        """
        return -self.slopes()[:, None, None] * self.distance(query_positions, key_positions)


@lru_cache(maxsize=64)
def _exact_slopes(spec: Alibi) -> tuple[mpmath.mpf, ...]:
    with mpmath.workprec(EXACT_PREC):
        if spec.user_slopes is not None:
            return tuple(mpmath.mpf(s) for s in spec.user_slopes)
        below = 1 << (spec.heads.bit_length() - 1)  # the largest power of two up to heads
        bias_max = mpmath.mpf(spec.bias_max)
        slopes = [mpmath.power(2, -bias_max * (h + 1) / below) for h in range(below)]
        slopes += [mpmath.power(2, -bias_max * (2 * h + 1) / (2 * below)) for h in range(spec.heads - below)]
        return tuple(slopes)
