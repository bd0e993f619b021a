"""The C functions on vectors, score rows and tables equal NumPy's, take any arguments, and link small."""

import subprocess

import mpmath
import numpy as np
import pytest
from boards import require
from object_files import TARGETS, output, text_bytes

from edgepos import fixedpoint
from edgepos.positions import Alibi, AxialRope, Learned, MRope, PhasePlan, RelativeBias, Rope, Sinusoidal, SinusoidalPlan, SlopePlan, T5Bias, TablePlan
from edgepos.resources import c_runtime_dir
from edgepos.runtime.native import ffi, lib
from edgepos.targets import build, tools

POSITION_SOURCES = ("positions.c", "rotate.c", "position_rows.c", "kernels/rotate_avx2.c", "kernels/rotate_neon.c")
ARGUMENT, POSITION = 1, 10
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
EMBEDDING_M, EMBEDDING_SHIFT = fixedpoint.mantissa_shift(mpmath.mpf(0.5) * 2**20 / 32767)  # scale 1/2, 20 fractional bits
LARGEST = {np.int16: 32767, np.int8: 127}


def pointer(array: np.ndarray):
    assert array.flags.c_contiguous
    names = {"int8": "int8_t *", "int16": "int16_t *", "int32": "int32_t *", "uint8": "uint8_t *", "uint32": "uint32_t *", "uint64": "uint64_t *"}
    return ffi.cast(names[array.dtype.name], array.ctypes.data)


def rotation(spec, heads, stride, amplitude):
    layout = 1 if spec.layout == "interleaved" else 0
    return ffi.new("ep_rotation *", [heads, spec.head_dim, stride, spec.pairs, layout, *amplitude, 0])


def rotate(x, cos, sin, how):
    """The C rotation of a copy of x, which is the same with the instructions of this processor."""
    function = lib.ep_rope_rotate_s16 if x.dtype == np.int16 else lib.ep_rope_rotate_s8
    cos, sin = (np.ascontiguousarray(t, dtype=np.int16) for t in (cos, sin))
    results = []
    for how.cpu in (0, lib.ep_cpu_detect()):
        results.append(x.copy())
        assert function(pointer(results[-1]), pointer(cos), pointer(sin), how) == 0
    np.testing.assert_array_equal(*results)
    return results[0]


def c_row(position, increments):
    cos, sin = np.zeros((2, len(increments)), dtype=np.int16)
    assert lib.ep_rope_row(position, pointer(increments), len(increments), pointer(cos), pointer(sin)) == 0
    return cos, sin


@pytest.mark.parametrize("dtype", [np.int16, np.int8])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary_dim, scaling", [(16, None), (10, None), (2, None), (0, None), (12, YARN), (38, None), (134, YARN)])
@pytest.mark.parametrize("gap", [0, 5])
def test_rotation_equals_numpy(dtype, layout, rotary_dim, scaling, gap):
    dim, heads = 16 if rotary_dim <= 16 else rotary_dim + 3, 3
    spec = Rope(dim, rotary_dim, layout=layout, scaling=scaling)
    rng = np.random.default_rng([rotary_dim, gap])
    info = np.iinfo(dtype)
    for plan in (PhasePlan(spec), TablePlan(spec, 200, 16), TablePlan(spec, 200, 8)):
        how = rotation(spec, heads, spec.head_dim + gap, plan.amplitude())
        for position in (0, 1, 77, 199):
            x = rng.integers(info.min, info.max + 1, size=(heads, spec.head_dim + gap)).astype(dtype)
            x[0], x[1, ::2] = info.min, info.max
            cos, sin = plan.cos_sin([position])
            got = rotate(x, cos[0], sin[0], how)
            twin = plan.rotate_int16 if dtype == np.int16 else plan.rotate_int8
            np.testing.assert_array_equal(got[:, :dim], twin(x[:, :dim], position))
            np.testing.assert_array_equal(got[:, dim:], x[:, dim:])
            assert np.abs(got[:, :rotary_dim].astype(int)).max(initial=0) <= LARGEST[dtype]


