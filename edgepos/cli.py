"""The command line: export, run, embed, perplexity, bench, report, compare, sweep, tokenizer, inspect, selftest, build, verify, demo, positions, tables."""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from enum import Enum
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from .cli_bench import bench
from .cli_build import build, verify
from .cli_common import BundleArgument, err, out, progress_bar
from .cli_compare import compare, sweep
from .cli_embed import embed
from .cli_positions import app as positions_app
from .cli_report import report
from .cli_run import perplexity, run
from .cli_tables import app as tables_app
from .cli_tokenizer import tokenizer
from .errors import EdgePosError, GateError
from .signals import heard, leave_on_signals

app = typer.Typer(
    help="Turn a transformer into integers, run it with the same bits everywhere, and read how far it is from the float model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(positions_app, name="positions")
app.add_typer(tables_app, name="tables")


class Weights(str, Enum):
    source = "source"
    w8 = "w8"
    w8g32 = "w8g32"
    w4g32 = "w4g32"
    w16g32 = "w16g32"


class Activations(str, Enum):
    a16 = "a16"
    a8g32 = "a8g32"


class Kv(str, Enum):
    kv16 = "kv16"
    kv8 = "kv8"


class Onnx(str, Enum):
    float = "float"
    int8 = "int8"


@app.command()
def export(
    source: Annotated[Path, typer.Argument(help="A Hugging Face folder, a .gguf file, an .onnx file or a llama2.c .bin file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle folder to write, usually NAME.edgepos.")],
    weights: Annotated[
        Optional[Weights], typer.Option(help="Weight format; default: source (the integers of a GGUF or ONNX file) where there are some, else w8g32.")
    ] = None,
    activations: Annotated[
        Activations, typer.Option(help="Inputs of matrices; a8g32 (int8, groups of 32) is faster with int8 dot products and less accurate.")
    ] = Activations.a16,
    kv: Annotated[Kv, typer.Option(help="KV cache format.")] = Kv.kv16,
    weights_for: Annotated[
        Optional[list[str]],
        typer.Option(metavar="NAME=FORMAT", help="Another format for some matrices, may be given several times: names as the report has them, with * and ?."),
    ] = None,
    context: Annotated[Optional[int], typer.Option(help="Most tokens of a session; default: the model's.")] = None,
    calibration: Annotated[
        Optional[Path], typer.Option(help="A text file, or a .json file with a list of token ids, to choose the fixed points on; of a model of images a .ppm, .pgm or .npy file; default: EdgePos's own.")
    ] = None,
    tokenizer: Annotated[Optional[Path], typer.Option(help="The tokenizer.json, or its folder, of an .onnx file, which has none itself.")] = None,
    image_processor: Annotated[
        Optional[Path], typer.Option(help="The preprocessor_config.json, or its folder, of an .onnx file that reads an image; default: beside the file.")
    ] = None,
    no_tokenizer: Annotated[bool, typer.Option("--no-tokenizer", help="Leave the tokenizer out: the bundle works on token ids.")] = False,
    no_chat_template: Annotated[bool, typer.Option("--no-chat-template", help="Leave the chat template out.")] = False,
    onnx: Annotated[Onnx, typer.Option(help="int8 adds model.int8.onnx: faster in ONNX Runtime, with 8-bit activations.")] = Onnx.float,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing bundle.")] = False,
) -> None:
    """Compile a model to a bundle."""
    from . import export_bundle
    from .compiler.options import matrix_formats

    started = time.monotonic()
    with progress_bar("steps") as progress:
        task = progress.add_task("compiling", total=None)

        def step(description: str, done: int, total: int) -> None:
            progress.update(task, description=description, completed=done, total=total)

        bundle = export_bundle(
            source, output, weights=weights.value if weights else None, activations=activations.value, kv=kv.value, context=context,
            weights_for=matrix_formats(weights_for or []), calibration=calibration,
            tokenizer=None if no_tokenizer else tokenizer or "source", chat_template=None if no_chat_template else "source",
            image_processor=image_processor, onnx=onnx.value, force=force, progress=step,
        )  # fmt: skip
    size = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    out.print(f"{output}: {size / 1e6:.2f} MB in {time.monotonic() - started:.1f} s, digest {bundle.program.header.digest:016x}")


app.command()(run)
app.command()(perplexity)
app.command()(embed)
app.command()(bench)
app.command()(report)
app.command()(build)
app.command()(verify)
app.command()(compare)
app.command()(sweep)
app.command()(tokenizer)


@app.command()
def inspect(bundle: BundleArgument, as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False) -> None:
    """Show sizes, formats, the position plan and memory."""
    from .bundle import open as open_bundle
    from .report.describe import describe

    opened = open_bundle(bundle)
    facts = describe(opened) | {"checksum": f"0x{opened.image.checksum:016x}"}
    if as_json:
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
        return
    table = Table(show_header=False)
    for key, value in facts.items():
        if isinstance(value, dict):
            value = "\n".join(f"{k}: {v:,}" if isinstance(v, int) else f"{k}: {v}" for k, v in value.items())
        table.add_row(key.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value))
    out.print(table)


