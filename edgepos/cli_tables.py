"""`edgepos tables`: emit the tables of an encoding."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich import box
from rich.table import Table

from .cli_common import out
from .errors import FormatError, UnsupportedError

DEFAULT_CONTEXT = 2048
MODEL_CONTEXT = 4096
BIAS_TABLE, LAYERS = "The learned table", "or, with a table per layer, one axis more in front; files as for learned."

app = typer.Typer(help="Write position tables for any runtime: C arrays, .npz, ONNX, raw binary.", no_args_is_help=True)

Output = Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")]
Context = Annotated[int, typer.Option(help="Positions: 0 … context − 1.")]
Bits = Annotated[str, typer.Option(help="8, 16, or both as 16,8.")]
Format = Annotated[str, typer.Option("--format", help="Any of c,npz,bin,onnx.")]
PerTensor = Annotated[bool, typer.Option("--per-tensor", help="One factor for the table instead of one per row or head.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a folder of tables.")]
Weights = Annotated[str, typer.Option(help="The learned table: FILE.npy, FILE.npz:NAME or FILE.safetensors:NAME.")]
Where = Annotated[str, typer.Argument(help="A folder of tables, a model folder, a GGUF file, a .json file, or a spec as JSON.", metavar="SOURCE")]


@app.callback(invoke_without_command=True)
def tables(
    context: typer.Context,
    model: Annotated[Optional[Path], typer.Option("--from", help="A Hugging Face folder or a GGUF file.")] = None,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="The folder to write.")] = None,
    length: Annotated[Optional[int], typer.Option("--context", help=f"Positions; default: the model's, up to {MODEL_CONTEXT}.")] = None,
    bits: Bits = "16,8",
    per_tensor: PerTensor = False,
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """Write the tables of one encoding, or with --from those of a model."""
    if context.invoked_subcommand is not None:
        if model is not None:
            raise UnsupportedError(f"--from and {context.invoked_subcommand}: give one of them")
        return
    if model is None or output is None:
        raise UnsupportedError("--from MODEL and -o DIR are needed, or the name of an encoding: rope, alibi, t5, relative, learned, sinusoidal, spec")
    from .positions.source import read_model

    source = read_model(model)
    _write(source, output, own_context(source) if length is None else length, bits, formats, force, per_tensor)


def own_context(source) -> int:
    """The model's positions as far as all its learned tables and tables of angles go."""
    from .positions import Learned
    from .positions.angles import Angles
    from .positions.hybrid import parts_of

    parts = parts_of(source.spec)
    each = [source.spec] if parts is None else [] if isinstance(source.spec, dict) else list(parts.values())
    ends = [part.context if isinstance(part, Learned) else part.reach for part in each if isinstance(part, (Learned, Angles))]
    return min(source.context or DEFAULT_CONTEXT, MODEL_CONTEXT, *ends)


