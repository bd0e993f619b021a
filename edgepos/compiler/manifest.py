"""What a bundle says of itself: manifest.json and the first report."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..export import CanonicalModel
from ..file_hash import sha256_of
from ..fixedpoint import ARITH
from ..program import FORMAT, NONE, Op, Program
from .pictures import images_sha256
from .pipeline import Compiled
from .steps import Unit


def manifest(canonical: CanonicalModel, compiled: Compiled, memory: dict, files: dict) -> dict[str, Any]:
    """manifest.json: everything that decided the bundle, and the SHA-256 of what is in it."""
    header = compiled.program.header
    return {
        "name": canonical.name,
        "edgepos": __version__,
        "format": FORMAT,
        "arith": ARITH,
        "family": compiled.source.family,
        "vocabulary": header.vocab,
        "output": output(compiled),
        "positions": compiled.source.positions().to_json(),
        "source": {"sha256": canonical.source_sha256},
        "license": canonical.license,
        "options": compiled.options.to_json(),
        "calibration": _calibration(compiled),
        "choices": compiled.choices,
        "selftest": {**_selftest(compiled), "digest": f"{header.digest:016x}"},
        "chat": _chat(compiled),
        "memory": memory,
        "operators": [op.name for op in compiled.program.ops],
        "files": files,
    }


def _calibration(compiled: Compiled) -> dict[str, Any]:
    if compiled.source.picture is not None:
        return {"images": len(compiled.calibration), "sha256": images_sha256(compiled.calibration)}
    return {"tokens": len(compiled.calibration), "sha256": ids_sha256(compiled.calibration)}


def _selftest(compiled: Compiled) -> dict[str, Any]:
    return {"tokens": compiled.selftest} if compiled.source.picture is None else {"image": list(compiled.selftest.shape)}


def _chat(compiled: Compiled) -> dict[str, Any]:
    """Who can render the model's conversations: "runtime" (the form in the image), "jinja" (Python alone) or "none"."""
    if compiled.chat is None:
        return {"template": "none"}
    return {"template": "jinja" if compiled.chat.form is None else "runtime"} | ({"left_out": compiled.chat.reason} if compiled.chat.reason else {})


def output(compiled: Compiled) -> dict[str, Any]:
    """What the program gives: logits, or an embedding or logits of classes and how they are made."""
    pool = compiled.source.pool
    if pool is None:
        return {"kind": "logits"}
    if compiled.source.labels is not None:
        return {"kind": "classes", "width": compiled.program.embedding, "pooling": pool.kind, "labels": list(compiled.source.labels)}
    return {"kind": "embedding", "width": compiled.program.embedding, "pooling": pool.kind, "normalized": isinstance(compiled.source.steps[-1], Unit)}


def report(canonical: CanonicalModel, compiled: Compiled, memory: dict, tables: list[dict]) -> dict[str, Any]:
    """report.json before any measurement: what is known from compiling alone."""
    o, program = compiled.options, compiled.program
    return {
        "name": canonical.name,
        "digest": f"{program.header.digest:016x}",
        "formats": {"weights": program.weight_format, "activations": o.activations, "kv": o.kv},
        "positions": tables,
        "memory": memory,
        "layers": [{"name": op.name, "op": op.code.name, "f": program.values[op.out].f} for op in program.ops if op.out != NONE],
    }


def memory(program: Program, model_bytes: int, arena: dict[int, int]) -> dict[str, Any]:
    """Bytes: the image, weights read per token, KV cache per token, int32 elements of the plan per token, arena by context."""
    used = {t for op in program.ops if op.code == Op.LINEAR for t in op.tensors if t != NONE}
    result = {
        "model_bytes": model_bytes,
        "weight_bytes_per_token": sum(program.arrays[t].nbytes for t in used),
        "kv_bytes_per_token": kv_bytes_per_token(program),
        "plan_width": program.header.plan_width,
    }
    return result | ({"arena": {str(context): size for context, size in arena.items()}} if arena else {})


def kv_bytes_per_token(program: Program) -> int:
    """Keys, values and their scales of one token in all layers."""
    data, scale = (2, 1) if program.header.kv_bits == 16 else (1, 4)
    return sum(kv.heads * ((kv.k_dim + kv.v_dim) * data + 2 * scale) for kv in program.kv)


def ids_sha256(ids: list[int]) -> str:
    """SHA-256 of token ids as little-endian int32."""
    return hashlib.sha256(np.array(ids, "<i4").tobytes()).hexdigest()


def file_entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Path with forward slashes → bytes and sha256, of every file below `folder`."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {file.relative_to(folder).as_posix(): {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for file in files}
