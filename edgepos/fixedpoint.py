"""The integer arithmetic of EdgePos, version 1, in NumPy.

Each function is the primitive of the same name in docs/arithmetic.md; `c_runtime/src/fixed.h` is its C twin. Arguments may be
scalars or arrays and broadcast; results are int64 arrays unless stated. Nothing here uses floating point, except that the two tables are
computed once with mpmath and rounded.
"""

from __future__ import annotations

from functools import lru_cache

import mpmath
import numpy as np

ARITH = 1

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NARROW_MAX = 32639  # 127 * 256 + 127: splits into two signed bytes
QUANT8_MAX = 127

FNV_OFFSET = 14695981039346656037
FNV_PRIME = 1099511628211


def _i64(x) -> np.ndarray:
    return np.asarray(x, dtype=np.int64)


def round_half_up(x: mpmath.mpf) -> int:
    """floor(x + 1/2) of an mpmath number: how every compile-time constant is rounded."""
    return int(mpmath.floor(x + mpmath.mpf(1) / 2))


def sat32(x) -> np.ndarray:
    """Clamp to int32."""
    return np.minimum(np.maximum(_i64(x), INT32_MIN), INT32_MAX)


def rshift_round(x, n) -> np.ndarray:
    """floor(x / 2^n + 1/2) for any n; a negative n is a left shift that saturates to int64."""
    x, n = _i64(x), _i64(n)
    if n.size and n.min() >= 1 and n.max() <= 63:  # as almost always: what is below does the same
        half = x >> (n - 1)
        return _i64((half >> 1) + (half & 1))
    x, n = np.broadcast_arrays(x, n)
    half = x >> np.clip(n - 1, 0, 63)
    right = (half >> 1) + (half & 1)
    left_by = np.clip(-n, 0, 62)
    fits = (x <= (INT64_MAX >> left_by)) & (x >= (INT64_MIN >> left_by)) & (-n <= 62)
    left = np.where(fits | (x == 0), x << left_by, np.where(x > 0, INT64_MAX, INT64_MIN))
    return np.where(n > 63, 0, np.where(n > 0, right, left))


def _product96(a, m) -> tuple[np.ndarray, np.ndarray]:
    """a·m exactly as (hi int64, lo in 0 … 2^32−1), a int64 and m int32."""
    a, m = np.broadcast_arrays(_i64(a), _i64(m))
    p0 = (a & 0xFFFFFFFF) * m
    p1 = (a >> 32) * m
    return p1 + (p0 >> 32), p0 & 0xFFFFFFFF


def requant(a, m, n) -> np.ndarray:
    """floor(a·m / 2^n + 1/2) clamped to int32, from the exact 96-bit product. a int64, m int32, any n."""
    hi, lo = _product96(a, m)
    n = _i64(n)
    if n.size and n.min() >= 33:  # as mostly: what is below does the same
        half = hi >> np.minimum(n - 33, 63)
        return sat32((half >> 1) + (half & 1))
    hi, lo, n = np.broadcast_arrays(hi, lo, n)
    negative = hi < 0
    saturated = np.where(negative, INT32_MIN, INT32_MAX)
    k = n - 1

    # n >= 33: the low word is below the rounding bit.
    high = hi >> np.clip(k - 32, 0, 63)
    # 1 <= n <= 32: half = product >> k is known to fit when hi is small; else the result saturates anyway.
    ks = np.clip(k, 0, 31)
    small = (hi >= -(2**31)) & (hi < 2**31)
    low = (np.where(small, hi, 0) << (32 - ks)) | (lo >> ks)
    half = np.where(k >= 32, high, low)
    rounded = sat32((half >> 1) + (half & 1))
    right = np.where((k < 32) & ~small, saturated, rounded)

    # n <= 0: an int32 result needs the product itself to fit in int32.
    tiny = (hi == 0) & (lo <= INT32_MAX) | (hi == -1) & (lo >= 2**31)
    value = np.where(tiny, (hi << 32) | lo, 0)
    by = np.clip(-n, 0, 32)
    left = np.where(value == 0, np.where(tiny, 0, saturated), sat32(value << np.minimum(by, 31)))
    left = np.where(tiny & (by > 31) & (value != 0), saturated, left)
    return np.where(n >= 1, right, left)


