"""The kernels of Cortex-M in qemu: one by one against the generic ones, from two compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from boards import require

from edgepos.resources import c_runtime_dir
from edgepos.targets import BOARDS, baremetal, build
from edgepos.targets.processors import ZIG

ROOT = Path(__file__).resolve().parents[1]
PLACES = {("cortex-m4", "gcc"): ["dsp"], ("cortex-m33", "zig"): ["dsp"], ("cortex-m55", "gcc"): ["dsp", "mve"], ("cortex-m55", "zig"): ["dsp", "mve"]}
PART = 47  # of the cases that processors take which are not emulated instruction by instruction


@pytest.mark.parametrize(("name", "compiler"), PLACES)
def test_every_kernel_gives_the_generic_bits(tmp_path, name, compiler):
    board = BOARDS[f"qemu:{name}"]
    board = board.built_by(ZIG) if compiler == "zig" else board
    require(*board.needs())
    runtime = c_runtime_dir()
    port, bare = runtime / "ports" / "baremetal", ROOT / "tests" / "c" / "bare"
    flags = baremetal.c_flags(board.compiler, ("-O2",), board.flags)
    sources = [*sorted((runtime / "src" / "kernels").glob("*.c")), runtime / "src" / "fixed.c", port / "start.c", port / "semihosting.c", bare / "libc.c"]
    includes = [bare, port, runtime / "include", runtime / "src"]
    objects = build.compile_objects(board.compiler, sources, includes, flags, tmp_path)
    test = ROOT / "c_runtime" / "tests" / "test_kernels.c"
    objects += build.compile_objects(board.compiler, [test], includes, [*flags, "-Dmain=test_main", f"-DEP_TEST_PART={PART}"], tmp_path)
    image = tmp_path / "test.elf"
    build.link(board.compiler, [*flags, *objects, *baremetal.link_flags(port / board.linker_script, board.compiler)], image, cwd=port)
    assert board.execute(image).split() == PLACES[name, compiler]
