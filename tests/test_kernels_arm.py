"""The ARM kernels in qemu: one by one against the generic ones, and whole programs against golden; one binary on every processor."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from boards import require
from object_files import Target, instructions
from random_programs import Shape, random_program
from tokenizer_images import image

from edgepos.fixedpoint import fnv1a64
from edgepos.golden_session import GoldenSession
from edgepos.resources import c_runtime_dir
from edgepos.targets import build, tools

ROOT = Path(__file__).resolve().parents[1]
COMPILER, PREFIX = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-"
PROCESSORS = {"cortex-a53": ["neon"], "cortex-a76": ["neon", "dotprod"], "max": ["neon", "dotprod"]}
# Moves (fmov) are how compilers pass integers on.
FLOAT = re.compile(r"f(?!mov)\w+|[su]cvtf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    require(COMPILER, "qemu-aarch64")
    return tmp_path_factory.mktemp("arm")


@pytest.fixture(scope="module")
def objects(folder):
    """The library for any 64-bit ARM."""
    runtime = c_runtime_dir()
    return build.compile_objects(COMPILER, build.library_sources(runtime), [runtime / "include"], ["-O2"], folder)


def link(folder, objects, name: str, sources) -> str:
    runtime = c_runtime_dir()
    includes = [runtime / part for part in ("include", "ports", "src")]
    (out := folder / name).mkdir()
    main = build.compile_objects(COMPILER, sources, includes, ["-O2"], out)
    done = tools.run([COMPILER, "-static", "-pthread", *main, *objects, "-o", out / name], 60)
    assert done.returncode == 0, done.stderr
    return out / name


def run(processor: str, *command) -> str:
    done = tools.run(["qemu-aarch64", "-cpu", processor, *command], 300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_float_instruction(objects):
    found = instructions(Target("aarch64", COMPILER, (), PREFIX), objects)
    names = {name for name, _ in found}
    assert {"smlal", "sdot", "srshl"} <= names
    assert [name for name in names if FLOAT.fullmatch(name)] == []


@pytest.fixture(scope="module")
def unit_test(folder, objects):
    return link(folder, objects, "test_kernels", [ROOT / "c_runtime" / "tests" / "test_kernels.c"])


@pytest.mark.parametrize("processor", PROCESSORS)
def test_every_kernel_gives_the_generic_bits(unit_test, processor):
    """The Cortex-A53 has no SDOT: that the program ends well there says that nothing ran it."""
    assert run(processor, unit_test).split() == PROCESSORS[processor]


@pytest.mark.parametrize("processor", PROCESSORS)
def test_rotations_give_the_generic_bits(folder, objects, processor):
    test = folder / "test_rotate" / "test_rotate"
    if not test.exists():
        link(folder, objects, "test_rotate", [ROOT / "c_runtime" / "tests" / "test_rotate.c"])
    assert "all equal" in run(processor, test)


@pytest.fixture(scope="module")
def program(folder, objects):
    runtime = c_runtime_dir()
    return link(folder, objects, "edgepos-run", [*sorted((runtime / "cli").glob("*.c")), runtime / "ports" / "threads_pthread.c"])


@pytest.mark.parametrize("shape", [Shape(), Shape(grouped=False, kv_bits=8, width=290), Shape(w4=True, head_dim=64, pairs=32, width=384)], ids=str)
@pytest.mark.parametrize("extreme", [False, True])
def test_programs_give_the_bits_of_golden(program, tmp_path, shape, extreme):
    made = random_program(np.random.default_rng(5), shape, extreme)
    ids = np.random.default_rng(1).integers(0, shape.vocab, 30)
    path = tmp_path / "model.gguf"
    path.write_bytes(image(made))
    digest = fnv1a64(GoldenSession(made).eval_int(ids).astype("<i4").tobytes())
    command = [program, path, "--ids", ",".join(map(str, ids)), "--ids-out", "-n", "0", "--digest"]
    for processor in PROCESSORS:
        for more in ([], ["--generic"], ["--batch", "1"], ["--threads", "2", "--batch", "7"]):
            assert run(processor, *command, *more).split()[-1] == f"0x{digest:016x}", (processor, more)
