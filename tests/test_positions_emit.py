"""Emitted tables: they compile, say what they promise, have the same bytes, and a changed entry is noticed."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from emitted_digests import digests

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import (
    Alibi,
    BiasTablePlan,
    Hybrid,
    Learned,
    LearnedBiasPlan,
    LearnedPlan,
    NoPosition,
    PhasePlan,
    RelativeBias,
    Rope,
    Sinusoidal,
    Sinusoidal2D,
    SinusoidalPlan,
    SlopePlan,
    T5Bias,
    TablePlan,
    plan,
)
from edgepos.positions.emit import check, emit
from edgepos.positions.spec import Spec
from edgepos.positions.table_file import FORMATS

C99 = ["cc", "-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
CXX = ["c++", "-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror"]
SPECS = {
    "half": (Rope(16, 12, theta=500000.0), 100),
    "interleaved": (Rope(8, layout="interleaved"), 65),
    "one": (Rope(2), 1),
    "alibi": (Alibi(12), 300),
    "alibi-large": (Alibi(3, user_slopes=(0.25, 100000.0, 0.0)), 5),
    "alibi-huge": (Alibi(2, symmetric=True, user_slopes=(1e12, 1e15)), 1),
}
RNG = np.random.default_rng(11)
LEARNED = {
    "sinusoidal": (Sinusoidal(12, "concatenated", "half_minus_one", 2), None),
    "t5": (T5Bias(), RNG.normal(size=(32, 4))),
    "t5-causal": (T5Bias(33, 257, False), None),
    "t5-smallest": (T5Bias(2, 2, False), None),
    "t5-layers": (T5Bias(16, 50, False, layers=3), RNG.normal(size=(3, 16, 2))),
    "relative": (RelativeBias((2, 3), query_minus_key=True), RNG.normal(size=(35, 2))),
    "learned": (Learned.roberta(40), RNG.normal(size=(40, 6)).astype(np.float32)),
    "sinusoidal-2d": (Sinusoidal2D(Sinusoidal(8), row_first=False), None),
}


@pytest.mark.parametrize("name", SPECS)
def test_sources_compile_as_c99_and_cxx(name, tmp_path):
    emit(SPECS[name][0], tmp_path, SPECS[name][1])
    sources = sorted(tmp_path.glob("*.c"))
    assert len(sources) == 3
    for source in sources:
        for compiler in (C99, CXX):
            subprocess.run([*compiler, "-c", str(source), "-o", str(tmp_path / "out.o")], check=True)


def run_c(folder, sources, program):
    """Standard output of a C program built with the emitted sources."""
    (folder / "main.c").write_text(program)
    subprocess.run([*C99, "-o", str(folder / "main"), "main.c", *sources], check=True, cwd=folder)
    return subprocess.run([str(folder / "main")], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("bits", [16, 8])
def test_rope_tables_hold_the_plan(bits, tmp_path):
    spec, context = SPECS["half"]
    emit(spec, tmp_path, context, (bits,))
    stem, upper = f"rope_int{bits}", f"EDGEPOS_ROPE_INT{bits}"
    out = run_c(
        tmp_path,
        [f"{stem}.c"],
        f"""#include <stdio.h>
#include "{stem}.h"
int main(void) {{
  for (int p = 0; p < {upper}_CONTEXT; p++)
    for (int j = 0; j < {upper}_PAIRS; j++) printf("%d %d\\n", edgepos_{stem}_cos[p][j], edgepos_{stem}_sin[p][j]);
  printf("%d %d\\n", {upper}_FULL_SCALE, {upper}_BOUND == {TablePlan(spec, context, bits).bound!r} && {upper}_SCALE * {upper}_FULL_SCALE == 1.0);
  return 0;
}}
""",
    )
    rows = np.array([line.split() for line in out.splitlines()], dtype=int)
    plan = TablePlan(spec, context, bits)
    np.testing.assert_array_equal(rows[:-1, 0].reshape(context, -1), plan.cos)
    np.testing.assert_array_equal(rows[:-1, 1].reshape(context, -1), plan.sin)
    assert rows[-1].tolist() == [plan.full_scale, 1]
    with np.load(tmp_path / f"{stem}.npz") as archive:
        np.testing.assert_array_equal(archive["cos"], plan.cos)
        np.testing.assert_array_equal(archive["sin"], plan.sin)
        description = json.loads(archive["description.json"])
    assert description["spec"] == spec.to_json() and description["bound"] == plan.bound <= 0.5 and description["scale"] == plan.scale


@pytest.mark.parametrize("spec", [Rope(16, 12, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), Rope(8, layout="interleaved")])
def test_the_documented_loop_rotates_as_numpy(spec, tmp_path):
    """docs/positions.md: 32-bit sums, AMP_M, rounding and saturation, with every int16 at its extremes."""
    emit(spec, tmp_path, 20, (16,))
    x = np.random.default_rng(12).integers(-32768, 32768, size=(20, spec.head_dim)).astype(np.int16)
    x[0], x[1] = -32768, 32767
    first, second = ("j", "j + EDGEPOS_ROPE_INT16_PAIRS") if spec.layout == "half" else ("2 * j", "2 * j + 1")
    out = run_c(
        tmp_path,
        ["rope_int16.c"],
        f"""#include <stdio.h>
