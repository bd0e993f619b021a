"""Boards a bundle can be verified on. A new board is one entry of `BOARDS`.

`verify` and `generate` compile the C sources that a bundle carries in runtime/ and run the program: only do this with bundles
whose maker you trust.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import EdgePosError, UnsupportedError
from ..resources import c_runtime_dir
from ..sampling import Sampling
from . import tools
from .baremetal import BareMetalBoard
from .boards import Board, Job
from .linux import LinuxBoard, host_cpu

_ALL = (
    LinuxBoard("host", host_cpu(), "cc", emulated=False),
    LinuxBoard(
        "qemu:aarch64",
        "cortex-a53",
        "aarch64-linux-gnu-gcc",
        flags=("-mcpu=cortex-a53",),
        library_flags=("-mgeneral-regs-only",),
        link_flags=("-static",),
        emulator=("qemu-aarch64", "-cpu", "cortex-a53"),
    ),
    LinuxBoard(
        "qemu:armv7",
        "cortex-a7",
        "arm-linux-gnueabihf-gcc",
        flags=("-mcpu=cortex-a7",),
        library_flags=("-mgeneral-regs-only",),
        link_flags=("-static",),
        emulator=("qemu-arm", "-cpu", "cortex-a7"),
    ),
    BareMetalBoard(
        "qemu:cortex-m3",
        "cortex-m3",
        "arm-none-eabi-gcc",
        flags=("-mcpu=cortex-m3", "-mthumb", "-mfloat-abi=soft"),
        linker_script="mps2_an385.ld",
        machine="mps2-an385",
        model_at=0x21000000,
        model_room=0xFF0000,
        request_at=0x21FF0000,
    ),
)
BOARDS: dict[str, Board] = {board.name: board for board in _ALL}


def board(name: str) -> Board:
    """A board by its name. Raises UnsupportedError naming those there are."""
    if name not in BOARDS:
        raise UnsupportedError(f"board {name!r} is unknown; choose one of {', '.join(BOARDS)}")
    return BOARDS[name]


def verify(bundle, on: str | Board) -> str:
    """Build the bundle's runtime for a board, run the self-test there and compare the digest with the bundle's.

    Returns a line that names compiler, processor, kernels, digest, arena and speed.
    Raises EdgePosError when a tool is missing (naming its Debian package), when building or running fails, or when the digest differs.
    """
    target = board(on) if isinstance(on, str) else on
    model, expected = bundle.model_path, bundle.program.header.digest
    tokens = [int(i) for i in bundle.program.arrays[bundle.program.header.selftest]]
    result = target.selftest(_runtime(bundle), model, tokens)
    if result.digest != expected:
        raise EdgePosError(
            f"{target.name}: digest {result.digest:016x} computed, {expected:016x} in the bundle; "
            f"{tools.version(target.compiler)} or this processor does not compute what the exporter did"
        )
    rate = f"{result.rate:.0f} tokens/s" if result.rate else "too fast to time"
    parts = [tools.version(target.compiler), target.cpu, f"{result.kernels} kernels", f"digest {result.digest:016x}"]
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
    if not 0 <= seed < 1 << 64:
        raise EdgePosError(f"seed {seed} is outside 0 … 2^64-1")
    job = Job(prompt, int(n), Sampling.of(temperature, top_k, top_p, repetition_penalty, penalty_last), seed, context)
    return target.generate(_runtime(bundle), bundle.model_path, job)


def _runtime(bundle) -> Path:
    """The bundle's own sources; this package's for a model.gguf alone."""
    carried = None if bundle.path is None else bundle.path / "runtime"
    return carried if carried is not None and carried.is_dir() else c_runtime_dir()
