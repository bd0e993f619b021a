"""The C runtime's position primitives equal the NumPy ones, bit for bit."""

import subprocess

import numpy as np
import pytest

from edgepos import fixedpoint

PROGRAM = r"""
#include <stdio.h>
#include <stdint.h>
#include "edgepos.h"

/* stdin: triples of uint64 (position, increment, slope); stdout: cos, sin, phase, biases, as raw int64. */
int main(void) {
  uint64_t in[3];
  while (fread(in, 8, 3, stdin) == 3) {
    int32_t c, s;
    uint64_t phase = ep_rope_phase((uint32_t)in[0], in[1]);
    ep_sincos_q15(phase, &c, &s);
    int64_t out[6] = {c, s, (int64_t)phase, ep_alibi_bias((uint32_t)in[2], (uint32_t)in[0], 15),
                      ep_alibi_bias((uint32_t)in[2], (uint32_t)in[0], 3), ep_alibi_bias((uint32_t)in[2], (uint32_t)in[0], -20)};
    fwrite(out, 8, 6, stdout);
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def run(root, tmp_path_factory):
    sources = [root / "c_runtime" / "src" / f for f in ("positions.c", "fixed.c")]
    folder = tmp_path_factory.mktemp("twin")
    (folder / "main.c").write_text(PROGRAM)
    command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{root / 'c_runtime' / 'include'}"]
    command += [str(folder / "main.c"), *map(str, sources), "-o", str(folder / "twin")]
    subprocess.run(command, check=True)

    def call(triples):
        data = np.ascontiguousarray(triples, dtype="<u8").tobytes()
        done = subprocess.run([str(folder / "twin")], input=data, capture_output=True, check=True)
        return np.frombuffer(done.stdout, dtype="<i8").reshape(-1, 6)

    return call


def samples():
    rng = np.random.default_rng(7)
    n = 200_000
    position = rng.integers(0, 2**31, size=n, dtype=np.uint64)
    increment = rng.integers(0, 2**64, size=n, dtype=np.uint64)
    slope = rng.integers(0, 2**32, size=n, dtype=np.uint64)
    # quadrant edges, segment edges and rounding ties of the phase, each with its neighbours
    edges = np.array([(k << s) % 2**64 for s in (62, 54, 36, 35) for k in range(1, 9)] + [2**64 - 2**35], dtype=np.uint64)
    with np.errstate(over="ignore"):
        edges = np.concatenate([edges - np.uint64(1), edges, edges + np.uint64(1), np.array([0, 2**64 - 1], dtype=np.uint64)])
    extreme = np.array([(p, i, s) for p in (0, 1, 2**31 - 1) for i in edges.tolist() for s in (0, 1, 2**31, 2**32 - 1)], dtype=np.uint64)
    return np.concatenate([extreme, np.stack([position, increment, slope], axis=1)])


def test_c_equals_numpy(run):
    given = samples()
    got = run(given)
    phase = fixedpoint.rope_phase(given[:, 0], given[:, 1])
    cos, sin = fixedpoint.sincos_q15(phase)
    np.testing.assert_array_equal(got[:, 2].view(np.uint64), phase)
    np.testing.assert_array_equal(got[:, 0], cos)
    np.testing.assert_array_equal(got[:, 1], sin)
    for column, shift in ((3, 15), (4, 3), (5, -20)):
        np.testing.assert_array_equal(got[:, column], fixedpoint.alibi_bias(given[:, 2], given[:, 0], shift))