#include "rope_int16.h"
static int16_t saturate(int64_t y) {{ return (int16_t)(y > 32767 ? 32767 : y < -32767 ? -32767 : y); }}
static int16_t all[20][{spec.head_dim}] = {{{", ".join("{" + ", ".join(map(str, row)) + "}" for row in x.tolist())}}};
int main(void) {{
  int64_t half = (int64_t)1 << (EDGEPOS_ROPE_INT16_AMP_SHIFT - 1);
  int position, j;
  for (position = 0; position < 20; position++) {{
    int16_t *x = all[position];
    const int16_t *c = edgepos_rope_int16_cos[position], *s = edgepos_rope_int16_sin[position];
    for (j = 0; j < EDGEPOS_ROPE_INT16_PAIRS; j++) {{
      int32_t a = x[{first}], b = x[{second}];
      x[{first}] = saturate(((int64_t)(a * c[j] - b * s[j]) * EDGEPOS_ROPE_INT16_AMP_M + half) >> EDGEPOS_ROPE_INT16_AMP_SHIFT);
      x[{second}] = saturate(((int64_t)(a * s[j] + b * c[j]) * EDGEPOS_ROPE_INT16_AMP_M + half) >> EDGEPOS_ROPE_INT16_AMP_SHIFT);
    }}
    for (j = 0; j < {spec.head_dim}; j++) printf("%d\\n", x[j]);
  }}
  return 0;
}}
""",
    )
    np.testing.assert_array_equal(np.array(out.split(), dtype=int).reshape(x.shape), TablePlan(spec, 20).rotate_int16(x, np.arange(20)))


def test_emitted_phase_function_equals_numpy(tmp_path):
    spec = Rope(16, theta=10000.0)
    emit(spec, tmp_path, 2**31, ())
    at = [0, 1, 2, 4095, 65536, 131071, 2**30, 2**31 - 1, *range(7, 2**31, 9_999_991)]
    numbers = ", ".join(f"{p}u" for p in at)
    out = run_c(
        tmp_path,
        ["rope_phase.c"],
        f"""#include <stdio.h>
#include "rope_phase.h"
static const uint32_t at[] = {{{numbers}}};
int main(void) {{
  for (unsigned n = 0; n < sizeof at / sizeof *at; n++)
    for (uint32_t j = 0; j < EDGEPOS_ROPE_PHASE_PAIRS; j++) {{
      int32_t c, s;
      edgepos_rope_phase_sincos(at[n], j, &c, &s);
      printf("%d %d\\n", (int)c, (int)s);
    }}
  return 0;
}}
""",
    )
    rows = np.array([line.split() for line in out.splitlines()], dtype=int).reshape(len(at), 8, 2)
    cos, sin = PhasePlan(spec).cos_sin(at)
    np.testing.assert_array_equal(rows[..., 0], cos)
    np.testing.assert_array_equal(rows[..., 1], sin)


@pytest.mark.parametrize("name", ["alibi", "alibi-large", "alibi-huge"])
def test_emitted_bias_function_equals_numpy(name, tmp_path):
    spec, context = SPECS[name]
    emit(spec, tmp_path, context)
    at = [0, 1, 2, 3, 44, 45, 7098, 131072, 2**30, 2**31 - 1]
    numbers = ", ".join(f"{p}u" for p in at)
    out = run_c(
        tmp_path,
        ["alibi_slopes.c"],
        f"""#include <stdio.h>
