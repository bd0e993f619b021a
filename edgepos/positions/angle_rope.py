"""Rotation by any angles: a function positions → radians instead of frequencies. Tables are the only integer method for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError, UnsupportedError
from .rope import LAYOUTS, Rotation, check_rotary_dim
from .spec import check_choice, check_count


@dataclass(frozen=True)
class AngleRope(Rotation):
    """RoPE whose pairs turn by `angles(positions)`.

    angles: int64 [n] → radians, float64 [n, rotary_dim/2], finite; the same numbers at every call. What it returns is taken as
    exact: bounds say how far the integers are from cos and sin of these float64 numbers. A function has no JSON form: `to_json`
    and `emit` refuse it. TablePlan and PiecewisePlan take it; the phase and split methods need frequencies.
    Raises FormatError or UnsupportedError naming the field.
    """

    head_dim: int
    angles: Callable[[np.ndarray], np.ndarray]
    rotary_dim: int | None = None
    layout: str = "half"

    encoding: ClassVar[str] = "angle_rope"
    linear: ClassVar[bool] = False

    def __post_init__(self):
        object.__setattr__(self, "head_dim", check_count("head_dim", self.head_dim, 1, 2**16))
        object.__setattr__(self, "rotary_dim", check_rotary_dim(self.rotary_dim, self.head_dim))
        check_choice("layout", self.layout, LAYOUTS)
        if not callable(self.angles):
            raise FormatError(f"angles is {self.angles!r}; allowed is a function of positions")

    def to_json(self) -> dict:
        raise UnsupportedError("angle_rope holds a function, which has no JSON form; use its TablePlan, or give inv_freq as rope_type 'custom'")

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        raise UnsupportedError("angle_rope has angles by a function and no frequencies; use the table method")

    def angles_at(self, positions: np.ndarray) -> np.ndarray:
        """The function's radians at positions [n], checked, float64 [n, pairs]."""
        values = np.asarray(self.angles(positions))
        if values.shape != (len(positions), self.pairs) or values.dtype.kind not in "fiu":
            raise FormatError(f"angles returned {values.dtype} {list(values.shape)}; allowed are numbers [{len(positions)}, {self.pairs}]")
        values = values.astype(np.float64)
        if not np.isfinite(values).all():
            n, pair = np.argwhere(~np.isfinite(values))[0]
            raise FormatError(f"angles at position {positions[n]}, pair {pair} is {values[n, pair]}; allowed are finite numbers")
        return values

    def cos_sin_of_pairs(self, p: np.ndarray, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        values = self.angles_at(p[..., 0].reshape(-1)).reshape(*p.shape[:-1], self.pairs)
        return np.cos(values), np.sin(values)

    def exact_angle(self, position: int, pair: int, seq_len: int | None = None) -> mpmath.mpf:
        return mpmath.mpf(float(self.angles_at(np.array([position], dtype=np.int64))[0, pair]))
