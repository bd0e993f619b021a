"""`edgepos report`: measure a bundle against its source."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from .cli_common import BundleArgument, ThreadsOption, out, progress_bar
from .errors import EdgePosError

TextOption = Annotated[
    Optional[list[Path]],
    typer.Option(help="What to measure on, may be given several times: a UTF-8 text, .jsonl, or .json with token ids; default: EdgePos's own."),
]
FieldOption = Annotated[str, typer.Option(help="The key of the text in each line of a .jsonl file.")]
TokenizerOption = Annotated[Optional[Path], typer.Option(help="The tokenizer of an .onnx source, as for export.")]
MaxTokensOption = Annotated[int, typer.Option(min=2, help="Use at most so many tokens of the text.")]
FailOption = Annotated[
    Optional[str],
    typer.Option(help="Exit code 3 when a figure is worse, as kl=0.01,top1=0.95: the largest kl, perplexity or change, the least top1, cosine or nearest."),
]


def report(
    bundle: BundleArgument,
    source: Annotated[Path, typer.Option(help="The model the bundle was made from.")],
    text: TextOption = None,
    image: Annotated[
        Optional[list[Path]], typer.Option(help="Of a model of images what to measure on, may be given several times: .ppm, .pgm, or .npy (one or more).")
    ] = None,
    field: FieldOption = "text",
    tokenizer: TokenizerOption = None,
    max_tokens: MaxTokensOption = 8192,
    window: Annotated[int, typer.Option(min=2, help="Tokens of context at most.")] = 512,
    swap_tokens: Annotated[int, typer.Option(min=2, help="Try other formats of the matrices on so many tokens.")] = 256,
    threads: ThreadsOption = min(8, os.cpu_count() or 1),
    fail_above: FailOption = None,
    peers: Annotated[Optional[Path], typer.Option(help="A file of bench/accuracy.py --json: figures of others, shown where the text is the same.")] = None,
    pairs: Annotated[
        Optional[Path], typer.Option(help="Labelled pairs of texts for an embedding model: .tsv (text, text, number) or .jsonl (text1, text2, label).")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Measure on the text of the calibration, too.")] = False,
    open_page: Annotated[bool, typer.Option("--open", help="Show report.html.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print report.json.")] = False,
) -> None:
    """Measure how far the integers are from the float model; writes report.html, report.json and report.md into the bundle."""
    from . import reference as float_reference
    from .bundle import open as open_bundle
    from .export import load
    from .report.build import measure
    from .report.files import dumps, write
    from .report.gate import Gate
    from .report.images import read_all
    from .report.pairs import read_pairs
    from .report.peers import read_peers
    from .report.windows import read_texts

    gate = Gate.of(fail_above)
    opened = open_bundle(bundle)
    if opened.path is None:
        raise EdgePosError(f"{bundle}: a report needs the bundle folder, not its model.gguf alone")
    shape = opened.image.image_shape
    if pairs is not None and (shape or not opened.image.info.embedding):
        raise EdgePosError(f"{bundle}: the model {'reads images' if shape else 'gives logits'}; --pairs is for embeddings of texts")
    labelled = read_pairs(pairs) if pairs is not None else None
    if shape and text:
        raise EdgePosError("this model reads images: give some with --image instead of --text")
    if image and not shape:
        raise EdgePosError("this model reads tokens: give texts with --text instead of --image")
    texts = read_all(image or [], shape) if shape else read_texts(text or [], field, max_tokens)
    others = read_peers(peers) if peers is not None else None
    canonical = load(source, tokenizer=tokenizer)
    with progress_bar("") as progress:
        task = progress.add_task("text", total=None)
        stage = "text"

        def step(what: str, done: int, total: int) -> None:
            nonlocal stage
            if what != stage:  # the time left is of one stage
                progress.reset(task, description=what)
                stage = what
            progress.update(task, completed=done, total=total)

        result = measure(
            opened, float_reference(canonical, threads=threads), canonical, texts, max_tokens=max_tokens, window=window, swap_tokens=swap_tokens,
            threads=threads, command=["edgepos", *sys.argv[1:]], force=force, peers=others, pairs=labelled, progress=step,
        )  # fmt: skip
    write(opened, result)
    if as_json:
        sys.stdout.write(dumps(result))
    else:
        _print_summary(opened, result)
    if open_page:
        webbrowser.open((opened.path / "report.html").resolve().as_uri())
    gate.check({result["name"]: result["accuracy"]})


def _print_summary(opened, result: dict) -> None:
    from .report.markdown import accuracy_rows, form_line

    table = Table(title=f"{result['name']}: {' '.join(result['formats'][k] for k in ('weights', 'activations', 'kv'))}", title_justify="left")
    table.add_column("against the float model")
    table.add_column("", justify="right", overflow="fold")  # options are to be copied
    table.add_row(result["verdict"]["grade"], result["verdict"]["words"])
    for name, value in accuracy_rows(result["accuracy"]):
        table.add_row(name, value)
    measured = [layer for layer in result["layers"] if layer["sqnr_db"] is not None]
    if measured:
        worst = min(measured, key=lambda layer: layer["sqnr_db"])
        table.add_row("noisiest operator", f"{worst['name']}, {worst['sqnr_db']:.1f} dB")
    for change in result["changes"]["suggestions"][:1]:
        table.add_row("lowers the error most", f"{change['what']}: by {change['saves']:.3g}" + (f" ({change['flags']})" if change["flags"] else ""))
    for form in result.get("onnx", ()):
        table.add_row(form["file"], form_line(form))
    table.add_row("saturations", str(sum(layer["saturations"] for layer in result["layers"])))
    for p in result["positions"]:
        table.add_row(f"positions: {p['kind']} {p['method']}, {p['bits']} bits", f"bound {p['bound']:.4g} {p.get('unit', '')}, measured {p['measured_max']:.4g}")
    table.add_row("digest", result["digest"])
    out.print(table)
    out.print(f"Written to {opened.path / 'report.html'}, report.md and report.json.")
