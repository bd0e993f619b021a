"""Boards with an operating system: edgepos-run is built for them and run, directly or under qemu-user."""

from __future__ import annotations

import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from ..errors import EdgePosError
from . import build, tools
from .boards import RUN_SECONDS, Board, Job, SelfTest


@dataclass(frozen=True)
class LinuxBoard(Board):
    """`library_flags` for the library alone; `emulator` is a command to put in front; `threads` that the program uses."""

    library_flags: tuple[str, ...] = ()
    link_flags: tuple[str, ...] = ()
    emulator: tuple[str, ...] = ()
    threads: int = 1

    def needs(self) -> list[str]:
        return [self.compiler, *self.emulator[:1]]

    def selftest(self, runtime: Path, model: Path, tokens: Sequence[int]) -> SelfTest:
        # The self-test's tokens once more as a prompt: for the time they take and the arena. An image's are not asked for.
        prompt = ["--ids", ",".join(map(str, tokens)), "-n", "0", "--context", str(len(tokens))] if tokens else []
        done = self._run(runtime, model, ["--selftest", "--threads", self.threads, *prompt], (0, 3))
        digest = re.search(r"^self-test .* digest 0x([0-9a-f]{16})", done.stdout, re.M)
        if not digest:
            raise EdgePosError(f"{self.name}: edgepos-run printed no digest")
        arena = re.search(r"arena (\d+) bytes", done.stderr)
        rate = re.search(r"^prompt: .* ([\d.]+) tokens/s", done.stderr, re.M)
        kernels = re.search(r", ([\w-]+) kernels$", done.stderr, re.M)
        features = re.search(r"^processor: (.*)$", done.stderr, re.M)
        return SelfTest(
            int(digest[1], 16), int(arena[1]) if arena else 0, float(rate[1]) if rate else 0, kernels[1] if kernels else "generic",
            features=features[1] if features else "",
        )  # fmt: skip

    def operators(self, runtime: Path, model: Path) -> dict[int, int]:
        done = self._run(runtime, model, ["--operators", "--threads", self.threads], (0, 2))
        return parse_operators(done.stdout)

    def generate(self, runtime: Path, model: Path, job: Job) -> list[int]:
        arguments = ["--ids", ",".join(map(str, job.ids)), "-n", job.n, "--ids-out", "--seed", job.seed]
        arguments += ["--temperature", _decimal(job.how.temperature), "--top-k", job.how.top_k, "--top-p", _decimal(job.how.top_p)]
        if job.how.penalty != 65536:
            arguments += ["--repetition-penalty", _decimal(job.how.penalty), "--penalty-last", job.how.penalty_last]
        if job.context is not None:
            arguments += ["--context", job.context]
        done = self._run(runtime, model, arguments, (0,))
        return [int(word) for word in done.stdout.strip().split(",") if word]

    def _run(self, runtime: Path, model: Path, arguments: Sequence, codes: Sequence[int]):
        done = self._execute(self.program(runtime), model, arguments)
        if done.returncode not in codes:
            raise EdgePosError(f"{self.name}: edgepos-run ended with {done.returncode}: {tools.last_line(done.stderr)}")
        return done

    def _execute(self, program: Path, model: Path, arguments: Sequence):
        emulator = [tools.find(self.emulator[0]), *self.emulator[1:]] if self.emulator else []
        return tools.run([*emulator, program, model, *arguments], RUN_SECONDS)

    def program(self, runtime: Path, progress=None) -> Path:
        """edgepos-run for this board, built from `runtime` unless it is in the cache."""
        for tool in self.needs():
            tools.require(tool)
        flags = (self.optimize, "-pthread", *self.flags)
        return build.program(
            "edgepos-run", runtime, self.compiler, (*flags, *self.library_flags), command_line(runtime), flags, self.link_flags, progress
        )


def command_line(runtime: Path, threads: bool = True) -> list[Path]:
    """The sources of edgepos-run besides the library."""
    return [*sorted((runtime / "cli").glob("*.c")), runtime / "ports" / ("threads_pthread.c" if threads else "threads_none.c")]


def parse_operators(text: str) -> dict[int, int]:
    """Digests by operator from lines `operator INDEX digest 0x…`."""
    return {int(i): int(digest, 16) for i, digest in re.findall(r"^operator (\d+) digest 0x([0-9a-f]{16})$", text, re.M)}


def host_cpu() -> str:
    """The processor's name as far as it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _decimal(q16: int) -> str:
    """An integer of 1/65536 as an exact decimal."""
    return f"{Decimal(q16) / 65536:f}"
