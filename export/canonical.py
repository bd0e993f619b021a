"""CanonicalModel: what every front end returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgepos import file_hash
from edgepos.chat.jinja import ChatTemplate

from .block_rows import GridRows
from .json_files import read_bytes, read_json_object
from .tokenizers import TokenizerSpec


@dataclass(frozen=True)
class CanonicalModel:
    """A float model as the canonical ONNX graph, with its tokenizer and origin.

    model:         the graph, opset 23; weights may still be memory-mapped
    tokenizer:     neutral description of the tokenizer, or None
    name:          folder name or file stem of the source
    context:       number of positions, 0 .. context-1
    vocab_size:    rows of the table of tokens, and columns of the logits where the model gives those
    source_sha256: file name -> SHA-256 (hex) of every file that decides the model
    license:       model_card.json, or the first line of LICENSE under "license", or None
    eos_ids:       tokens that end a generation
    bos_id:        token that starts a text, or None
    grids:         matrices whose source holds integers: initializer name -> those rows (their floats are the graph's)
    tokenizer_problem: why there is no tokenizer, where it is None
    chat:          the model's chat template, or None
    """

    model: ir.Model
    tokenizer: TokenizerSpec | None
    name: str
    context: int
    vocab_size: int
    source_sha256: dict[str, str]
    license: dict[str, Any] | None
    eos_ids: tuple[int, ...]
    bos_id: int | None
    grids: Mapping[str, GridRows] = field(default_factory=dict)
    tokenizer_problem: str | None = None
    chat: ChatTemplate | None = None


def readable(name: str) -> str:
    """``name`` of a file or folder as text that every file of a bundle can hold: bytes that are not UTF-8 become '?'."""
    return name.encode("utf-8", "replace").decode("utf-8")


def read_license(folder: Path) -> dict[str, Any] | None:
    """model_card.json of ``folder``; else {"license": first line of LICENSE}; else None."""
    card = folder / "model_card.json"
    if card.is_file():
        return read_json_object(card)
    text = folder / "LICENSE"
    if text.is_file():
        lines = read_bytes(text).decode("utf-8", "replace").splitlines()
        return {"license": next((line.strip() for line in lines if line.strip()), "")}
    return None


def sha256_of(paths: Iterable[Path], folder: Path | None = None) -> dict[str, str]:
    """File name, below ``folder`` where one is given -> SHA-256 in hex."""
    return {readable(path.relative_to(folder).as_posix() if folder else path.name): file_hash.sha256_of(path) for path in paths}
