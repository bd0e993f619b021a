"""Every operator of golden.py against float64 mathematics, or exact whole numbers, written here independently."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from random_programs import Builder, Shape, random_program

from edgepos import fixedpoint as fx
from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.golden import Batch, GoldenSession, Machine
from edgepos.program import KV, Header, Op, Program

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


@pytest.mark.parametrize("kv_bits", [16, 8])
@pytest.mark.parametrize("alibi", [False, True])
def test_attention(rng, kv_bits, alibi):
    heads, kv_heads, dim, v_dim, tokens = 6, 2, 8, 5, 20
    b = Builder(rng, extreme=False)
    q, k, v = b.value(heads * dim), b.value(kv_heads * dim), b.value(kv_heads * v_dim)
    slopes = 2.0 ** -np.arange(0.5, 6.5)
    t = b.tensor(np.floor(slopes * math.log2(math.e) * 2**31 + 0.5).astype(np.uint32).view(np.int32)) if alibi else -1
    scale = mpmath.mpf(1) / mpmath.sqrt(dim) * mpmath.log(mpmath.e, 2) * 2**16 / mpmath.mpf(2) ** (2 * F)
    m, n = fx.mantissa_shift(scale / (1 if kv_bits == 16 else 127))
    b.op(Op.KV_WRITE, -1, [k, v], layer=0)
    b.op(Op.ATTENTION, b.value(heads * v_dim), [q], [t], layer=0, heads=heads, score_m=m, score_shift=n, w=23, out_shift=0, alibi_shift=15)
    mach = machine(b, kv=[KV(kv_heads, dim, v_dim)], kv_bits=kv_bits)
    real = {i: rng.normal(0, 1, (tokens, b.values[i].width)) * rng.uniform(0.1, 3, (tokens, 1)) for i in (q, k, v)}
    values = {i: fixed(x) for i, x in real.items()}
    step = batch(range(tokens))
    mach.run(b.ops[0], values, step)
    got = (mach.run(b.ops[1], values, step) * 2.0**-F).reshape(tokens, heads, v_dim)
    for i in range(tokens):
        for h in range(heads):
            g = h // 3
            keys = real[k][: i + 1].reshape(i + 1, kv_heads, dim)[:, g]
            vals = real[v][: i + 1].reshape(i + 1, kv_heads, v_dim)[:, g]
            s = keys @ real[q][i].reshape(heads, dim)[h] / math.sqrt(dim)
            if alibi:
                s = s - slopes[h] * (i - np.arange(i + 1))
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
