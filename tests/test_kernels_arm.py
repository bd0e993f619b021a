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
PREFIXES = {64: "aarch64-linux-gnu-", 32: "arm-linux-gnueabihf-"}
EMULATORS = {64: "qemu-aarch64", 32: "qemu-arm"}
# Word size, processor, and its kernel sets; those of the one before are compared where they are the best.
PROCESSORS = [
    (64, "cortex-a53", ["neon"]),
    (64, "cortex-a76", ["neon", "dotprod"]),
    (64, "max", ["neon", "dotprod", "i8mm"]),
    (32, "cortex-a7,neon=off", []),
    (32, "cortex-a7", ["neon"]),
]
PART = 4  # of the cases that processors take which are not emulated
# Moves (fmov) are how compilers pass integers on.
FLOAT = re.compile(r"f(?!mov)\w+|[su]cvtf")


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """objects(bits): the library for any ARM of a word size, compiled once."""
    known = {}

    def compiled(bits: int):
        if bits not in known:
            require(PREFIXES[bits] + "gcc", EMULATORS[bits])
            runtime = c_runtime_dir()
            out = tmp_path_factory.mktemp(f"arm{bits}")
            known[bits] = build.compile_objects(PREFIXES[bits] + "gcc", build.library_sources(runtime), [runtime / "include"], ["-O2"], out)
        return known[bits]

    return compiled


@pytest.fixture(scope="module")
def link(objects, tmp_path_factory):
    """link(bits, name, sources): a program with the library, linked once."""
    known = {}

    def linked(bits: int, name: str, sources) -> Path:
        if (bits, name) not in known:
            compiler, runtime, out = PREFIXES[bits] + "gcc", c_runtime_dir(), tmp_path_factory.mktemp(name)
            includes = [runtime / part for part in ("include", "ports", "src")]
            library = objects(bits)
            main = build.compile_objects(compiler, sources, includes, ["-O2", f"-DEP_TEST_PART={PART}"], out)
            done = tools.run([compiler, "-static", "-pthread", *main, *library, "-o", out / name], 60)
            assert done.returncode == 0, done.stderr
            known[bits, name] = out / name
        return known[bits, name]

    return linked


def run(bits: int, processor: str, *command) -> str:
    done = tools.run([EMULATORS[bits], "-cpu", processor, *command], 300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_float_instruction(objects):
    found = instructions(Target("aarch64", PREFIXES[64] + "gcc", (), PREFIXES[64]), objects(64))
    names = {name for name, _ in found}
    assert {"smlal", "sdot", "smmla", "srshl"} <= names
    assert [name for name in names if FLOAT.fullmatch(name)] == []


def test_no_float_instruction_in_32_bits(objects):
    found = instructions(Target("armv7", PREFIXES[32] + "gcc", (), PREFIXES[32]), objects(32))
    names = {name for name, _ in found}
    assert {"vmlal.s16", "vmlal.s32"} <= names
    assert [name for name in names if re.search(r"\.f(16|32|64)", name)] == []


@pytest.mark.parametrize(("bits", "processor", "sets"), PROCESSORS)
def test_every_kernel_gives_the_generic_bits(link, bits, processor, sets):
    """One program for all: a processor without an instruction ends well, so nothing ran it."""
    test = link(bits, "test_kernels", [ROOT / "c_runtime" / "tests" / "test_kernels.c"])
    assert run(bits, processor, test, *sets[-1:]).split() == sets


@pytest.mark.parametrize(("bits", "processor", "sets"), PROCESSORS)
def test_rotations_give_the_generic_bits(link, bits, processor, sets):
    test = link(bits, "test_rotate", [ROOT / "c_runtime" / "tests" / "test_rotate.c"])
    cpu = sum({"neon": 2, "dotprod": 4, "i8mm": 16}[name] for name in sets)
    assert run(bits, processor, test).strip() == f"test_rotate: cpu {cpu}, all equal"


@pytest.mark.parametrize("shape", [Shape(), Shape(grouped=False, kv_bits=8, width=290), Shape(w4=True, head_dim=64, pairs=32, width=384)], ids=str)
@pytest.mark.parametrize("extreme", [False, True])
def test_programs_give_the_bits_of_golden(link, tmp_path, shape, extreme):
    runtime = c_runtime_dir()
    sources = [*sorted((runtime / "cli").glob("*.c")), runtime / "ports" / "threads_pthread.c"]
    made = random_program(np.random.default_rng(5), shape, extreme)
    ids = np.random.default_rng(1).integers(0, shape.vocab, 30)
    path = tmp_path / "model.gguf"
    path.write_bytes(image(made))
    digest = fnv1a64(GoldenSession(made).eval_int(ids).astype("<i4").tobytes())
    command = [path, "--ids", ",".join(map(str, ids)), "--ids-out", "-n", "0", "--digest"]
    for bits, processor, _ in PROCESSORS:
        program = link(bits, "edgepos-run", sources)
        for more in ([], ["--generic"], ["--batch", "1"], ["--threads", "2", "--batch", "7"]):
            assert run(bits, processor, program, *command, *more).split()[-1] == f"0x{digest:016x}", (processor, more)