def test_rotation_of_any_numbers_equals_numpy():
    """Tables and amplitudes no plan would give: any int16, any int32, every shift that is taken."""
    rng = np.random.default_rng(3)
    extreme = np.array([-32768, -32767, -1, 0, 1, 32767], dtype=np.int16)
    a, b, c, s = (g.ravel() for g in np.meshgrid(extreme, extreme, extreme, extreme))
    a, b, c, s = (np.concatenate([v, rng.integers(-32768, 32768, size=700).astype(np.int16)]) for v in (a, b, c, s))
    pairs = len(a)
    for m in (-(2**31), -1, 0, 1, 2**30, 2**31 - 1):
        for n in (1, 2, 31, 45, 62, 63):
            for dtype in (np.int16, np.int8):
                x = np.stack([a, b], axis=1).reshape(-1).astype(dtype)
                how = ffi.new("ep_rotation *", [1, 2 * pairs, 2 * pairs, pairs, 1, m, n, 0])
                expected = fixedpoint.rope_rotate(x[::2], x[1::2], c, s, m, n, LARGEST[dtype])
                np.testing.assert_array_equal(rotate(x, c, s, how).reshape(-1, 2).T, np.stack(expected))


def test_int8_vectors_keep_their_bound():
    spec = Rope(64, theta=10000.0)
    rng = np.random.default_rng(4)
    x = rng.integers(-89, 90, size=(500, 64)).astype(np.int8)
    at = rng.integers(0, 1000, size=500)
    for plan in (PhasePlan(spec), TablePlan(spec, 1000, 8)):
        error = np.abs(plan.rotate_int8(x, at) - spec.rotate(x, at)).max()
        assert error <= plan.rotation_bound(89) <= (0.504 if plan.bits == 16 else 1.25)


def test_amplitude_without_attention_factor(root):
    assert PhasePlan(Rope(8)).amplitude() == (1073774593, 45)
    header = (c_runtime_dir() / "include" / "edgepos.h").read_text()
    assert "EP_Q15_AMP_M 1073774593" in header and "EP_Q15_AMP_SHIFT 45" in header


@pytest.mark.parametrize("position", [0, 1, 4095, 131071, 2**30, 2**31 - 1])
def test_rows_equal_numpy(position):
    plan = PhasePlan(Rope(128, theta=500000.0))
    cos, sin = plan.cos_sin([position])
    got = c_row(position, plan.increments)
    np.testing.assert_array_equal(got[0], cos[0])
    np.testing.assert_array_equal(got[1], sin[0])


@pytest.mark.parametrize("spec", [MRope(Rope(16), (2, 3, 3)), MRope(Rope(16), (3, 3, 2), interleaved=True), AxialRope(16, (Rope(8), Rope(4)))])
def test_rows_of_coordinates_equal_numpy(spec):
    plan = PhasePlan(spec)
    axis = np.array(spec.axes, dtype=np.uint8)
    for position in ([0, 0, 0], [5, 1, 9], [2**31 - 1, 0, 77]):
        at = np.array(position[: max(spec.axes) + 1], dtype=np.int32)
        cos, sin = np.zeros((2, spec.pairs), dtype=np.int16)
        status = lib.ep_rope_row_axes(pointer(at), len(at), pointer(axis), pointer(plan.increments), spec.pairs, pointer(cos), pointer(sin))
        assert status == 0
        expected = plan.cos_sin([at])
        np.testing.assert_array_equal(cos, expected[0][0])
        np.testing.assert_array_equal(sin, expected[1][0])
        before = cos.copy()
        status = lib.ep_rope_row_axes(pointer(at), len(at) - 1, pointer(axis), pointer(plan.increments), spec.pairs, pointer(cos), pointer(sin))
        assert status == ARGUMENT and (cos == before).all()


