"""Increments from theta in integers: C equals the specification in Python, which equals mpmath's correctly rounded numbers."""

import subprocess

import mpmath
import numpy as np
import pytest
from boards import require
from hypothesis import given, settings
from hypothesis import strategies as st
from object_files import TARGETS, output, text_bytes

from edgepos import fixedpoint
from edgepos.positions import Rope, Sinusoidal
from edgepos.resources import c_runtime_dir
from edgepos.runtime.native import ffi, lib
from edgepos.targets import build, tools

ARGUMENT = 1
MOST = 2**63 - 1
THETAS = (10000.0, 500000.0, 1000000.0, 10000000.0, 160000.0, 10000.5, 1.0, 2.0, 4.0, 0.5, 0.001953125, 2.0**62, 0.003, 10000 * 8 ** (64 / 62))


def in_c(theta, denominator, pairs, factor=None):
    out = np.full(pairs, 77, dtype=np.uint64)
    factor = ffi.NULL if factor is None else ffi.new("ep_ratio *", factor)
    status = lib.ep_rope_increments(ffi.new("ep_ratio *", theta), factor, denominator, pairs, ffi.cast("uint64_t *", out.ctypes.data))
    if status != 0:
        assert (out == 77).all()
    return status, out


def exact_turns(theta, factor, denominator, pair):
    """Turns per position · 2^192, from mpmath with 500 bits."""
    with mpmath.workprec(500):
        base = mpmath.mpf(theta[0]) / theta[1]
        turns = mpmath.power(base, -mpmath.mpf(2 * pair) / denominator) * factor[1] / factor[0] / (2 * mpmath.pi)
        return int(mpmath.floor(mpmath.ldexp(turns, fixedpoint.FRACTION)))


