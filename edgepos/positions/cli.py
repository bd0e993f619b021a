"""`edgepos positions`: position encodings on their own."""

from __future__ import annotations

from typing import Annotated, Optional

import typer
from rich import box
from rich.table import Table

from ..cli_common import out
from ..errors import FormatError

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
    from .advice import advise as fitting
    from .advice import measured
    from .costs import Shape

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