@app.command()
def selftest(bundle: BundleArgument) -> None:
    """Recompute the bundle's digest here and check its files."""
    from .bundle import open as open_bundle

    opened = open_bundle(bundle)
    opened.check_files()
    out.print(f"identical: {opened.selftest()}")


@app.command()
def demo(
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="Where the bundle goes; default: MODEL.edgepos here, replaced if it is there.")] = None,
    model: Annotated[str, typer.Option(help="tiny-rope or tiny-alibi.")] = "tiny-rope",
) -> None:
    """Export a built-in model, generate text, print the error summary."""
    from .resources import tiny_model_dir

    source = tiny_model_dir(model)
    target = output or Path(f"{model}.edgepos")
    out.print(f"[bold]1. export[/bold] the {model} model to integers", markup=True)
    export(source, target, force=output is None)
    out.print("\n[bold]2. run[/bold] the integers in the C runtime", markup=True)
    run(target, prompt="Once upon a time", max_new_tokens=100)
    out.print("\n[bold]3. report[/bold] how far they are from the float model", markup=True)
    report(target, source)
    out.print("\n[bold]4. selftest[/bold]: the same bits as the exporter computed", markup=True)
    selftest(target)


def _version(value: bool) -> None:
    if value:
        from . import __version__

        out.print(f"edgepos {__version__}")
        raise typer.Exit


@app.callback()
def _root(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False) -> None:
    """Options of all commands."""


def main() -> None:
    """Entry point: errors are one line; exit code 1 for what failed, 2 for wrong usage, 3 for a figure worse than --fail-above."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: no file may get its number
            setattr(sys, name, open(os.devnull, mode))
    warnings.showwarning = lambda message, *_, **__: err.print(f"warning: {message}", style="yellow")
    leave_on_signals()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except GateError as error:
        code = _fail(str(error), 3)
    except EdgePosError as error:
        code = _fail(str(error))
    except (BrokenPipeError, SystemExit) as error:
        # click and rich end by SystemExit where the pipe breaks in them.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone; nothing is left to say
        code = 141
    except OSError as error:
        code = _fail(f"{error.filename or 'output'}: {error.strerror}; check the place and the room on it")
    except (typer.Abort, KeyboardInterrupt):
        code = _fail("interrupted", 130)
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        # A usage error: its class lives in click or in typer, depending on the version of typer.
        code = _fail(f"{error.format_message().rstrip('.') or 'a command is needed'}; see edgepos --help", error.exit_code)
    finally:
        heard()
    sys.exit(code)


def _fail(message: str, code: int = 1) -> int:
    err.print(f"error: {' '.join(message.split())}", style="red")
    return code
