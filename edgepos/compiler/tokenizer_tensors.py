"""Pass: the tokenizer as header words and tensors (docs/bundle.md, words 15 … 27)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..program import NONE, Header
from ..export.tokenizers import TokenizerSpec

KINDS = {"bpe-bytelevel": 1, "bpe-spm": 2}
PRE_TOKENIZERS = {"none": 0, "gpt2": 1}
ADD_BOS, ADD_SPACE, STRIP_SPACE = 1, 2, 4


def add_tokenizer(header: Header, spec: TokenizerSpec, vocab: int, eos_ids: tuple[int, ...], bos_id: int | None, add: Callable) -> None:
    """Fill the tokenizer words of `header`; `add(name, array) -> index` stores a tensor.

    Raises UnsupportedError for a kind or pre-tokenizer the runtime does not know, FormatError when ids leave the vocabulary.
    """
    for what, value, known in (("kind", spec.kind, KINDS), ("pre-tokenizer", spec.pre_tokenizer, PRE_TOKENIZERS)):
        if value not in known:
            raise UnsupportedError(f"tokenizer {what} '{value}' is not supported; supported: {', '.join(known)}")
    n = len(spec.tokens)
    if not 1 <= n <= vocab:
        raise FormatError(f"tokenizer: {n} tokens for a vocabulary of {vocab}; at most as many as the model's are allowed")
    _check_ids("EOS", eos_ids, 0, vocab)
    _check_ids("BOS", () if bos_id is None else (bos_id,), 0, vocab)
    _check_ids("added token", spec.added, 0, n)
    _check_ids("byte", spec.byte_ids, -1, n)
    _check_ids("pair", spec.pairs[:, [0, 1, 3]].ravel(), 0, n)
    pairs = np.asarray(spec.pairs, np.int32)
    if (np.diff(pairs[:, 0].astype(np.int64) * vocab + pairs[:, 1]) <= 0).any():
        raise FormatError("tokenizer: pairs are not strictly ascending by (left, right); each pair may occur once")

    tokens = list(spec.tokens) + [b""] * (vocab - n)
    offsets = np.zeros(vocab + 1, np.int64)
    offsets[1:] = np.cumsum([len(token) for token in tokens])
    if offsets[-1] >= 2**31:
        raise FormatError(f"tokenizer: {offsets[-1]} bytes of tokens; allowed: below 2^31")
    types = np.zeros(vocab, np.int8)
    types[:n] = spec.token_types

    header.tokenizer = KINDS[spec.kind]
    header.tokenizer_flags = ADD_BOS * spec.add_bos | ADD_SPACE * spec.add_prefix_space | STRIP_SPACE * spec.strip_space_after_bos
    header.bos = NONE if bos_id is None else bos_id
    header.eos = add("tokenizer.eos", np.array(eos_ids, np.int32)) if eos_ids else NONE
    header.token_offsets = add("tokenizer.offsets", offsets.astype(np.int32))
    header.token_bytes = add("tokenizer.bytes", np.frombuffer(b"".join(tokens) or b"\0", np.int8))
    header.token_types = add("tokenizer.types", types)
    header.pairs = add("tokenizer.pairs", pairs) if len(pairs) else NONE
    header.byte_ids = add("tokenizer.byte_ids", np.asarray(spec.byte_ids, np.int32))
    if spec.kind == "bpe-spm":
        order = sorted(range(vocab), key=lambda i: (tokens[i], i))
        header.sorted_ids = add("tokenizer.sorted_ids", np.array(order, np.int32))
    header.added = add("tokenizer.added", np.array(spec.added, np.int32)) if spec.added else NONE
    header.pre_tokenizer = PRE_TOKENIZERS[spec.pre_tokenizer]
    header.n_tokens = n


def _check_ids(what: str, ids, least: int, limit: int) -> None:
    for i in ids:
        if not least <= i < limit:
            raise FormatError(f"tokenizer: {what} id {i} is outside {least} … {limit - 1}")
