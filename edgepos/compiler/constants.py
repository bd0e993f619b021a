"""Compile-time numbers of norms, rotations, scores and ALiBi: exact formulas in mpmath, rounded once."""

from __future__ import annotations

from functools import lru_cache

import mpmath
import numpy as np

from ..errors import UnsupportedError
from ..fixedpoint import INT32_MAX, INT32_MIN, bitlen, mantissa_shift, round_half_up
from ..positions import Alibi, Learned, LearnedPlan, Rope, Sinusoidal, SinusoidalPlan
from ..positions.alibi_plan import SlopePlan
from ..positions.bias_plan import bias_integers
from ..program import GROUP

PRECISION = 200
MOST_BIAS_ERROR = 2.0**-4  # log2 units of a score: 4 % of a weight


def gamma_integers(gamma: np.ndarray) -> tuple[np.ndarray, int]:
    """(γ·sqrt(d)·2^Fγ as int32 [d], Fγ) of float32 γ [d], with the largest magnitude just below 2^31."""
    largest = float(np.abs(gamma).max())
    if largest == 0:
        return np.zeros(len(gamma), np.int32), 0
    with mpmath.workprec(PRECISION):
        root = mpmath.sqrt(len(gamma))
        _, bits = mantissa_shift(largest * root)
        unit = mpmath.ldexp(root, bits)
        values = [round_half_up(mpmath.mpf(float(x)) * unit) for x in gamma]
    return np.array(values, dtype=np.int64).astype(np.int32), bits


def gamma_floats(integers: np.ndarray, bits: int) -> np.ndarray:
    """The γ float32 [d] that `gamma_integers` stand for."""
    return (np.ldexp(integers.astype(np.float64), -bits) / np.sqrt(len(integers))).astype(np.float32)


def epsilon(value: float, width: int, center: bool, f: int) -> tuple[int, int]:
    """(eps_m, eps_shift): ε·d·2^(2F), or ε·d³·2^(2F) for LayerNorm, F of the norm's input."""
    with mpmath.workprec(PRECISION):
        return mantissa_shift(mpmath.ldexp(mpmath.mpf(value) * width ** (3 if center else 1), 2 * f))


def fixed_integers(values: np.ndarray, f: int, name: str) -> np.ndarray:
    """β or a bias, float32 [d] → int32 raw at F = f, rounded half up. Raises UnsupportedError naming the tensor when one does not fit."""
    raw = np.floor(np.ldexp(values.astype(np.float64), f) + 0.5)
    if (raw > INT32_MAX).any() or (raw < INT32_MIN).any():
        raise UnsupportedError(f"tensor '{name}': {np.abs(values).max()} does not fit int32 with {f} fractional bits; choose a smaller F")
    return raw.astype(np.int32)


def amplitude(spec: Rope, f_in: int, f_out: int, full_scale: int = 32767) -> tuple[int, int]:
    """(amp_m, amp_shift) of ROPE: attention factor / full_scale of cos and sin · 2^(Fout − Fin)."""
    with mpmath.workprec(PRECISION):
        return mantissa_shift(mpmath.ldexp(spec.exact_attention_factor() / full_scale, f_out - f_in))


def increments(spec: Rope, context: int | None = None) -> np.ndarray:
    """The phase increments of ROPE as int32 [pairs, 2] (low, high); `context` is the session's length for scalings that ask."""
    return np.ascontiguousarray(spec.increments(context), dtype="<u8").view("<i4").reshape(-1, 2)


def score(scale: float, kv_bits: int, f_q: int, f_k: int) -> tuple[int, int]:
    """(score_m, score_shift) of ATTENTION: scale·log2(e)·2^16·2^(−Fq−Fk), divided by 127 for kv8."""
    with mpmath.workprec(PRECISION):
        factor = mpmath.mpf(scale) * mpmath.log(mpmath.e, 2)
        if kv_bits == 8:
            factor /= 127
        return mantissa_shift(mpmath.ldexp(factor, 16 - f_q - f_k))


