"""Integer plans for rotary encodings: how cos and sin are had in integers, and how far they are from exact mathematics.

`PhasePlan` is what the EdgePos runtime does (docs/arithmetic.md: rope_phase, sincos_q15): one 64-bit increment per pair and a
quarter wave that all models share. `TablePlan` is one correctly rounded row per position, for runtimes that want to load numbers.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np

from ..errors import FormatError, UnsupportedError
from ..fixedpoint import mantissa_shift, rope_phase, rope_rotate, sincos_q15
from .angles import EXACT_PREC, Angles
from .base import Plan
from .entry_proof import WorstEntry, worst_entry
from .exact import rounded_cos_sin_at
from .float32 import Float32Distance, float32_distance
from .phase_proof import FULL_SCALE, bound_of, phase_terms, runtime_interpolation
from .rope import Rotation
from .spec import POSITION_LIMIT, check_choice, check_context

TABLE_SCALES = {16: 32767, 8: 127}
TABLE_BYTES_LIMIT = 2**30
INT16_MAX = 32767


def check_bytes(size: int, context: int) -> int:
    """The size of a table, up to 2^30 bytes. Raises UnsupportedError."""
    if size > TABLE_BYTES_LIMIT:
        raise UnsupportedError(f"a table of {size} bytes for context {context} passes the limit of 2^30; use the phase plan")
    return size


class RotationPlan(Plan):
    """Base of the RoPE plans.

    Attributes: spec; method; bits; context: positions are 0 … context − 1; seq_len: the session length a length-dependent
    scaling uses; full_scale: cos and sin are integers in ±full_scale; scale = 1/full_scale, so value = integer · scale;
    bound: proven largest error of cos and sin in units of the last place (1/full_scale), against exact mathematics;
    bytes: size of the constants. operations: integer operations per pair and token to get cos and sin (shifts, masks, adds,
    products and loads, counted from the formula; a guide, not a measurement).
    """

    spec: Rotation
    method: str
    bits: int
    context: int
    full_scale: int
    bound: float
    bytes: int
    operations: int

    @property
    def scale(self) -> float:
        """Value of one unit of the integer cos and sin."""
        return 1 / self.full_scale

    @property
    def seq_len(self) -> int | None:
        """The session length that fixes the frequencies of dynamic NTK and LongRoPE; None for the other kinds."""
        return self.context if self.spec.length_dependent else None

    def amplitude(self) -> tuple[int, int]:
        """(m, n) with attention_factor / full_scale ≈ m·2^−n, 2^30 ≤ m < 2^31: amp_m and amp_shift of the ROPE operator."""
        with mpmath.workprec(EXACT_PREC):
            return mantissa_shift(self.spec.exact_attention_factor() / self.full_scale)

    @abstractmethod
    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin as integers [n, pairs] each (without the attention factor); positions in 0 … context − 1."""

    def rotate_int16(self, x, positions) -> np.ndarray:
        """int16 [..., head_dim] rotated to its positions, int16 with saturation at ±32767; nothing wraps.

        rope_rotate of docs/arithmetic.md: the products are summed exactly and rounded once, as in the ROPE operator.
        Components beyond rotary_dim are copied. positions broadcast against x.shape[:-1]. Pairs whose length times the attention
        factor is at most 32767 − rotation_bound() never saturate. Raises FormatError for another dtype, ContextError for a
        position out of range.
        """
        return self._rotate(x, positions, np.int16)

    def rotate_int8(self, x, positions) -> np.ndarray:
        """int8 [..., head_dim] rotated to its positions, int8 with saturation at ±127; otherwise as `rotate_int16`."""
        return self._rotate(x, positions, np.int8)

    def _rotate(self, x, positions, dtype: type) -> np.ndarray:
        x = np.asarray(x)
        if x.dtype != dtype:
            raise FormatError(f"vector has dtype {x.dtype}; allowed is {np.dtype(dtype)}")
        turned = rope_rotate(*self.spec.split(x), *self.cos_sin(positions), *self.amplitude(), np.iinfo(dtype).max)
        return self.spec.join(*(t.astype(dtype) for t in turned), x[..., self.spec.rotary_dim :])

    def rotation_bound(self, largest: int = INT16_MAX) -> float:
        """Proven largest error of a component of `rotate_int16` or `rotate_int8` that did not saturate, in units of the input.

        Against the exact rotation, for components up to `largest` (127 for int8): |x_a·δcos| + |x_b·δsin| with both errors at the bound,
        the amplitude's rounding (2^−31 relative), and the final rounding.
        """
        factor = self.spec.attention_factor * (1 + 2.0**-40)  # more than all float64 roundings here
        table = 2 * largest * factor * self.bound / self.full_scale
        amplitude = 2 * largest * factor * (1 + self.bound / self.full_scale) * 2.0**-31
        return bound_of({"table": table, "amplitude": amplitude, "rounding": 0.5})

    def stretch_bound(self) -> float:
        """Proven largest relative change of a pair's length before the rounding: by the integer cos and sin, and the amplitude.

        The two are a rotation times their own length, which is off by at most √2·bound of full_scale: the distance of the points
        (cos, sin) and its integers. The attention factor itself is no change.
        """
        return float(np.nextafter(np.sqrt(2.0) * self.bound / self.full_scale * (1 + 2.0**-30) + 2.0**-31, np.inf))

    def norm_bound(self, length: float) -> float:
        """Proven largest change of the Euclidean length of a vector's rotated part, in units of the input, saturation apart.

        Against attention_factor · length, for a rotated part of that length in whole numbers: every pair is stretched by at most
        stretch_bound(), so their root sum of squares is; then rotary_dim components are off by at most 1/2 each.
        """
        factor = self.spec.attention_factor * (1 + 2.0**-40)
        return bound_of({"stretch": factor * self.stretch_bound() * length, "rounding": float(np.nextafter(np.sqrt(self.spec.pairs / 2), np.inf))})

    def headroom(self, limit: int = INT16_MAX) -> int:
        """The largest h such that no pair of components up to ±h saturates, limit 32767 (int16) or 127 (int8): proven from
        h·√2 · attention_factor · (1 + stretch_bound()) < limit + 1/2."""
        stretched = np.sqrt(2.0) * self.spec.attention_factor * (1 + self.stretch_bound()) * (1 + 2.0**-40)
        return min(limit, int(np.ceil((limit + 0.5) / stretched)) - 1)

    @cached_property
    def float32_distance(self) -> Float32Distance | None:
        """How far the integers are from the float32 computation of transformers; None where there are no frequencies."""
        if not self.spec.linear:
            return None
        error = self.bound  # of the formula, where positions are too many to compare
        return float32_distance(self.spec, lambda p: self.cos_sin(self.spec.diagonal(p)), error, self.context, self.full_scale, self.seq_len)

    def describe(self) -> str:
        return f"{self.method} with {self.bits} bits, {self.bytes} bytes, error {self.bound:.4g} of 1/{self.full_scale}"

    def certificate(self) -> dict:
        """The proof's terms as data: bound = the sum of `terms`, in units of 1/full_scale.

        float32: the distance from the float32 computation (Float32Distance) in the same unit, or null. rotation: for int16 and int8 vectors
        the largest error of a component, the components that cannot saturate, the relative change of a length; sums stay within ±2^31.
        """
        result = {
            "spec": self.spec.to_json(),
            "method": self.method,
            "bits": self.bits,
            "context": self.context,
            "seq_len": self.seq_len,
            "full_scale": self.full_scale,
            "terms": self.terms(),
            "bound": self.bound,
            "float32": self.float32_distance and self.float32_distance.to_json(),
        }
        if not isinstance(self.spec, Rotation):
            return result
        limits = {f"int{bits}": limit for bits, limit in TABLE_SCALES.items()}
        rotation = {name: {"component": self.rotation_bound(limit), "headroom": self.headroom(limit)} for name, limit in limits.items()}
        return result | {"rotation": rotation | {"stretch": self.stretch_bound()}}

    @abstractmethod
    def terms(self) -> dict[str, float]:
        """The terms whose sum is the bound."""