@pytest.mark.parametrize("symmetric", [0, 1])
@pytest.mark.parametrize("shift", [15, 3, 0, -20, 64])
def test_alibi_rows_equal_numpy(symmetric, shift):
    rng = np.random.default_rng(5)
    for slope in (0, 1, 2**31, 2**32 - 1, *SlopePlan(Alibi(12)).slopes.tolist()):
        scores = rng.integers(-(2**31), 2**31, size=64).astype(np.int32)
        scores[:2] = -(2**31), 2**31 - 1
        keys = np.concatenate([rng.integers(0, 2**31, size=32), np.arange(32)]).astype(np.int32)
        for position in (0, 9, 2**31 - 1):
            for given in (keys, None):
                got = scores.copy()
                assert lib.ep_alibi_row(pointer(got), ffi.NULL if given is None else pointer(given), 64, position, slope, shift, symmetric) == 0
                expected = fixedpoint.alibi_row(scores, slope, shift, position, np.arange(64) if given is None else given, bool(symmetric))
                np.testing.assert_array_equal(got, expected)


def test_refused_positions_change_nothing():
    scores = np.arange(4, dtype=np.int32)
    keys = np.array([0, 1, 2, -1], dtype=np.int32)
    assert lib.ep_alibi_row(pointer(scores), pointer(keys), 4, 3, 2**31, 15, 0) == POSITION
    assert lib.ep_alibi_row(pointer(scores), ffi.NULL, 4, -1, 2**31, 15, 0) == POSITION
    assert scores.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("spec", [T5Bias(), T5Bias(32, 128, False), T5Bias(2, 2, False), T5Bias(4, 2), T5Bias(512, 100000), T5Bias(320, 800)])
def test_t5_buckets_equal_numpy(spec):
    thresholds = np.array(spec.thresholds, dtype=np.uint32)
    side = spec.side_buckets if spec.bidirectional else 0
    edges = [p + d for p in spec.thresholds for d in (-1, 0, 1)] + [10**6, 2**31 - 1]
    at = np.array([*range(-3000, 3001), *edges, *(-d for d in edges)])
    got = [lib.ep_t5_bucket(pointer(thresholds) if len(thresholds) else ffi.NULL, len(thresholds), spec.exact_buckets, side, int(r)) for r in at]
    np.testing.assert_array_equal(got, spec.bucket(at))


def test_t5_buckets_of_a_million_distances():
    """The float64 formula, which is exact enough away from the thresholds, and the integer rule at them."""
    spec = T5Bias(32, 128, False)
    d = np.arange(1, 10**6 + 1)
    e, n = spec.exact_buckets, spec.side_buckets - spec.exact_buckets
    place = n * np.log(d / e) / np.log(spec.max_distance / e)
    expected = np.where(d < e, d, np.minimum(e + np.floor(place).clip(0), e + n - 1)).astype(int)
    thresholds = np.array(spec.thresholds, dtype=np.uint32)
    in_c = [lib.ep_t5_bucket(pointer(thresholds), len(thresholds), e, 0, -r) for r in range(1, 10**6 + 1)]
    np.testing.assert_array_equal(in_c, spec.bucket(-d))
    near = np.abs(place - np.round(place)) < 1e-9
    got = spec.bucket(-d)
    np.testing.assert_array_equal(got[~near], expected[~near])
    for k in np.flatnonzero(near & (d >= e) & (d < spec.max_distance)).tolist():
        whole = round(float(place[k]))
        assert got[k] == e + whole - (int(d[k]) ** n < spec.max_distance**whole * e ** (n - whole))


def test_table_rows():
    table = np.arange(-6, 6, dtype=np.int8).reshape(4, 3)
    out = np.zeros(3, dtype=np.int16)
    found = ffi.new("const void **")
    for row in range(4):
        assert lib.ep_table_row_s8(pointer(table), 4, 3, row, pointer(out)) == 0 and out.tolist() == table[row].tolist()
        assert lib.ep_table_row(pointer(table), 4, 3, row, found) == 0
        assert list(ffi.cast("int8_t *", found[0])[0:3]) == table[row].tolist()
    for row in (-1, 4, 2**31 - 1, -(2**31)):
        assert lib.ep_table_row(pointer(table), 4, 3, row, found) == POSITION
        assert lib.ep_table_row_s8(pointer(table), 4, 3, row, pointer(out)) == POSITION
    assert out.tolist() == table[3].tolist()


