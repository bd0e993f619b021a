"""Writing report.json, report.md and report.html."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..whole_file import whole_file
from .markdown import render
from .page import page


def write(bundle, report: dict) -> None:
    """Replace report.json, report.md and report.html in the bundle folder and their entries in manifest.json, each file by a rename.

    Raises EdgePosError when a file cannot be written.
    """
    manifest = bundle.manifest
    contents = {"report.json": dumps(report).encode("utf-8"), "report.md": render(report).encode("utf-8"), "report.html": page(report).encode("utf-8")}
    entries = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in contents.items()}
    contents["manifest.json"] = dumps({**manifest, "files": {**manifest["files"], **entries}}).encode("utf-8")
    for name, data in contents.items():
        replace_file(bundle.path / name, data)


def replace_file(file: Path, data: bytes) -> None:
    """Write a file, whole or not at all. Raises EdgePosError when it cannot be written."""
    with whole_file(file) as temporary:
        temporary.write_bytes(data)


def dumps(report: dict) -> str:
    """A JSON file of a bundle as text: sorted keys, one form."""
    return json.dumps(report, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
