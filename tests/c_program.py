"""edgepos-run, compiled without CMake: for the tests that call it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from edgepos.resources import c_runtime_dir

SANITIZED = ("-O0", "-DEDGEPOS_GENERIC_ONLY", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compile_program(program: Path, flags=("-O1",), main: Path | None = None) -> Path:
    """Compile and link ``main`` (edgepos_run.c) with the runtime and the pool into ``program``, which is returned."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "a C compiler is needed to build edgepos-run"
    runtime = c_runtime_dir()
    rest = [file for file in runtime.glob("cli/*.c") if file.name != "edgepos_run.c"]
    sources = [main or runtime / "cli/edgepos_run.c", *rest, *runtime.glob("src/*.c"), *runtime.glob("src/kernels/*.c"), runtime / "ports/threads_pthread.c"]
    folders = ["-I", runtime / "include", "-I", runtime / "ports", "-I", runtime / "cli"]
    subprocess.run([compiler, "-std=c11", *flags, *folders, "-o", program, *sources, "-pthread"], check=True)
    return program
