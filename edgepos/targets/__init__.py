"""Boards a bundle can be verified on. A new board is one entry of `BOARDS`.

`verify`, `generate` and `edgepos build` compile the C sources that a bundle carries in runtime/ and run the program: only do this with
bundles whose maker you trust.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ..errors import EdgePosError, UnsupportedError
from ..resources import c_runtime_dir
from ..sampling import Sampling
from ..session_rules import whole_number
from . import tools
from .baremetal import BareMetalBoard
from .boards import Board, Job
from .difference import first_difference
from .linux import LinuxBoard, host_cpu
from .processors import TARGETS, ZIG
from .ssh import ssh_board
from .wasm import WasmBoard


def _linux(name: str, cpu: str, target: str, *emulator: str) -> LinuxBoard:
    """Any processor of the target runs the same program, which chooses its kernels."""
    of = TARGETS[target]
    return LinuxBoard(name, cpu, of.gcc, of.gcc_flags, link_flags=("-static",), emulator=emulator, target=of)


def _bare(cpu: str, machine: str, script: str, model_at: int, model_room: int, optimize: str = "-O2") -> BareMetalBoard:
    of = TARGETS[cpu]
    return BareMetalBoard(
        f"qemu:{cpu}", cpu, of.gcc, of.gcc_flags, optimize, target=of, linker_script=script, machine=machine,
        model_at=model_at, model_room=model_room, request_at=model_at + model_room,
    )  # fmt: skip


_ALL = (
    LinuxBoard("host", host_cpu(), "cc", emulated=False),
    LinuxBoard(
        "qemu:aarch64",
        "cortex-a53",
        "aarch64-linux-gnu-gcc",
        ("-mcpu=cortex-a53",),
        library_flags=("-mgeneral-regs-only",),
        link_flags=("-static",),
        emulator=("qemu-aarch64", "-cpu", "cortex-a53"),
    ),
    _linux("qemu:cortex-a53", "cortex-a53", "aarch64", "qemu-aarch64", "-cpu", "cortex-a53"),
    _linux("qemu:cortex-a76", "cortex-a76", "aarch64", "qemu-aarch64", "-cpu", "cortex-a76"),
    _linux("qemu:max", "every aarch64 extension", "aarch64", "qemu-aarch64", "-cpu", "max"),
    _linux("qemu:armv7", "cortex-a7", "armv7", "qemu-arm", "-cpu", "cortex-a7"),
    _linux("qemu:riscv64", "rv64", "riscv64", "qemu-riscv64"),
    WasmBoard("wasm", "WebAssembly", ZIG, TARGETS["wasm"].flags(ZIG), target=TARGETS["wasm"]),
    # There is no board with a Cortex-M0+ in qemu; a Cortex-M3 runs all of its instructions.
    replace(_bare("cortex-m0plus", "mps2-an385", "mps2_an385.ld", 0x21000000, 0xFF0000), cpu="cortex-m3 as cortex-m0plus"),
    _bare("cortex-m3", "mps2-an385", "mps2_an385.ld", 0x21000000, 0xFF0000),
    _bare("cortex-m4", "mps2-an386", "mps2_an385.ld", 0x21000000, 0xFF0000),
    _bare("cortex-m7", "mps2-an500", "mps2_an500.ld", 0x60000000, 0xFF0000),
    _bare("cortex-m33", "mps2-an505", "mps2_an505.ld", 0x80000000, 0xFF0000),
    _bare("cortex-m55", "mps3-an547", "mps3_an547.ld", 0x60000000, 0x40000000),
)
BOARDS: dict[str, Board] = {board.name: board for board in _ALL}


def board(name: str, cc: str | None = None, threads: int = 1) -> Board:
    """A board by its name, or `ssh://user@host[:port]`; `cc` names another compiler than its own ("zig": that of the ziglang package).

    Raises UnsupportedError naming those there are, EdgePosError for a number of threads that it has not, and for a machine that does not answer.
    """
    if name.startswith("ssh:"):
        found: Board = ssh_board(name)
    elif name in BOARDS:
        found = BOARDS[name].with_what_is_there()
    else:
        raise UnsupportedError(f"board {name!r} is unknown; choose one of {', '.join(BOARDS)}, ssh://user@host")
    if cc is not None:
        found = found.built_by(ZIG if cc == "zig" else cc)
    if threads == 1:
        return found
    most = os.cpu_count() or 1
    if not isinstance(found, LinuxBoard) or isinstance(found, WasmBoard):
        raise EdgePosError(f"{name}: {threads} threads asked for; this board has one")
    if threads < 1 or (name == "host" and threads > most):
        raise EdgePosError(f"{name}: {threads} threads asked for; give 1 to {most if name == 'host' else 256}")
    return replace(found, threads=threads)


def verify(bundle, on: str | Board) -> str:
    """Build the bundle's runtime for a board, run the self-test there and compare the digest with the bundle's.

    Returns a line that names compiler, processor, kernels, digest, arena and speed.
    Raises EdgePosError when a tool is missing (naming its Debian package), when building or running fails, or when the digest differs: then
    it names the first operator whose digest is not that of the specification.
    """
    target = board(on) if isinstance(on, str) else on
    runtime, model, expected = runtime_of(bundle), bundle.model_path, bundle.program.header.digest
    tokens = list(bundle.image.info.selftest)
    result = target.selftest(runtime, model, tokens)
    if result.digest != expected:
        raise EdgePosError(
            f"{target.name}: digest {result.digest:016x} computed by {tools.version(target.compiler)}, {expected:016x} in the bundle; "
            + first_difference(bundle.program, target.operators(runtime, model))
        )
    rate = f"{result.rate:.0f} tokens/s" if result.rate else "too fast to time"
    parts = [tools.version(target.compiler), target.cpu]
    parts += [f"processor has {result.features}"] if result.features else []
    parts += [f"{result.kernels} kernels", f"digest {result.digest:016x}"]
    parts += [f"arena {result.arena} bytes"] + ([f"stack {result.stack} bytes"] if result.stack is not None else [])
    return ", ".join([*parts, rate + (" (emulated, meaningless)" if target.emulated else "")])


def generate(
    bundle,
    on: str | Board,
    ids,
    n: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    repetition_penalty: float = 1.0,
    penalty_last: int = 0,
    seed: int = 0,
    context: int | None = None,
) -> list[int]:
    """At most `n` token ids that a board chooses after the prompt `ids`; it stops before an EOS and when the context is full.

    Raises EdgePosError like `verify`, and for parameters out of range.
    """
    target = board(on) if isinstance(on, str) else on
    prompt = [int(i) for i in ids]
    if not prompt or n < 1:
        raise EdgePosError("nothing to generate; give at least one prompt id and n >= 1")
    seed = whole_number("seed", seed, 0, 2**64 - 1)
    job = Job(prompt, int(n), Sampling.of(temperature, top_k, top_p, repetition_penalty, penalty_last), seed, context)
    return target.generate(runtime_of(bundle), bundle.model_path, job)


def runtime_of(bundle) -> Path:
    """The bundle's own sources; this package's for a model.gguf alone."""
    carried = None if bundle.path is None else bundle.path / "runtime"
    return carried.resolve() if carried is not None and carried.is_dir() else c_runtime_dir()
