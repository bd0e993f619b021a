"""`edgepos positions`: position encodings on their own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich import box
from rich.table import Table

from .cli_common import out
from .cli_tables import Where, compact, own_context
from .errors import FormatError, UnsupportedError

app = typer.Typer(help="Position encodings on their own: what each costs and which fits.", no_args_is_help=True)


@app.command()
def advise(
    context: Annotated[int, typer.Option(min=1, help="Most positions of a session.")],
    flash: Annotated[Optional[int], typer.Option(min=0, help="Bytes for constants; default: no limit.")] = None,
    ram: Annotated[Optional[int], typer.Option(min=0, help="Bytes for values of one token; default: no limit.")] = None,
    dim: Annotated[int, typer.Option(min=2, help="Width of the embeddings.")] = 96,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 4,
    kv_heads: Annotated[Optional[int], typer.Option(min=1, help="Key and value heads; default: as many as query heads.")] = None,
    head_dim: Annotated[Optional[int], typer.Option(min=2, help="Size of a head; default: dim / heads.")] = None,
    layers: Annotated[int, typer.Option(min=1, max=4096, help="Layers.")] = 4,
) -> None:
    """List the encodings that fit a budget, with the losses that examples/positions measured (docs/choosing.md)."""
    from .positions.advice import advise as fitting
    from .positions.advice import measured
    from .positions.costs import Shape

    if kv_heads is not None and heads % kv_heads:
        raise FormatError(f"--kv-heads is {kv_heads}; allowed is a divisor of the {heads} heads")
    shape = Shape(dim, heads, head_dim or dim // heads, layers, kv_heads)
    trained = measured()["size"]["context"]
    title = f"positions for {context} tokens, dim {dim}, {heads} heads of {shape.head_dim}, {layers} layers"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("encoding", "form"):
        table.add_column(column, no_wrap=True)
    for column in ("flash", "ram", "ops", "loss 1×", "2×", "4×", "integers"):
        table.add_column(column, justify="right", no_wrap=True)
    for option in fitting(shape, context, flash, ram):
        losses = ["–" if value is None else f"{value:.3f}" for value in option.loss]
        counts = (option.flash, option.ram, option.operations)
        table.add_row(option.encoding, option.form, *map(str, counts), *losses, f"{option.cost:+.0e}")
    out.print(table)
    out.print(
        "flash: bytes of constants, as the EdgePos runtime keeps them or as a table for another one. ram: bytes of values per token.\n"
        "ops: integer operations of this form per token at the full context. "
        f"loss: nats per token of the guide's models\nat 1, 2 and 4 times their {trained} trained positions, integers: what rounding the "
        "positions added.\nYour model's losses will differ; docs/choosing.md says how these were measured and how far seeds spread."
    )


@app.command()
def check(folder: Annotated[Path, typer.Argument(help="A folder of tables.", metavar="DIR")]) -> None:
    """Derive every table and bound again from the files alone, and compare."""
    from .positions.emit import check as check_tables

    results = check_tables(folder)
    out.print(f"{folder}: {len(results)} tables are what the proof gives")


@app.command("pareto")
def pareto_table(
    source: Where,
    context: Annotated[Optional[int], typer.Option(help="Positions; default: the source's.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Every method with its bytes, proven bound and integer operations."""
    from .positions.methods import method_rows
    from .positions.source import read_source

    found = read_source(source)
    length = own_context(found) if context is None else context
    rows = method_rows(found.spec, length, found.weights)
    if as_json:
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return
    table = compact(f"methods for {length} positions; * no other is as good in all three")
    table.add_column("method", no_wrap=True)
    for name in ("bits", "bytes", "bound", "unit", "operations", ""):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        method = f"{row['part']}: {row['method']}" if row["part"] else row["method"]
        best = "*" if row["best"] else ""
        table.add_row(method, str(row["bits"]), f"{row['bytes']:,}", f"{row['bound']:.4g}", row["unit"], f"{row['operations']:,}", best)
    out.print(table)


@app.command()
def show(
    source: Where,
    output: Annotated[Path, typer.Option("--output", "-o", help="The .png or .svg file to write.")],
    context: Annotated[Optional[int], typer.Option(help="Positions; default: the source's.")] = None,
    part: Annotated[Optional[str], typer.Option(help="Which part of a model with several encodings.")] = None,
) -> None:
    """Draw table, similarity by distance, error by position beside float32's, and the methods."""
    from .positions.plots import draw
    from .positions.source import read_source

    found = read_source(source)
    one, weights = _one_part(found, part)
    draw(one, output, own_context(found) if context is None else context, weights, found.name)
    out.print(f"{output}: {one.encoding}")


def _one_part(found, part: str | None):
    from .positions.hybrid import parts_of

    parts = parts_of(found.spec)
    if parts is None:
        return found.spec, found.weights
    if part is None and len(parts) == 1:
        part = next(iter(parts))
    if part not in parts:
        raise UnsupportedError(f"part is {part!r}; the source has {', '.join(parts) or 'none'}: choose one with --part")
    return parts[part], (found.weights or {}).get(part)
