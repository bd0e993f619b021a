"""What the files of the command line share."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .errors import EdgePosError


def printable(text: str) -> str:
    """A text whose control characters and direction marks are escapes, but for line breaks: names come from files and may not drive the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


class SafeConsole(Console):
    """Prints every text as `printable` has it, and reads markup only where it is asked to."""

    def __init__(self, **options):
        super().__init__(soft_wrap=True, highlight=False, markup=False, **options)

    def render_str(self, text: str, **options):
        return super().render_str(printable(text), **options)


out = SafeConsole()
err = SafeConsole(stderr=True)


class Engine(str, Enum):
    c = "c"
    golden = "golden"
    onnx = "onnx"
    onnx_int8 = "onnx-int8"


BundleArgument = Annotated[Path, typer.Argument(help="A bundle folder (NAME.edgepos) or its model.gguf.")]
EngineOption = Annotated[Engine, typer.Option(help="What computes: the C runtime, its NumPy specification, or ONNX Runtime.")]


def _there(threads: int) -> int:
    most = os.cpu_count() or 1
    if threads > most:
        raise EdgePosError(f"--threads is {threads}: this machine has {most} processor{'s' * (most > 1)}; give {f'1 to {most}' if most > 1 else '1'}")
    return threads


ThreadsOption = Annotated[int, typer.Option(min=1, max=64, callback=_there, help="Threads that compute; the bits do not depend on it.")]


def progress_bar(unit: str) -> Progress:
    """A bar on standard error that goes when it is done; nothing where that is no terminal."""
    return Progress(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TextColumn(unit, markup=False), TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal)