@pytest.mark.parametrize("spec", [RelativeBias((5,)), RelativeBias((3, 4), query_minus_key=True), RelativeBias((0, 2, 1), clip=False), RelativeBias((2**15, 2**13))])
def test_relative_rows_equal_numpy(spec):
    """Every difference up to two beyond the extents (one in many of the large table), and the ends of int32."""
    extents = np.array(spec.extents, dtype=np.int32)
    reach = [np.unique(np.linspace(-n - 2, n + 2, min(2 * n + 5, 400)).astype(np.int64)) for n in spec.extents]
    at = np.stack([g.ravel() for g in np.meshgrid(*(np.concatenate([r, [-(2**31) + 1, 2**31 - 1]]) for r in reach))], axis=-1)
    row = ffi.new("int32_t *")
    sign = -1 if spec.query_minus_key else 1
    beyond = (np.abs(at) > extents).any(axis=1)
    rows = fixedpoint.relative_row(at, spec.extents)
    for difference, outside, expected in zip((at * 1).astype(np.int32), beyond, rows):
        row[0] = -7
        status = lib.ep_relative_row(pointer(difference), pointer(extents), len(extents), int(spec.clip), row)
        assert (status, row[0]) == ((POSITION, -7) if outside and not spec.clip else (0, expected))
    inside = at if spec.clip else at[~beyond]
    differences = sign * inside  # key - query, of which the spec takes the sign it was learned with
    np.testing.assert_array_equal(spec.bucket(differences[:, 0] if len(extents) == 1 else differences), fixedpoint.relative_row(inside, spec.extents))


@pytest.mark.parametrize("convention", ["interleaved", "concatenated"])
@pytest.mark.parametrize("first", ["sin", "cos"])
@pytest.mark.parametrize("m, shift", [(1, 0), (32767, 1), (EMBEDDING_M, EMBEDDING_SHIFT), (-(2**31), -40), (2**31 - 1, 64), (2**31 - 1, 15)])
def test_sinusoidal_rows_equal_numpy(convention, first, m, shift):
    spec = Sinusoidal(10, convention, start=2, first=first, scale=0.5)
    increments = spec.increments()
    how = ffi.new("ep_sinusoid *", [5, 2, int(convention == "interleaved"), int(first == "cos"), m, shift])
    plan = SinusoidalPlan(spec, 2**31 - 2, 16, "phase")
    for position in (0, 1, 511, 131071, 2**31 - 3):
        out = np.full(10, -1, dtype=np.int32)
        assert lib.ep_sinusoidal_row(position, pointer(increments), how, pointer(out)) == 0
        np.testing.assert_array_equal(out, fixedpoint.sinusoidal_row(position, 2, increments, m, shift, convention == "interleaved", first == "cos"))
        if (m, shift) == (1, 0):
            np.testing.assert_array_equal(out, plan.table([position])[0])
        if m == EMBEDDING_M:  # Fixed with 20 fractional bits
            assert np.abs(out * 2.0**-20 - spec.table([position])[0]).max() <= plan.bound * plan.scale + 2.0**-20
    for position in (-1, -(2**31), 2**31 - 2, 2**31 - 1):
        assert lib.ep_sinusoidal_row(position, pointer(increments), how, pointer(out)) == POSITION


