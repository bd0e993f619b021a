"""Boards without an operating system: ports/baremetal/ of the runtime, in qemu-system-arm.

Model and request are put into the machine's memory before reset, at addresses that the linker script names too.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import EdgePosError
from . import build, tools
from .boards import MAX_PROMPT, RUN_SECONDS, Board, Job, SelfTest
from .linux import parse_operators
from .processors import ZIG

_MAGIC = 0x52425045  # ports/baremetal/request.h
_HEAD = struct.Struct("<2I3iIi4Ii")


@dataclass(frozen=True)
class BareMetalBoard(Board):
    """`machine` is qemu's name; the model gets the `model_room` bytes from `model_at` on, the request lies at `request_at`."""

    linker_script: str = ""
    machine: str = ""
    model_at: int = 0
    model_room: int = 0
    request_at: int = 0
    emulator_options: tuple[str, ...] = ()

    def needs(self) -> list[str]:
        return [self.compiler, "qemu-system-arm"]

    def selftest(self, runtime: Path, model: Path, tokens: Sequence[int]) -> SelfTest:
        lines = _lines(self._run(runtime, model, _pack(model, 0)))
        if "digest" not in lines:
            raise EdgePosError(f"{self.name}: the board printed no digest")
        seconds = int(lines["centiseconds"]) / 100
        rate = int(lines["tokens"]) / seconds if seconds else 0
        return SelfTest(int(lines["digest"], 16), int(lines["arena"]), rate, lines.get("kernels", "generic"), int(lines["stack"]))

    def generate(self, runtime: Path, model: Path, job: Job) -> list[int]:
        if len(job.ids) > MAX_PROMPT:
            raise EdgePosError(f"{self.name}: {len(job.ids)} ids found, at most {MAX_PROMPT} fit a request; shorten the prompt")
        return [int(word) for word in _lines(self._run(runtime, model, _pack(model, job)))["ids"].split()]

    def operators(self, runtime: Path, model: Path) -> dict[int, int]:
        return parse_operators(self._run(runtime, model, _pack(model, -1)))

    def _run(self, runtime: Path, model: Path, request: bytes) -> str:
        """The lines "name value" that the board prints."""
        for tool in self.needs():
            tools.require(tool)
        size = model.stat().st_size
        if size > self.model_room:
            raise EdgePosError(f"{self.name}: the model has {size} bytes, the board has room for {self.model_room}; choose a larger board")
        program = self._program(runtime)
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            file, link = Path(folder) / "request", Path(folder) / "model"
            file.write_bytes(request)
            link.symlink_to(model.resolve())  # qemu would read a comma in a path as the end of it
            devices = ["-device", f"loader,file={link},addr={self.model_at:#x},force-raw=on"]
            devices += ["-device", f"loader,file={file},addr={self.request_at:#x},force-raw=on"]
            return self.execute(program, devices)

    def execute(self, program: Path, devices: Sequence[str] = ()) -> str:
        """What a program prints on the emulated board. Raises EdgePosError when it ends with an error."""
        options = ["-display", "none", "-monitor", "none", "-serial", "none", "-chardev", "stdio,id=text,mux=off"]
        options += ["-semihosting-config", "enable=on,target=native,chardev=text"]
        done = tools.run([tools.find("qemu-system-arm"), "-M", self.machine, *self.emulator_options, *options, *devices, "-kernel", program], RUN_SECONDS)
        lines = _lines(done.stdout)
        if done.returncode != 0 or "error" in lines:
            reason = lines.get("error") or tools.last_line(done.stderr)
            raise EdgePosError(f"{self.name}: the board ended with {done.returncode}: {reason}")
        return done.stdout

    def command(self, program: str) -> str:
        """What a user types to start an image with its model in it."""
        return f"qemu-system-arm -M {self.machine} -nographic -semihosting-config enable=on,target=native -kernel {program}"

    def _program(self, runtime: Path) -> Path:
        port = runtime / "ports" / "baremetal"
        flags = c_flags(self.compiler, (self.optimize,), self.flags)
        link = (*flags, *link_flags(port / self.linker_script, self.compiler))
        return build.program(f"{self.machine}.elf", runtime, self.compiler, flags, board_sources(runtime), flags, link, cwd=port)


def board_sources(runtime: Path) -> list[Path]:
    """The C files of the port."""
    return [runtime / "ports" / "baremetal" / name for name in ("start.c", "semihosting.c", "main.c")]


def c_flags(compiler: str, optimize: Sequence[str], flags: Sequence[str]) -> tuple[str, ...]:
    """Flags of every C file of a program without an operating system."""
    # GCC would turn memcpy's own loop into a call of memcpy.
    own = () if compiler == ZIG or "clang" in compiler else ("-fno-tree-loop-distribute-patterns",)
    return (*optimize, *flags, "-ffreestanding", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections", *own)


def link_flags(script: Path, compiler: str) -> tuple[str, ...]:
    """Flags of the linker, which is to run in ports/baremetal, where the script's INCLUDE looks."""
    # zig counts its 64-bit division as part of the libraries, and has no others for such targets.
    own = ("-nostartfiles",) if compiler == ZIG else ("-nostdlib", "-lgcc")
    return ("-Wl,--gc-sections", f"-T{script}", *own)


def _lines(text: str) -> dict[str, str]:
    return dict(line.partition(" ")[::2] for line in text.splitlines())


def _pack(model: Path, job: Job | int) -> bytes:
    """A request to generate, or with 0 for the self-test, with -1 for the digests of its operators."""
    size = model.stat().st_size
    if isinstance(job, int):
        return _HEAD.pack(_MAGIC, size, 0, job, *[0] * 8)
    how, seed = job.how, job.seed
    head = _HEAD.pack(
        _MAGIC, size, job.context or 0, len(job.ids), job.n, how.temperature, how.top_k, how.top_p, seed & 0xFFFFFFFF, seed >> 32,
        how.penalty, how.penalty_last,
    )  # fmt: skip
    return head + struct.pack(f"<{len(job.ids)}i", *job.ids)