#include "alibi_slopes.h"
static const uint32_t at[] = {{{numbers}}};
int main(void) {{
  for (uint32_t h = 0; h < EDGEPOS_ALIBI_SLOPES_HEADS; h++)
    for (unsigned n = 0; n < sizeof at / sizeof *at; n++) printf("%d\\n", (int)edgepos_alibi_slopes_bias(h, at[n]));
  return 0;
}}
""",
    )
    rows = np.array(out.split(), dtype=int).reshape(spec.heads, len(at))
    np.testing.assert_array_equal(rows, SlopePlan(spec).bias_fixed(at))


def test_alibi_npz_holds_the_plans(tmp_path):
    spec, context = SPECS["alibi"]
    emit(spec, tmp_path, context)
    for bits in (16, 8):
        with np.load(tmp_path / f"alibi_int{bits}.npz") as archive:
            np.testing.assert_array_equal(archive["bias"], BiasTablePlan(spec, context, bits).table)
    with np.load(tmp_path / "alibi_slopes.npz") as archive:
        np.testing.assert_array_equal(archive["slopes"], SlopePlan(spec).slopes)


@pytest.mark.parametrize("name", SPECS)
def test_results_state_bound_and_measurement(name, tmp_path):
    spec, context = SPECS[name]
    results = emit(spec, tmp_path, context)
    assert [(r["kind"], r["method"], r["bits"]) for r in results] == (
        [("rope", "table", 16), ("rope", "table", 8), ("rope", "phase", 16)]
        if isinstance(spec, Rope)
        else [("alibi", "slope", 32), ("alibi", "table", 16), ("alibi", "table", 8)]
    )
    for r in results:
        assert 0 <= r["measured_max"] <= r["bound"] and r["bytes"] > 0
        assert all((tmp_path / f).is_file() for f in r["files"])
    assert check(tmp_path) == results


def biases(spec, weights):
    """(file, array, integers) of a learned bias in every width, layer by layer."""
    rows = []
    for bits, stem in ((32, f"{spec.encoding}_bias"), (16, f"{spec.encoding}_int16"), (8, f"{spec.encoding}_int8")):
        plan = LearnedBiasPlan(spec, weights, bits)
        for layer in [None] if spec.layers is None else range(spec.layers):
            rows.append((stem, "rows" if layer is None else f"rows_layer{layer}", plan.layer(layer)[0]))
    return rows


@pytest.mark.parametrize("name", LEARNED)
def test_other_encodings_compile_and_check(name, tmp_path):
    spec, weights = LEARNED[name]
    results = emit(spec, tmp_path, 30, weights=weights)
    for r in results:
        assert 0 <= r["measured_max"] <= r["bound"] and all((tmp_path / f).is_file() for f in r["files"])
    assert check(tmp_path) == results
    for source in tmp_path.glob("*.c"):
        for compiler in (C99, CXX):
            subprocess.run([*compiler, "-c", str(source), "-o", str(tmp_path / "out.o")], check=True)
    for stem, array, plan in {
        "sinusoidal": lambda: [(f"sinusoidal_int{b}", "rows", SinusoidalPlan(spec, 30, b).table(np.arange(30))) for b in (16, 8)],
        "sinusoidal_2d": lambda: [(f"sinusoidal_2d_int{b}", "rows", SinusoidalPlan(spec, 30, b).rows(np.arange(30))) for b in (16, 8)],
        "t5": lambda: biases(spec, weights) if weights is not None else [],
        "relative": lambda: biases(spec, weights),
        "learned": lambda: [(f"learned_int{b}", "rows", LearnedPlan(spec, weights, b).table) for b in (16, 8)],
    }[spec.encoding]():
        with np.load(tmp_path / f"{stem}.npz") as archive:
            np.testing.assert_array_equal(archive[array], plan)


@pytest.mark.parametrize("name", ["t5", "t5-causal", "t5-smallest"])
def test_emitted_bucket_function_equals_numpy(name, tmp_path):
    spec, _ = LEARNED[name]
    emit(spec, tmp_path, 1)
    out = run_c(
        tmp_path,
        ["t5_bucket.c"],
        """#include <stdio.h>