@pytest.mark.parametrize("spec", [Learned(30), Learned.roberta(30), Learned.opt(30), Learned(30, 2, 7, 5), Learned(9, modulo=9)])
def test_learned_rows_equal_numpy(spec):
    rng = np.random.default_rng(6)
    pad = -1 if spec.pad_id is None else spec.pad_id
    how = ffi.new("ep_learned *", [spec.count, spec.offset, pad, spec.modulo or 0])
    for n in (0, 1, 5, 20, 40):
        for start in (0, 3, 20, 2**31 - 1):
            ids = rng.integers(0, 9, size=n).astype(np.int32)
            ids[: n // 3] = max(pad, 0)
            rows = np.full(n, -7, dtype=np.int32)
            status = lib.ep_learned_rows(how, pointer(ids), n, start, pointer(rows))
            counted = n if spec.pad_id is None else int((ids != pad).sum())
            if spec.modulo is None and counted and start + counted > spec.context:
                assert status == POSITION and (rows == -7).all()
                continue
            np.testing.assert_array_equal(rows, fixedpoint.learned_rows(ids, start, spec.offset, spec.pad_id, spec.modulo or 0))
            if n and start + n < 2**31:
                np.testing.assert_array_equal(rows, spec.positions(ids, start) if counted or start < 20 else rows)
            assert status == 0


HOSTILE = r"""
#include <limits.h>
#include <stdio.h>
#include "edgepos.h"

#define EXPECT(st, what) do { if ((what) != (st)) { printf("line %d\n", __LINE__); bad = 1; } } while (0)

int main(void) {
  int bad = 0;
  int16_t x[8] = {INT16_MIN, INT16_MIN, INT16_MAX, INT16_MAX, 1, 2, 3, 4}, c[4] = {INT16_MIN, INT16_MIN, INT16_MAX, 0}, s[4] = {INT16_MIN, 0, 0, 0};
  int8_t y[8] = {0};
  const ep_rotation good = {1, 8, 8, 4, EP_ROPE_HALF, EP_Q15_AMP_M, EP_Q15_AMP_SHIFT, UINT32_MAX & ~(EP_CPU_AVX2 | EP_CPU_NEON)};
  const int32_t numbers[] = {INT32_MIN, INT32_MIN + 1, -1, 0, 1, 5, INT32_MAX};
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, NULL));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(NULL, c, s, &good));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, NULL, s, &good));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s8(y, c, NULL, &good));
  ep_rotation how = good;
  how.heads = 0;
  EXPECT(EP_OK, ep_rope_rotate_s16(NULL, NULL, NULL, &how));
  how.heads = INT32_MIN;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.pairs = 5;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.pairs = INT32_MAX;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.pairs = -1;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.stride = 7;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.layout = 2;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  how = good, how.head_dim = -8, how.stride = -8, how.pairs = 0;
  EXPECT(EP_ERR_ARGUMENT, ep_rope_rotate_s16(x, c, s, &how));
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 0; k < 7; k++) {
      how = good, how.amp_m = numbers[i], how.amp_shift = numbers[k];
      ep_status st = numbers[k] == 1 || numbers[k] == 5 ? EP_OK : EP_ERR_ARGUMENT;
      EXPECT(st, ep_rope_rotate_s16(x, c, s, &how));
      EXPECT(st, ep_rope_rotate_s8(y, c, s, &how));
    }
  const uint64_t turns[4] = {0, UINT64_MAX, 1, (uint64_t)1 << 63};
  const uint8_t axis[4] = {0, 1, 1, 255};
  const int32_t at[2] = {INT32_MAX, -1};
  for (unsigned i = 3; i < 7; i++) EXPECT(EP_OK, ep_rope_row(numbers[i], turns, 4, c, s));
  for (unsigned i = 0; i < 3; i++) EXPECT(EP_ERR_POSITION, ep_rope_row(numbers[i], turns, 4, c, s));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_row(0, NULL, 4, c, s));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_row(0, turns, INT32_MIN, c, s));
  EXPECT(EP_OK, ep_rope_row(0, NULL, 0, NULL, NULL));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_row_axes(at, 2, axis, turns, 4, c, s));
  EXPECT(EP_ERR_POSITION, ep_rope_row_axes(at, 2, axis, turns, 3, c, s));
  EXPECT(EP_ERR_ARGUMENT, ep_rope_row_axes(NULL, 2, axis, turns, 3, c, s));
  EXPECT(EP_OK, ep_rope_row_axes(at, 1, axis, turns, 1, c, s));
  int32_t scores[2] = {INT32_MIN, INT32_MAX};
  const int32_t keys[2] = {0, INT32_MAX};
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 3; k < 7; k++) EXPECT(EP_OK, ep_alibi_row(scores, keys, 2, numbers[k], UINT32_MAX, numbers[i], (int)i & 1));
  EXPECT(EP_ERR_ARGUMENT, ep_alibi_row(NULL, keys, 2, 0, 1, 15, 0));
  EXPECT(EP_ERR_ARGUMENT, ep_alibi_row(scores, keys, -1, 0, 1, 15, 0));
  EXPECT(EP_OK, ep_alibi_row(NULL, NULL, 0, 0, 1, 15, 0));
  const uint32_t steps[3] = {0, UINT32_MAX, 7};
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 0; k < 7; k++)
      for (unsigned r = 0; r < 7; r++) {
        if (ep_t5_bucket(steps, 3, numbers[i], numbers[k], numbers[r]) < 0) bad = 1;
        if (ep_t5_bucket(NULL, numbers[i], numbers[k], numbers[i], numbers[r]) < 0) bad = 1;
        if (ep_t5_bucket(steps, numbers[i] < 0 ? numbers[i] : 1, 0, numbers[k], numbers[r]) < 0) bad = 1;
      }
  int32_t found = -7;
  const int32_t huge[2] = {INT32_MAX, INT32_MAX}, wide[2] = {1 << 15, 1 << 14}, none[2] = {0, -1};
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 0; k < 7; k++) {
      const int32_t difference[2] = {numbers[i], numbers[k]};
      EXPECT(EP_ERR_ARGUMENT, ep_relative_row(difference, huge, numbers[k] > 2 ? INT32_MAX : numbers[k], 1, &found));
      EXPECT(EP_ERR_ARGUMENT, ep_relative_row(difference, none, 2, 1, &found));
      EXPECT(EP_ERR_ARGUMENT, ep_relative_row(difference, wide, 2, 1, &found));
    }
  if (found != -7) bad = 1;
  EXPECT(EP_OK, ep_relative_row(numbers, wide, 1, 1, &found));
  if (found != 0) bad = 1;
  EXPECT(EP_ERR_POSITION, ep_relative_row(numbers, wide, 1, 0, &found));
  EXPECT(EP_ERR_ARGUMENT, ep_relative_row(NULL, wide, 1, 1, &found));
  EXPECT(EP_ERR_ARGUMENT, ep_relative_row(numbers, NULL, 1, 1, &found));
  EXPECT(EP_ERR_ARGUMENT, ep_relative_row(numbers, wide, 1, 1, NULL));
  int32_t out[8];
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 0; k < 7; k++) {
      ep_sinusoid wave = {4, 0, (int32_t)(i & 1), (int32_t)(k & 1), numbers[i], numbers[k]};
      EXPECT(EP_OK, ep_sinusoidal_row(INT32_MAX, turns, &wave, out));
      wave.start = numbers[i];
      EXPECT(numbers[i] < 0 ? EP_ERR_ARGUMENT : numbers[k] < 0 || numbers[k] > INT32_MAX - numbers[i] ? EP_ERR_POSITION : EP_OK,
             ep_sinusoidal_row(numbers[k], turns, &wave, out));
      wave.start = 0, wave.pairs = numbers[i];
      if (numbers[i] > 4 || numbers[i] < 0) EXPECT(EP_ERR_ARGUMENT, ep_sinusoidal_row(0, NULL, &wave, out));
      wave.pairs = 4, wave.layout = numbers[i];
      EXPECT(numbers[i] == 0 || numbers[i] == 1 ? EP_OK : EP_ERR_ARGUMENT, ep_sinusoidal_row(0, turns, &wave, out));
    }
  EXPECT(EP_ERR_ARGUMENT, ep_sinusoidal_row(0, turns, NULL, out));
  EXPECT(EP_ERR_ARGUMENT, ep_sinusoidal_row(0, turns, &(ep_sinusoid){4, 0, 0, 0, 1, 0}, NULL));
  const int32_t ids[4] = {INT32_MIN, -1, 1, INT32_MAX};
  for (unsigned i = 0; i < 7; i++)
    for (unsigned k = 0; k < 7; k++)
      for (unsigned r = 0; r < 7; r++) {
        const ep_learned learned = {numbers[i], numbers[k], numbers[r], 0}, folded = {numbers[i], 1, 1, numbers[k]};
        for (unsigned n = 0; n < 2; n++) {
          for (unsigned e = 0; e < 4; e++) out[e] = -7;
          ep_status st = ep_learned_rows(n ? &folded : &learned, ids, 4, numbers[r], out);
          for (unsigned e = 0; e < 4; e++)
            if (st == EP_OK ? out[e] < 0 || out[e] >= numbers[i] : out[e] != -7) bad = 1;
        }
      }
  EXPECT(EP_ERR_ARGUMENT, ep_learned_rows(NULL, ids, 4, 0, out));
  EXPECT(EP_ERR_ARGUMENT, ep_learned_rows(&(ep_learned){9, 1, 1, 0}, NULL, 4, 0, out));
  EXPECT(EP_ERR_ARGUMENT, ep_learned_rows(&(ep_learned){9, 1, 1, 0}, ids, 4, 0, NULL));
  EXPECT(EP_ERR_ARGUMENT, ep_learned_rows(&(ep_learned){9, 1, 1, 0}, ids, -1, 0, out));
  EXPECT(EP_OK, ep_learned_rows(&(ep_learned){9, 0, -1, 0}, NULL, 4, 5, out));
  EXPECT(EP_ERR_POSITION, ep_learned_rows(&(ep_learned){9, 0, -1, 0}, NULL, 4, 6, out));
  const void *row;
  EXPECT(EP_ERR_ARGUMENT, ep_table_row(NULL, 1, 1, 0, &row));
  EXPECT(EP_ERR_ARGUMENT, ep_table_row(y, 1, 1, 0, NULL));
  EXPECT(EP_ERR_POSITION, ep_table_row(y, INT32_MIN, SIZE_MAX, 0, &row));
  EXPECT(EP_ERR_ARGUMENT, ep_table_row_s8(y, 1, -1, 0, x));
  EXPECT(EP_ERR_ARGUMENT, ep_table_row_s8(y, 1, 8, 0, NULL));
  return bad;
}
"""


def test_hostile_arguments_under_sanitizers(tmp_path):
    (tmp_path / "main.c").write_text(HOSTILE)
    runtime = c_runtime_dir()
    sources = [str(runtime / "src" / name) for name in POSITION_SOURCES]
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{runtime / 'include'}"]
    subprocess.run(["cc", *flags, str(tmp_path / "main.c"), *sources, "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([str(tmp_path / "main")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


ALONE = """
#include "edgepos.h"
extern const uint64_t increments[];
extern int16_t x[];
void start(int32_t position);
void start(int32_t position) {
  int16_t c[32], s[32];
  const ep_rotation how = {8, 64, 64, 32, EP_ROPE_HALF, EP_Q15_AMP_M, EP_Q15_AMP_SHIFT, 0};
  if (ep_rope_row(position, increments, 32, c, s) == EP_OK) ep_rope_rotate_s16(x, c, s, &how);
}
"""
TABLE = "#include <stdint.h>\nint16_t x[512];\nextern const uint64_t increments[32];\nconst uint64_t increments[32] = {1, 2, 3};\n"


def test_rotation_alone_links_into_2_kb(tmp_path, record_property):
    """A linked program that rotates 8 heads of 64: code, quarter wave and the 32 increments, sections nobody uses left out."""
    target = TARGETS["cortex-m4"]
    require(target.compiler)
    for name, text in {"main.c": ALONE, "table.c": TABLE}.items():
        (tmp_path / name).write_text(text)
    runtime = c_runtime_dir()
    flags = [*target.flags, "-Os", "-ffunction-sections", "-fdata-sections"]
    sources = [tmp_path / "main.c", tmp_path / "table.c", *build.library_sources(runtime)]
    objects = build.compile_objects(target.compiler, sources, [runtime / "include"], flags, tmp_path)
    program = tmp_path / "alone.elf"
    link = ["-nostdlib", "-Wl,--gc-sections", "-Wl,--entry=start", "-lgcc", "-o", program]
    done = tools.run([tools.find(target.compiler), *target.flags, *objects, *link], 60)
    assert done.returncode == 0, done.stderr
    symbols = output("arm-none-eabi-nm", program)
    assert "ep_rope_rotate_s16" in symbols and "ep_rope_rotate_s8" not in symbols and "ep_eval" not in symbols
    size = text_bytes(target, [program])
    record_property("rotation alone", f"cortex-m4 -Os: {size} bytes")
    assert 1028 < size <= 2048
