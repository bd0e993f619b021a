"""Instructions per token, counted by callgrind, against the stored counts: a change that makes the runtime slower is seen on any machine.

    python tests/test_runtime_instructions.py      count again and store

Valgrind knows no AVX-512, so on x86-64 the AVX2 kernels are counted, and the generic ones. One thread, no input but token ids, a
program of random numbers: the same instructions every time, but for a few hundred that print the time taken. Compilers differ, so
the counts belong to one (its major version); under another one they may differ by LOOSE, which still sees a kernel that is not used.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from boards import require
from random_programs import Shape, random_program
from tokenizer_images import image

from edgepos.resources import c_runtime_dir
from edgepos.targets import build, tools

STORED = Path(__file__).with_name("instructions.json")
TIGHT, LOOSE = 0.03, 0.35
PREFILL, DECODE = 32, 8  # tokens
SHAPES = {
    "w8g32 kv16": Shape(heads=4, kv_heads=2, head_dim=32, v_dim=32, pairs=16, width=128, inner=352, vocab=512, context=64),
    "w8 kv8": Shape(heads=4, kv_heads=2, head_dim=32, v_dim=32, pairs=16, width=128, inner=352, vocab=512, context=64, grouped=False, kv_bits=8),
    "w8g32 a8g32 kv16": Shape(heads=4, kv_heads=2, head_dim=32, v_dim=32, pairs=16, width=128, inner=352, vocab=512, context=64, a8=True),
    "w4g32 kv16": Shape(heads=4, kv_heads=2, head_dim=32, v_dim=32, pairs=16, width=128, inner=352, vocab=512, context=64, w4=True),
}


def compiler() -> str:
    return "gcc " + tools.run(["gcc", "-dumpversion"], 10).stdout.strip().split(".")[0]


def build_program(folder: Path) -> Path:
    runtime = c_runtime_dir()
    sources = [*build.library_sources(runtime), *sorted((runtime / "cli").glob("*.c")), runtime / "ports" / "threads_pthread.c"]
    includes = [runtime / part for part in ("include", "ports", "src")]
    objects = build.compile_objects("gcc", sources, includes, ["-O2"], folder)
    done = tools.run(["gcc", "-pthread", *objects, "-lm", "-o", folder / "edgepos-run"], 60)
    assert done.returncode == 0, done.stderr
    return folder / "edgepos-run"


def instructions(program: Path, model: Path, prompt: int, tokens: int, *more: str) -> tuple[int, str]:
    """(executed instructions, kernels) of a run."""
    ids = ",".join(str(7 * i % 512) for i in range(prompt))
    command = [program, model, "--ids", ids, "-n", str(tokens), "--no-eos", "--ids-out", "--batch", "16", *more]
    done = tools.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *command], 120)
    assert done.returncode == 0, done.stderr
    return int(re.search(r"Collected : (\d+)", done.stderr)[1]), re.search(r"(\w+) kernels", done.stderr)[1]


def counts(program: Path, model: Path, *more: str) -> dict[str, dict[str, int]]:
    """kernels -> instructions per token of prefill and of decode."""
    start, kernels = instructions(program, model, 1, 0, *more)
    prefill = (instructions(program, model, 1 + PREFILL, 0, *more)[0] - start) // PREFILL
    first = instructions(program, model, 1, 1, *more)[0]
    decode = (instructions(program, model, 1, 1 + DECODE, *more)[0] - first) // DECODE
    return {kernels: {"prefill": prefill, "decode": decode}}


def write_model(folder: Path, name: str) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(image(random_program(np.random.default_rng(0), SHAPES[name])))
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    require("gcc", "valgrind")
    return build_program(tmp_path_factory.mktemp("counted"))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the stored counts are of x86-64")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("more", [(), ("--generic",)], ids=["dispatched", "generic"])
def test_instructions_per_token(program, tmp_path, name, more):
    stored, version = json.loads(STORED.read_text()), compiler()
    [(kernels, found)] = counts(program, write_model(tmp_path, name), *more).items()
    tolerance = TIGHT if version in stored else LOOSE
    expected = stored.get(version, next(iter(stored.values())))[name][kernels]
    for part, count in found.items():
        change = count / expected[part] - 1
        assert abs(change) <= tolerance, f"{part}: {count} instructions per token, {expected[part]} stored ({change:+.1%}); better on purpose? count again and store"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build_program(folder)
        found = {}
        for shape in SHAPES:
            model = write_model(folder, shape)
            found[shape] = counts(program, model) | counts(program, model, "--generic")
    stored = json.loads(STORED.read_text()) if STORED.is_file() else {}
    STORED.write_text(json.dumps(stored | {compiler(): found}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