@dataclass(frozen=True)
class PhasePlan(RotationPlan):
    """64-bit phase increments and the runtime's 257-entry quarter wave; int16 cos and sin at any position below 2^31."""

    spec: Rotation
    context: int = POSITION_LIMIT

    method = "phase"
    bits = 16
    operations = 23
    full_scale = FULL_SCALE

    def __post_init__(self):
        check_context(self.context)

    @property
    def increments(self) -> np.ndarray:
        """Turns · 2^64 per position, uint64 [pairs]."""
        return self.spec.increments(self.seq_len)

    @property
    def bytes(self) -> int:
        """Increments and the quarter wave (which all models share); nothing where nothing is rotated."""
        return 8 * self.spec.pairs + 4 * 257 if self.spec.pairs else 0

    def terms(self) -> dict[str, float]:
        return phase_terms(self.context - 1)

    @property
    def bound(self) -> float:
        return bound_of(self.terms())

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        p = self.spec.pair_positions(positions, self.context)
        c, s = sincos_q15(rope_phase(p, self.increments))
        return c.astype(np.int16), s.astype(np.int16)

    def certificate(self) -> dict:
        interpolation = runtime_interpolation()
        return super().certificate() | {
            "worst_segment": interpolation.segment,
            "per_segment": list(interpolation.per_segment),
        }


class TablePlan(RotationPlan):
    """One row of int16 or int8 cos and sin per position, every entry correctly rounded (half up), which `bound` checks over all of them."""

    method = "table"
    operations = 3

    def __init__(self, spec: Rotation, context: int, bits: int = 16):
        """Raises UnsupportedError for other bits than 16 and 8 and for tables above 2^30 bytes, FormatError for a bad context."""
        self.bits = check_choice("bits", bits, tuple(TABLE_SCALES))
        self.spec, self.context = spec, check_context(context)
        self.full_scale = TABLE_SCALES[bits]
        self.bytes = check_bytes(self.size(spec, self.context, bits), context)
        dtype = np.int16 if bits == 16 else np.int8
        rows = rounded_cos_sin_at(spec, np.arange(self.context), self.full_scale, self.seq_len)
        self.cos, self.sin = (t.astype(dtype) for t in rows)
        for t in (self.cos, self.sin):
            t.flags.writeable = False

    @staticmethod
    def size(spec: Angles, context: int, bits: int) -> int:
        """Bytes of the table."""
        return 2 * context * spec.pairs * bits // 8

    @cached_property
    def worst(self) -> WorstEntry:
        """The entry furthest from its exact value, found over every entry of the table as it is."""
        return worst_entry(self.spec, lambda a, b: (self.cos[a:b], self.sin[a:b]), np.arange(self.context), self.full_scale, self.seq_len)

    @property
    def bound(self) -> float:
        return self.worst.bound

    def terms(self) -> dict[str, float]:
        return {"worst_entry": self.bound}

    def certificate(self) -> dict:
        return super().certificate() | {"worst": self.worst.to_json()}

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        at = self.spec.pair_positions(positions, self.context), np.arange(self.spec.pairs)
        return self.cos[at], self.sin[at]
