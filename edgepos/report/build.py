"""Measure a bundle against its source and write report.json and report.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import EdgePosError
from .accuracy import compare
from .embedding import compare_embeddings, sentences
from .layers import layer_errors
from .markdown import render
from .onnx_forms import compare_forms, has_forms
from .windows import Text, text_windows

LAYER_WINDOW = 64


def measure(bundle, reference, canonical, text: Text, *, max_tokens: int = 8192, threads: int = 1, progress: Callable[[int, int], None] | None = None) -> dict:
    """The bundle's report with `accuracy` and `layers` measured on `text`.

    `reference` is the float session of the source, `canonical` its CanonicalModel. At most `max_tokens` tokens are used.
    `progress(done, total)` counts tokens. Raises EdgePosError when the source is not what the bundle was made from, or the
    text or context is too short for a prediction.
    """
    report = dict(bundle.report)
    _check_source(bundle, canonical)
    if bundle.image.info.embedding:
        session = bundle.session(context=min(bundle.context, canonical.context), threads=threads)
        accuracy, first = compare_embeddings(reference, session, bundle.tokenizer, sentences(text.content), max_tokens, progress)
        report["accuracy"] = {"text": text.name, "text_sha256": text.sha256, **accuracy}
        report["layers"] = layer_errors(bundle.program, canonical.model, first[:LAYER_WINDOW])
        return report
    cut = text_windows(bundle.tokenizer, text, max_tokens, min(bundle.context, canonical.context))
    total, done = sum(map(len, cut)), 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    session = bundle.session(context=max(map(len, cut)), threads=threads)
    report["accuracy"] = {"text": text.name, "text_sha256": text.sha256, **compare(reference, session, cut, step)}
    report["layers"] = layer_errors(bundle.program, canonical.model, cut[0][:LAYER_WINDOW])
    if has_forms(bundle):
        report["onnx"] = compare_forms(bundle, reference, cut, threads)
    return report


def _check_source(bundle, canonical) -> None:
    wanted = bundle.manifest["source"]["sha256"]
    for name, digest in canonical.source_sha256.items():
        if wanted.get(name) != digest:
            raise EdgePosError(f"source {canonical.name}: {name} is not the file that this bundle was made from; give that source, or export again")


def write(bundle, report: dict) -> None:
    """Replace report.json and report.md in the bundle folder and their entries in manifest.json, each file by a rename.

    Raises EdgePosError when a file cannot be written.
    """
    manifest = bundle.manifest
    contents = {"report.json": dumps(report).encode("utf-8"), "report.md": render(report).encode("utf-8")}
    entries = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
    contents["manifest.json"] = dumps({**manifest, "files": {**manifest["files"], **entries}}).encode("utf-8")
    try:
        for name, data in contents.items():
            _replace(bundle.path / name, data)
    except OSError as error:
        raise EdgePosError(f"{bundle.path}: the report cannot be written ({error.strerror}); make room or choose a writable bundle") from None


def _replace(file: Path, data: bytes) -> None:
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def dumps(report: dict) -> str:
    """A JSON file of a bundle as text: sorted keys, one form."""
    return json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
