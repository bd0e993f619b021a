"""TokenizerSpec: a tokenizer in the small neutral form the bundle stores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepos.errors import UnsupportedError

NORMAL, CONTROL, BYTE = 0, 1, 2


@dataclass(frozen=True, eq=False)
class TokenizerSpec:
    """Everything needed to encode and decode text without the source's library.

    kind:        "bpe-bytelevel" (GPT-2 style) or "bpe-spm" (llama2.c style)
    tokens:      bytes each id decodes to
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
    pre_tokenizer: "none", or "gpt2": split by GPT-2's regular expression first
    strip_space_after_bos: whether decoding drops one leading space of the token after BOS
    source_json: the tokenizer.json it came from
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

    def library(self) -> Any:
        """The source tokenizer in the ``tokenizers`` library (the reference for encoding and decoding).

        Raises UnsupportedError when the source was not a tokenizer.json or the library is missing.
        """
        if self.source_json is None:
            raise UnsupportedError(f"tokenizer kind '{self.kind}' has no tokenizer.json, so no library form")
        try:
            import tokenizers
        except ImportError:
            raise UnsupportedError("the 'tokenizers' package is needed; install it with pip") from None
        return tokenizers.Tokenizer.from_str(self.source_json.decode("utf-8"))


def pairs_array(rows: list[tuple[int, int, int, int]]) -> np.ndarray:
    """int32 [n, 4] sorted by (left, right)."""
    return np.array(sorted(rows), dtype=np.int32).reshape(-1, 4)