@app.command()
def rope(
    head_dim: Annotated[int, typer.Option(help="Components of a head.")],
    output: Output,
    rotary_dim: Annotated[Optional[int], typer.Option(help="Rotated components; default: all.")] = None,
    theta: Annotated[float, typer.Option(help="The base.")] = 10000.0,
    layout: Annotated[str, typer.Option(help="half or interleaved.")] = "half",
    scaling: Annotated[Optional[str], typer.Option(help='JSON as in a config.json: {"rope_type": "yarn", "factor": 4, …}.')] = None,
    context: Context = DEFAULT_CONTEXT,
    bits: Bits = "16,8",
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """Rotary tables and 64-bit phase increments."""
    from .positions import Rope
    from .positions.source import Source

    spec = Rope(head_dim, rotary_dim, theta, layout, None if scaling is None else _object(scaling, "--scaling"))
    _write(Source(spec), output, context, bits, formats, force)


@app.command()
def alibi(
    heads: Annotated[int, typer.Option(help="Attention heads.")],
    output: Output,
    bias_max: Annotated[float, typer.Option(help="The smallest power-of-two slope is 2^-bias_max.")] = 8.0,
    symmetric: Annotated[bool, typer.Option("--symmetric", help="Distance |query - key| (encoders).")] = False,
    slopes: Annotated[Optional[str], typer.Option(help="Slopes to use instead of the rule, one per head, with commas.")] = None,
    context: Context = DEFAULT_CONTEXT,
    bits: Bits = "16,8",
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """ALiBi slopes and bias tables."""
    from .positions import Alibi
    from .positions.source import Source

    given = None if slopes is None else tuple(_number(part, "--slopes") for part in slopes.split(","))
    _write(Source(Alibi(heads, bias_max, symmetric, given)), output, context, bits, formats, force)


@app.command()
def t5(
    output: Output,
    num_buckets: Annotated[int, typer.Option(help="Buckets.")] = 32,
    max_distance: Annotated[int, typer.Option(help="From here on all distances share a bucket.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="All buckets for keys before the query (decoder).")] = False,
    weights: Annotated[Optional[str], typer.Option(help=rf"{BIAS_TABLE} \[buckets, heads] {LAYERS}")] = None,
    bits: Bits = "16,8",
    per_tensor: PerTensor = False,
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """T5's bucket rule, and with --weights its bias in integers."""
    from .positions import T5Bias
    from .positions.source import Source, read_table

    table = None if weights is None else read_table(weights)
    _write(Source(T5Bias(num_buckets, max_distance, not causal, _layers(table)), table), output, 1, bits, formats, force, per_tensor)


@app.command()
def relative(
    extents: Annotated[str, typer.Option(help="Largest difference of each coordinate, with commas: 7 (Shaw), 6,6 (Swin, 7 x 7).")],
    weights: Annotated[str, typer.Option(help=rf"{BIAS_TABLE} \[rows, heads] {LAYERS}")],
    output: Output,
    clip: Annotated[bool, typer.Option("--clip/--no-clip", help="Larger differences count as the largest, or are refused.")] = True,
    query_minus_key: Annotated[bool, typer.Option("--query-minus-key", help="The sign of a difference (Swin).")] = False,
    bits: Bits = "16,8",
    per_tensor: PerTensor = False,
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """A learned bias over clipped differences, in integers."""
    from .positions import RelativeBias
    from .positions.source import Source, read_table

    table = read_table(weights)
    reach = tuple(_whole(part, "--extents") for part in extents.split(","))
    _write(Source(RelativeBias(reach, clip, query_minus_key, _layers(table)), table), output, 1, bits, formats, force, per_tensor)


def _layers(table) -> int | None:
    """How many layers have a table of their own in a learned table."""
    return None if table is None or table.ndim != 3 else len(table)


@app.command()
def learned(
    weights: Weights,
    output: Output,
    offset: Annotated[int, typer.Option(help="Row of the first position: 0 (BERT, GPT-2), 2 (OPT, RoBERTa).")] = 0,
    pad_id: Annotated[Optional[int], typer.Option(help="Token that is not counted (RoBERTa, OPT: 1).")] = None,
    modulo: Annotated[Optional[int], typer.Option(help="Take positions modulo this number.")] = None,
    length: Annotated[Optional[int], typer.Option(help="Interpolate to so many positions.")] = None,
    bits: Bits = "16,8",
    per_tensor: PerTensor = False,
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """Learned position tables with a factor per row."""
    from .positions import Learned, interpolate
    from .positions.source import Source, read_table

    table = read_table(weights)
    spec = Learned(len(table), offset, pad_id, modulo)
    if length is not None:
        table, spec = interpolate(table, spec, length)
    _write(Source(spec, table), output, min(spec.context, spec.count), bits, formats, force, per_tensor)


@app.command()
def sinusoidal(
    dim: Annotated[int, typer.Option(help="Components of the embedding.")],
    output: Output,
    convention: Annotated[str, typer.Option(help="interleaved or concatenated.")] = "interleaved",
    denominator: Annotated[str, typer.Option(help="half or half_minus_one.")] = "half",
    start: Annotated[int, typer.Option(help="Added to every position.")] = 0,
    scale: Annotated[float, typer.Option(help="Factor on the values.")] = 1.0,
    theta: Annotated[float, typer.Option(help="The base.")] = 10000.0,
    first: Annotated[str, typer.Option(help="sin or cos.")] = "sin",
    context: Context = DEFAULT_CONTEXT,
    bits: Bits = "16,8",
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """Sinusoidal tables."""
    from .positions import Sinusoidal
    from .positions.source import Source

    _write(Source(Sinusoidal(dim, convention, denominator, start, scale, theta, first)), output, context, bits, formats, force)


@app.command()
def spec(
    source: Where,
    output: Output,
    weights: Annotated[Optional[str], typer.Option(help="The learned table, where the spec has one.")] = None,
    context: Annotated[Optional[int], typer.Option(help="Positions: 0 … context − 1; default: the source's.")] = None,
    bits: Bits = "16,8",
    per_tensor: PerTensor = False,
    formats: Format = "c,npz",
    force: Force = False,
) -> None:
    """Any encoding of positions.from_json: mrope, axial_rope, relative, sinusoidal_2d, hybrid …"""
    from .positions.source import Source, read_source, read_table

    found = read_source(source)
    table = found.weights if weights is None else read_table(weights)
    _write(Source(found.spec, table), output, own_context(found) if context is None else context, bits, formats, force, per_tensor)


def compact(title: str) -> Table:
    """A table of eight columns of numbers within 80 characters."""
    return Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)


def _object(text: str, option: str) -> dict:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise FormatError(f"{option} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise FormatError(f"{option} is {text}; allowed is a JSON object")
    return value


def _number(text: str, option: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise FormatError(f"{option} holds {text!r}; allowed are numbers with commas between") from None


def _whole(text: str, option: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise FormatError(f"{option} holds {text!r}; allowed are whole numbers with commas between") from None


def _bits(text: str) -> tuple[int, ...]:
    found = text.split(",")
    if not found or any(part not in ("8", "16") for part in found) or len(set(found)) != len(found):
        raise FormatError(f"--bits is {text!r}; allowed are 8, 16 and 16,8")
    return tuple(int(part) for part in found)


def _write(source, output: Path, context: int, bits: str, formats: str, force: bool, per_tensor: bool = False) -> None:
    """Emit into a temporary folder beside `output` and rename it, so that nothing half-written is left."""
    from .positions.emit import INDEX, emit

    if output.exists() and not (output.is_dir() and (not any(output.iterdir()) or (force and (output / INDEX).is_file()))):
        how = "choose another folder" if not (output / INDEX).is_file() else "--force replaces it"
        raise FormatError(f"{output}: is already there; {how}")
    if not output.parent.is_dir():
        raise FormatError(f"{output}: the folder {output.parent} is not there")
    try:
        work = Path(tempfile.mkdtemp(prefix=".edgepos-", dir=output.parent))
    except OSError as error:
        raise FormatError(f"{output}: {error.strerror}") from None
    try:
        results = emit(source.spec, work / "new", context, _bits(bits), source.weights, tuple(formats.split(",")), per_tensor)
        if not results:
            raise UnsupportedError(f"this encoding has no tables in the format {formats}; npz has them unless nothing is rotated, added or biased")
        if output.exists():
            os.replace(output, work / "old")
        os.replace(work / "new", output)
    except OSError as error:
        raise FormatError(f"{output}: {error.strerror}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    table = compact(f"{output}: {context} positions")
    for name in ("table", "method"):
        table.add_column(name, no_wrap=True)
    drifts = any("float32_bound" in r for r in results)
    for name in ("bits", "bytes", "bound", "measured", *(["from float32"] if drifts else []), "unit"):
        table.add_column(name, justify="right", no_wrap=True)
    for r in results:
        stem = r["files"][0].rpartition(".")[0]
        errors = [r["bound"], r["measured_max"], *([r["float32_bound"]] if drifts else [])]
        table.add_row(stem, r["method"], str(r["bits"]), f"{r['bytes']:,}", *(f"{e:.4g}" for e in errors), r["unit"])
    out.print(table)
