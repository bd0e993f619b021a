"""Writing a bundle folder: under a temporary name, renamed when complete."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

from .. import export
from ..errors import EdgePosError, temporary_files_error
from ..export import CanonicalModel
from ..report.files import dumps
from ..report.markdown import render
from ..report.page import page
from ..resources import c_runtime_dir
from . import gguf_file, manifest, onnx_int8, onnx_out
from . import options as option_rules
from .pipeline import Compiled, compile_model
from .position_tables import emit_tables
from .temporary_folder import move, old_folder, put_back, temporary_folder

GGUF_TOKENIZER = {"bpe-bytelevel": "gpt2", "bpe-spm": "llama", "wordpiece": "bert", "unigram": "t5"}
RUNTIME_LEFT_OUT = ("tests", "tools", "fuzz")  # of the top folder


def export_bundle(
    source: str | os.PathLike | CanonicalModel,
    out: str | os.PathLike,
    *,
    weights: str | None = None,
    activations: str = "a16",
    kv: str = "kv16",
    context: int | None = None,
    weights_for: Mapping[str, str] | None = None,
    calibration=None,
    choices: dict[str, int] | None = None,
    tokenizer: str | None = option_rules.SOURCE,
    chat_template: str | None = option_rules.SOURCE,
    onnx: str = "float",
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Path:
    """Compile `source` and write the bundle folder `out`; returns its path.

    The options are those of `compile_model`; onnx: "int8" adds a faster form of model.onnx. An existing bundle is replaced only with
    force=True; anything else that stands at `out` is left alone. When something fails, or the user interrupts, nothing new stays on
    the disk; what a killed process leaves (`.edgepos-*.tmp` beside `out`) goes with the next export there, and a bundle that it had
    moved away (`.edgepos-*.old`) comes back with the next export to its name.
    Raises EdgePosError (UnsupportedError, FormatError among them).
    """
    path = Path(out)
    _put_back(path)
    _check_target(path, force)
    # A bad option should not wait for a large model to be read.
    early = option_rules.SOURCE if weights is None else weights
    option_rules.check(weights=early, activations=activations, kv=kv, context=None, limit=1, weights_for=weights_for)
    option_rules.check_onnx(onnx)
    tell = progress or (lambda what, done, total: None)
    tell("read", 0, 1)
    canonical = source if isinstance(source, CanonicalModel) else export.load(source, context=context)
    tell("read", 1, 1)
    try:
        compiled = compile_model(
            canonical, weights=weights, activations=activations, kv=kv, context=context, weights_for=weights_for, calibration=calibration,
            choices=choices, tokenizer=tokenizer, chat_template=chat_template, progress=progress,
        )  # fmt: skip
    except OSError as error:
        raise temporary_files_error(path, error) from None
    try:
        with temporary_folder(path.parent) as temporary:
            tell("write", 0, 1)
            fill(temporary, canonical, compiled, int8=onnx == "int8")
            move(temporary, path, lambda: _check_target(path, force))
            tell("write", 1, 1)
    except OSError as error:
        why = error.strerror or str(error.args[0][0][2] if isinstance(error, shutil.Error) else error)
        raise EdgePosError(f"{path}: cannot be written ({why}); choose a writable place with enough room") from None
    return path


def fill(folder: Path, canonical: CanonicalModel, compiled: Compiled, *, int8: bool = False) -> None:
    """Write every file of a bundle into an empty folder, int8: model.int8.onnx too. The same inputs give the same bytes."""
    program = compiled.program
    model = folder / "model.gguf"
    data_start = gguf_file.write(model, program, _facts(canonical, compiled))
    onnx_out.write(folder / "model.onnx", canonical.model, compiled.source, program, data_start)
    if int8:
        onnx_int8.write(folder, canonical.model, compiled.source, program, data_start)
    tables = emit_tables(compiled.source, folder / "tables", compiled.options.context)
    _copy_runtime(folder / "runtime")
    memory = manifest.memory(program, model.stat().st_size, _arena_bytes(model, program.contexts))
    report = manifest.report(canonical, compiled, memory, tables)
    _write_text(folder / "report.json", dumps(report))
    _write_text(folder / "report.md", render(report))
    _write_text(folder / "report.html", page(report))
    content = manifest.manifest(canonical, compiled, memory, manifest.file_entries(folder))
    _write_text(folder / "manifest.json", dumps(content))


def _facts(canonical: CanonicalModel, compiled: Compiled) -> gguf_file.Facts:
    o, spec = compiled.options, canonical.tokenizer
    with_tokenizer = compiled.program.header.tokenizer != 0
    texts = {
        "edgepos.weights": compiled.program.weight_format,
        "edgepos.activations": o.activations,
        "edgepos.kv": o.kv,
        "edgepos.family": compiled.source.family,
        "edgepos.positions": compiled.source.positions().encoding,
        "edgepos.output": manifest.output(compiled)["kind"],
    }
    if compiled.chat is not None:
        texts["tokenizer.chat_template"] = canonical.chat.source
        texts["edgepos.chat_variables"] = json.dumps(dict(canonical.chat.variables), ensure_ascii=False, sort_keys=True)
    return gguf_file.Facts(
        name=canonical.name,
        license=str((canonical.license or {}).get("license", "")),
        texts=texts,
        tokenizer=GGUF_TOKENIZER[spec.kind] if with_tokenizer else None,
        bos=canonical.bos_id,
        eos=compiled.eos[0] if compiled.eos else None,
        add_bos=with_tokenizer and bool(spec.add_bos),
    )


def _arena_bytes(model: Path, contexts: list[int]) -> dict[int, int]:
    """Context → bytes of a session, from the C runtime, which also checks every word of the image; {} where it is not built."""
    try:
        from ..runtime.native import Image
    except ImportError:
        return {}
    image = Image.open(model)
    return {context: image.arena_size(context=context) for context in contexts}


def _copy_runtime(target: Path) -> None:
    """The C sources: enough to build for a board with nothing else."""
    source = c_runtime_dir()

    def left_out(folder: str, names: list[str]) -> list[str]:
        top = Path(folder) == source
        return [n for n in names if n.startswith(".") or n == "__pycache__" or top and (n in RUNTIME_LEFT_OUT or n.startswith("build"))]

    shutil.copytree(source, target, ignore=left_out, copy_function=shutil.copyfile)


def _write_text(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8"))


def _put_back(path: Path) -> None:
    try:
        if put_back(path):
            warnings.warn(f"{path}: put back; an export that was killed while it replaced this bundle had moved it away", stacklevel=3)
    except OSError as error:
        raise EdgePosError(f"{path}: is in {old_folder(path).name} beside it and cannot be put back ({error.strerror}); rename that by hand") from None


def _check_target(path: Path, force: bool) -> None:
    if not path.name or path.name == "..":
        raise EdgePosError(f"out is '{path}'; give the name of a folder to write, for example model.edgepos")
    if not os.path.lexists(path):
        return
    if path.is_symlink():
        raise EdgePosError(f"{path}: is a symbolic link, which is never replaced; give the folder that it names")
    if not (path / "manifest.json").is_file() or not (path / "model.gguf").is_file():
        raise EdgePosError(f"{path}: exists and is not a bundle, so it is never replaced; choose another name")
    if not force:
        raise EdgePosError(f"{path}: exists already; pass force=True (--force) to replace it, or choose another name")
