"""TokenizerSpec: a tokenizer in the small neutral form the bundle stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

NORMAL, CONTROL, BYTE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Normalizer:
    """How a text is rewritten before it is encoded; the tables are those of docs/bundle.md.

    kind: "map" (code point by code point), "nfc", or "strings" (graphemes, as SentencePiece's precompiled maps)
    map: int32 [n, 2] for map and nfc; strings: blob of length-prefixed strings; classes: int32 runs for nfc and strings;
    compose: int32 [n, 3] for nfc; keys: bytes -> offset in strings, for strings
    """

    kind: str
    strings: bytes
    map: np.ndarray | None = None
    classes: np.ndarray | None = None
    compose: np.ndarray | None = None
    keys: dict[bytes, int] | None = None


@dataclass(frozen=True, eq=False)
class TokenizerSpec:
    """Everything needed to encode and decode text without the source's library.

    kind:        "bpe-bytelevel" (GPT-2 style), "bpe-spm" (SentencePiece), "wordpiece" (BERT) or "unigram" (T5, XLM-R)
    tokens:      bytes each id decodes to; for wordpiece a token that begins a word has a space in front (unless it is decoded
                 without one), one that goes on has ##
    token_types: uint8 [n]: 0 normal, 1 control (not printed), 2 one raw byte
    pairs:       int32 [m, 4] rows (left id, right id, rank, merged id), sorted by (left, right).
                 Encoding joins, while there is any, the adjacent pair of lowest rank, leftmost among equals.
    byte_ids:    int32 [256], the base token of each byte; -1: no token, the byte is left out
    characters:  int32 [k, 2] rows (UTF-8 bytes packed big-endian, id) sorted by the unsigned first
                 column: for bpe-spm, a character found here starts as that token instead of its bytes
    added:       ids whose ``tokens`` match literally in the text before anything else, longest first
    add_bos:     whether encoding starts with bos_id
    add_prefix_space: whether the token of a space is put before a text that is not empty (it may be
                 joined afterwards, but is no part of the text's first character)
    pre_tokenizer: "none"; "gpt2", "llama3", "qwen2", "smollm": split by that regular expression first; "space": every space
                 begins a word; "whitespace": words without the white space between them, a space before each
    strip_space_after_bos: whether decoding drops one leading space of the token after BOS
    source_json: the tokenizer.json it came from
    ignore_merges: whether a pre-token that is a token is taken at once, for bpe-bytelevel
    unk_id:      what text without a token becomes; fuse_unk: a row of such characters becomes one
    byte_fallback: for unigram, whether such text becomes its byte_ids instead
    suffix_id:   the token after a text that starts with its special tokens
    keys:        bytes -> id of every token that text can match, for wordpiece and unigram
    scores:      int32 [n + 1] for unigram: fixed-point scores, and what an unknown character costs
    max_word_chars: a longer word is unknown, for wordpiece
    normalizer:  or None
    space_rules: of "every" (a space before each text between added tokens), "one" (not before a text that begins with one),
                 "low-line" (U+2581 in a text is a space), "collapse" (spaces in a row are one), "strip-end" (white space at the
                 end goes), "strip-first" (decoding drops a leading space of the first token)
    added_left, added_right: added tokens that take the white space before and behind them
    """

    kind: str
    tokens: tuple[bytes, ...]
    token_types: np.ndarray
    pairs: np.ndarray
    byte_ids: np.ndarray
    characters: np.ndarray
    added: tuple[int, ...]
    add_bos: bool
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_prefix_space: bool
    pre_tokenizer: str
    strip_space_after_bos: bool
    source_json: bytes | None = None
    ignore_merges: bool = False
    unk_id: int | None = None
    fuse_unk: bool = False
    byte_fallback: bool = False
    suffix_id: int | None = None
    keys: dict[bytes, int] | None = None
    scores: np.ndarray | None = None
    max_word_chars: int = 0
    normalizer: Normalizer | None = None
    space_rules: frozenset[str] = frozenset()
    added_left: frozenset[int] = frozenset()
    added_right: frozenset[int] = frozenset()

    def library(self) -> Any:
        """The source tokenizer in the ``tokenizers`` library (the reference for encoding and decoding).

        Raises UnsupportedError when the source was not a tokenizer.json or the library is missing, FormatError when it refuses it.
        """
        if self.source_json is None:
            raise UnsupportedError(f"tokenizer kind '{self.kind}' has no tokenizer.json, so no library form")
        try:
            import tokenizers
        except ImportError:
            raise UnsupportedError("the 'tokenizers' package is needed; install it with pip") from None
        try:
            library = tokenizers.Tokenizer.from_str(self.source_json.decode("utf-8"))
        except Exception as error:  # the library raises nothing more special
            raise FormatError(f"tokenizer.json is refused by the tokenizers library: {' '.join(str(error).split())}") from None
        library.no_truncation()
        library.no_padding()
        return library


def pairs_array(rows: list[tuple[int, int, int, int]]) -> np.ndarray:
    """int32 [n, 4] sorted by (left, right)."""
    return np.array(sorted(rows), dtype=np.int32).reshape(-1, 4)
