"""The tokenizer file of llama2.c (tokenizer.py export, run.c build_tokenizer).

Layout: int32 longest token; then per token float32 score, int32 length, bytes.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from edgepos.errors import FormatError

from .json_files import read_bytes
from .tokenizers import BYTE, CONTROL, NORMAL, TokenizerSpec, pairs_array

BOS, EOS = 1, 2
BYTE_OFFSET = 3  # run.c: byte b falls back to token b + 3
WORST_SCORE = -1e10  # run.c never joins a pair whose token scores this low
MAX_TOKEN_BYTES = 1024  # far above any real token; finding pairs is quadratic in it
BYTE_TOKEN = re.compile(rb"<0x([0-9A-F]{2})>")


def read_tokenizer_bin(path: Path, vocab_size: int) -> TokenizerSpec:
    """The tokenizer of a llama2.c model with ``vocab_size`` tokens.

    A pair of tokens joins when its strings together are a token; a higher score is a lower
    rank and equal scores share one. Raises FormatError with the byte offset.
    """
    strings, scores = _read_entries(path, vocab_size)
    ids: dict[bytes, int] = {}
    for i, string in enumerate(strings):
        if not string:
            continue  # run.c never looks up the empty string
        if string in ids:
            raise FormatError(
                f"{path.name}: tokens {ids[string]} and {i} are both {string!r}; each token must be unique"
            )
        ids[string] = i
    if b" " not in ids:
        raise FormatError(f"{path.name}: no token for a space, which run.c puts before every text")
    if vocab_size < BYTE_OFFSET + 256:
        raise FormatError(
            f"{path.name}: {vocab_size} tokens; at least {BYTE_OFFSET + 256} are needed "
            "(3 control tokens and 256 byte tokens)"
        )
    rank = {score: r for r, score in enumerate(sorted(set(scores), reverse=True))}
    pairs = [
        (ids[string[:cut]], ids[string[cut:]], rank[scores[i]], i)
        for string, i in ids.items()
        if scores[i] > WORST_SCORE
        for cut in range(1, len(string))
        if string[:cut] in ids and string[cut:] in ids
    ]
    types = np.full(vocab_size, NORMAL, np.uint8)
    tokens = list(strings)
    for i, string in enumerate(strings):
        if match := BYTE_TOKEN.fullmatch(string):
            tokens[i] = bytes([int(match[1], 16)])
            types[i] = BYTE
    types[[BOS, EOS]] = CONTROL
    return TokenizerSpec(
        kind="bpe-spm",
        tokens=tuple(tokens),
        token_types=types,
        pairs=pairs_array(pairs),
        byte_ids=np.arange(256, dtype=np.int32) + BYTE_OFFSET,
        characters=_characters(ids),
        added=(),
        add_bos=True,
        bos_id=BOS,
        # run.c also stops when BOS is generated: it starts the next text.
        eos_ids=(BOS, EOS),
        add_prefix_space=True,
        pre_tokenizer="none",
        strip_space_after_bos=True,
    )


def _characters(ids: dict[bytes, int]) -> np.ndarray:
    """Tokens that are one character as run.c reads them: a byte and up to 3 continuation bytes."""
    rows = [
        (int.from_bytes(string, "big"), i)
        for string, i in ids.items()
        if len(string) <= 4 and all(0x80 <= b < 0xC0 for b in string[1:])
    ]
    return np.array(sorted(rows), dtype=np.uint32).astype(np.int32).reshape(-1, 2)


def _read_entries(path: Path, vocab_size: int) -> tuple[list[bytes], list[float]]:
    data = read_bytes(path)
    if len(data) < 4 + 8 * vocab_size:
        raise FormatError(
            f"{path.name}: {len(data)} bytes cannot hold the {vocab_size} tokens of the model; "
            "use the tokenizer that belongs to it"
        )
    longest = int.from_bytes(data[:4], "little", signed=True)
    if not 1 <= longest <= MAX_TOKEN_BYTES:
        raise FormatError(
            f"{path.name}: longest token at byte 0 is {longest}; 1 to {MAX_TOKEN_BYTES} is allowed; "
            "is this a llama2.c tokenizer?"
        )
    offset = 4
    strings: list[bytes] = []
    scores: list[float] = []
    for i in range(vocab_size):
        if offset + 8 > len(data):
            raise FormatError(f"{path.name}: ends at byte {len(data)} inside token {i} of {vocab_size}")
        score = float(np.frombuffer(data, "<f4", 1, offset)[0])
        length = int(np.frombuffer(data, "<i4", 1, offset + 4)[0])
        if not np.isfinite(score):
            raise FormatError(f"{path.name}: token {i} at byte {offset} has score {score}; a finite one is needed")
        if not 0 <= length <= longest or offset + 8 + length > len(data):
            raise FormatError(
                f"{path.name}: token {i} at byte {offset} has length {length}; 0 to {longest} within the "
                f"{len(data)} bytes of the file is allowed"
            )
        string = data[offset + 8 : offset + 8 + length]
        if b"\0" in string:
            raise FormatError(f"{path.name}: token {i} at byte {offset} contains a zero byte, which ends a C string")
        strings.append(string)
        scores.append(score)
        offset += 8 + length
    if offset != len(data):
        raise FormatError(
            f"{path.name}: {len(data) - offset} bytes left after {vocab_size} tokens at byte {offset}; "
            "use the tokenizer that belongs to the model"
        )
    return strings, scores
