"""`edgepos tokenizer`: a tokenizer for the C runtime, without a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .cli_common import out


def tokenizer(
    source: Annotated[Path, typer.Argument(help="A model, as for export, or a tokenizer.json.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write, usually NAME.gguf: ep_open and ep_encode take it.")],
) -> None:
    """Write only the tokenizer of a model, for programs that count or cut tokens."""
    from .compiler.tokenizer_image import export_tokenizer

    size = export_tokenizer(source, output)
    out.print(f"{output}: {size / 1e6:.2f} MB")
