"""The primitives of edgepos/fixedpoint.py: exact against whole-number arithmetic, bounded against mpmath."""

from __future__ import annotations

import random
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from edgepos import fixedpoint as fx

I32, I64 = (fx.INT32_MIN, fx.INT32_MAX), (fx.INT64_MIN, fx.INT64_MAX)


def half_up(x: Fraction) -> int:
    return (2 * x.numerator + x.denominator) // (2 * x.denominator)


def clamp(x: int, limits: tuple[int, int]) -> int:
    return min(max(x, limits[0]), limits[1])


def spread(rng: random.Random, bits: int) -> int:
    """A signed number of a random size, often next to a power of two."""
    limit = 2 ** (bits - 1)
    size = 2 ** rng.randrange(bits)
    value = rng.choice([rng.randrange(size), size, size - 1, size + 1, limit - 1, limit])
    return clamp(rng.choice([value, -value]), (-limit, limit - 1))


def test_rshift_round_of_every_16_bit_number():
    x = np.arange(-(2**15), 2**15)
    for n in range(20):
        expected = [half_up(Fraction(int(v), 2**n)) for v in x]
        assert (fx.rshift_round(x, n) == expected).all(), n


def test_rshift_round_anywhere():
    rng = random.Random(1)
    cases = [(spread(rng, 64), rng.randrange(-80, 140)) for _ in range(30000)]
    got = fx.rshift_round([x for x, _ in cases], [n for _, n in cases])
    for (x, n), y in zip(cases, got):
        assert y == clamp(half_up(Fraction(x) / Fraction(2) ** n), I64), (x, n)


def test_requant_is_the_exact_product_rounded_once():
    rng = random.Random(2)
    cases = [(spread(rng, 64), spread(rng, 32), rng.randrange(-80, 140)) for _ in range(30000)]
    a, m, n = (np.array(column) for column in zip(*cases))
    got, saturated = fx.requant(a, m, n), fx.requant_saturates(a, m, n)
    for (x, y, s), value, flag in zip(cases, got, saturated):
        exact = half_up(Fraction(x * y) / Fraction(2) ** s)
        assert value == clamp(exact, I32), (x, y, s)
        assert flag == (exact != clamp(exact, I32)), (x, y, s)


def test_requant_cases_computed_elsewhere(shared):
    import json

    cases = json.loads((shared / "cases" / "positions.json").read_text())
    rows = [row for case in cases if case["kind"] == "requantize_round_half_up" for row in case.get("cases", case.get("rows", []))]
    assert rows
    for x, multiplier, shift, result in rows:
        assert fx.requant(x, multiplier, shift) == result


def test_div_round_half_up():
    rng = random.Random(3)
    cases = [(spread(rng, 64), max(1, abs(spread(rng, 63)))) for _ in range(30000)]
    cases += [(x, d) for x in range(-40, 41) for d in range(1, 12)]
    got = fx.div_round_half_up([a for a, _ in cases], [b for _, b in cases])
    for (num, den), y in zip(cases, got):
        assert y == half_up(Fraction(num, den)), (num, den)
    assert fx.div_round_half_up(7, 0) == 7 and fx.div_round_half_up(7, -3) == 7


def test_reciprocals_are_good_to_30_bits():
    rng = random.Random(4)
    numbers = [*range(1, 3000), *(2**k for k in range(64)), *(2**k - 1 for k in range(2, 65)), *(2**k + 1 for k in range(63))]
    numbers += [rng.getrandbits(rng.randrange(1, 65)) | 1 for _ in range(20000)]
    with mpmath.workprec(160):
        for a in numbers:
            for function, exact in ((fx.rsqrt, 1 / mpmath.sqrt(a)), (fx.recip, mpmath.mpf(1) / a)):
                m, e = function(a)
                assert 2**30 <= m <= fx.INT32_MAX
                assert abs(mpmath.ldexp(m, -e) / exact - 1) <= mpmath.mpf(2) ** -30, (function, a)
    assert fx.rsqrt(0) == fx.rsqrt(1) and fx.recip(0) == fx.recip(1)


def test_exp2_neg_over_every_fraction():
    r = np.arange(0, 2**16)
    exact = np.exp2(-r / 2.0**16)
    for w in (15, 23, 30):
        error = np.abs(fx.exp2_neg(r, w) - exact * 2.0**w)
        assert (error <= 0.5 + 9.3e-7 * exact * 2.0**w).all()
    assert fx.exp2_neg(0, 23) == 2**23
    assert fx.exp2_neg(-5, 23) == 2**23
    assert fx.exp2_neg((40 << 16) - 1, 30) == 0 and fx.exp2_neg(40 << 16, 30) == 0


