"""The `provenance` section: what it takes to get the same report again."""

from __future__ import annotations

import platform
import shlex
from importlib.metadata import PackageNotFoundError, version

from .. import __version__
from ..fixedpoint import ARITH

LIBRARIES = ("numpy", "onnx", "onnxruntime", "onnx_ir", "tokenizers")


def provenance(bundle, command: list[str] | None) -> dict:
    """command: as it was typed, or null from Python; versions; SHA-256 of source and model; options and calibration of the export."""
    manifest = bundle.manifest
    return {
        "command": None if command is None else shlex.join(command),
        "versions": {"edgepos": __version__, "arith": str(ARITH), "python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}},
        "machine": f"{platform.system()} {platform.machine()}",
        "source_sha256": manifest["source"]["sha256"],
        "model_sha256": manifest["files"]["model.gguf"]["sha256"],
        "options": manifest["options"],
        "calibration": manifest["calibration"],
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