def requant_saturates(a, m, n) -> np.ndarray:
    """True where requant(a, m, n) clamps."""
    exact = requant(a, m, n)
    edge = (exact == INT32_MAX) | (exact == INT32_MIN)
    if not edge.any():
        return edge
    a, m, n = np.broadcast_arrays(_i64(a), _i64(m), _i64(n))
    edge = edge.copy()
    for i in zip(*np.nonzero(edge)) if edge.ndim else [()]:
        product, shift = int(a[i]) * int(m[i]), int(n[i])
        wide = product << -shift if shift <= 0 else ((product >> (shift - 1)) + 1) >> 1
        edge[i] = not INT32_MIN <= wide <= INT32_MAX
    return edge


def div_round_half_up(num, den) -> np.ndarray:
    """floor(num / den + 1/2), which always fits int64; den <= 0 is treated as 1."""
    num, den = np.broadcast_arrays(_i64(num), np.maximum(_i64(den), 1))
    quotient, rest = np.divmod(num, den)
    up = rest >= den - rest
    return quotient + up


def bitlen(a) -> int:
    """The smallest b with a < 2^b, of a whole number >= 0."""
    return int(a).bit_length()


def isqrt64(a: int) -> int:
    """floor(sqrt(a)) of a uint64."""
    import math

    return math.isqrt(int(a))


def _div_int(num: int, den: int) -> int:
    return (2 * num + den) // (2 * den)


def rsqrt(a: int) -> tuple[int, int]:
    """(m, e) with 1/sqrt(a) ≈ m·2^−e, 2^30 <= m < 2^31, relative error at most 2^−30. a is a uint64; 0 is treated as 1."""
    a = max(1, int(a))
    z = (64 - a.bit_length()) & ~1
    return min(INT32_MAX, _div_int(1 << 62, isqrt64(a << z))), 62 - z // 2


def recip(d: int) -> tuple[int, int]:
    """(m, e) with 1/d ≈ m·2^−e, 2^30 <= m < 2^31, relative error at most 2^−30. d is a uint64; 0 is treated as 1."""
    d = max(1, int(d))
    z = 64 - d.bit_length()
    return min(INT32_MAX, _div_int(1 << 62, (d << z) >> 32)), 94 - z


@lru_cache(maxsize=None)
def exp2_table() -> np.ndarray:
    """E[j] = round(2^(30 − j/256)), j = 0 … 256, int64 [257]."""
    with mpmath.workdps(50):
        table = [round_half_up(mpmath.power(2, 30 - mpmath.mpf(j) / 256)) for j in range(257)]
    return np.array(table, dtype=np.int64)


@lru_cache(maxsize=None)
def quarter_table() -> np.ndarray:
    """Q[j] = round(32767·2^15·(1 + h²/16)·sin(j·h)), h = π/512, j = 0 … 256, int64 [257]."""
    with mpmath.workdps(50):
        h = mpmath.pi / 512
        scale = 32767 * mpmath.mpf(2) ** 15 * (1 + h * h / 16)
        table = [round_half_up(scale * mpmath.sin(j * h)) for j in range(257)]
    return np.array(table, dtype=np.int64)


def exp2_neg(r, w: int) -> np.ndarray:
    """2^(W − r/2^16) for r >= 0 (16 fractional bits), 0 from r = 40·2^16 on."""
    r = np.maximum(_i64(r), 0)
    gone = r >= 40 << 16
    r = np.where(gone, 0, r)
    e, i, f = exp2_table(), (r >> 8) & 255, r & 255
    mantissa = 256 * e[i] - (e[i] - e[i + 1]) * f
    return np.where(gone, 0, rshift_round(mantissa, (r >> 16) + 38 - w))


def rope_phase(position, increment) -> np.ndarray:
    """position·increment mod 2^64, uint64: the phase in turns·2^64."""
    with np.errstate(over="ignore"):
        return np.asarray(position, dtype=np.uint64) * np.asarray(increment, dtype=np.uint64)


FRACTION = 192  # fractional bits of rope_increments


@lru_cache(maxsize=None)
def increment_constants() -> tuple[int, int]:
    """ln 2 and 1/(2π) · 2^192, rounded half up."""
    with mpmath.workprec(256):
        return round_half_up(mpmath.ldexp(mpmath.ln2, FRACTION)), round_half_up(mpmath.ldexp(1 / (2 * mpmath.pi), FRACTION))


