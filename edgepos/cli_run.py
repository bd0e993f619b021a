"""`edgepos run`: text from a bundle."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Optional

import typer

from .cli_common import BundleArgument, Engine, err


def run(
    bundle: BundleArgument,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to continue.")] = "",
    max_new_tokens: Annotated[int, typer.Option("-n", "--max-new-tokens", min=1, help="Most tokens to generate.")] = 128,
    engine: Annotated[Engine, typer.Option(help="What computes: the C runtime, its NumPy specification, or ONNX Runtime.")] = Engine.c,
    context: Annotated[Optional[int], typer.Option(help="Tokens the session can hold.")] = None,
    threads: Annotated[int, typer.Option(min=1, max=64)] = 1,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text on every target.")] = 0,
) -> None:
    """Generate text."""
    from .bundle import open as open_bundle

    session = open_bundle(bundle).session(context=context, threads=threads, engine=engine.value)
    pieces = session.generate(prompt, max_new_tokens, temperature, top_k, top_p, seed)
    started = time.monotonic()
    sys.stdout.write(prompt)
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    elapsed = max(time.monotonic() - started, 1e-9)
    err.print(f"{session.position} tokens in {elapsed:.2f} s, {session.position / elapsed:.0f} tokens/s", style="dim")
