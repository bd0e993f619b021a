"""Measure a bundle against its source and write report.json and report.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from .accuracy import compare
from .layers import layer_errors
from .markdown import render
from .windows import Text, windows

WINDOW = 512  # tokens of context at most, so that figures of different models compare
LAYER_WINDOW = 64


def measure(bundle, reference, canonical, text: Text, *, max_tokens: int = 8192, threads: int = 1, progress: Callable[[int, int], None] | None = None) -> dict:
    """The bundle's report with `accuracy` and `layers` measured on `text`.

    `reference` is the float session of the source, `canonical` its CanonicalModel. At most `max_tokens` tokens are used.
    `progress(done, total)` counts tokens.
    """
    tokenizer = bundle.tokenizer
    bos = tokenizer.bos_id if tokenizer.adds_bos else None
    size = min(WINDOW, bundle.context, canonical.context)
    cut = windows(tokenizer.encode(text.content, bos=False)[:max_tokens], size, bos)
    total, done = sum(map(len, cut)), 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, total)

    report = dict(bundle.report)
    session = bundle.session(context=size, threads=threads)
    report["accuracy"] = {"text": text.name, "text_sha256": text.sha256, **compare(reference, session, cut, step)}
    report["layers"] = layer_errors(bundle.program, canonical.model, cut[0][:LAYER_WINDOW])
    return report


def write(folder: Path, report: dict) -> None:
    """Replace report.json and report.md in the bundle folder and their entries in manifest.json, each file by a rename."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    for name, content in (("report.json", dumps(report)), ("report.md", render(report))):
        data = content.encode("utf-8")
        _replace(folder / name, data)
        manifest["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _replace(folder / "manifest.json", dumps(manifest).encode("utf-8"))


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
