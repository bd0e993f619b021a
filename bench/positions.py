"""RoPE in the C runtime against memcpy, plain float C and ONNX Runtime, alternating in one run.

    python bench/positions.py [--heads N] [--head-dim N] [--tokens N] [--rounds N] [--json FILE]

Every round rotates the same heads of the same tokens with each contender, once to bring them into the caches and then twenty times,
measured, on one thread: those in C within one call, ONNX Runtime by twenty calls. Shown are the median, the smallest and the largest CPU
time of a token over the rounds. The default size lies in a second-level cache of 1 MB. The C sources are those of the runtime, compiled
here with -O3; the float rotation is the loop anyone would write, compiled with the same flags.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
from cffi import FFI
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console
from rich.table import Table

from edgepos.positions import PhasePlan, Rope
from edgepos.resources import c_runtime_dir
from edgepos.targets import tools

TIMES = 20  # within one call from here, which takes microseconds itself

DECLARATIONS = """
void rows(int16_t *c, int16_t *s, const uint64_t *increments, int32_t pairs, int32_t tokens, int32_t times);
void rotate_s16(int16_t *x, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t tokens, int32_t heads, int32_t dim, int32_t layout, uint32_t cpu, int32_t times);
void rotate_s8(int8_t *x, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t tokens, int32_t heads, int32_t dim, int32_t layout, uint32_t cpu, int32_t times);
void rotate_f32(float *x, const float *c, const float *s, int32_t tokens, int32_t heads, int32_t dim, int32_t layout, int32_t times);
void copy(void *to, const void *from, size_t bytes, int32_t times);
uint32_t cpu(void);
"""
SOURCE = """
#include <string.h>
#include "edgepos.h"
#include "edgepos_cpu.h"

uint32_t cpu(void) { return ep_cpu_detect(); }

void rows(int16_t *c, int16_t *s, const uint64_t *increments, int32_t pairs, int32_t tokens, int32_t times) {
  while (times-- > 0)
    for (int32_t t = 0; t < tokens; t++) ep_rope_row(t, increments, pairs, c + t * pairs, s + t * pairs);
}

#define ROTATE(name, type, function)                                                                                    \\
  void name(type *x, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t tokens, int32_t heads,       \\
            int32_t dim, int32_t layout, uint32_t cpu, int32_t times) {                                                 \\
    const ep_rotation how = {heads, dim, dim, dim / 2, layout, m, shift, cpu};                                          \\
    while (times-- > 0)                                                                                                 \\
      for (int32_t t = 0; t < tokens; t++) function(x + t * heads * dim, c + t * (dim / 2), s + t * (dim / 2), &how);   \\
  }
ROTATE(rotate_s16, int16_t, ep_rope_rotate_s16)
ROTATE(rotate_s8, int8_t, ep_rope_rotate_s8)

void rotate_f32(float *x, const float *c, const float *s, int32_t tokens, int32_t heads, int32_t dim, int32_t layout, int32_t times) {
  int32_t pairs = dim / 2, step = layout ? 2 : 1, apart = layout ? 1 : pairs;
  while (times-- > 0)
    for (int32_t t = 0; t < tokens; t++)
      for (int32_t h = 0; h < heads; h++) {
        float *v = x + (t * heads + h) * dim;
        for (int32_t j = 0; j < pairs; j++) {
          float a = v[j * step], b = v[j * step + apart];
          v[j * step] = a * c[t * pairs + j] - b * s[t * pairs + j];
          v[j * step + apart] = a * s[t * pairs + j] + b * c[t * pairs + j];
        }
      }
}

