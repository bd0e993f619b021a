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

_MAGIC = 0x52425045  # ports/baremetal/request.h
_HEAD = struct.Struct("<2I3iIi4Ii")


@dataclass(frozen=True)
class BareMetalBoard(Board):
    """`machine` is qemu's name; the model gets the `model_room` bytes from `model_at` on, the request lies at `request_at`."""

    flags: tuple[str, ...] = ()
    linker_script: str = ""
    machine: str = ""
    model_at: int = 0
    model_room: int = 0
    request_at: int = 0

    def needs(self) -> list[str]:
        return [self.compiler, "qemu-system-arm"]

    def selftest(self, runtime: Path, model: Path, tokens: Sequence[int]) -> SelfTest:
        lines = self._run(runtime, model, _pack(model, None))
        if "digest" not in lines:
            raise EdgePosError(f"{self.name}: the board printed no digest")
        seconds = int(lines["centiseconds"]) / 100
        rate = int(lines["tokens"]) / seconds if seconds else 0
        return SelfTest(int(lines["digest"], 16), int(lines["arena"]), rate, stack=int(lines["stack"]))

    def generate(self, runtime: Path, model: Path, job: Job) -> list[int]:
        if len(job.ids) > MAX_PROMPT:
            raise EdgePosError(f"{self.name}: {len(job.ids)} ids found, at most {MAX_PROMPT} fit a request; shorten the prompt")
        return [int(word) for word in self._run(runtime, model, _pack(model, job))["ids"].split()]

    def _run(self, runtime: Path, model: Path, request: bytes) -> dict[str, str]:
        """The lines "name value" that the board prints."""
        for tool in self.needs():
            tools.find(tool)
        size = model.stat().st_size
        if size > self.model_room:
            raise EdgePosError(f"{self.name}: the model has {size} bytes, the board has room for {self.model_room}; choose a larger board")
        program = self._program(runtime)
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            file, link = Path(folder) / "request", Path(folder) / "model"
            file.write_bytes(request)
            link.symlink_to(model.resolve())  # qemu would read a comma in a path as the end of it
            command = [tools.find("qemu-system-arm"), "-M", self.machine, "-display", "none", "-monitor", "none", "-serial", "none"]
            command += ["-chardev", "stdio,id=text,mux=off", "-semihosting-config", "enable=on,target=native,chardev=text"]
            command += ["-device", f"loader,file={link},addr={self.model_at:#x},force-raw=on"]
            command += ["-device", f"loader,file={file},addr={self.request_at:#x},force-raw=on", "-kernel", program]
            done = tools.run(command, RUN_SECONDS)
        lines = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
        if done.returncode != 0 or "error" in lines:
            reason = lines.get("error") or tools.last_line(done.stderr)
            raise EdgePosError(f"{self.name}: the board ended with {done.returncode}: {reason}")
        return lines

    def _program(self, runtime: Path) -> Path:
        port = runtime / "ports" / "baremetal"
        main = [port / name for name in ("start.c", "semihosting.c", "main.c")]
        flags = (self.optimize, *self.flags, "-ffreestanding", "-ffunction-sections", "-fdata-sections")
        # GCC would turn memcpy's own loop into a call of memcpy.
        main_flags = (*flags, "-fno-tree-loop-distribute-patterns")
        link = ("-nostdlib", "-Wl,--gc-sections", f"-L{port}", f"-T{port / self.linker_script}", "-lgcc")
        return build.program(f"{self.machine}.elf", runtime, self.compiler, flags, main, main_flags, link)


def _pack(model: Path, job: Job | None) -> bytes:
    size = model.stat().st_size
    if job is None:
        return _HEAD.pack(_MAGIC, size, *[0] * 10)
    how, seed = job.how, job.seed
    head = _HEAD.pack(
        _MAGIC, size, job.context or 0, len(job.ids), job.n, how.temperature, how.top_k, how.top_p, seed & 0xFFFFFFFF, seed >> 32,
        how.penalty, how.penalty_last,
    )  # fmt: skip
    return head + struct.pack(f"<{len(job.ids)}i", *job.ids)