def probability_bits(context: int) -> int:
    """W of ATTENTION for a context (docs/arithmetic.md)."""
    return min(30, max(23, 11 + bitlen(context - 1)))


def alibi_slopes(slopes: np.ndarray, context: int) -> tuple[np.ndarray, int]:
    """(slope·log2(e) as the bits of uint32 in int32 [heads], alibi_shift) of float32 slopes [heads] ≥ 0.

    Raises UnsupportedError for slopes so different that the small ones would be wrong within the context.
    """
    plan = SlopePlan(alibi_spec(slopes))
    error = plan.bound_at(context)
    if error > MOST_BIAS_ERROR:
        raise UnsupportedError(
            f"ALiBi slopes from {slopes.min():g} to {slopes.max():g}: one scale for all leaves an error of {error:.2g} in log2 units at distance {context}, "
            f"more than {MOST_BIAS_ERROR}; choose a shorter context"
        )
    return plan.slopes.view(np.int32), plan.shift


def alibi_spec(slopes: np.ndarray) -> Alibi:
    """The encoding of float32 slopes [heads]: the paper's rule, whose slopes are exact, where they are its float32 rounding."""
    paper = Alibi(len(slopes))
    if (slopes == paper.slopes().astype(np.float32)).all():
        return paper
    return Alibi(len(slopes), user_slopes=tuple(float(s) for s in slopes))


def position_rows(spec: Learned | Sinusoidal, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(int16 [rows, K], int32 [rows, 2] of (m, h)) of a float32 table [rows, d] added to embeddings, K padded to whole groups.

    Sinusoids are rounded from their exact values, all rows with one scale; learned rows have a scale each.
    """
    return planned_rows(SinusoidalPlan(spec, len(table), 16) if isinstance(spec, Sinusoidal) else LearnedPlan(spec, table, 16), len(table))


def planned_rows(plan: LearnedPlan | SinusoidalPlan, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The `count` rows of a plan of one coordinate, as of `position_rows`."""
    if isinstance(plan, SinusoidalPlan):
        rows = plan.table(np.arange(count))
        with mpmath.workprec(PRECISION):
            factors = np.array([mantissa_shift(mpmath.mpf(plan.part.scale) / plan.full_scale)], np.int32)
    else:
        rows, factors = plan.table, plan.factors
    factors = np.broadcast_to(factors, (count, 2)).copy()
    padding = -rows.shape[1] % GROUP
    return np.pad(rows, ((0, 0), (0, padding))).astype(np.int16), factors


def bias_table(by_distance: np.ndarray) -> np.ndarray:
    """The bias of ATTENTION, int32 [heads, n], from float32 [n, heads] by distance."""
    return np.ascontiguousarray(bias_integers(by_distance).T)


def bias_floats(integers: np.ndarray) -> np.ndarray:
    """The float32 [n, heads] that `bias_table` stands for."""
    return (np.ldexp(integers.T.astype(np.float64), -16) * np.log(2)).astype(np.float32)


def softcap_exponent(cap: float) -> int:
    """e of a softcap table, which covers ±16·2^e: at least 8 times the cap, where tanh is 1 to 10^−6."""
    return int(np.ceil(np.log2(cap / 2)))


@lru_cache(maxsize=256)
def softcap(cap: float, unit: float, f_in: int, f_out: int) -> np.ndarray:
    """The table of cap·tanh(x / cap), int32 [2051]: in_shift, out_shift, entries (docs/bundle.md).

    x comes with f_in fractional bits in units of 1/unit, and goes with f_out in the same units.
    """
    e = softcap_exponent(cap * unit)
    with mpmath.workprec(PRECISION):
        top = mpmath.mpf(cap) * unit
        bits = 30 - int(mpmath.ceil(mpmath.log(top, 2)))
        entries = [round_half_up(mpmath.ldexp(top * mpmath.tanh(mpmath.ldexp(j - 1024, e - 6) / top), bits)) for j in range(2049)]
    return np.array([f_in + e - 24, 18 + bits - f_out, *entries], np.int64).astype(np.int32)