@pytest.mark.parametrize("theta", THETAS)
@pytest.mark.parametrize("dim", [2, 4, 6, 10, 20, 64, 80, 96, 128, 256])
def test_they_are_the_plan_s_increments(theta, dim):
    ratio = theta.as_integer_ratio()
    expected = Rope(dim, theta=theta).increments()
    status, got = in_c(ratio, dim, dim // 2)
    assert status == 0
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(fixedpoint.rope_increments(ratio, dim, dim // 2), expected)


@pytest.mark.parametrize("factor", [8.0, 2.5, 0.25, 1.0, 3.7])
def test_linear_scaling_and_partial_spans(factor):
    ratio = factor.as_integer_ratio()
    linear = Rope(96, 64, 500000.0, scaling={"rope_type": "linear", "factor": factor}).increments()
    np.testing.assert_array_equal(in_c((500000, 1), 64, 32, ratio)[1], linear)
    np.testing.assert_array_equal(fixedpoint.rope_increments((500000, 1), 64, 32, ratio), linear)
    share = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": factor}
    spans = Rope(128, theta=1000000.0, scaling=share).increments()
    np.testing.assert_array_equal(in_c((1000000, 1), 128, 16, ratio)[1], spans[:16])


@pytest.mark.parametrize("denominator, d", [("half", 96), ("half_minus_one", 94)])
def test_sinusoids_of_both_denominators(denominator, d):
    np.testing.assert_array_equal(in_c((10000, 1), d, 48)[1], Sinusoidal(96, denominator=denominator).increments())


@settings(max_examples=150, deadline=None)
@given(st.integers(1, MOST), st.integers(1, MOST), st.integers(1, 2**20), st.integers(1, 2**20), st.integers(1, 2**30 - 1), st.data())
def test_the_error_of_the_specification_is_what_it_proves(num, den, f_num, f_den, half, data):
    """Off by less than 2^41 units of 2^−192, so that 2^−148 turns decide the rounding; C is the same."""
    pair = data.draw(st.integers(0, min(half, 40)))
    theta, factor, d = (num, den), (f_num, f_den), 2 * half
    try:
        got = fixedpoint.frequency_turns(theta, factor, d, pair)
    except ValueError:
        assert exact_turns(theta, factor, d, pair) >= (2**32 - 1) / 6.2832 * 2**fixedpoint.FRACTION
        assert in_c(theta, d, pair + 1, factor)[0] == ARGUMENT
        return
    exact = exact_turns(theta, factor, d, pair)
    assert abs(got - exact) < 2**41
    status, increments = in_c(theta, d, pair + 1, factor)
    if status == 0:  # else an earlier pair is too fast
        assert increments[pair] == ((exact >> 127) + 1 >> 1) % 2**64


def test_the_ends_of_the_arguments():
    for theta, factor, d, pairs in [
        ((MOST, 1), (MOST, 1), 2, 2), ((1, 1), (1, 1), 2, 2), ((MOST, MOST), (MOST, MOST), 4, 3), ((MOST, MOST - 1), (1, 1), 2**31 - 2, 5),
        ((1, 3), (MOST, 2), 256, 129), ((MOST, 2), (1, 4000000000), 256, 129),
    ]:  # fmt: skip
        status, got = in_c(theta, d, pairs, factor)
        assert status == 0
        expected = [((exact_turns(theta, factor, d, i) >> 127) + 1 >> 1) % 2**64 for i in range(pairs)]
        np.testing.assert_array_equal(got, np.array(expected, dtype=np.uint64))
        np.testing.assert_array_equal(got, fixedpoint.rope_increments(theta, d, pairs, factor))
    assert in_c((1, MOST), 64, 32)[0] == ARGUMENT  # beyond 2^32 radians per position
    assert in_c((10000, 1), 64, 32, (1, 2**33))[0] == ARGUMENT
    with pytest.raises(ValueError, match="pair 0 turns by 2\\^32 radians"):
        fixedpoint.rope_increments((10000, 1), 64, 32, (1, 2**33))


@pytest.mark.parametrize(
    "theta, factor, d, pairs",
    [((0, 1), None, 64, 32), ((1, 0), None, 64, 32), ((2**63, 1), None, 64, 32), ((1, 2**64 - 1), None, 64, 32), ((9, 1), (0, 1), 64, 32),
     ((9, 1), (1, 2**63), 64, 32), ((9, 1), None, 63, 3), ((9, 1), None, 0, 1), ((9, 1), None, -2, 0), ((9, 1), None, 64, 34), ((9, 1), None, 64, -1)],
)  # fmt: skip
def test_bad_arguments_are_refused_and_nothing_is_written(theta, factor, d, pairs):
    count = max(pairs, 0)
    out = np.full(count + 1, 77, dtype=np.uint64)
    factor = ffi.NULL if factor is None else ffi.new("ep_ratio *", factor)
    theta = ffi.new("ep_ratio *", theta)
    assert lib.ep_rope_increments(theta, factor, d, pairs, ffi.cast("uint64_t *", out.ctypes.data)) == ARGUMENT
    assert (out == 77).all()


def test_null_pointers():
    nine = ffi.new("ep_ratio *", (9, 1))
    assert lib.ep_rope_increments(ffi.NULL, nine, 64, 0, ffi.NULL) == ARGUMENT
    assert lib.ep_rope_increments(nine, ffi.NULL, 64, 1, ffi.NULL) == ARGUMENT
    assert lib.ep_rope_increments(nine, ffi.NULL, 64, 0, ffi.NULL) == 0


TIES = r"""
#include <stdio.h>
#include "../src/increments.c"

/* Numbers around a tie at every distance that is a power of two, and at 0: what the radius decides and what it must not. */
int main(void) {
  int bad = 0;
  for (int up = 0; up < 2; up++)
    for (int bit = -1; bit < 127; bit++) {
      wide v = {{[3] = (uint32_t)1 << 31, [4] = 0xffffffffu, [5] = 41}}, d = {{0}};
      if (bit >= 0) d.word[bit / 32] = (uint32_t)1 << bit % 32;
      uint64_t got = 0, below = 41ull << 32 | 0xffffffffu;
      (up ? add : subtract)(&v, &d);
      int decided = rounded(&v, &got);
      int should = bit > 44 || (bit == 44 && up); /* exactly at the radius a number above still rounds up */
      if (decided != should || (decided && got != below + (uint64_t)up)) printf("bit %d up %d: %d %llu\n", bit, up, decided, (unsigned long long)got), bad = 1;
    }
  ep_ratio ratios[] = {{0, 1}, {1, 0}, {UINT64_MAX, UINT64_MAX}, {INT64_MAX, INT64_MAX}, {INT64_MAX, 1}, {1, INT64_MAX}, {10000, 1}};
  int32_t sizes[] = {INT32_MIN, -1, 0, 1, 2, 3, 4, INT32_MAX - 1, INT32_MAX};
  uint64_t out[3];
  for (int t = 0; t < 7; t++)
    for (int f = 0; f < 7; f++)
      for (int d = 0; d < 9; d++)
        for (int p = 0; p < 6; p++) ep_rope_increments(&ratios[t], &ratios[f], sizes[d], sizes[p], out);
  return bad;
}
"""


def test_ties_are_not_guessed_under_sanitizers(tmp_path):
    (tmp_path / "main.c").write_text(TIES)
    runtime = c_runtime_dir()
    flags = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["cc", *flags, f"-I{runtime / 'include'}", f"-I{runtime / 'tests'}", str(tmp_path / "main.c"), "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([str(tmp_path / "main")], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


INSIDE = r"""
#include <stdio.h>
#include "../src/increments.c"

/* stdin: ratios; stdout: turns of their reciprocals, all 256 bits. */
int main(void) {
  ep_ratio factor;
  while (fread(&factor, sizeof factor, 1, stdin) == 1) {
    wide w, turns = {{0}};
    ln(&w, &factor);
    if (factor.num > factor.den)
      for (int i = 0, carry = 1; i < WORDS; i++) w.word[i] = ~w.word[i] + (uint32_t)carry, carry = carry && w.word[i] == 0;
    if (!turns_of(&turns, w)) turns.word[7] = 0xffffffffu;
    fwrite(&turns, sizeof turns, 1, stdout);
  }
  return 0;
}
"""


def test_every_bit_before_the_rounding_is_the_specification_s(tmp_path):
    rng = np.random.default_rng(11)
    ratios = (rng.integers(0, 2**63 - 1, (3000, 2)) >> rng.integers(0, 63, (3000, 2))) + 1
    ratios[:4] = [(1, 1), (MOST, 1), (1, 2**32 - 1), (1, 2**32)]
    (tmp_path / "main.c").write_text(INSIDE)
    runtime = c_runtime_dir()
    folders = [f"-I{runtime / 'include'}", f"-I{runtime / 'tests'}"]
    subprocess.run(["cc", "-std=c11", "-O2", "-w", *folders, str(tmp_path / "main.c"), "-o", str(tmp_path / "main")], check=True)
    done = subprocess.run([str(tmp_path / "main")], input=ratios.astype("<u8").tobytes(), check=True, capture_output=True)
    fast = 0
    for ratio, words in zip(ratios.tolist(), np.frombuffer(done.stdout, dtype="<u1").reshape(-1, 32), strict=True):
        got = int.from_bytes(words.tobytes(), "little")
        if got >> 224 == 0xFFFFFFFF:
            fast += 1
            with pytest.raises(ValueError, match="2\\^32 radians"):
                fixedpoint.frequency_turns((1, 1), tuple(ratio), 2, 0)
        else:
            assert got == fixedpoint.frequency_turns((1, 1), tuple(ratio), 2, 0)
    assert 0 < fast < 1000


@pytest.mark.parametrize("off, decided", [(-(2**44) - 1, True), (-(2**44), False), (0, False), (2**44 - 1, False), (2**44, True)])
def test_the_specification_does_not_guess_either(monkeypatch, off, decided):
    monkeypatch.setattr(fixedpoint, "frequency_turns", lambda *_: (41 << 128) + (1 << 127) + off)
    if decided:
        assert fixedpoint.rope_increments((10000, 1), 2, 1).tolist() == [41 + (off > 0)]
    else:
        with pytest.raises(ValueError, match="pair 0: 2\\^-148 turns do not tell 41 from 42"):
            fixedpoint.rope_increments((10000, 1), 2, 1)


STRINGS = """
#include <stddef.h>
#include <stdint.h>
uint64_t out[32];
void *memcpy(void *to, const void *from, size_t n) { char *t = to; const char *f = from; while (n--) *t++ = *f++; return to; }
void *memset(void *to, int byte, size_t n) { char *t = to; while (n--) *t++ = (char)byte; return to; }
"""
ALONE = """
#include "edgepos.h"
extern uint64_t out[];
void start(int32_t base);
void start(int32_t base) {
  const ep_ratio theta = {(uint64_t)base, 1};
  ep_rope_increments(&theta, 0, 64, 32, out);
}
"""


def test_alone_it_is_small_and_the_runtime_does_not_take_it_along(tmp_path, record_property):
    target = TARGETS["cortex-m4"]
    require(target.compiler)
    (tmp_path / "main.c").write_text(ALONE)
    (tmp_path / "strings.c").write_text(STRINGS)
    runtime = c_runtime_dir()
    flags = [*target.flags, "-Os", "-ffunction-sections", "-fdata-sections", "-fno-tree-loop-distribute-patterns"]
    objects = build.compile_objects(target.compiler, [tmp_path / "main.c", tmp_path / "strings.c", *build.library_sources(runtime)], [runtime / "include"], flags, tmp_path)
    program = tmp_path / "alone.elf"
    done = tools.run([tools.find(target.compiler), *target.flags, *objects, "-nostdlib", "-Wl,--gc-sections", "-Wl,--entry=start", "-lgcc", "-o", program], 60)
    assert done.returncode == 0, done.stderr
    assert "EP_QUARTER" not in output("arm-none-eabi-nm", program)
    size = text_bytes(target, [program])
    record_property("increments alone", f"cortex-m4 -Os: {size} bytes")
    assert size <= 2304
    using = [o.stem for o in objects if "ep_rope_increments" in output("arm-none-eabi-nm", o)]
    assert set(using) == {f"{tmp_path.name}-main", "src-increments"}
