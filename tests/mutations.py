#!/usr/bin/env python3
"""Proves that the tests see faults: makes one at a time in a copy of the tree; some test must turn red each time.

    python tests/mutations.py [NAME …]      all faults, or those named
    python tests/mutations.py --list

What turned red must be green in a copy without a fault, and a fault whose place is no longer found in the source is an error:
this list is then to be brought up to date.
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
from queue import SimpleQueue

from mutation_list import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("edgepos", "export", "c_runtime", "examples/tiny", "tests", "pyproject.toml")
SHARED = Path(os.environ.get("EDGEPOS_SHARED", ROOT.parent / "shared")).resolve()  # a copy has another place
SECONDS = 600  # most for one command
WORKERS = 2


class Tree:
    """A copy of the project that may be changed, with its own extension module. `base`: an unchanged one, whose objects are reused."""

    def __init__(self, folder: Path, base: Tree | None = None):
        self.folder, self.base, self._objects = folder, base, []
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, folder / name)
        link = folder / "edgepos" / "export"
        if not link.exists():
            link.symlink_to(Path("..") / "export")
        if base is None:
            self.build()

    def seen(self, mutation: Mutation) -> str | None:
        """The test that notices the fault, which the copy has meanwhile; None if none does."""
        file = self.folder / mutation.file
        sound = file.read_text("utf-8")
        try:
            self._write(file, mutation.apply(sound))
            self.build(mutation.file)
            return self.red(mutation.tests)
        finally:
            self._write(file, sound)

    @staticmethod
    def _write(file: Path, text: str) -> None:
        file.write_text(text, "utf-8")
        # Python takes what it has compiled where time and size are the same.
        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
            compiled.unlink()

    def build(self, changed: str = ".h") -> None:
        """Compile what the changed file makes necessary, everything for a header, and link the module."""
        runtime, self._objects = self.folder / "c_runtime", []
        for source in [*(runtime / "src").glob("*.c"), *(runtime / "src" / "kernels").glob("*.c"), runtime / "ports" / "threads_pthread.c"]:
            stale = changed.endswith((".h", f"/{source.name}"))
            target = (self.folder if stale else self.base.folder) / f"{source.stem}.o"
            if stale:
                # The rotations keep their vectors, whose faults the list has.
                self._must([*self._cc(vectors=source.stem.startswith("rotate")), "-c", source, "-o", target])
            self._objects.append(target)
        binding = (self.base or self).folder / "_native.o"
        if not binding.exists():
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
        """The first of these tests that fails, files in C and files or single tests in Python; None if all pass."""
        for name in tests:
            if name.endswith(".c"):
                program = self.folder / Path(name).stem
                self._must([*self._cc(), self.folder / "c_runtime" / "tests" / name, *self._objects, "-o", program])
                if self._run([program]).returncode != 0:
                    return name
        python = [f"tests/{name}" for name in tests if not name.endswith(".c")]
        if not python:
            return None
        # Only behaviour counts: the test that compares constants.h with its generator would notice any change of it.
        done = self._run([sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not constants_header", *python])
        if done.returncode == 0:
            return None
        failed = re.search(r"^(FAILED|ERROR) (.+?)(?: - .*)?$", done.stdout, re.M)
        if done.returncode != 1 or not failed:
            raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return failed[2].removeprefix("tests/")

    def _must(self, command: list) -> None:
        done = self._run(command)
        if done.returncode != 0:
            raise RuntimeError(f"the copy does not build:\n{done.stderr[-2000:]}")

    def _run(self, command: list) -> subprocess.CompletedProcess:
        # The copy comes first on the path, before an installed edgepos; the plugins of installed packages take a second to start.
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "EDGEPOS_SHARED": str(SHARED)}
        return subprocess.run(
            [str(part) for part in command], cwd=self.folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )


def look(chosen: list[Mutation], folder: Path) -> int:
    """Try the faults in copies below ``folder``, some at a time. Returns how many went wrong, and prints a line for each."""
    base, free = Tree(folder / "base"), SimpleQueue()
    for worker in range(WORKERS):
        free.put(Tree(folder / f"copy{worker}", base))

    def seen(mutation: Mutation) -> tuple[str | None, float]:
        tree, start = free.get(), time.monotonic()
        try:
            return tree.seen(mutation), time.monotonic() - start
        finally:
            free.put(tree)

    wrong, found = 0, set()
    with ThreadPoolExecutor(WORKERS) as pool:
        for mutation, (test, seconds) in zip(chosen, pool.map(seen, chosen)):
            wrong += test is None
            found |= {test} - {None}
            print(f"{'FAIL' if test is None else 'ok  '} {mutation.name}: {test or 'no test turned red'} ({seconds:.1f} s)", flush=True)
    test = base.red(tuple(sorted(found)))
    print(f"{'ok  ' if test is None else 'FAIL'} without a fault: {test or 'green'}")
    return wrong + (test is not None)


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

    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="edgepos-mutations-") as folder:
        wrong = look(chosen, Path(folder))
    print(f"{len(chosen)} faults, {wrong} wrong, {time.monotonic() - start:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
