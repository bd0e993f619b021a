"""Integer plans for rotary encodings: how cos and sin are had in integers, and how far they are from exact mathematics.

`PhasePlan` is what the EdgePos runtime does (docs/arithmetic.md: rope_phase, sincos_q15): one 64-bit increment per pair and a
quarter wave that all models share. `TablePlan` is one correctly rounded row per position, for runtimes that want to load numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
import numpy as np

from ..errors import FormatError, UnsupportedError
from ..fixedpoint import mantissa_shift, rope_phase, rope_rotate, sincos_q15
from .angles import EXACT_PREC
from .base import Plan
from .exact import rounded_cos_sin
from .phase_proof import FULL_SCALE, bound_of, phase_terms, runtime_interpolation
from .rope import Rotation
from .spec import POSITION_LIMIT, check_context

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

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin as integers [n, pairs] each (without the attention factor); positions in 0 … context − 1."""
        raise NotImplementedError

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

    def norm_bound(self) -> float:
        """Proven largest relative change of a pair's length by the integer cos and sin alone, before rounding: √2·bound·scale."""
        return float(np.nextafter(np.sqrt(2.0) * self.bound / self.full_scale, np.inf))

    def describe(self) -> str:
        return f"{self.method} with {self.bits} bits, {self.bytes} bytes, error {self.bound:.4g} of 1/{self.full_scale}"

    def certificate(self) -> dict:
        """The proof's terms as data: bound = the sum of `terms`, in units of 1/full_scale."""
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "bits": self.bits,
            "context": self.context,
            "seq_len": self.seq_len,
            "full_scale": self.full_scale,
            "terms": self.terms(),
            "bound": self.bound,
        }

    def terms(self) -> dict[str, float]:
        """The terms whose sum is the bound."""
        raise NotImplementedError


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
    """One row of int16 or int8 cos and sin per position, every entry correctly rounded (half up): bound 1/2."""

    method = "table"
    operations = 3

    def __init__(self, spec: Rotation, context: int, bits: int = 16):
        """Raises UnsupportedError for other bits than 16 and 8 and for tables above 2^30 bytes, FormatError for a bad context."""
        if bits not in TABLE_SCALES:
            raise UnsupportedError(f"bits is {bits!r}; known are 16, 8")
        self.spec, self.context, self.bits = spec, check_context(context), bits
        self.full_scale = TABLE_SCALES[bits]
        self.bytes = check_bytes(2 * self.context * spec.pairs * bits // 8, context)
        dtype = np.int16 if bits == 16 else np.int8
        rows = rounded_cos_sin(spec, self.context, self.full_scale, self.seq_len)
        self.cos, self.sin = (t.astype(dtype) for t in rows)
        for t in (self.cos, self.sin):
            t.flags.writeable = False

    @property
    def bound(self) -> float:
        return 0.5

    def terms(self) -> dict[str, float]:
        return {"correct_rounding": 0.5}

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        at = self.spec.pair_positions(positions, self.context), np.arange(self.spec.pairs)
        return self.cos[at], self.sin[at]
