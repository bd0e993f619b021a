"""What manifest.json and report.json must hold: they are read from a folder that anyone may have changed."""

from __future__ import annotations

from pathlib import Path

from .errors import FormatError
from .fixedpoint import ARITH
from .program import FORMAT

ADVICE = "export the bundle again"


def check_manifest(file: Path, manifest: dict, info) -> None:
    """Raise FormatError where a manifest has not the form that readers rely on, or contradicts its model.gguf (`info`)."""
    for key, known in (("format", FORMAT), ("arith", ARITH)):
        if manifest.get(key) != known:
            raise FormatError(f"{file}: {key} is {manifest.get(key)!r}, this EdgePos knows {known}; {ADVICE}")
    _need(file, manifest, "name", str)
    _need(file, manifest, "license", (dict, type(None)))
    operators = _need(file, manifest, "operators", list)
    if len(operators) != info.n_ops or not all(isinstance(name, str) for name in operators):
        raise FormatError(f"{file}: operators must be the names of the program's {info.n_ops} operators; {ADVICE}")
    selftest = _need(file, manifest, "selftest", dict)
    if selftest.get("digest") != f"{info.digest:016x}":
        raise FormatError(f"{file}: self-test digest {selftest.get('digest')!r} is not that of model.gguf, {info.digest:016x}; {ADVICE}")
    source = _need(file, manifest, "source", dict)
    if not isinstance(source.get("sha256"), dict):
        raise FormatError(f"{file}: source.sha256 is missing; {ADVICE}")
    for key in ("calibration", "choices", "options"):
        _need(file, manifest, key, dict)
    if not isinstance(manifest["options"].get("weights"), str):
        raise FormatError(f"{file}: options.weights is missing; {ADVICE}")
    single = manifest["options"].get("weights_for", [])
    if not isinstance(single, list) or not all(isinstance(text, str) for text in single):
        raise FormatError(f"{file}: options.weights_for must be a list of texts; {ADVICE}")
    files = _need(file, manifest, "files", dict)
    for name in ("model.gguf", "model.onnx", "report.json"):
        if name not in files:
            raise FormatError(f"{file}: files does not list {name}; {ADVICE}")
    for name, entry in files.items():
        if "\0" in name or not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise FormatError(f"{file}: the entry of {name!r} in files has no sha256; {ADVICE}")


def check_report(file: Path, report: dict) -> None:
    """Raise FormatError where a report has not the form that is printed and rendered."""
    for key in ("name", "digest"):
        _need(file, report, key, str)
    formats = _need(file, report, "formats", dict)
    if not all(isinstance(formats.get(key), str) for key in ("weights", "activations", "kv")):
        raise FormatError(f"{file}: formats must name weights, activations and kv; {ADVICE}")
    _need(file, report, "memory", dict)
    for key, wanted in (("positions", {"kind", "method", "bits", "bound", "measured_max", "bytes"}), ("layers", {"name", "op"})):
        entries = _need(file, report, key, list)
        if not all(isinstance(entry, dict) and wanted <= set(entry) for entry in entries):
            raise FormatError(f"{file}: every entry of {key} must have {', '.join(sorted(wanted))}; {ADVICE}")


def _need(file: Path, content: dict, key: str, kind):
    if key not in content or not isinstance(content[key], kind):
        raise FormatError(f"{file}: {key} is missing or of another type; {ADVICE}")
    return content[key]
