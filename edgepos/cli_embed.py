"""`edgepos embed`: texts or images to rows of numbers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from .cli_common import BundleArgument, Engine, EngineOption, ThreadsOption, err, progress_bar
from .errors import EdgePosError


def embed(
    bundle: BundleArgument,
    texts: Annotated[Optional[list[str]], typer.Argument(help="Texts.")] = None,
    file: Annotated[Optional[Path], typer.Option("--file", help="A UTF-8 file: each line that is not empty is a text.")] = None,
    image: Annotated[Optional[list[Path]], typer.Option("--image", help="An image: binary .ppm or .pgm, or .npy (one or more). May be given several times.")] = None,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help=r"Write float32 \[texts, d] to this .npy file instead of printing.")] = None,
    similarity: Annotated[bool, typer.Option("--similarity", help="Print the cosines of all pairs instead.")] = False,
    engine: EngineOption = Engine.c,
    threads: ThreadsOption = 1,
) -> None:
    """Print the embedding (or the logits of classes) of each text or image as one line of JSON."""
    import numpy as np

    from .bundle import open as open_bundle
    from .embedding import Embedder, check_input, cosines, write_rows
    from .image_files import read_images

    given = list(texts or []) + (_lines(file) if file is not None else [])
    if given and image:
        raise EdgePosError("texts and images are given; a model reads one or the other")
    if not given and not image:
        raise EdgePosError("no text is given; name some, or a file with --file, or images with --image")
    opened = open_bundle(bundle)
    session = opened.session(threads=threads, engine=engine.value)
    what, cut = "texts", ""
    started = time.monotonic()
    with progress_bar("images" if image else "texts") as progress:
        if image:
            given, what = [picture for path in image for picture in read_images(path)], "images"
            rows = np.stack([session.embed_image(picture) for picture in progress.track(given, description="embedding")])
        else:
            check_input(session, image=False)
            embedder = Embedder(session, opened.tokenizer)
            task = progress.add_task("embedding", total=len(given))
            rows = embedder.embed(given, progress=lambda n: progress.update(task, completed=n))
            cut = f", {embedder.truncated} cut to {session.context} tokens" if embedder.truncated else ""
    elapsed = max(time.monotonic() - started, 1e-9)
    if output is not None:
        write_rows(output, rows)
    elif similarity:
        for row in cosines(rows):
            sys.stdout.write(" ".join(f"{x:.4f}" for x in row) + "\n")
    else:
        for row in rows:
            sys.stdout.write(json.dumps([float(np.format_float_positional(x, unique=True)) for x in row]) + "\n")
    err.print(f"{len(given)} {what if len(given) > 1 else what[:-1]} in {elapsed:.2f} s, saturations {session.saturations}{cut}", style="dim")


def _lines(file: Path) -> list[str]:
    from .report.windows import read_text

    return [line for line in read_text(file).content.splitlines() if line.strip()]