def test_exp2_neg_never_rises():
    r = np.arange(0, 41 << 16, 7)
    assert (np.diff(fx.exp2_neg(r, 24)) <= 0).all()


def test_sincos_is_within_0_58_and_odd():
    rng = np.random.default_rng(5)
    phase = rng.integers(0, 2**64, 200000, dtype=np.uint64)
    cos, sin = fx.sincos_q15(phase)
    angle = phase.astype(np.float64) * (2 * np.pi / 2.0**64)
    assert np.abs(cos - 32767 * np.cos(angle)).max() <= 0.58 + 1e-9
    assert np.abs(sin - 32767 * np.sin(angle)).max() <= 0.58 + 1e-9
    for turns, expected in ((0, (32767, 0)), (2**62, (0, 32767)), (2**63, (-32767, 0)), (3 * 2**62, (0, -32767))):
        assert tuple(int(v) for v in fx.sincos_q15(turns)) == expected


def test_rope_phase_wraps():
    increment = 0x123456789ABCDEF1
    for position in (0, 1, 131071, 2**31 - 1):
        assert int(fx.rope_phase(position, increment)) == position * increment % 2**64


def test_alibi_bias():
    rng = random.Random(6)
    for _ in range(3000):
        slope, distance = rng.getrandbits(32), rng.getrandbits(31)
        assert fx.alibi_bias(slope, distance) == min(half_up(Fraction(slope * distance, 2**15)), 2**30)


@pytest.mark.parametrize("largest", [0, 1, 32639, 32640, 65278, 65279, 2**30, 2**31 - 1, 2**31])
def test_narrow16_is_tight(largest):
    x = np.array([largest if largest < 2**31 else -largest, -largest // 3, largest // 5], np.int64)
    q, s = fx.narrow16(x)
    assert np.abs(q).max() <= 32639
    assert s == 0 or half_up(Fraction(largest, 2 ** int(s - 1))) > 32639
    assert (np.abs(q * 2 ** int(s) - x) <= 2 ** int(s) // 2).all()
    high, low = np.divmod(q + 128, 256)
    assert np.abs(high).max() <= 127 and ((low - 128 >= -128) & (low - 128 <= 127)).all()


@pytest.mark.parametrize("largest", [0, 1, 127, 128, 32385, 32386, 64770, 64771, 2**30, 2**31 - 1, 2**31])
def test_quant8g32_is_tight_and_rounds_once(largest):
    rng = random.Random(largest)
    x = [-largest] + [rng.randint(-largest, max(0, largest - 1)) for _ in range(31)] + [v - largest // 600 for v in range(0, 32 * 17, 17)]
    x = [max(-largest, min(v, largest)) for v in x]
    q, d, s = fx.quant8g32(np.array(x, np.int64))
    assert 0 <= s <= 17 and largest <= 32385 << int(s) and (s == 0 or largest > 32385 << int(s) - 1)
    for i, v in enumerate(x):
        assert q[i] == half_up(Fraction(v, int(d[i // 32]) << int(s))) and abs(q[i]) <= 127
    for g in range(2):
        most = max(abs(v) for v in x[32 * g : 32 * g + 32])
        assert d[g] == max(1, -(-most // (127 << int(s)))) and 1 <= d[g] <= 255


def test_quant8():
    x = np.array([[0, 0, 0], [1000, -1000, 4], [-(2**31), 2**31 - 1, 5]], np.int64)
    q, a = fx.quant8(x)
    assert a.tolist() == [0, 1000, 2**31 - 1]
    assert q.tolist() == [[0, 0, 0], [127, -127, 1], [-127, 127, 0]]


def test_fnv1a64_vectors():
    # The published vectors of the hash's authors.
    assert fx.fnv1a64(b"") == 0xCBF29CE484222325
    assert fx.fnv1a64(b"a") == 0xAF63DC4C8601EC8C
    assert fx.fnv1a64(b"foobar") == 0x85944171F73967E8


def test_mantissa_shift():
    for x in (1.0, 0.3, -7.5e-9, 2.0**40, 1 - 2.0**-53):
        m, n = fx.mantissa_shift(x)
        assert 2**30 <= abs(m) < 2**31
        assert abs(m * 2.0**-n / x - 1) <= 2.0**-31 * 1.0001
    assert fx.mantissa_shift(0) == (0, 0)
    with pytest.raises(ValueError, match="not finite"):
        fx.mantissa_shift(float("nan"))
