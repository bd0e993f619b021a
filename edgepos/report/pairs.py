"""Labelled pairs of texts: how well an embedding model's cosines follow what people said of them."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bounded_file import read_bounded
from ..embedding import Embedder
from ..errors import FormatError
from .embedding import spearman

KEYS = (("text1", "text2", "label"), ("sentence1", "sentence2", "score"))


@dataclass(frozen=True)
class Pairs:
    """name and SHA-256 of the file; rows: (text, text, label)."""

    name: str
    sha256: str
    rows: tuple[tuple[str, str, float], ...]


def read_pairs(file: Path) -> Pairs:
    """A .tsv file, text, text and label in each line, or .jsonl with these under text1, text2, label (or sentence1, sentence2, score).

    Raises FormatError naming the line that has not this form, and for fewer than three pairs.
    """
    try:
        data = read_bounded(file, f"pairs {file}")
    except OSError as error:
        raise FormatError(f"pairs {file}: {error.strerror}; give a readable file") from None
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise FormatError(f"pairs {file}: byte {error.start} is not UTF-8; convert the file first") from None
    parse = _object if file.suffix == ".jsonl" else _columns
    rows = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = parse(line.rstrip("\r"))
        if row is None:
            form = "an object with text1, text2 and a number label" if file.suffix == ".jsonl" else "text, tab, text, tab, number"
            raise FormatError(f"pairs {file}: line {number} is not {form}")
        rows.append(row)
    if len(rows) < 3:
        raise FormatError(f"pairs {file}: {len(rows)} pairs found; a rank correlation needs at least 3")
    return Pairs(file.name, hashlib.sha256(data).hexdigest(), tuple(rows))


def _columns(line: str) -> tuple[str, str, float] | None:
    parts = line.split("\t")
    try:
        return _row(parts[0], parts[1], float(parts[2])) if len(parts) == 3 else None
    except ValueError:
        return None


def _object(line: str) -> tuple[str, str, float] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    for keys in KEYS:
        if isinstance(entry, dict) and all(key in entry for key in keys):
            return _row(*(entry[key] for key in keys))
    return None


def _row(first, second, label) -> tuple[str, str, float] | None:
    good = isinstance(first, str) and isinstance(second, str) and first.strip() and second.strip()
    number = isinstance(label, (int, float)) and not isinstance(label, bool) and math.isfinite(label)
    return (first, second, float(label)) if good and number else None


def compare_pairs(reference, session, tokenizer, pairs: Pairs) -> dict:
    """Spearman's correlation of the pairs' cosines with their labels, for both sessions. Raises EdgePosError for a model that gives logits."""
    embedder, rows = Embedder(session, tokenizer), {}
    for text in dict.fromkeys(text for first, second, _ in pairs.rows for text in (first, second)):
        ids = embedder.ids(text)
        rows[text] = np.float64(reference.embed(ids)), np.float64(session.embed(ids))
    labels = np.array([label for _, _, label in pairs.rows])
    found = [np.array([_cosine(rows[a][which], rows[b][which]) for a, b, _ in pairs.rows]) for which in (0, 1)]
    exact, ours = (spearman(cosines, labels) for cosines in found)
    return {"file": pairs.name, "sha256": pairs.sha256, "pairs": len(labels), "spearman_float": exact, "spearman": ours, "truncated": embedder.truncated}


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / size) if size else 0.0
