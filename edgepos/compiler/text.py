"""The calibration tokens: an original text of the project, or what the caller gives."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ..errors import EdgePosError, FormatError, UnsupportedError
from ..export.json_files import read_bytes
from ..export.tokenizers import TokenizerSpec
from .tokenizer_image import tokenizer

TEXT = Path(__file__).with_name("calibration.txt")
MOST_TOKENS = 256
TEXT_BYTES = 65536  # far more text than MOST_TOKENS tokens


def calibration_ids(given, spec: TokenizerSpec | None, bos_id: int | None, vocab: int, context: int, whole: bool = False) -> list[int]:
    """At most 256 token ids, BOS first if the model has one; whole: a text with the token behind it, too, as an encoder sees it.

    given: None (the project's text), a text, the path of a text file (os.PathLike) or of a .json file with token ids, or token ids.
    Ids are used as they are.
    Raises FormatError when nothing is left or an id is outside the vocabulary, EdgePosError when a file cannot be read.
    """
    most = min(MOST_TOKENS, context)
    if given is None:
        given = TEXT
    if isinstance(given, os.PathLike) and os.fspath(given).endswith(".json"):
        given = read_ids(Path(given))
    if isinstance(given, os.PathLike):
        path = os.fspath(given)
        try:
            with open(path, "rb") as file:
                given = file.read(TEXT_BYTES + 4)
            # A code point that the cut splits is left out; anything else that is not UTF-8 is an error.
            given = codecs.getincrementaldecoder("utf-8")().decode(given, final=len(given) <= TEXT_BYTES)
        except UnicodeDecodeError as error:
            raise FormatError(f"calibration {path}: byte {error.start} is not UTF-8; give a text file") from None
        except OSError as error:
            raise EdgePosError(f"calibration {path}: cannot be read ({error.strerror}); give a text file") from None
    if isinstance(given, str):
        if spec is None:
            raise UnsupportedError("calibration: without a tokenizer a text cannot become tokens; pass calibration= a list of token ids of real text")
        if not given.strip():
            raise FormatError("calibration: the text is empty; give a text like those the model will see")
        ids = encode(given[:TEXT_BYTES], spec)
        if bos_id is not None and ids[:1] != [bos_id]:
            ids = [bos_id, *ids]
        if whole and spec.suffix_id is not None:
            ids = [*ids[: most - 1], spec.suffix_id]
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


def read_ids(path: Path) -> list:
    """The list in a JSON file. Raises FormatError when it holds anything else."""
    try:
        ids = json.loads(read_bytes(path))
    except ValueError:
        ids = None
    if not isinstance(ids, list):
        raise FormatError(f"calibration {path}: not a JSON list of token ids")
    return ids


def encode(text: str, spec: TokenizerSpec) -> list[int]:
    """Token ids of a text without special tokens, by the tokenizer of the C runtime."""
    return tokenizer(spec).encode(text, bos=False)