void copy(void *to, const void *from, size_t bytes, int32_t times) {
  while (times-- > 0) {
    memcpy(to, from, bytes);
    __asm__ volatile("" ::: "memory"); /* every copy is made */
  }
}
"""


def build(folder: Path):
    """The compiled bench library."""
    runtime = c_runtime_dir()
    (folder / "bench.c").write_text(SOURCE)
    sources = [folder / "bench.c", *(runtime / "src" / name for name in ("positions.c", "rotate.c", "kernels/rotate_avx2.c", "kernels/rotate_neon.c"))]
    command = [tools.find("cc"), "-std=c11", "-O3", "-shared", "-fPIC", f"-I{runtime / 'include'}", *sources, "-o", folder / "bench.so"]
    subprocess.run([str(part) for part in command], check=True)
    ffi = FFI()
    ffi.cdef(DECLARATIONS)
    return ffi, ffi.dlopen(str(folder / "bench.so"))


def rotary_session(cos: np.ndarray, sin: np.ndarray, heads: int, dim: int, layout: int) -> ort.InferenceSession:
    """ONNX Runtime's RotaryEmbedding alone, one thread."""
    shape = [1, heads, len(cos), dim]
    node = helper.make_node("RotaryEmbedding", ["x", "cos", "sin", "position_ids"], ["y"], interleaved=layout)
    tables = [numpy_helper.from_array(t, n) for n, t in (("cos", cos), ("sin", sin))]
    at = numpy_helper.from_array(np.arange(len(cos), dtype=np.int64)[None], "position_ids")
    value = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y"))
    graph = helper.make_graph([node], "rotary", [next(value)], [next(value)], [*tables, at])
    model = helper.make_model(graph, ir_version=11, opset_imports=[helper.make_opsetid("", 23)])
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def contenders(ffi, lib, layout: int, a) -> dict[str, tuple]:
    """Name -> (function of how often, bytes it reads and writes per token)."""
    spec = Rope(a.head_dim, layout=("half", "interleaved")[layout])
    plan, at = PhasePlan(spec), np.arange(a.tokens)
    c16, s16 = (np.ascontiguousarray(t) for t in plan.cos_sin(at))
    cf, sf = (t.astype(np.float32) for t in spec.cos_sin(at))
    rng = np.random.default_rng(0)
    x16 = rng.integers(-16000, 16001, size=(a.tokens, a.heads, a.head_dim)).astype(np.int16)
    x8, xf = (x16 // 256).astype(np.int8), x16.astype(np.float32)
    to = np.empty_like(x16)
    xo = np.ascontiguousarray(xf.transpose(1, 0, 2))[None]
    y = np.empty_like(xo)
    session = rotary_session(cf, sf, a.heads, a.head_dim, layout)
    binding = session.io_binding()
    for bind, name, array in ((binding.bind_input, "x", xo), (binding.bind_output, "y", y)):
        bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)

    def p(array, kind):
        return ffi.cast(f"{kind} *", array.ctypes.data)

    how = (*plan.amplitude(), a.tokens, a.heads, a.head_dim, layout)
    for cpu in (0, lib.cpu()):
        checked = x16.copy()
        lib.rotate_s16(p(checked, "int16_t"), p(c16, "int16_t"), p(s16, "int16_t"), *how, cpu, 1)
        if (checked != plan.rotate_int16(x16, at[:, None])).any():
            sys.exit("the C rotation differs from NumPy's")

    def rotate(function, x, kind: str, cpu: int):
        return lambda times: function(p(x, kind), p(c16, "int16_t"), p(s16, "int16_t"), *how, cpu, times)

    increments = plan.increments
    elements = a.heads * a.head_dim
    runs = {
        "memcpy of int16": (lambda times: lib.copy(p(to, "void"), p(x16, "void"), x16.nbytes, times), 4 * elements),
        "EdgePos vectors, int16": (rotate(lib.rotate_s16, x16, "int16_t", lib.cpu()), 4 * elements),
        "EdgePos vectors, int8": (rotate(lib.rotate_s8, x8, "int8_t", lib.cpu()), 2 * elements),
        "EdgePos C, int16": (rotate(lib.rotate_s16, x16, "int16_t", 0), 4 * elements),
        "EdgePos C, int8": (rotate(lib.rotate_s8, x8, "int8_t", 0), 2 * elements),
        "plain C, float32": (lambda times: lib.rotate_f32(p(xf, "float"), p(cf, "float"), p(sf, "float"), *how[2:], times), 8 * elements),
        "ONNX Runtime, float32": (lambda times: [session.run_with_iobinding(binding) for _ in range(times)], 8 * elements),
        "EdgePos C, cos and sin row": (lambda times: lib.rows(p(c16, "int16_t"), p(s16, "int16_t"), p(increments, "uint64_t"), spec.pairs, a.tokens, times), 4 * spec.pairs),
    }
    kept = (to, x8, xf, xo, y, c16, s16, cf, sf, increments)
    return {name: (run, size, kept) for name, (run, size) in runs.items()}


def measure(runs: dict[str, tuple], rounds: int, tokens: int) -> list[dict]:
    """Nanoseconds of the thread's CPU time per token, by contender."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(rounds + 1):  # the first round warms caches and is left out
        for name, (run, *_) in runs.items():
            run(1)  # what it touches is in the cache that it fits
            started = time.thread_time_ns()
            run(TIMES)
            if n:
                times[name].append((time.thread_time_ns() - started) / tokens / TIMES)
    return [
        {"name": name, "median": statistics.median(t), "min": min(t), "max": max(t), "bytes": runs[name][1]} for name, t in times.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        ffi, lib = build(Path(name))
        for layout, title in enumerate(("half", "interleaved")):
            results[title] = rows = measure(contenders(ffi, lib, layout, a), a.rounds, a.tokens)
            table = Table(title=f"{title}: {a.heads} heads of {a.head_dim}, {a.tokens} tokens, 1 thread, {a.rounds} rounds", title_justify="left")
            for column in ("", "ns/token", "min…max", "ns/element", "of memcpy"):
                table.add_column(column, justify="left" if not column else "right")
            for r in rows:
                each = r["median"] / (a.head_dim if "row" in r["name"] else a.heads * a.head_dim)
                ratio = f"{r['median'] / rows[0]['median']:.1f}×"
                table.add_row(r["name"], f"{r['median']:,.0f}", f"{r['min']:,.0f}…{r['max']:,.0f}", f"{each:.2f}", ratio)
            Console(width=120).print(table)
    if a.json:
        a.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
