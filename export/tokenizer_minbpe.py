"""minbpe's tokenizer.model: a text file with the expression that splits a text, special tokens, and merges by number.

The format is minbpe's "v1" (github.com/karpathy/minbpe, base.py): line 2 is the expression, line 3 the number of special tokens, each
`text id`, then one merge `left right` per line. Ids 0 to 255 are the bytes; merge i makes the token 256 + i.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .json_files import read_bytes
from .pre_tokenizers import GPT2_PATTERN
from .shorten import shorten
from .tokenizers import CONTROL, NORMAL, TokenizerSpec, pairs_array

MAGIC = b"minbpe v1\n"
BYTES = 256
LONGEST_TOKEN = 2**16
# GPT-4's expression. Llama 3's is the same one without its possessive quantifiers, which change no match: what they keep is never what
# follows could take; and a run of white space ends behind its last line break in both.
GPT4_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
NAMES = {GPT4_PATTERN: "llama3", GPT2_PATTERN: "gpt2"}


def is_minbpe(path: Path) -> bool:
    """Whether a file begins as minbpe writes it."""
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_minbpe(path: Path, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...]) -> TokenizerSpec:
    """The tokenizer of a model whose embedding has ``vocab_size`` rows.

    Raises UnsupportedError for an expression the runtime has not, FormatError naming the line for a merge of tokens that are not there.
    """
    lines = _text(path).split("\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) < 3 or not lines[2].isascii() or not lines[2].isdigit():
        raise FormatError(f"{path.name}: line 3 is not the number of special tokens; save the tokenizer again")
    if lines[1] not in NAMES:
        raise UnsupportedError(f"{path.name}: texts are split by {shorten(lines[1] or 'nothing')}; supported: GPT-4's and GPT-2's expression")
    count = int(lines[2]) if len(lines[2]) < 8 else len(lines)
    specials, merges = lines[3 : 3 + count], lines[3 + count :]
    if count > len(lines) - 3:
        raise FormatError(f"{path.name}: {count} special tokens in {len(lines)} lines; save the tokenizer again")
    tokens, rows = _merged(path, merges, 4 + count, vocab_size)
    added = _specials(path, specials, len(tokens), vocab_size)
    tokens += [b""] * (max(added, default=-1) + 1 - len(tokens))
    types = np.full(len(tokens), NORMAL, np.uint8)
    for number, text in added.items():
        tokens[number], types[number] = text, CONTROL
    return TokenizerSpec(
        kind="bpe-bytelevel",
        tokens=tuple(tokens),
        token_types=types,
        pairs=pairs_array(rows),
        byte_ids=np.arange(BYTES, dtype=np.int32),
        characters=np.zeros((0, 2), np.int32),
        added=tuple(sorted(added, key=lambda i: (-len(added[i]), i))),
        add_bos=False,
        bos_id=bos_id,
        eos_ids=eos_ids,
        add_prefix_space=False,
        pre_tokenizer=NAMES[lines[1]],
        strip_space_after_bos=False,
    )


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path.name}: byte {error.start} is not UTF-8; save the tokenizer again") from None


def _merged(path: Path, merges: list[str], first: int, vocab_size: int) -> tuple[list[bytes], list[tuple[int, int, int, int]]]:
    """(bytes of the tokens, rows of merges); first: the line of the first merge."""
    tokens = [bytes([b]) for b in range(BYTES)]
    if BYTES + len(merges) > vocab_size:
        raise FormatError(f"{path.name}: {BYTES + len(merges)} tokens, but the model has {vocab_size}; both must come from one training")
    rows, seen = [], set()
    for rank, line in enumerate(merges):
        parts = line.split(" ")
        ids = [int(p) if p.isascii() and p.isdigit() and len(p) < 10 else vocab_size for p in parts]
        if len(ids) != 2 or max(ids) >= len(tokens):
            raise FormatError(f"{path.name}: line {first + rank} is {shorten(line)}; two ids below {len(tokens)} are needed")
        left, right = ids
        if (left, right) in seen:
            raise FormatError(f"{path.name}: line {first + rank} merges {left} and {right} again; keep one")
        if len(tokens[left]) + len(tokens[right]) > LONGEST_TOKEN:
            raise FormatError(f"{path.name}: line {first + rank} makes a token of more than {LONGEST_TOKEN} bytes")
        seen.add((left, right))
        rows.append((left, right, rank, len(tokens)))
        tokens.append(tokens[left] + tokens[right])
    return tokens, rows


def _specials(path: Path, lines: list[str], plain: int, vocab_size: int) -> dict[int, bytes]:
    """Id -> text of the special tokens."""
    added: dict[int, bytes] = {}
    for at, line in enumerate(lines):
        text, _, number = line.rpartition(" ")
        value = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
        if not text or not plain <= value < vocab_size or value in added or text.encode() in added.values():
            raise FormatError(f"{path.name}: line {4 + at} is {shorten(line)}; a text and an id from {plain} to {vocab_size - 1} of its own are needed")
        added[value] = text.encode()
    return added
