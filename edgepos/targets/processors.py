"""What programs are made for: a target is a processor and a system, with the flags that make two compilers build for it.

All 64-bit ARM Linux targets are one program: the kernels for newer processors are chosen when it runs. So zig compiles its C library once for them.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass

from ..errors import UnsupportedError

ZIG = "zig cc"
LINUX, WASM, MACOS, WINDOWS, BARE = "Linux", "WebAssembly", "macOS", "Windows", "no operating system"


@dataclass(frozen=True)
class Target:
    """`triple` and `mcpu` are zig's; `gcc` is the name of a GCC for it ("": none is known) and `gcc_flags` choose the processor."""

    name: str
    about: str
    system: str
    triple: str
    mcpu: str = ""
    gcc: str = ""
    gcc_flags: tuple[str, ...] = ()

    @property
    def vectors(self) -> bool:
        """Whether its programs may find vector kernels, which take more tokens at a time and memory of their own."""
        return self.triple.startswith(("aarch64", "arm-", "x86_64"))

    @property
    def suffix(self) -> str:
        """What the name of its programs ends with."""
        return {WASM: ".wasm", WINDOWS: ".exe", BARE: ".elf"}.get(self.system, "")

    def flags(self, compiler: str) -> tuple[str, ...]:
        """The flags that make a compiler build for it."""
        if compiler == ZIG:
            return ("-target", self.triple, *((f"-mcpu={self.mcpu}",) if self.mcpu else ()))
        if "clang" in compiler:  # with the libraries of the GCC for the target
            triple = "thumb-none-eabi" if self.system == BARE else self.gcc.removesuffix("-gcc")
            return (f"--target={triple}", *self.gcc_flags)
        return self.gcc_flags


def _arm_linux(name: str, about: str) -> Target:
    return Target(name, about, LINUX, "aarch64-linux-musl", gcc="aarch64-linux-gnu-gcc")


def _cortex_m(name: str, about: str, mcpu: str, gcc_cpu: str = "", floats: str = "soft") -> Target:
    flags = (f"-mcpu={gcc_cpu or name}", "-mthumb", f"-mfloat-abi={floats}")
    return Target(name, about, BARE, "thumb-freestanding-eabi", mcpu, "arm-none-eabi-gcc", flags)


_ALL = (
    _arm_linux("rpi3", "Raspberry Pi 3, 64-bit system (Cortex-A53: NEON)"),
    _arm_linux("rpi4", "Raspberry Pi 4, 64-bit system (Cortex-A72: NEON)"),
    _arm_linux("rpi5", "Raspberry Pi 5, 64-bit system (Cortex-A76: dot products)"),
    _arm_linux("aarch64", "any 64-bit ARM Linux"),
    Target("armv7", "32-bit ARM Linux with hardware floats", LINUX, "arm-linux-musleabihf", "generic+v7a", "arm-linux-gnueabihf-gcc", ("-march=armv7-a+fp",)),
    Target("riscv64", "64-bit RISC-V Linux", LINUX, "riscv64-linux-musl", gcc="riscv64-linux-gnu-gcc"),
    Target("x86_64", "any 64-bit PC with Linux", LINUX, "x86_64-linux-musl", gcc="x86_64-linux-gnu-gcc"),
    Target("android-arm64", "Android on 64-bit ARM: a static program for adb shell", LINUX, "aarch64-linux-musl", gcc="aarch64-linux-gnu-gcc"),
    Target("wasm", "WebAssembly with WASI: Node, wasmtime", WASM, "wasm32-wasi"),
    Target("macos-arm64", "macOS on Apple processors", MACOS, "aarch64-macos"),
    Target("windows-x64", "Windows on 64-bit PCs", WINDOWS, "x86_64-windows-gnu"),
    _cortex_m("cortex-m0plus", "Arm Cortex-M0+, and M0", "cortex_m0plus"),
    _cortex_m("cortex-m3", "Arm Cortex-M3", "cortex_m3"),
    _cortex_m("cortex-m4", "Arm Cortex-M4", "cortex_m4"),
    _cortex_m("cortex-m7", "Arm Cortex-M7", "cortex_m7"),
    _cortex_m("cortex-m33", "Arm Cortex-M33", "cortex_m33+dsp", "cortex-m33+nofp"),
    _cortex_m("cortex-m55", "Arm Cortex-M55 with Helium", "cortex_m55+mve+lob", floats="hard"),
)
TARGETS: dict[str, Target] = {target.name: target for target in _ALL}
_MACHINES = {"aarch64": "aarch64", "arm64": "aarch64", "armv7l": "armv7", "armv8l": "armv7", "riscv64": "riscv64", "x86_64": "x86_64", "amd64": "x86_64"}


def target(name: str) -> Target:
    """A target by its name; `m4` is short for cortex-m4. Raises UnsupportedError naming those there are."""
    found = TARGETS.get(name) or TARGETS.get(f"cortex-{name}")
    if found is None:
        raise UnsupportedError(f"target {name!r} is unknown; choose one of {', '.join(TARGETS)}")
    return found


def linux_target(machine: str) -> Target:
    """The target of a Linux by what `uname -m` prints there. Raises UnsupportedError for others."""
    if machine.lower() not in _MACHINES:
        raise UnsupportedError(f"a Linux on {machine!r} is not among the targets; those are {', '.join(sorted(set(_MACHINES.values())))}")
    return TARGETS[_MACHINES[machine.lower()]]


def is_host(target: Target) -> bool:
    """Whether this machine runs its programs."""
    return target.system == platform.system() and _MACHINES.get(platform.machine().lower()) == target.name
