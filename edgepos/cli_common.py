"""What the files of the command line share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

out = Console(soft_wrap=True, highlight=False)
err = Console(stderr=True, soft_wrap=True, highlight=False)


class Engine(str, Enum):
    c = "c"
    golden = "golden"
    onnx = "onnx"
    onnx_int8 = "onnx-int8"


BundleArgument = Annotated[Path, typer.Argument(help="A bundle folder (NAME.edgepos) or its model.gguf.")]


def progress_bar(unit: str) -> Progress:
    """A bar on standard error that goes when it is done; nothing where that is no terminal."""
    return Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn(), console=err, transient=True, disable=not err.is_terminal)