def _ln(num: int, den: int) -> int:
    """ln(num/den) · 2^192."""
    if num < den:
        return -_ln(den, num)
    k = (num // den).bit_length() - 1
    term = ((num - (den << k)) << FRACTION) // (num + (den << k))
    square, odd, total = term * term >> FRACTION, 1, 0
    while term:
        total, term, odd = total + term // odd, term * square >> FRACTION, odd + 2
    return 2 * total + k * increment_constants()[0]


def frequency_turns(theta: tuple[int, int], factor: tuple[int, int], denominator: int, pair: int) -> int:
    """The number v of rope_increments: turns · 2^192 per position of one pair, off by less than 2^41.

    Raises ValueError for 2^32 radians per position or more.
    """
    ln2, turn = increment_constants()
    ln_theta = _ln(*theta)
    w = 2 * pair * abs(ln_theta) // denominator
    n, t = divmod((w if ln_theta < 0 else -w) - _ln(*factor), ln2)
    if n > 31:
        raise ValueError(f"pair {pair} turns by 2^32 radians per position or more")
    term, e, j = 1 << FRACTION, 0, 1
    while term:
        e, term, j = e + term, (term * t >> FRACTION) // j, j + 1
    v = e * turn >> FRACTION
    return v << n if n >= 0 else v >> -n


def rope_increments(theta: tuple[int, int], denominator: int, pairs: int, factor: tuple[int, int] = (1, 1)) -> np.ndarray:
    """Turns · 2^64 per position of theta^(−2i/denominator)/factor radians, uint64 [pairs], correctly rounded; theta and factor as
    (numerator, denominator). Raises ValueError where 2^−148 turns do not decide, or for 2^32 radians per position or more."""
    result = []
    for v in (frequency_turns(theta, factor, denominator, pair) for pair in range(pairs)):
        low, high = (((v + d) >> 127) + 1 >> 1 for d in (-(1 << 44), 1 << 44))
        if low != high:
            raise ValueError(f"pair {len(result)}: 2^-148 turns do not tell {low} from {high}")
        result.append(low % 2**64)
    return np.array(result, dtype=np.uint64)


def _quarter_sine(j) -> np.ndarray:
    q, i, f = quarter_table(), j >> 18, j & (2**18 - 1)
    top = np.minimum(i + 1, 256)
    return rshift_round((q[i] << 18) + (q[top] - q[i]) * f, 33)


def _sine28(p) -> np.ndarray:
    quadrant, j = p >> 26, p & (2**26 - 1)
    value = _quarter_sine(np.where(quadrant & 1, 2**26 - j, j))
    return np.where(quadrant & 2, -value, value)


def sincos_q15(phase) -> tuple[np.ndarray, np.ndarray]:
    """(cos, sin) of a uint64 phase in turns·2^64, scaled by 32767; error at most 0.58."""
    with np.errstate(over="ignore"):
        p = (np.asarray(phase, dtype=np.uint64) + np.uint64(2**35)) >> np.uint64(36)
    p = p.astype(np.int64)
    return _sine28((p + 2**26) & (2**28 - 1)), _sine28(p)


def alibi_bias(slope, distance, n: int = 15) -> np.ndarray:
    """slope (uint32, Q1.31 for n = 15) times distance in log2 units with 16 fractional bits, at most 2^30."""
    return np.minimum(rshift_round(_i64(slope) * _i64(distance), n), 2**30)


def alibi_row(scores, slope: int, n: int, position: int, key_positions, symmetric: bool = False) -> np.ndarray:
    """int32 scores [k] of one query and head less their ALiBi biases, clamped to int32; positions 0 … 2^31 − 1."""
    away = int(position) - _i64(key_positions)
    return sat32(_i64(scores) - alibi_bias(slope, np.abs(away) if symmetric else np.maximum(away, 0), n))


def rope_rotate(a, b, c, s, m: int, n: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The pair (a, b) turned by (c, s), times m·2^−n, rounded once and clamped to ±limit. a, b, c, s int16, m int32."""
    a, b, c, s = (_i64(v) for v in (a, b, c, s))
    sums = a * c - b * s, a * s + b * c  # at most 2^31, so the product with m is at most 2^62
    turned = [np.clip(rshift_round(y * np.int64(m), n), -limit, limit) for y in sums]
    return turned[0], turned[1]


def t5_bucket(thresholds, exact: int, side: int, key_minus_query) -> np.ndarray:
    """T5 bucket of key − query (int32): distances below `exact` have their own, the others one per threshold passed; keys after
    the query add `side`, or count as distance 0 when that is 0."""
    relative = _i64(key_minus_query)
    distance = np.where(relative > 0, relative if side > 0 else 0, -relative)
    far = exact + np.searchsorted(_i64(thresholds), distance, side="right")
    bucket = np.where(distance < exact, distance, far)
    return np.minimum(bucket + np.where(relative > 0, side, 0), INT32_MAX)


def relative_row(difference, extents) -> np.ndarray:
    """Row of a table over differences [..., axes], each clipped to ±its extent, combined row-major."""
    difference = _i64(difference)
    row = np.zeros(difference.shape[:-1], dtype=np.int64)
    for a, extent in enumerate(extents):
        row = row * (2 * extent + 1) + np.clip(difference[..., a], -extent, extent) + extent
    return row


def sinusoidal_row(position: int, start: int, increments, m: int, n: int, interleaved: bool, cosine_first: bool = False) -> np.ndarray:
    """The components of a sinusoidal position from its increments, int32 values [2 · pairs] times m·2^−n; position + start < 2^31."""
    parts = [sat32(rshift_round(v * np.int64(m), n)) for v in sincos_q15(rope_phase(position + start, increments))]
    parts = parts if cosine_first else parts[::-1]
    return np.stack(parts, axis=-1).ravel() if interleaved else np.concatenate(parts)


def learned_rows(ids, start: int, offset: int, pad: int | None = None, modulo: int = 0) -> np.ndarray:
    """Rows of a learned table for ids [n]: `offset` for the first token, offset − 1 for tokens that are `pad`, which do not count;
    start: tokens counted before."""
    counted = np.asarray(ids) != (-1 if pad is None else pad)
    rank = start + np.cumsum(counted) - 1
    return np.where(counted, offset + (rank % modulo if modulo else rank), offset - 1)


def narrow16(x) -> tuple[np.ndarray, np.ndarray]:
    """Block floating point along the last axis: int32 [..., n] → (q [..., n] with |q| <= 32639, s [...]), x ≈ q·2^s."""
    x = _i64(x)
    largest = np.abs(x).max(axis=-1)
    s = np.zeros_like(largest)
    for _ in range(17):
        wide = rshift_round(largest, s) > NARROW_MAX
        if not wide.any():
            break
        s += wide
    return rshift_round(x, s[..., None]), s


def quant8g32(x) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """int32 [..., n], n whole groups of 32 → (q [..., n] in ±127, d [..., n/32] in 1 … 255, s [...]), x ≈ q·d·2^s."""
    x = _i64(x)
    groups = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(groups).max(axis=-1)
    s = np.zeros(x.shape[:-1], np.int64)
    for _ in range(17):
        s += largest.max(axis=-1) > (QUANT8_MAX * 255 << s)
    step = QUANT8_MAX << s[..., None]
    d = np.maximum(1, (largest + step - 1) // step)
    return div_round_half_up(groups, (d << s[..., None])[..., None]).reshape(x.shape), d, s


def quant8(x) -> tuple[np.ndarray, np.ndarray]:
    """int32 [..., n] → (q [..., n] in ±127, a [...]), x ≈ q·a/127."""
    x = _i64(x)
    a = np.minimum(np.abs(x).max(axis=-1), INT32_MAX)
    q = div_round_half_up(127 * x, np.maximum(a, 1)[..., None])
    return np.where(a[..., None] == 0, 0, q), a


def fnv1a64(data: bytes, digest: int = FNV_OFFSET) -> int:
    """The FNV-1a hash of bytes, 64 bits; chain calls through `digest`."""
    for byte in data:
        digest = ((digest ^ byte) * FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return digest


def mantissa_shift(x: mpmath.mpf) -> tuple[int, int]:
    """(m, n) with x ≈ m·2^−n and 2^30 <= |m| < 2^31, for compile-time factors; (0, 0) for x = 0.

    Raises ValueError when x is not finite.
    """
    x = mpmath.mpf(x)
    if not mpmath.isfinite(x):
        raise ValueError(f"factor {x} is not finite")
    if x == 0:
        return 0, 0
    n = 31 - mpmath.frexp(x)[1]
    with mpmath.workprec(200):
        m = round_half_up(mpmath.ldexp(x, n))
        if abs(m) >= 2**31:
            n -= 1
            m = round_half_up(mpmath.ldexp(x, n))
    return m, n