#include "t5_bucket.h"
int main(void) {
  int32_t d;
  for (d = -2000; d <= 2000; d++) printf("%u\\n", (unsigned)edgepos_t5_bucket_of(d));
  printf("%u\\n%u\\n", (unsigned)edgepos_t5_bucket_of(-2147483647), (unsigned)edgepos_t5_bucket_of(2147483647));
  return 0;
}
""",
    )
    expected = spec.bucket(np.array([*range(-2000, 2001), 1 - 2**31, 2**31 - 1]))
    np.testing.assert_array_equal(np.array(out.split(), dtype=int), expected)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("name", ["t5", "t5-layers", "relative", "learned"])
def test_one_factor_for_a_table(name, bits, tmp_path):
    """What positions.plan chooses when a large error is allowed is what the tables hold."""
    spec, weights = LEARNED[name]
    chosen = plan(spec, bits=bits, max_error=1.0, weights=weights)
    assert chosen.per == "tensor"
    results = emit(spec, tmp_path, 38, (bits,), weights, FORMATS, per_tensor=True)
    assert check(tmp_path) == results and results[-1]["bytes"] == chosen.bytes and results[-1]["bound"] == chosen.bound
    with np.load(tmp_path / f"{spec.encoding}_int{bits}.npz") as archive:
        layers = range(spec.layers) if name == "t5-layers" else [None]
        for layer in layers:
            table, factors = (chosen.table, chosen.factors) if name == "learned" else chosen.layer(layer)
            suffix = "" if layer is None else f"_layer{layer}"
            np.testing.assert_array_equal(archive[f"rows{suffix}"], table)
            np.testing.assert_array_equal(archive[f"factors{suffix}"], factors)
    for source in tmp_path.glob("*.c"):
        subprocess.run([*C99, "-c", str(source), "-o", str(tmp_path / "out.o")], check=True)
    index = json.loads((tmp_path / "tables.json").read_text())
    (tmp_path / "tables.json").write_text(json.dumps(index | {"per_tensor": "yes"}))
    with pytest.raises(FormatError, match="per_tensor"):
        check(tmp_path)


@pytest.mark.parametrize("bits", [16, 8])
def test_emitted_biases_equal_numpy(bits, tmp_path):
    """The function on every entry, heads of very different size, one of them 0 and one below a unit of the score."""
    spec = RelativeBias((6,))
    values = np.random.default_rng(21).normal(size=(13, 5)) * [1e-9, 0, 0.3, 5, 7000]
    emit(spec, tmp_path, 1, (bits,), values)
    stem = f"relative_int{bits}"
    out = run_c(
        tmp_path,
        [f"{stem}.c"],
        f"""#include <stdio.h>
