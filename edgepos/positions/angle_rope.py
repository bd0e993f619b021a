"""Rotation by any angles: a function or a table of them instead of frequencies. Tables are the only integer method for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import ContextError, FormatError, UnsupportedError
from .enclosure import radian_phase
from .rope import LAYOUTS, Rotation, check_rotary_dim
from .spec import check_choice, check_context, check_count


@dataclass(frozen=True)
class AngleRope(Rotation):
    """RoPE whose pairs turn by `angles(positions)`.

    angles: a function int64 [n] → radians, float64 [n, rotary_dim/2], finite, the same numbers at every call; or such radians of the
    positions 0, 1, … themselves. They are taken as exact: bounds say how far the integers are from cos and sin of these float64
    numbers. A function has no JSON form, so `to_json` and `emit` refuse it: `tabulated(context)` makes numbers of it.
    TablePlan and PiecewisePlan take it; the phase and split methods need frequencies.
    Raises FormatError or UnsupportedError naming the field.
    """

    head_dim: int
    angles: Callable[[np.ndarray], np.ndarray] | tuple[tuple[float, ...], ...]
    rotary_dim: int | None = None
    layout: str = "half"

    encoding: ClassVar[str] = "angle_rope"
    linear: ClassVar[bool] = False

    def __post_init__(self):
        object.__setattr__(self, "head_dim", check_count("head_dim", self.head_dim, 1, 2**16))
        object.__setattr__(self, "rotary_dim", check_rotary_dim(self.rotary_dim, self.head_dim))
        check_choice("layout", self.layout, LAYOUTS)
        if not callable(self.angles):
            rows = _numbers(self.angles, "angles")
            if rows.ndim != 2 or rows.shape[1] != self.pairs or not len(rows):
                raise FormatError(f"angles have shape {list(rows.shape)}; allowed is [positions, {self.pairs}], or a function of positions")
            object.__setattr__(self, "angles", tuple(map(tuple, rows.tolist())))

    def tabulated(self, context: int) -> AngleRope:
        """The same rotation with the radians of the positions 0 … context − 1 as numbers."""
        rows = self.angles_at(np.arange(check_context(context), dtype=np.int64))
        return replace(self, angles=tuple(map(tuple, rows.tolist())))

    def to_json(self) -> dict:
        if callable(self.angles):
            raise UnsupportedError("angle_rope holds a function, which has no JSON form; emit its tabulated(context)")
        return super().to_json()

    @property
    def reach(self) -> int:
        return super().reach if callable(self.angles) else len(self.angles)

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        raise UnsupportedError("angle_rope has angles by a function and no frequencies; use the table method")

    def angles_at(self, positions: np.ndarray) -> np.ndarray:
        """The function's radians at positions [n], checked, float64 [n, pairs]."""
        if not callable(self.angles):
            if positions.size and positions.max() >= len(self.angles):
                raise ContextError(f"position {positions.max()} has no angles; there are {len(self.angles)} rows")
            return np.array([self.angles[p] for p in positions.tolist()], dtype=np.float64).reshape(-1, self.pairs)
        values = _numbers(self.angles(positions), "angles")
        if values.shape != (len(positions), self.pairs):
            raise FormatError(f"angles returned shape {list(values.shape)}; allowed is [{len(positions)}, {self.pairs}]")
        return values

    def cos_sin_of_pairs(self, p: np.ndarray, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        values = self.angles_at(p[..., 0].reshape(-1)).reshape(*p.shape[:-1], self.pairs)
        return np.cos(values), np.sin(values)

    def phase_of_pairs(self, p: np.ndarray, seq_len: int | None = None) -> np.ndarray:
        return radian_phase(self.angles_at(p[..., 0].reshape(-1)).reshape(*p.shape[:-1], self.pairs))

    def exact_angle(self, position: int, pair: int, seq_len: int | None = None) -> mpmath.mpf:
        return mpmath.mpf(float(self.angles_at(np.array([position], dtype=np.int64))[0, pair]))


def _numbers(values, name: str) -> np.ndarray:
    """Finite float64 numbers. Raises FormatError naming the first that is not."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise FormatError(f"{name} have rows of different lengths; allowed is [positions, pairs]") from None
    if array.dtype.kind not in "fiu":
        raise FormatError(f"{name} are {array.dtype}; allowed are numbers, or a function of positions that returns them")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        at = np.argwhere(~np.isfinite(array))[0].tolist()
        raise FormatError(f"{name}{at} is {array[tuple(at)]}; allowed are finite numbers")
    return array
