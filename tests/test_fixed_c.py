"""fixed.h computes the same as fixedpoint.py: all 16-bit inputs, and millions of random and extreme wider ones."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from edgepos import fixedpoint as fx

N = 1_000_000


@pytest.fixture(scope="module")
def lib(root, tmp_path_factory):
    path = tmp_path_factory.mktemp("fixed") / "fixed.so"
    runtime = root / "c_runtime"
    sources = [root / "tests/c/fixed_wrapper.c", runtime / "src/fixed.c", runtime / "src/positions.c"]
    subprocess.run(
        ["cc", "-std=c11", "-O2", "-shared", "-fPIC", f"-I{runtime / 'include'}", f"-I{runtime / 'src'}", *sources, "-o", path], check=True
    )
    return ctypes.CDLL(str(path))


def call(function, inputs, outputs, count: int) -> list[np.ndarray]:
    arrays = [np.ascontiguousarray(x) for x in inputs] + [np.zeros(count, dtype) for dtype in outputs]
    function(*[a.ctypes.data_as(ctypes.c_void_p) for a in arrays], ctypes.c_int32(count))
    return arrays[len(inputs) :]


def wide(rng, bits: int, dtype, count: int = N) -> np.ndarray:
    """Signed or unsigned numbers of every size, with the extremes among them."""
    raw = rng.integers(0, 2**64, count, dtype=np.uint64) >> rng.integers(64 - bits, 64, count).astype(np.uint64)
    x = raw.astype(dtype) if np.dtype(dtype).kind == "u" else raw.view(np.int64).astype(dtype) * rng.choice(np.array([-1, 1], dtype), count)
    info = np.iinfo(dtype)
    x[: 8 * 4 : 4] = [info.min, info.max, 0, 1, info.max - 1, info.min + 1, info.max // 2, info.max // 2 + 1]
    return x


def test_rshift_round_16_bit(lib):
    for n in range(-3, 40):
        x = np.arange(-(2**15), 2**15, dtype=np.int64)
        (y,) = call(lib.w_rshift_round, [x, np.full(x.shape, n, np.int32)], [np.int64], len(x))
        assert (y == fx.rshift_round(x, n)).all(), n


def test_rshift_round(lib):
    rng = np.random.default_rng(1)
    x, n = wide(rng, 64, np.int64), rng.integers(-70, 140, N).astype(np.int32)
    (y,) = call(lib.w_rshift_round, [x, n], [np.int64], N)
    assert (y == fx.rshift_round(x, n)).all()
    right = (n >= 1) & (n <= 63)  # NumPy's way for these alone
    assert (y[right] == fx.rshift_round(x[right], n[right])).all()


def test_requant_16_bit(lib):
    x = np.arange(-(2**15), 2**15, dtype=np.int64)
    for m, n in ((1, 1), (-1, 1), (3, 2), (32767, 15), (-32768, 15), (2**30, 30), (2**31 - 1, 31), (-(2**31), 31), (2**31 - 1, -1)):
        count = np.zeros(1, np.uint64)
        y = np.zeros(len(x), np.int32)
        args = [x, np.full(len(x), m, np.int32), np.full(len(x), n, np.int32), y, count]
        lib.w_requant(*[a.ctypes.data_as(ctypes.c_void_p) for a in args], ctypes.c_int32(len(x)))
        assert (y == fx.requant(x, m, n)).all(), (m, n)
        assert count[0] == np.count_nonzero(fx.requant_saturates(x, m, n))


def test_requant(lib):
    rng = np.random.default_rng(2)
    a, m, n = wide(rng, 64, np.int64), wide(rng, 32, np.int32), rng.integers(-70, 140, N).astype(np.int32)
    y, count = np.zeros(N, np.int32), np.zeros(1, np.uint64)
    lib.w_requant(*[v.ctypes.data_as(ctypes.c_void_p) for v in (a, m, n, y, count)], ctypes.c_int32(N))
    assert (y == fx.requant(a, m, n)).all()
    far = n >= 33  # NumPy's way for these alone
    assert (y[far] == fx.requant(a[far], m[far], n[far])).all()
    part = slice(0, 50000)
    y, count = np.zeros(50000, np.int32), np.zeros(1, np.uint64)
    lib.w_requant(*[np.ascontiguousarray(v[part]).ctypes.data_as(ctypes.c_void_p) for v in (a, m, n)], y.ctypes.data_as(ctypes.c_void_p), count.ctypes.data_as(ctypes.c_void_p), ctypes.c_int32(50000))
    assert count[0] == np.count_nonzero(fx.requant_saturates(a[part], m[part], n[part]))


def test_div_round_half_up(lib):
    rng = np.random.default_rng(3)
    a, b = wide(rng, 64, np.int64), wide(rng, 64, np.int64)
    (y,) = call(lib.w_div_round_half_up, [a, b], [np.int64], N)
    assert (y == fx.div_round_half_up(a, b)).all()


@pytest.mark.parametrize("name", ["rsqrt", "recip"])
def test_reciprocals(lib, name):
    rng = np.random.default_rng(4)
    a = wide(rng, 64, np.uint64, 100_000)
    m, e = call(getattr(lib, f"w_{name}"), [a], [np.int32, np.int32], len(a))
    expected = [getattr(fx, name)(int(v)) for v in a]
    assert list(zip(m.tolist(), e.tolist())) == expected


def test_isqrt64(lib):
    rng = np.random.default_rng(5)
    a = wide(rng, 64, np.uint64, 100_000)
    (y,) = call(lib.w_isqrt64, [a], [np.uint32], len(a))
    assert y.tolist() == [fx.isqrt64(int(v)) for v in a]


def test_exp2_neg(lib):
    rng = np.random.default_rng(6)
    for w in range(15, 31):
        r = np.concatenate([np.arange(2**16), rng.integers(-5, 45 << 16, 2**16), [-(2**63), 2**63 - 1]]).astype(np.int64)
        (y,) = call(lib.w_exp2_neg, [r, np.full(r.shape, w, np.int32)], [np.int32], len(r))
        assert (y == fx.exp2_neg(r, w)).all(), w


def test_sincos(lib):
    rng = np.random.default_rng(7)
    phase = np.concatenate([rng.integers(0, 2**64, N, dtype=np.uint64), (np.arange(2**12, dtype=np.uint64) << np.uint64(52)) - np.uint64(1)])
    c, s = call(lib.w_sincos, [phase], [np.int32, np.int32], len(phase))
    cos, sin = fx.sincos_q15(phase)
    assert (c == cos).all() and (s == sin).all()


def test_alibi_bias(lib):
    rng = np.random.default_rng(8)
    slope, distance = wide(rng, 32, np.uint32), wide(rng, 31, np.uint32) & np.uint32(2**31 - 1)
    n = rng.integers(0, 20, N).astype(np.int32)
    (y,) = call(lib.w_alibi, [slope, distance, n], [np.int64], N)
    assert (y == fx.alibi_bias(slope, distance, n)).all()


@pytest.mark.parametrize("name, dtype", [("narrow16", np.int16), ("quant8", np.int8)])
def test_vectors(lib, name, dtype):
    rng = np.random.default_rng(9)
    width, rows = 9, 40_000
    bits = rng.integers(1, 33, (rows, 1))
    x = (rng.integers(-(2**31), 2**31, (rows, width)) >> (32 - bits)).astype(np.int32)
    x[0], x[1], x[2, :2] = 0, -(2**31), [-(2**31), 2**31 - 1]
    q, s = np.zeros((rows, width), dtype), np.zeros(rows, np.int32)
    function = getattr(lib, f"w_{name}")
    function(*[v.ctypes.data_as(ctypes.c_void_p) for v in (x, q, s)], ctypes.c_int32(rows), ctypes.c_int32(width))
    expected_q, expected_s = getattr(fx, name)(x)
    assert (q == expected_q).all() and (s == expected_s).all()


def test_vectors_in_groups(lib):
    rng = np.random.default_rng(10)
    width, rows = 96, 20_000
    bits = rng.integers(1, 33, (rows, 3, 1))
    x = (rng.integers(-(2**31), 2**31, (rows, 3, 32)) >> (32 - bits)).astype(np.int32).reshape(rows, width)
    x[0], x[1], x[2, :2] = 0, -(2**31), [-(2**31), 2**31 - 1]
    x[3:3000:2, 5] = rng.integers(32384, 32388, 1499) << rng.integers(0, 17, 1499)
    q, d, s = np.zeros((rows, width), np.int8), np.zeros((rows, 3), np.int32), np.zeros(rows, np.int32)
    lib.w_quant8g32(*[v.ctypes.data_as(ctypes.c_void_p) for v in (x, q, d, s)], ctypes.c_int32(rows), ctypes.c_int32(width))
    for mine, expected in zip((q, d, s), fx.quant8g32(x), strict=True):
        assert (mine == expected).all()


def test_constants_header_is_current(root):
    import importlib.util

    spec = importlib.util.spec_from_file_location("make_constants", root / "c_runtime/tools/make_constants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (root / "c_runtime/src/constants.h").read_text() == module.render() + "\n"
