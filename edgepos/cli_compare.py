"""`edgepos compare` and `edgepos sweep`: several bundles, or a grid of formats, by size and error."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from .cli_common import err, out, progress_bar
from .cli_report import FailOption, FieldOption, MaxTokensOption, TextOption, TokenizerOption
from .errors import EdgePosError

PageOption = Annotated[Optional[Path], typer.Option("--output", "-o", help="Also write this .html page, and its numbers beside it as .json.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")]


def compare(
    bundles: Annotated[list[Path], typer.Argument(help="Bundles that edgepos report has measured on the same text.")],
    output: PageOption = None,
    fail_above: FailOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put measured bundles in one table, and one chart of size against error."""
    from .bundle import open as open_bundle
    from .report.comparison import ranked, row_of, write_comparison
    from .report.gate import Gate

    gate = Gate.of(fail_above)
    names = [path.name for path in bundles]
    labels = names if len(set(names)) == len(names) else [str(path) for path in bundles]
    reports = {label: open_bundle(path).report for label, path in zip(labels, bundles)}
    rows = ranked([row_of(label, report) for label, report in reports.items()])
    if output is not None:
        write_comparison(output, rows, "Bundles by size and error")
    _show(rows, as_json)
    gate.check({label: report["accuracy"] for label, report in reports.items()})


def sweep(
    source: Annotated[Path, typer.Argument(help="A model, as for edgepos export.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the results; a sweep that was interrupted goes on there.")],
    weights: Annotated[str, typer.Option(help="Formats, with commas between; as for edgepos export.")] = "w8g32,w8,w4g32",
    kv: Annotated[str, typer.Option(help="Formats of the KV cache, with commas between.")] = "kv16,kv8",
    positions: Annotated[
        str,
        typer.Option(
            help="Forms of the position encoding, with commas between: exact (the runtime's), or others like table-8, split-16, as `edgepos positions pareto` "
            "lists them, which run in NumPy: measure on few tokens."
        ),
    ] = "exact",
    text: TextOption = None,
    field: FieldOption = "text",
    tokenizer: TokenizerOption = None,
    max_tokens: MaxTokensOption = 8192,
    jobs: Annotated[int, typer.Option(min=1, max=256, help="Processes at a time.")] = min(4, os.cpu_count() or 1),
    scheduler: Annotated[Optional[str], typer.Option(help="The address of a Dask scheduler whose workers see the same files (needs the extra cluster).")] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure every combination of formats, and draw which are worth their bytes: sweep.html and sweep.json."""
    from .compiler.options import KV, WEIGHTS
    from .report.comparison import ranked, row_of, write_comparison
    from .report.planned import EXACT, FAMILIES
    from .report.sweep import Sweep
    from .report.windows import read_texts

    read_texts(text or [], field, max_tokens)  # a bad text should not wait for the first export
    grid = {"weights": _choices("--weights", weights, WEIGHTS), "kv": _choices("--kv", kv, KV)}
    if positions != EXACT:
        grid["positions"] = _choices("--positions", positions, FAMILIES, lambda name: name.partition("-")[0])
    plan = Sweep(source, output, grid, [Path(t) for t in text or []], field, tokenizer, max_tokens)
    with progress_bar("points") as progress:
        task = progress.add_task("measuring", total=len(plan.points))
        results = plan.run(jobs, scheduler, lambda done: progress.update(task, completed=done))
    rows = ranked([row_of(r["label"], r["report"]) for r in results if "report" in r])
    failed = [{"label": r["label"], "error": r["error"]} for r in results if "error" in r]
    write_comparison(output / "sweep.html", rows, f"{source.name}: formats by size and error", failed)
    _show(rows, as_json)
    for entry in failed:
        err.print(f"{entry['label']}: {entry['error']}", style="yellow")
    if not rows:
        raise EdgePosError(f"{source}: none of the {len(failed)} combinations could be measured; {failed[0]['error']}")


def _choices(option: str, text: str, allowed: tuple[str, ...], family: Callable[[str], str] = str) -> list[str]:
    found = [part.strip() for part in text.split(",")]
    if len(set(found)) != len(found) or not {family(name) for name in found} <= set(allowed):
        raise EdgePosError(f"{option} is {text!r}; allowed: any of {', '.join(allowed)}, with commas between, each once")
    return found


def _show(rows: list[dict], as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    table = Table(title="* no other is smaller and as exact", title_justify="left")
    table.add_column("bundle", overflow="fold")
    table.add_column("formats")
    for name in ("bytes", "1 - cosine" if rows and rows[0]["perplexity"] is None else "KL, nats", "same choice", "perplexity", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        perplexity = "" if row["perplexity"] is None else f"{row['perplexity']:.4f}"
        table.add_row(row["label"], row["formats"], f"{row['bytes']:,}", f"{row['error']:.3g}", f"{row['same']:.2%}", perplexity, "*" if row["best"] else "")
    out.print(table)
