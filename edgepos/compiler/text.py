"""The calibration tokens: an original text of the project, or what the caller gives."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..errors import EdgePosError, FormatError, UnsupportedError
from ..export.tokenizers import TokenizerSpec

TEXT = Path(__file__).with_name("calibration.txt")
MOST_TOKENS = 256
TEXT_BYTES = 65536  # far more text than MOST_TOKENS tokens


def calibration_ids(given, spec: TokenizerSpec | None, bos_id: int | None, vocab: int, context: int) -> list[int]:
    """At most 256 token ids, BOS first if the model has one.

    given: None (the project's text), a text, the path of a text file (os.PathLike), or token ids. Ids are used as they are.
    Raises FormatError when nothing is left or an id is outside the vocabulary, EdgePosError when a file cannot be read.
    """
    most = min(MOST_TOKENS, context)
    if given is None:
        given = TEXT
    if isinstance(given, os.PathLike):
        try:
            with open(given, "rb") as file:
                given = file.read(TEXT_BYTES).decode("utf-8", "ignore")
        except OSError as error:
            raise EdgePosError(f"calibration {os.fspath(given)}: cannot be read ({error.strerror}); give a text file") from None
    if isinstance(given, str):
        if spec is None:
            raise UnsupportedError("calibration: without a tokenizer a text cannot become tokens; pass calibration= a list of token ids of real text")
        ids = encode(given[:TEXT_BYTES], spec)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids = [bos_id, *ids]
    elif isinstance(given, Iterable):
        ids = list(given)
    else:
        raise FormatError(f"calibration is {type(given).__name__}; allowed: a text, a path or a list of token ids")
    ids = ids[:most]
    if not ids:
        raise FormatError("calibration gives no tokens; give a text of at least one token")
    for i in ids:
        if isinstance(i, bool) or not isinstance(i, (int, np.integer)) or not 0 <= i < vocab:
            raise FormatError(f"calibration: token {i!r} is not an id of the vocabulary; allowed: whole numbers from 0 to {vocab - 1}")
    return [int(i) for i in ids]


def encode(text: str, spec: TokenizerSpec) -> list[int]:
    """Token ids of a text without special tokens: by the source's own library where there is one, else from the merges."""
    if spec.source_json is not None:
        return list(spec.library().encode(text, add_special_tokens=False).ids)
    if text and spec.add_prefix_space:
        text = " " + text
    characters = {int(key) & 0xFFFFFFFF: int(i) for key, i in spec.characters}
    ids: list[int] = []
    for character in text:
        raw = character.encode("utf-8")
        known = characters.get(int.from_bytes(raw, "big"))
        ids += [known] if known is not None else [int(spec.byte_ids[b]) for b in raw if spec.byte_ids[b] >= 0]
    return _merge(ids, {(int(a), int(b)): (int(rank), int(c)) for a, b, rank, c in spec.pairs})


def _merge(ids: list[int], pairs: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Join the adjacent pair of lowest rank, leftmost among equals, until there is none."""
    while True:
        found = [(pairs[pair][0], i) for i, pair in enumerate(zip(ids, ids[1:])) if pair in pairs]
        if not found:
            return ids
        _, at = min(found)
        ids[at : at + 2] = [pairs[ids[at], ids[at + 1]][1]]
