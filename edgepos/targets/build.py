"""Builds a program from the runtime's sources, once per set of sources, compiler and flags."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ..errors import EdgePosError
from . import tools
from .processors import ZIG

# zig compiles the C library of a target before it links the first program for it, which takes minutes on a slow machine.
COMPILE_SECONDS, LINK_SECONDS = 600, 1200
STANDARD = ("-std=c11",)


@dataclass(frozen=True)
class Optimize:
    """Flags besides the common ones: of the inner loops, and of all other sources."""

    kernels: Sequence[str] = ()
    rest: Sequence[str] = ()


SAME = Optimize()


def small_code(compiler: str) -> Sequence[str]:
    """Flags for the least code: what clang calls -Oz, which zig keeps to itself, and GCC's -Os without what makes it larger on ARM."""
    if compiler == ZIG:
        return ("-Os", "-Xclang", "-Oz")
    if "clang" in compiler:
        return ("-Oz",)
    return ("-Os", "-fno-inline-functions-called-once", "-fno-ivopts", "-fno-tree-sra", "-fno-tree-loop-im")


def library_sources(runtime: Path) -> list[Path]:
    """The C files of the runtime library. Raises EdgePosError when `runtime` is no runtime folder."""
    sources = sorted([*(runtime / "src").glob("*.c"), *(runtime / "src" / "kernels").glob("*.c")])
    if not sources or not (runtime / "include" / "edgepos.h").is_file():
        raise EdgePosError(f"{runtime}: no runtime sources (src/*.c, include/edgepos.h) found; export the bundle again")
    return sources


def compile_objects(
    compiler: str, sources: Sequence[Path], includes: Sequence[Path], flags: Sequence[str], out: Path, progress=None, optimize: Optimize = SAME
) -> list[Path]:
    """Compile each source to an object file in `out`; `progress(name)` is told of every one. Raises EdgePosError with the compiler's first error."""
    command = tools.command(compiler)
    options = [*STANDARD, *flags, *(f"-I{folder}" for folder in includes)]

    def compile_one(source: Path) -> Path:
        target = out / f"{source.parent.name}-{source.stem}.o"
        if progress:
            progress(source.name)
        own = optimize.kernels if source.parent.name == "kernels" else optimize.rest
        done = tools.run([*command, *options, *own, "-c", source, "-o", target], COMPILE_SECONDS)
        if done.returncode != 0:
            raise EdgePosError(f"{compiler} does not compile {source.name}: {tools.first_error(done.stderr)}")
        return target

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(compile_one, sources))


def library_and(
    runtime: Path, compiler: str, flags: Sequence[str], main: Sequence[Path], out: Path, progress=None, main_flags: Sequence[str] | None = None,
    optimize: Optimize = SAME,
) -> list[Path]:
    """Objects of the library and of the `main` sources, which may have other flags."""
    for file in main:
        if not file.is_file():
            raise EdgePosError(f"{runtime}: {file.relative_to(runtime)} is missing from this runtime; export the bundle again")
    includes = [runtime / "include"]
    objects = compile_objects(compiler, library_sources(runtime), includes, flags, out, progress, optimize)
    return objects + compile_objects(compiler, main, [*includes, runtime / "ports"], flags if main_flags is None else main_flags, out, progress, optimize)


def program(
    name: str,
    runtime: Path,
    compiler: str,
    library_flags: Sequence[str],
    main: Sequence[Path],
    main_flags: Sequence[str],
    link_flags: Sequence[str],
    progress=None,
    cwd: Path | None = None,
    optimize: Optimize = SAME,
) -> Path:
    """The program of the library and the `main` sources, from the cache or built now. `progress(text)` is told what is done."""
    flags = [*library_flags, "--", *optimize.kernels, "--", *optimize.rest, "--", *main_flags, "--", *link_flags]
    target = _cache() / f"{name}-{_key(runtime, compiler, flags)}"
    if target.is_file():
        return target
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        out = Path(folder)
        objects = library_and(runtime, compiler, library_flags, main, out, progress, main_flags, optimize)
        link(compiler, [*main_flags, *objects, *link_flags], out / name, progress, cwd)
        os.replace(out / name, target)  # others may be building the same
    return target


def link(compiler: str, arguments: Sequence, target: Path, progress=None, cwd: Path | None = None) -> None:
    """Link a program; `cwd` is where linker scripts look for others. Raises EdgePosError with the linker's first error."""
    if progress:
        first = " (the first program for a target takes minutes: its C library is compiled)" if compiler == ZIG else ""
        progress(f"linking{first}")
    done = tools.run([*tools.command(compiler), *arguments, "-o", target], LINK_SECONDS, cwd)
    if done.returncode != 0:
        raise EdgePosError(f"{compiler} does not link {target.name}: {tools.first_error(done.stderr)}")


def _key(runtime: Path, compiler: str, flags: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for part in (*tools.command(compiler), tools.version(compiler), *flags):
        # Bundles carry the same sources in different folders.
        digest.update(part.replace(str(runtime), "").encode() + b"\0")
    for file in sorted(runtime.rglob("*")):
        if file.suffix in (".c", ".h", ".ld", ".S"):
            digest.update(file.relative_to(runtime).as_posix().encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:24]


def _cache() -> Path:
    """A folder of this user's own: programs in it are run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "edgepos" / "boards"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise EdgePosError(f"{folder} cannot be made ({error.strerror}); set XDG_CACHE_HOME to a folder that can be written") from None
    return folder
