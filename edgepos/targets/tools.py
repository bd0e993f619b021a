"""Compilers and emulators: finding them, asking for their version, running them within a time limit."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from ..errors import EdgePosError
from .processors import ZIG

# Debian's package for every program that is looked for.
PACKAGES = {
    "cc": "gcc",
    "gcc": "gcc",
    "clang": "clang",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "arm-linux-gnueabihf-gcc": "gcc-arm-linux-gnueabihf libc6-dev-armhf-cross",
    "arm-none-eabi-gcc": "gcc-arm-none-eabi",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "qemu-aarch64": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "qemu-arm": "qemu-user",
    "qemu-x86_64": "qemu-user",
    "qemu-system-arm": "qemu-system-arm",
    "node": "nodejs",
    "java": "default-jdk-headless",
    "javac": "default-jdk-headless",
    "cmake": "cmake",
    "ssh": "openssh-client",
    "scp": "openssh-client",
}


def find(program: str) -> str:
    """Path of a program. Raises EdgePosError naming the Debian package that has it."""
    path = shutil.which(program)
    if path is None:
        package = PACKAGES.get(program)
        hint = f"install it (Debian: apt-get install {package})" if package else "install it or choose another"
        raise EdgePosError(f"{program} was not found: {hint}")
    return path


def command(compiler: str) -> list[str]:
    """How a compiler is called: a program, or zig's of the ziglang package. Raises EdgePosError saying how to install it."""
    if compiler != ZIG:
        return [find(compiler)]
    if not has_module("ziglang"):
        raise EdgePosError('the compiler is the ziglang package, which is not installed: pip install "edgepos[boards]", or name a compiler with --cc')
    return [sys.executable, "-m", "ziglang", "cc"]


def require(program: str) -> None:
    """Raises EdgePosError saying how to install a program, or a compiler, that is not there."""
    if program == ZIG:
        command(program)
    else:
        find(program)


def has_module(name: str) -> bool:
    """Whether a Python package is installed."""
    return importlib.util.find_spec(name) is not None


def missing(*programs: str) -> list[str]:
    """Those of the programs that are not installed."""
    return [program for program in programs if not (has_module("ziglang") if program == ZIG else shutil.which(program))]


@cache
def version(compiler: str) -> str:
    """A compiler's name and version, like "gcc 12.2.0"."""
    if compiler == ZIG:
        return f"zig {run([*command(ZIG)[:-1], 'version'], 30).stdout.strip()}"
    lines = run([find(compiler), "--version"], 30).stdout.splitlines()
    if not lines:
        raise EdgePosError(f"{compiler} --version prints nothing: name a C compiler")
    first = lines[0]
    number = next((word for word in reversed(first.split()) if word[0].isdigit() and "." in word), "")
    name = "clang" if "clang" in first else "gcc"
    return f"{name} {number.rstrip(')')}" if number else first


def run(command: list, seconds: float, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """Run a program, its output captured as text. Raises EdgePosError when it cannot start or passes the time limit."""
    command = [str(part) for part in command]
    name = Path(command[0]).name
    try:
        return subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=seconds
        )
    except subprocess.TimeoutExpired:
        raise EdgePosError(f"{name} was stopped after {seconds:g} s without an end") from None
    except OSError as error:
        raise EdgePosError(f"{name} cannot be run: {error.strerror}") from None


def last_line(text: str) -> str:
    """The last line with something in it, for an error message."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def first_error(text: str) -> str:
    """The first error line of a compiler's output."""
    return next((line.strip() for line in text.splitlines() if "error" in line), last_line(text))
