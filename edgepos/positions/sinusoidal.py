"""Sinusoidal absolute positions: spec, float64 reference, integer plan.

Source: Vaswani et al., arXiv 1706.03762, section 3.5 (denominator "half", interleaved); tensor2tensor and fairseq (denominator
"half_minus_one", concatenated; also Whisper's time axis).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import ContextError, FormatError
from .angles import Angles
from .base import Plan
from .plan import PhasePlan, TablePlan
from .spec import POSITION_LIMIT, Spec, build, check_choice, check_count, check_flag, check_positions, check_positive


@dataclass(frozen=True)
class Sinusoidal(Angles):
    """What a position adds to an embedding of `dim` components.

    dim: even. convention: "interleaved" (sin in component 2i, cos in 2i + 1) or "concatenated" (all sines, then all cosines).
    denominator: frequency i is theta^(−i/(dim/2)) ("half") or theta^(−i/(dim/2 − 1)) ("half_minus_one"). start: added to
    every position (2 in fairseq's tables with padding id 1). scale: factor on the values. first: "sin" or "cos", which
    of the two comes first. Raises FormatError or UnsupportedError naming the field.
    """

    dim: int
    convention: str = "interleaved"
    denominator: str = "half"
    start: int = 0
    scale: float = 1.0
    theta: float = 10000.0
    first: str = "sin"

    encoding: ClassVar[str] = "sinusoidal"

    def __post_init__(self):
        object.__setattr__(self, "dim", check_count("dim", self.dim, 2, 2**17))
        if self.dim % 2:
            raise FormatError(f"dim is {self.dim}; allowed is an even number")
        check_choice("convention", self.convention, ("interleaved", "concatenated"))
        check_choice("denominator", self.denominator, ("half", "half_minus_one"))
        if self.denominator == "half_minus_one" and self.dim == 2:
            raise FormatError("dim is 2; denominator 'half_minus_one' allows 4 and more")
        object.__setattr__(self, "start", check_count("start", self.start, 0, 2**20))
        object.__setattr__(self, "scale", check_positive("scale", self.scale))
        object.__setattr__(self, "theta", check_positive("theta", self.theta))
        check_choice("first", self.first, ("sin", "cos"))

    @property
    def pairs(self) -> int:
        """Frequencies: dim/2."""
        return self.dim // 2

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        below = self.pairs if self.denominator == "half" else self.pairs - 1
        return [mpmath.power(mpmath.mpf(self.theta), -mpmath.mpf(i) / below) for i in range(self.pairs)]

    def shifted(self, positions) -> np.ndarray:
        """Positions with `start` added, int64. Raises ContextError when the sum passes 2^31 − 1."""
        p = check_positions(positions) + self.start
        if (p >= POSITION_LIMIT).any():
            raise ContextError(f"position {p.max() - self.start} plus start {self.start} passes 2^31 − 1")
        return p

    def arrange(self, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
        """cos and sin [..., dim/2] in the order of the components, [..., dim]."""
        parts = [sin, cos] if self.first == "sin" else [cos, sin]
        if self.convention == "concatenated":
            return np.concatenate(parts, axis=-1)
        return np.stack(parts, axis=-1).reshape(*cos.shape[:-1], self.dim)

    def table(self, positions) -> np.ndarray:
        """The rows of positions [n], float64 [n, dim]; error below scale · 4·10^−16."""
        return self.scale * self.arrange(*self.cos_sin(self.shifted(positions)))


@dataclass(frozen=True)
class Sinusoidal2D(Spec):
    """Sinusoidal positions of an image: the first half of the components from the row, the second from the column.

    part: the encoding of one coordinate, of dim/2 components. row_first False swaps the halves (MAE, arXiv 2111.06377, puts
    the column first).
    """

    part: Sinusoidal
    row_first: bool = True

    encoding: ClassVar[str] = "sinusoidal_2d"

    def __post_init__(self):
        if isinstance(self.part, dict):
            data = {k: v for k, v in self.part.items() if k != "encoding"}
            object.__setattr__(self, "part", build(Sinusoidal, "part", data))
        if not isinstance(self.part, Sinusoidal):
            raise FormatError(f"part is {self.part!r}; allowed is a Sinusoidal")
        check_flag("row_first", self.row_first)

    @property
    def dim(self) -> int:
        """Components of the whole encoding."""
        return 2 * self.part.dim

    def table(self, positions) -> np.ndarray:
        """The rows of positions [n, 2] (row, column), float64 [n, dim]."""
        return self.join(self.part.table, positions)

    def join(self, rows_of, positions) -> np.ndarray:
        """Both halves from a function of one coordinate."""
        p = check_positions(positions)
        if p.ndim != 2 or p.shape[1] != 2:
            raise FormatError(f"positions have shape {p.shape}; allowed is [n, 2] (row, column)")
        halves = [rows_of(p[:, 0]), rows_of(p[:, 1])]
        return np.concatenate(halves if self.row_first else halves[::-1], axis=-1)


class SinusoidalPlan(Plan):
    """The integers of a sinusoidal encoding, by a table (int16, int8) or by phases (int16).

    Attributes: spec; part: the spec of one coordinate (of a Sinusoidal, itself); inner: the TablePlan or PhasePlan of its angles, which both
    coordinates of an image share; bound: proven error in units of 1/full_scale (times the spec's scale); scale: value of one unit; bytes.
    """

    def __init__(self, spec: Sinusoidal | Sinusoidal2D, context: int, bits: int = 16, method: str = "table"):
        """context: positions 0 … context − 1, of each coordinate. Raises as TablePlan and PhasePlan do."""
        self.part = part = spec.part if isinstance(spec, Sinusoidal2D) else spec
        check_choice("method", method, ("table", "phase"))
        check_count("context", context, 1, POSITION_LIMIT - part.start)
        if method == "phase" and bits != 16:
            raise FormatError(f"bits is {bits!r}; the phase method has 16")
        reach = context + part.start
        self.spec, self.context = spec, context
        self.inner = TablePlan(part, reach, bits) if method == "table" else PhasePlan(part, reach)
        self.method, self.bits, self.full_scale = method, bits, self.inner.full_scale

    @property
    def bound(self) -> float:
        return self.inner.bound

    @property
    def bytes(self) -> int:
        """Size of the constants."""
        return self.inner.bytes

    @property
    def scale(self) -> float:
        """Value of one unit: the spec's scale / full_scale."""
        return self.part.scale / self.full_scale

    @property
    def operations(self) -> int:
        """Integer operations per token: cos and sin of each pair, and two for the scale of each component."""
        pairs = self.spec.dim // 2
        return (self.inner.operations - 3) * pairs + 2 * self.spec.dim

    def rows(self, positions) -> np.ndarray:
        """The rows of one coordinate at positions [n], integers [n, part.dim]."""
        p = check_positions(positions, self.context)
        return self.part.arrange(*self.inner.cos_sin(p + self.part.start))

    def table(self, positions) -> np.ndarray:
        """The rows of positions [n] ([n, 2] of an image), integers [n, dim]."""
        return self.spec.join(self.rows, positions) if isinstance(self.spec, Sinusoidal2D) else self.rows(positions)

    def describe(self) -> str:
        return self.inner.describe()

    def certificate(self) -> dict:
        """The proof's terms as data."""
        return self.inner.certificate()
