"""What every board has in common, and what a run on one gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..sampling import Sampling
from . import tools
from .processors import ZIG, Target

RUN_SECONDS = 600
MAX_PROMPT = 8192


@dataclass(frozen=True)
class Job:
    """Tokens to generate after `ids`, at most `n`, as the integers the C API takes."""

    ids: Sequence[int]
    n: int
    how: Sampling
    seed: int
    context: int | None


@dataclass(frozen=True)
class SelfTest:
    """A self-test's outcome on a board. `rate` in tokens/s, 0 where the clock saw no time pass; `stack` where it was measured; `features`: instructions
    of the processor that there are kernels for, where it could say."""

    digest: int
    arena: int
    rate: float
    kernels: str = "generic"
    stack: int | None = None
    features: str = ""


@dataclass(frozen=True)
class Board(ABC):
    """A machine, real or emulated, with the compiler for it.

    `cpu` is what the verification report names; `emulated` machines tell nothing about speed. `flags` are for all C files.
    """

    name: str
    cpu: str
    compiler: str
    flags: tuple[str, ...] = ()
    optimize: str = "-O2"
    emulated: bool = True
    target: Target | None = None

    def built_by(self, compiler: str) -> Board:
        """The board with another compiler."""
        flags = self.target.flags(compiler) if self.target else self.flags
        return replace(self, compiler=compiler, flags=flags)

    def with_what_is_there(self) -> Board:
        """Built by zig where its own compiler is not installed but zig is."""
        use_zig = self.target and self.compiler != ZIG and tools.missing(self.compiler) and not tools.missing(ZIG)
        return self.built_by(ZIG) if use_zig else self

    @abstractmethod
    def needs(self) -> list[str]:
        """Programs that must be installed."""

    @abstractmethod
    def selftest(self, runtime: Path, model: Path, tokens: Sequence[int]) -> SelfTest:
        """Build `runtime`, run the self-test of `model`, whose tokens are given, and return what the board computed.

        Raises EdgePosError when a tool is missing or building or running fails; not when the digest differs.
        """

    @abstractmethod
    def operators(self, runtime: Path, model: Path) -> dict[int, int]:
        """The digest of every operator with an output, by its number (docs/bundle.md); {} where the runtime is too old to tell. Raises like `selftest`."""

    @abstractmethod
    def generate(self, runtime: Path, model: Path, job: Job) -> list[int]:
        """The ids that the board chooses after a prompt. Raises EdgePosError like `selftest`."""