#include "{stem}.h"
int main(void) {{
  int h, r;
  for (h = 0; h < EDGEPOS_RELATIVE_INT{bits}_HEADS; h++)
    for (r = 0; r < EDGEPOS_RELATIVE_INT{bits}_ROWS; r++)
      printf("%d\\n", (int)edgepos_{stem}_bias(edgepos_{stem}_rows[r][h], edgepos_{stem}_factors[h]));
  return 0;
}}
""",
    )
    at = np.arange(13)
    plan = LearnedBiasPlan(spec, values, bits)
    np.testing.assert_array_equal(np.array(out.split(), dtype=int).reshape(5, 13), plan.bias_fixed([6], at)[:, 0])


def test_an_altered_learned_entry_is_noticed(tmp_path):
    emit(*LEARNED["learned"][:1], tmp_path, 30, weights=LEARNED["learned"][1])

    def change(entries):
        entries["rows"] = entries["rows"].copy()
        entries["rows"][3, 2] += 1

    rewrite_npz(tmp_path / "learned_int16.npz", change)
    with pytest.raises(FormatError, match=r"learned_int16.npz: rows\[3, 2\]"):
        check(tmp_path)


@pytest.mark.parametrize("name", ["half", "alibi"])
def test_every_format_is_written_and_checked(name, tmp_path):
    spec, context = SPECS[name]
    results = emit(spec, tmp_path, context, formats=("bin", "onnx"))
    assert check(tmp_path) == results
    assert not list(tmp_path.glob("*.npz")) and len(list(tmp_path.glob("*.onnx"))) == 2
    for path in tmp_path.glob("*.bin"):
        about = json.loads(path.with_suffix(".json").read_text())
        emit(spec, tmp_path / "npz", context)
        with np.load(tmp_path / "npz" / f"{path.stem}.npz") as archive:
            for array, where in about["layout"].items():
                read = np.frombuffer(path.read_bytes(), where["dtype"], int(np.prod(where["shape"])), where["offset"])
                np.testing.assert_array_equal(read.reshape(where["shape"]), archive[array])
                assert where["offset"] % 64 == 0
    path = next(tmp_path.glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=path.name):
        check(tmp_path)


def test_unknown_formats_are_refused(tmp_path):
    for formats in (("c", "pdf"), ()):
        with pytest.raises(UnsupportedError, match="formats"):
            emit(Rope(8), tmp_path / "x", 8, formats=formats)
    assert not (tmp_path / "x").exists()


# Recorded digests, in the order of FORMATS: a change here means that the emitted bytes changed. `python tests/emitted_digests.py` prints them.
RECORDED = {
    "rope": "dac68025725a 984d3bae9ec6 180817cc9f89 d869c4a3281a",
    "rope-interleaved-yarn": "1432a9034574 7f29566fa0cf 67ade349673f e80b147301cb",
    "rope-angles": "26b1f01d47a7 cd0e6e22013b 5ac58d5ddee4 05491e597bb1",
    "mrope": "11e4d6468e5d 2a88eb8e496a ae5ea3e34644 fa801fba1a00",
    "axial-rope": "f59cdb0db296 c18352a5d7d3 aebb1ce447d2 3fef0a807506",
    "alibi": "54abbca10fe2 29cec6d66ac3 909ec250e9c7 5e32894c8615",
    "alibi-slopes": "fe0e486cfc5b 7510d777e896 2c86b79e2f7b 65ebe3cfb7e7",
    "t5": "ab5953f28f5a 6d185cf67c11 b415147ae6ac 89eb151f949c",
    "t5-bucket": "204f457c6bf5 522314eb4e57 376b958f9f91",
    "t5-layers": "b053068a01de 9dde3d6a99df a5eb91bcf597 88e55e59558d",
    "relative": "9a9e259700f2 4965b63bac20 7ae0ea856a5e 10021d860a5d",
    "learned": "b8d8005b4e70 2dd618bde189 052e742a88a9 d1327073db44",
    "sinusoidal": "7ecf438046b1 f663284bd574 632f7736b375 ee204a774bde",
    "sinusoidal-2d": "c5f4072aff69 cbd37f806e17 b8926e725c16 7dd49a320f5e",
    "hybrid": "6630d143ad86 b180baae4549 f5d77e952839 4dc66728687a",
}


def recorded():
    return {name: dict(zip(FORMATS, row.split())) for name, row in RECORDED.items()}


def test_bytes_are_the_recorded_ones():
    assert digests() == recorded()


def test_bytes_depend_on_nothing_around_them(tmp_path):
    """Another hash seed, locale, time zone, date, home, number of threads and working directory."""
    around = {
        "PYTHONHASHSEED": "4711",
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "TZ": "Asia/Kathmandu",
        "SOURCE_DATE_EPOCH": "1",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "2"),
    }
    here = Path(__file__).resolve().parent
    command = [sys.executable, "-W", "ignore", str(here / "emitted_digests.py")]
    environment = os.environ | around | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == recorded()


def test_npz_has_no_dates(tmp_path):
    emit(Rope(8), tmp_path, 4)
    for info in zipfile.ZipFile(tmp_path / "rope_int16.npz").infolist():
        assert info.date_time == (1980, 1, 1, 0, 0, 0) and info.compress_type == zipfile.ZIP_STORED


@pytest.mark.parametrize("name, stem, array", [("t5", "t5_int8", "rows"), ("t5", "t5_int16", "factors"), ("relative", "relative_int8", "rows"), ("t5-layers", "t5_int8", "rows_layer1")])
def test_one_altered_entry_of_a_bias_is_noticed(name, stem, array, tmp_path):
    """In every format, since each may be what a runtime loads."""
    spec, weights = LEARNED[name]
    column = weights.shape[-1] * (array == "rows_layer1") + 1
    named = {"npz": rf"{array}\[1, 1\]", "bin": rf"{array}\[1, 1\]", "c": rf"{array}\[1, 1\]", "onnx": rf"table\[1, {column}\]" if "rows" in array else r"scale\[1\]"}
    for form, where in named.items():
        emit(spec, tmp_path / form, 1, weights=weights, formats=(form,))
        path = tmp_path / form / f"{stem}.{form}"
        if form == "npz":

            def change(entries):
                entries[array] = entries[array].copy()
                entries[array][1, 1] ^= 1

            rewrite_npz(path, change)
        elif form == "bin":
            layout = json.loads(path.with_suffix(".json").read_text())["layout"][array]
            data = bytearray(path.read_bytes())
            data[layout["offset"] + np.dtype(layout["dtype"]).itemsize * (layout["shape"][1] + 1)] ^= 1
            path.write_bytes(data)
        elif form == "c":
            text = path.read_text()
            start = text.index("{", text.index("{", text.index(f"{stem}_{array}[") ) + 1)
            row = text.index("{", start + 1)
            second = text.index(",", row) + 1
            end = min(text.index(c, second) for c in ",}")
            path.write_text(text[:second] + f" {int(text[second:end]) ^ 1}" + text[end:])
        else:
            model = onnx.load_model(path)
            tensor = next(t for t in model.graph.initializer if t.name == where.partition("\\")[0])
            values = onnx.numpy_helper.to_array(tensor).copy()
            at = (1, column) if values.ndim == 2 else (1,)
            values[at] = values[at] + 1
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
            path.write_bytes(model.SerializeToString())
        with pytest.raises(FormatError, match=rf"{stem}.{form}: {where}"):
            check(tmp_path / form)


def rewrite_npz(path, change):
    with np.load(path) as archive:
        entries = {n: archive[n] for n in archive.files}
    text = entries.pop("description.json")
    change(entries)
    with zipfile.ZipFile(path, "w") as out:
        for n, array in entries.items():
            buffer = io.BytesIO()
            np.save(buffer, array)
            out.writestr(f"{n}.npy", buffer.getvalue())
        out.writestr("description.json", text)


@pytest.mark.parametrize("name, stem, array", [("half", "rope_int16", "sin"), ("half", "rope_phase", "quarter"), ("alibi", "alibi_int8", "bias")])
def test_one_altered_entry_is_noticed(name, stem, array, tmp_path):
    emit(SPECS[name][0], tmp_path, SPECS[name][1])

    def change(entries):
        entries[array] = entries[array].copy()
        entries[array].flat[3] += 1

    rewrite_npz(tmp_path / f"{stem}.npz", change)
    with pytest.raises(FormatError, match=rf"{stem}.npz: {array}\["):
        check(tmp_path)


def test_an_altered_source_is_noticed(tmp_path):
    emit(Rope(8), tmp_path, 16)
    path = tmp_path / "rope_int8.c"
    text = path.read_text()
    path.write_text(text.replace("127", "126", 1))
    with pytest.raises(FormatError, match=r"rope_int8.c: cos\[0, 0\], line 4, is 126; the derived value is 127"):
        check(tmp_path)
    path.unlink()
    with pytest.raises(FormatError, match="rope_int8.c"):
        check(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", None])
def test_a_damaged_npz_is_noticed(damage, tmp_path):
    emit(Rope(8), tmp_path, 16)
    path = tmp_path / "rope_int16.npz"
    path.write_bytes(path.read_bytes()[:200] if damage is None else damage)
    with pytest.raises(FormatError, match="rope_int16.npz"):
        check(tmp_path)


def test_a_wrong_bound_or_index_is_noticed(tmp_path):
    emit(Rope(8), tmp_path, 16)
    index = tmp_path / "tables.json"
    good = index.read_text()
    for name in ("bound", "float32_bound"):
        changed = json.loads(good)
        changed["tables"][0][name] -= 1e-9
        index.write_text(json.dumps(changed, indent=2) + "\n")
        with pytest.raises(FormatError, match="tables.json"):
            check(tmp_path)
    for bad in ("{", "[]", "{}", good.replace('"context": 16', '"context": 0')):
        index.write_text(bad)
        with pytest.raises(FormatError):
            check(tmp_path)


def test_nothing_is_written_for_nothing(tmp_path):
    assert emit(NoPosition(), tmp_path / "none", 16) == []
    assert emit(Rope(8, 0), tmp_path / "none", 16) == []
    assert not (tmp_path / "none").exists()


def test_bad_requests_leave_nothing_behind(tmp_path):
    for context in (0, -5, 2**31 + 1):
        with pytest.raises(FormatError, match="context"):
            emit(Rope(8), tmp_path / "x", context)
    with pytest.raises(UnsupportedError, match="bits"):
        emit(Rope(8), tmp_path / "x", 8, (16, 4))
    for spec in (Learned(8), RelativeBias((2,))):
        with pytest.raises(UnsupportedError, match="weights"):
            emit(spec, tmp_path / "x", 8)
    with pytest.raises(UnsupportedError, match="weights"):
        emit(Hybrid(Learned(8), (Rope(8),)), tmp_path / "x", 8)
    with pytest.raises(EdgePosError, match="Spec"):
        emit(Spec(), tmp_path / "x", 8)
    assert not (tmp_path / "x").exists()
