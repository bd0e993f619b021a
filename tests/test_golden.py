"""Every operator of golden.py against float64 mathematics, or exact whole numbers, written here independently."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from random_programs import Builder, Shape, random_program

from edgepos import fixedpoint as fx
from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.golden import Batch, Machine
from edgepos.golden_session import GoldenSession
from edgepos.program import A8G32, BIDIRECTIONAL, KV, NONE, POOLS, POSITIONS, W4G32, W8, W16G32, Header, Op, Program

F = 16


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def machine(b: Builder, *, kv=(), kv_bits=16, context=64, vocab=8) -> Machine:
    header = Header(vocab, context, kv_bits, F, 0, b.used, -1)
    return Machine(Program(header, b.values, list(kv), b.ops, b.names, b.arrays), context)


def batch(positions) -> Batch:
    positions = np.asarray(positions, np.int64)
    return Batch(np.zeros(len(positions), np.int64), positions, 0)


def fixed(x: np.ndarray, f: int = F) -> np.ndarray:
    return np.floor(np.asarray(x, np.float64) * 2.0**f + 0.5).astype(np.int64)


def test_linear_is_exact_before_its_one_rounding(rng):
    b = Builder(rng, extreme=False)
    s = Shape(grouped=True, bias=True)
    x = b.value(44)
    b.linear(x, 5, s)
    m = machine(b)
    data = rng.integers(-(2**24), 2**24, (3, 44))
    got = m.run(b.ops[0], {x: data}, batch([0, 1, 2]))
    w, g, scale, bias = (b.arrays[i] for i in b.ops[0].tensors)
    for t, row in enumerate(data):
        q, shift = fx.narrow16(row)
        for r in range(5):
            acc = sum(int(w[r, k]) * int(g[r, k // 32]) * int(q[k]) for k in range(44))
            n = int(scale[r, 1]) + 9 - int(shift)
            exact = ((acc * int(scale[r, 0]) >> (n - 1)) + 1) >> 1
            assert got[t, r] == min(max(exact + int(bias[r]), -(2**31)), 2**31 - 1)
    assert m.saturations == 0


@pytest.mark.parametrize(("grouped", "w4"), [(True, False), (False, False), (True, True)])
def test_linear_with_inputs_in_groups_is_exact_before_its_one_rounding(rng, grouped, w4):
    b = Builder(rng, extreme=False)
    x = b.value(44)
    b.op(Op.MUL, b.value(44), [x, x], n=0)  # so that the LINEAR is one that Shape gives 4 bits and groups
    b.linear(x, 5, Shape(grouped=grouped, w4=w4, a8=True))
    m, op = machine(b), b.ops[1]
    assert op.params["inputs"] == A8G32 and op.params["form"] == (W4G32 if w4 else W8)
    data = rng.integers(-(2**24), 2**24, (3, 44))
    data[1, 32:] >>= 13
    got = m.run(op, {x: data}, batch([0, 1, 2]))
    w, g, scale = (None if i < 0 else b.arrays[i].astype(int) for i in op.tensors[:3])
    for t, row in enumerate(data):
        q, d, shift = fx.quant8g32(np.pad(row, (0, 20)))
        for r in range(5):
            acc = 0
            for k in range(64):
                weight = ((w[r, k // 2] >> 4 * (k % 2)) & 15) * g[r, k // 32 * 2] + g[r, k // 32 * 2 + 1] if w4 else w[r, k] * (g[r, k // 32] if grouped else 1)
                acc += int(weight) * int(q[k]) * int(d[k // 32])
            n = int(scale[r, 1]) + 9 - int(shift)
            assert got[t, r] == ((acc * int(scale[r, 0]) >> (n - 1)) + 1) >> 1
    assert m.saturations == 0


def test_linear_without_groups_sums_hostile_weights_exactly(rng):
    b = Builder(rng, extreme=True)
    width = 5000
    x = b.value(width)
    w = b.tensor(np.full((1, -(-width // 32) * 32), -128, np.int8))
    scale = b.tensor(np.array([[2**30, 52]], np.int32))
    b.op(Op.LINEAR, b.value(1), [x], [w, -1, scale], shift=0)
    data = np.full((1, width), -(2**31))
    q, shift = fx.narrow16(data)
    exact = -128 * int(q[0, 0]) * width
    n = 52 - int(shift[0])
    assert machine(b).run(b.ops[0], {x: data}, batch([0]))[0, 0] == ((exact * 2**30 >> (n - 1)) + 1) >> 1


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize("size", [1e-3, 1.0, 20000.0])
def test_norm(rng, center, size):
    width, eps, f_gamma, f = 60, 1e-5, 26, 14
    b = Builder(rng, extreme=False)
    x = b.value(width)
    gamma, beta = rng.normal(1, 0.3, width), rng.normal(0, 0.5, width)
    g = b.tensor(fixed(gamma * math.sqrt(width), f_gamma).astype(np.int32))
    c = b.tensor(fixed(beta, F).astype(np.int32)) if center else -1
    eps_m, eps_shift = fx.mantissa_shift(mpmath.mpf(eps) * width ** (3 if center else 1) * 2 ** (2 * f))
    b.op(Op.NORM, b.value(width), [x], [g, c], center=center, eps_m=eps_m, eps_shift=eps_shift, out_shift=f_gamma - F)
    data = fixed(rng.normal(0.2, 1, (4, width)) * size, f)
    got = machine(b).run(b.ops[0], {x: data}, batch(range(4))) * 2.0**-F
    real = data * 2.0**-f
    if center:
        real = real - real.mean(axis=1, keepdims=True)
    expected = real / np.sqrt((real**2).mean(axis=1, keepdims=True) + eps) * gamma + (beta if center else 0)
    # Rounding epsilon to a whole number costs up to half a unit of S + E: 3e-6 of the result for the tiny inputs here.
    slack = 2e-6 if size < 1 else 2e-8
    assert np.abs(got - expected).max() <= (1.01 + center) * 2.0**-F * 0.5 + slack * np.abs(expected).max()


@pytest.mark.parametrize("center", [0, 1])
def test_grouped_norm_norms_every_head_with_the_same_gamma(rng, center):
    heads, d, eps, f_gamma = 5, 12, 1e-6, 26
    b = Builder(rng, extreme=False)
    x = b.value(heads * d)
    gamma, beta = rng.normal(1, 0.3, d), rng.normal(0, 0.5, d)
    tensors = [b.tensor(fixed(gamma * math.sqrt(d), f_gamma).astype(np.int32)), b.tensor(fixed(beta).astype(np.int32)) if center else NONE]
    eps_m, eps_shift = fx.mantissa_shift(mpmath.mpf(eps) * d ** (3 if center else 1) * 2 ** (2 * F))
    b.op(Op.NORM, b.value(heads * d), [x], tensors, center=center, eps_m=eps_m, eps_shift=eps_shift, out_shift=f_gamma - F, groups=heads)
    data = fixed(rng.normal(0.2, 1, (4, heads, d)) * 10.0 ** np.arange(-1, heads - 1)[:, None])
    got = machine(b).run(b.ops[0], {x: data.reshape(4, -1)}, batch(range(4))).reshape(data.shape) * 2.0**-F
    real = data * 2.0**-F
    if center:
        real = real - real.mean(axis=2, keepdims=True)
    expected = real / np.sqrt((real**2).mean(axis=2, keepdims=True) + eps) * gamma + (beta if center else 0)
    assert np.abs(got - expected).max() <= 2 * 2.0**-F


@pytest.mark.parametrize("modulo", [0, 1, 7])
@pytest.mark.parametrize("dtype, grouped", [(np.int8, False), (np.int8, True), (np.int16, False)])
def test_learned_rows_are_those_of_the_positions(rng, dtype, grouped, modulo):
    rows, width, offset = 50, 40, 2
    b = Builder(rng, extreme=False)
    info = np.iinfo(dtype)
    w = rng.integers(info.min, info.max + 1, (rows, 64)).astype(dtype)
    g = rng.integers(1, 2**15, (rows, 2)).astype(np.int16) if grouped else None
    m = rng.integers(2**30, 2**31, rows)
    scale = b.tensor(np.stack([m, np.full(rows, 60)], axis=1).astype(np.int32))
    weights, scales = b.tensor(w), b.tensor(g) if grouped else NONE
    b.op(Op.EMBED, b.value(width), [], [weights, scales, scale], shift=-F, source=POSITIONS, offset=offset, modulo=modulo)
    positions = [0, 1, 30, 47, *([48, 2**31 - 1] if modulo else [])]
    mach = machine(b)
    assert mach.program.max_position == (2**31 - 1 if modulo else 47)
    got = mach.run(b.ops[0], {}, batch(positions)) * 2.0**-F
    real = w.astype(np.float64)[:, :width] * (np.repeat(g, 32, axis=1)[:, :width] if grouped else 1) * m[:, None] * 2.0**-60
    assert np.abs(got - real[np.array([p % modulo if modulo else p for p in positions]) + offset]).max() <= 0.5001 * 2.0**-F


@pytest.mark.parametrize("extreme", [False, True])
def test_both_parts_of_w16g32_are_added_before_the_one_rounding(rng, extreme):
    """LINEAR and EMBED over the same matrix, in whole numbers of Python."""
    width, rows, h = 70, 6, 62
    b = Builder(rng, extreme)
    x = b.value(width)
    w, g = b.numbers(np.int8, (2 * rows, 96)), b.numbers(np.int16, (2 * rows, 3))
    tensors = [b.tensor(w), b.tensor(g), b.tensor(np.tile(np.array([[2**30 + 7, h]], np.int32), (rows, 1)))]
    b.op(Op.LINEAR, b.value(rows), [x], tensors, shift=3, form=W16G32)
    b.op(Op.EMBED, b.value(width), [], tensors, shift=-30, form=W16G32)
    data = rng.integers(-(2**31), 2**31, (3, width))
    whole = [[sum(int(w[part, k]) * int(g[part, k // 32]) for part in (r, r + rows)) for k in range(96)] for r in range(rows)]

    def rounded(acc: int, n: int) -> int:
        return min(max(((acc * (2**30 + 7) >> (n - 1)) + 1) >> 1, -(2**31)), 2**31 - 1)

    got = machine(b).run(b.ops[0], {x: data}, batch(range(3)))
    for t, row in enumerate(data):
        q, shift = fx.narrow16(row)
        assert got[t].tolist() == [rounded(sum(a * int(c) for a, c in zip(whole[r], q)), h + 3 - int(shift)) for r in range(rows)]
    got = machine(b).run(b.ops[1], {}, Batch(np.array([5, 0, 3]), np.arange(3), 0))
    assert got.tolist() == [[rounded(a, h - 30) for a in whole[r][:width]] for r in (5, 0, 3)]


@pytest.mark.parametrize("extreme", [False, True])
def test_w4g32_is_exact_before_its_one_rounding(rng, extreme):
    width, rows = 70, 6
    b = Builder(rng, extreme)
    x = b.value(width)
    w, g, scale = (b.tensor(a) for a in (b.numbers(np.int8, (rows, 48)), b.numbers(np.int16, (rows, 6)), np.tile(np.array([[2**30 + 7, 62]], np.int32), (rows, 1))))
    b.op(Op.LINEAR, b.value(rows), [x], [w, g, scale], shift=3, form=W4G32)
    data = rng.integers(-(2**31), 2**31, (3, width))
    got = machine(b).run(b.ops[0], {x: data}, batch(range(3)))
    w, g = b.arrays[w], b.arrays[g]
    for t, row in enumerate(data):
        q, shift = fx.narrow16(row)
        for r in range(rows):
            acc = 0
            for k in range(width):
                byte = int(w[r, k // 2]) & 255
                code = byte >> 4 if k % 2 else byte & 15
                acc += (code * int(g[r, k // 32 * 2]) + int(g[r, k // 32 * 2 + 1])) * int(q[k])
            n = 62 + 3 - int(shift)
            exact = ((acc * (2**30 + 7) >> (n - 1)) + 1) >> 1
            assert got[t, r] == min(max(exact, -(2**31)), 2**31 - 1)


def softcap_table(cap: float, f_in: int, f_out: int) -> np.ndarray:
    """cap·tanh(x/cap) for x of up to ±16·2^k ≥ 8·cap, in steps of 2^k/64."""
    k = max(0, math.ceil(math.log2(cap / 2)))
    grid = np.arange(-1024, 1025) / 64 * 2.0**k
    f_table = 30 - math.ceil(math.log2(cap))
    return np.concatenate([[f_in - 24 + k, 18 + f_table - f_out], fixed(cap * np.tanh(grid / cap), f_table)]).astype(np.int32)


def test_softcap_of_logits(rng):
    cap, width, rows = 30.0, 32, 400
    b = Builder(rng, extreme=False)
    x = b.value(width)
    w = b.tensor(rng.integers(-127, 128, (rows, width)).astype(np.int8))
    scale = b.tensor(np.tile(np.array([[2**30, 36]], np.int32), (rows, 1)))
    table = b.tensor(softcap_table(cap, F, F))
    b.op(Op.LINEAR, b.value(rows), [x], [w, NONE, scale], shift=0)
    b.op(Op.LINEAR, b.value(rows), [x], [w, NONE, scale], shift=0, softcap=table)
    data = fixed(rng.normal(0, 1, (3, width)) * [[0.1], [1], [50]])
    m = machine(b)
    plain, capped = (m.run(op, {x: data}, batch(range(3))) * 2.0**-F for op in b.ops)
    assert np.abs(plain).max() > 20 * cap
    assert np.abs(capped - cap * np.tanh(plain / cap)).max() <= 2e-3
    assert np.abs(capped).max() <= cap


def test_norm_of_zeros_is_beta_or_zero(rng):
    b = Builder(rng, extreme=False)
    x = b.value(8)
    g = b.tensor(np.full(8, 2**30, np.int32))
    b.op(Op.NORM, b.value(8), [x], [g], center=0, eps_m=0, eps_shift=0, out_shift=10)
    assert (machine(b).run(b.ops[0], {x: np.zeros((1, 8), np.int64)}, batch([0])) == 0).all()


def test_norm_of_the_largest_numbers_does_not_overflow(rng):
    for center in (0, 1):
        b = Builder(rng, extreme=True)
        width = 4096
        x = b.value(width)
        g = b.tensor(np.full(width, 2**30, np.int32))
        b.op(Op.NORM, b.value(width), [x], [g], center=center, eps_m=2**31 - 1, eps_shift=-40, out_shift=20)
        data = np.where(np.arange(width) % 2, -(2**31), 2**31 - 1)[None]
        got = machine(b).run(b.ops[0], {x: data}, batch([0]))
        assert np.abs(got).max() < 2**31


@pytest.mark.parametrize("kind", POOLS)
def test_pool_makes_one_row_rounded_half_up(rng, kind):
    b = Builder(rng, extreme=False)
    x = b.value(6)
    b.op(Op.POOL, b.value(6), [x], kind=POOLS.index(kind), id=3 if kind == "token" else 0)
    for n in (1, 2, 3, 8, 40):
        rows = rng.integers(-(2**31), 2**31, (n, 6))
        rows[:, 0], rows[:, 1] = 2**31 - 1, -(2**31)
        rows[:, 2] = rng.integers(-2, 3, n)
        m = machine(b)
        ids = rng.integers(0, 8, n).tolist()
        got = m.run(b.ops[0], {x: rows}, Batch(np.array(ids), np.arange(n), 0))
        want = {
            "mean": [math.floor(Fraction(sum(int(v) for v in column), n) + Fraction(1, 2)) for column in rows.T],
            "first": rows[0], "last": rows[-1], "max": [max(column) for column in rows.T.tolist()],
            "token": rows[ids.index(3) if 3 in ids else 0], "largest_id": rows[ids.index(max(ids))],
        }[kind]  # fmt: skip
        np.testing.assert_array_equal(got, [want])
        assert m.saturations == 0


def test_norm_with_a_gamma_of_2_to_30_gives_a_row_of_length_1(rng):
    b = Builder(rng, extreme=False)
    for d in (1, 7, 384):
        for scale in (1, 100, 2**20, 2**31 - 1):
            x = b.value(d)
            gamma = b.tensor(np.full(d, 2**30, np.int32))
            b.op(Op.NORM, b.value(d), [x], [gamma], center=0, eps_m=0, eps_shift=0, out_shift=0, groups=1)
            row = rng.integers(-scale, scale + 1, (1, d))
            row[0, 0] = scale
            got = machine(b).run(b.ops[-1], {x: row}, batch([0]))[0]
            bound = (1 + math.sqrt(d)) * 2.0 ** -min(30, (62 - (d - 1).bit_length()) >> 1) + 2.0**-29
            norm = math.sqrt(sum(int(v) ** 2 for v in row[0]))
            assert np.abs(got * 2.0**-30 - row[0] / norm).max() <= bound
            assert (machine(b).run(b.ops[-1], {x: np.zeros((1, d), np.int64)}, batch([0])) == 0).all()


def test_add_mul():
    b = Builder(np.random.default_rng(0), extreme=False)
    x, y = b.value(3), b.value(3)
    b.op(Op.ADD, b.value(3), [x, y], la=2, lb=0, n=1)
    b.op(Op.MUL, b.value(3), [x, y], n=3)
    m = machine(b)
    values = {x: np.array([[5, -7, 2**31 - 1]]), y: np.array([[3, 3, 2**31 - 1]])}
    assert m.run(b.ops[0], values, batch([0])).tolist() == [[12, -12, 2**31 - 1]]
    assert m.saturations == 1
    assert m.run(b.ops[1], values, batch([0])).tolist() == [[2, -3, 2**31 - 1]]  # 15/8, -21/8
    assert m.saturations == 2


def silu(x):
    return x / (1 + np.exp(-x))


def test_act_is_within_the_chord_error(rng):
    f, f_table = 20, 26
    grid = np.arange(-1024, 1025) / 64
    table = fixed(silu(grid), f_table)
    table[0], table[-1] = 0, 16 << f_table
    b = Builder(rng, extreme=False)
    x = b.value(4000)
    b.op(Op.ACT, b.value(4000), [x], [b.tensor(table.astype(np.int32))], in_shift=f - 24, out_shift=18 + f_table - F, left=0, right=1, id_shift=f - F)
    real = rng.uniform(-40, 40, (1, 4000))
    got = machine(b).run(b.ops[0], {x: fixed(real, f)}, batch([0])) * 2.0**-F
    assert np.abs(got - silu(real)).max() <= 2.0**-F + (1 / 64) ** 2 / 8 * 0.5 + 2e-6


@pytest.mark.parametrize("layout", [0, 1])
@pytest.mark.parametrize("pairs", [2, 5])
def test_rope(rng, layout, pairs):
    head_dim, heads = 10, 3
    inv_freq = 10000.0 ** -(np.arange(pairs) / pairs)
    increments = np.array([int(mpmath.nint(mpmath.mpf(w) / (2 * mpmath.pi) * 2**64)) for w in inv_freq], np.uint64)
    words = np.stack([increments & np.uint64(0xFFFFFFFF), increments >> np.uint64(32)], 1).astype(np.uint32).view(np.int32)
    b = Builder(rng, extreme=False)
    x = b.value(heads * head_dim)
    m, n = fx.mantissa_shift(mpmath.mpf(1) / 32767)
    b.op(Op.ROPE, b.value(heads * head_dim), [x], [b.tensor(words)], heads=heads, head_dim=head_dim, layout=layout, amp_m=m, amp_shift=n)
    positions = [0, 1, 77, 2000]
    real = rng.normal(0, 3, (4, heads * head_dim))
    got = machine(b).run(b.ops[0], {x: fixed(real)}, batch(positions)) * 2.0**-F
    for t, position in enumerate(positions):
        for h in range(heads):
            v = real[t].reshape(heads, head_dim)[h]
            expected = v.copy()
            for j, w in enumerate(inv_freq):
                a, c = (2 * j, 2 * j + 1) if layout else (j, j + pairs)
                angle = position * w
                expected[a] = v[a] * math.cos(angle) - v[c] * math.sin(angle)
                expected[c] = v[a] * math.sin(angle) + v[c] * math.cos(angle)
            error = np.abs(got[t].reshape(heads, head_dim)[h] - expected).max()
            assert error <= np.abs(v).max() * 2 * 0.6 / 32767 + 2 * 2.0**-F


LOG2E = math.log2(math.e)
SLOPES = 2.0 ** -np.arange(0.5, 6.5)  # of 6 heads
BIAS = np.random.default_rng(3).normal(0, 2, (6, 9))


@pytest.mark.parametrize("kv_bits", [16, 8])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"alibi": True},
        {"bias": BIAS},
        {"bias": BIAS[:, :1]},
        {"window": 4},
        {"window": 1},
        {"window": 20, "alibi": True},
        {"cap": 2.0},
        {"cap": 2.0, "bias": BIAS, "alibi": True, "window": 7},
        {"mask": BIDIRECTIONAL},
        {"mask": BIDIRECTIONAL, "bias": BIAS},
        {"mask": BIDIRECTIONAL, "alibi": True, "cap": 3.0},
    ],
    ids=lambda kind: " ".join(kind) or "plain",
)
def test_attention(rng, kv_bits, kind):
    heads, kv_heads, dim, v_dim, tokens = 6, 2, 8, 5, 20
    alibi, bias, window, cap, mask = (kind.get(key, default) for key, default in (("alibi", False), ("bias", None), ("window", 0), ("cap", None), ("mask", 0)))
    b = Builder(rng, extreme=False)
    q, k, v = b.value(heads * dim), b.value(kv_heads * dim), b.value(kv_heads * v_dim)
    slopes = b.tensor(np.floor(SLOPES * LOG2E * 2**31 + 0.5).astype(np.uint32).view(np.int32)) if alibi else NONE
    table = NONE if bias is None else b.tensor(fixed(bias * LOG2E).astype(np.int32))
    caps = NONE if cap is None else b.tensor(softcap_table(cap * LOG2E, 16, 16))  # log2 units: the same curve, stretched
    scale = mpmath.mpf(1) / mpmath.sqrt(dim) * mpmath.log(mpmath.e, 2) * 2**16 / mpmath.mpf(2) ** (2 * F)
    m, n = fx.mantissa_shift(scale / (1 if kv_bits == 16 else 127))
    b.op(Op.KV_WRITE, -1, [k, v], layer=0)
    b.op(
        Op.ATTENTION, b.value(heads * v_dim), [q], [slopes, table, caps],
        layer=0, heads=heads, score_m=m, score_shift=n, w=23, out_shift=0, alibi_shift=15, mask=mask,
    )  # fmt: skip
    mach = machine(b, kv=[KV(kv_heads, dim, v_dim, window)], kv_bits=kv_bits)
    real = {i: rng.normal(0, 1, (tokens, b.values[i].width)) * rng.uniform(0.1, 3, (tokens, 1)) for i in (q, k, v)}
    values = {i: fixed(x) for i, x in real.items()}
    positions = np.cumsum(rng.integers(1, 4, tokens))
    step = batch(positions)
    mach.run(b.ops[0], values, step)
    got = (mach.run(b.ops[1], values, step) * 2.0**-F).reshape(tokens, heads, v_dim)
    for i in range(tokens):
        seen = np.arange(tokens) if mask else np.arange(max(0, i + 1 - window) if window else 0, i + 1)
        away = positions[seen] - positions[i]
        for h in range(heads):
            g = h // 3
            keys = real[k].reshape(tokens, kv_heads, dim)[seen, g]
            vals = real[v].reshape(tokens, kv_heads, v_dim)[seen, g]
            s = keys @ real[q][i].reshape(heads, dim)[h] / math.sqrt(dim)
            if cap is not None:
                s = cap * np.tanh(s / cap)
            if alibi:
                s = s - SLOPES[h] * np.abs(away)
            if bias is not None:
                last = bias.shape[1] - 1
                s = s + [bias[h, min(max(d + last // 2, 0), last) if mask else min(-d, last)] for d in away]
            p = np.exp(s - s.max())
            expected = p @ vals / p.sum()
            assert np.abs(got[i, h] - expected).max() <= (2e-3 if kv_bits == 16 else 0.15)
    assert mach.saturations == 0


@pytest.mark.parametrize("kv_bits", [16, 8])
def test_splits_rewind_and_restore_give_the_same_bits(rng, kv_bits):
    program = random_program(rng, Shape(kv_bits=kv_bits, alibi=True))
    ids = rng.integers(0, 97, 30)
    whole = GoldenSession(program)
    expected = whole.eval_int(ids)
    for cut in (1, 13, 29):
        s = GoldenSession(program)
        parts = [s.eval_int(ids[:cut]), s.eval_int(ids[cut:])]
        assert (np.concatenate(parts) == expected).all()
        s.rewind(cut)
        state = s.save()
        other = GoldenSession(program)
        other.restore(state)
        assert (other.eval_int(ids[cut:]) == expected[cut:]).all()
        assert (s.eval_int(ids[cut:], logits="last") == expected[-1:]).all()


def test_errors_change_nothing(rng):
    program = random_program(rng, Shape())
    s = GoldenSession(program, context=20)
    s.eval_int(range(10))
    before = s.save()
    for call in (
        lambda: s.eval_int(range(11)),
        lambda: s.eval_int([97]),
        lambda: s.eval_int([-1]),
        lambda: s.eval_int([]),
        lambda: s.eval_int([1, 2], positions=[9, 10]),
        lambda: s.eval_int([1, 2], positions=[11, 11]),
        lambda: s.eval_int([1], positions=[2**31]),
        lambda: s.eval_int([1], logits="some"),
        lambda: s.rewind(11),
        lambda: s.restore(before[:-1]),
        lambda: s.restore(b"EPST"),
    ):
        with pytest.raises((EdgePosError, ContextError, FormatError)):
            call()
        assert s.save() == before
    s.eval_int(range(10), positions=range(100, 110))
    assert s.position == 110


def test_positions_without_a_row_and_second_bidirectional_calls_change_nothing(rng):
    table = GoldenSession(random_program(rng, Shape(pairs=0, table=30, offset=3)))
    table.eval_int([1, 2], positions=[20, 25])
    both = GoldenSession(random_program(rng, Shape(mask=BIDIRECTIONAL)))
    both.eval_int([1, 2, 3])
    for s, ids, positions in ((table, [1], [27]), (table, [1, 2], None), (both, [4], None), (both, [4], [100])):
        before = s.save()
        with pytest.raises(ContextError):
            s.eval_int(ids, positions)
        assert s.save() == before
    table.eval_int([1])
    both.rewind(0)
    both.eval_int([4])
