#!/usr/bin/env python3
"""Proves that the tests see faults: makes one at a time in a copy of the tree; some test must turn red each time.

    python tests/mutations.py [NAME …]      all faults, or those named
    python tests/mutations.py --list

The copy without a fault must be green, and a fault whose place is no longer found in the source is an error: this list is
then to be brought up to date.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mutation_list import C_TESTS, MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("edgepos", "export", "c_runtime", "examples/tiny", "tests", "pyproject.toml")
SECONDS = 600  # most for one command
WORKERS = 2


class Tree:
    """A copy of the project that may be changed, with its own extension module. `base`: the unchanged copy, whose objects are reused."""

    def __init__(self, folder: Path, base: Tree | None = None):
        self.folder, self.base = folder, base
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, folder / name)
        link = folder / "edgepos" / "export"
        if not link.exists():
            link.symlink_to(Path("..") / "export")

    def change(self, mutation: Mutation) -> None:
        file = self.folder / mutation.file
        file.write_text(mutation.apply(file.read_text("utf-8")), "utf-8")

    def build(self, changed: str | None) -> None:
        """Compile what the changed file makes necessary; everything where none is named."""
        runtime, base = self.folder / "c_runtime", self.base
        for source in [*(runtime / "src").glob("*.c"), *(runtime / "src" / "kernels").glob("*.c"), runtime / "ports" / "threads_pthread.c"]:
            theirs = base and base.folder / f"{source.stem}.o"
            if theirs and not changed.endswith(".h") and not changed.endswith(f"/{source.name}"):
                shutil.copy(theirs, self.folder)
            else:
                # The rotations keep their vectors, whose faults the list has.
                self._must([*self._cc(vectors=source.stem.startswith("rotate")), "-c", source, "-o", self.folder / f"{source.stem}.o"])
        self._objects = sorted(self.folder.glob("*.o"))
        binding = self.folder / "binding" / "_native.o"
        if base:
            binding = base.folder / "binding" / "_native.o"
        else:
            binding.parent.mkdir()
            native = ROOT / "edgepos" / "runtime"
            generate = [sys.executable, "-m", "cffi.gen_src", "read-sources", "edgepos._native"]
            self._must([*generate, native / "native.cdef", native / "native_prelude.h", binding.with_suffix(".c")])
            python = ["-DPy_LIMITED_API=0x030a0000", f"-I{sysconfig.get_paths()['include']}"]
            self._must([*self._cc(), *python, "-c", binding.with_suffix(".c"), "-o", binding])
        self._must([*self._cc(), "-shared", binding, *self._objects, "-o", self.folder / "edgepos" / "_native.abi3.so"])

    def _cc(self, vectors: bool = False) -> list:
        runtime = self.folder / "c_runtime"
        generic = [] if vectors else ["-DEDGEPOS_GENERIC_ONLY"]
        return ["cc", "-std=c11", "-O1", "-w", "-fPIC", "-pthread", *generic, *(f"-I{runtime / part}" for part in ("include", "ports", "src", "tests"))]

    def red(self, tests: tuple[str, ...]) -> str | None:
        """The first test that fails; None if all pass."""
        pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in tests)]
        # Only behaviour counts: the test that compares constants.h with its generator would notice any change of it.
        done = self._run([*pytest, "-k", "not constants_header"])
        if done.returncode != 0:
            failed = re.search(r"^(FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
            if done.returncode != 1 or not failed:
                raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return failed[2].removeprefix("tests/")
        for name in C_TESTS:
            self._must([*self._cc(), self.folder / "c_runtime" / "tests" / f"{name}.c", *self._objects, "-o", self.folder / name])
            if self._run([self.folder / name]).returncode != 0:
                return f"{name}.c"
        return None

    def _must(self, command: list) -> None:
        done = self._run(command)
        if done.returncode != 0:
            raise RuntimeError(f"the copy does not build:\n{done.stderr[-2000:]}")

    def _run(self, command: list) -> subprocess.CompletedProcess:
        # The copy comes first on the path, before an installed edgepos.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [str(part) for part in command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )


def seen_by(mutation: Mutation, base: Tree) -> str | None:
    """The test that notices a fault; None if none does."""
    with tempfile.TemporaryDirectory(prefix="edgepos-mutation-") as folder:
        tree = Tree(Path(folder), base)
        tree.change(mutation)
        tree.build(mutation.file)
        return tree.red(mutation.tests)


def main(arguments: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not arguments or m.name in arguments]
    if "--list" in arguments:
        print("\n".join(f"{m.name}: {m.file}" for m in MUTATIONS))
        return 0
    unknown = set(arguments) - {m.name for m in MUTATIONS}
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; see --list")
    for mutation in chosen:
        mutation.apply((ROOT / mutation.file).read_text("utf-8"))  # fails early where the place is gone

    start, wrong = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="edgepos-base-") as folder, ThreadPoolExecutor(WORKERS) as pool:
        base = Tree(Path(folder))
        base.build(None)
        green = pool.submit(base.red, tuple(sorted({test for mutation in MUTATIONS for test in mutation.tests})))
        for mutation, test in zip(chosen, pool.map(lambda m: seen_by(m, base), chosen)):
            wrong += test is None
            print(f"{'FAIL' if test is None else 'ok  '} {mutation.name}: {test or 'no test turned red'}", flush=True)
        test = green.result()
        wrong += test is not None
        print(f"{'ok  ' if test is None else 'FAIL'} without a fault: {test or 'green'}")
    print(f"{len(chosen)} faults, {wrong} wrong, {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
