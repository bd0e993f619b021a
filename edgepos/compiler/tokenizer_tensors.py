"""Pass: the tokenizer as header words and tensors (docs/bundle.md, words 15 … 37)."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..errors import FormatError, UnsupportedError
from ..program import NONE, Header
from ..export.tokenizers import Normalizer, TokenizerSpec
from . import token_trie

KINDS = {"bpe-bytelevel": 1, "bpe-spm": 2, "wordpiece": 3, "unigram": 4}
PRE_TOKENIZERS = {"none": 0, "gpt2": 1, "llama3": 2, "qwen2": 3, "smollm": 4, "space": 5, "whitespace": 7}
SPACE_RUN = 6  # as "none", but cut where no pair can join
NORMALIZERS = {"map": 1, "nfc": 2, "strings": 3}
ADD_BOS, ADD_SPACE, STRIP_SPACE, UNKNOWN, SUFFIX, FUSE, BYTES = 1, 2, 4, 16, 32, 512, 1024
SPACE_RULES = {"strip-first": 8, "every": 64, "one": 128, "low-line": 256, "collapse": 2048, "strip-end": 4096}
TAKES_LEFT, TAKES_RIGHT = 1 << 24, 1 << 25
# From here on tokens that are whole words are worth a table of their own: it makes most merges of ordinary text unnecessary.
MANY_TOKENS = 4096
LONGEST_WORD = 64
INNER_SPACE = re.compile(rb"[^ ] ")


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
    for what, id in (("BOS", bos_id), ("unknown", spec.unk_id), ("suffix", spec.suffix_id)):
        _check_ids(what, () if id is None else (id,), 0, vocab)
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
    header.tokenizer_flags = _flags(spec)
    header.bos = NONE if bos_id is None else bos_id
    header.eos = add("tokenizer.eos", np.array(eos_ids, np.int32)) if eos_ids else NONE
    header.token_offsets = add("tokenizer.offsets", offsets.astype(np.int32))
    header.token_bytes = add("tokenizer.bytes", np.frombuffer(b"".join(tokens) or b"\0", np.int8))
    header.token_types = add("tokenizer.types", types)
    header.pairs = add("tokenizer.pairs", pairs) if len(pairs) else NONE
    header.byte_ids = add("tokenizer.byte_ids", np.asarray(spec.byte_ids, np.int32))
    keys = _keys(spec)
    header.trie = NONE if keys is None else add("tokenizer.trie", token_trie.build(keys, "tokenizer"))
    if spec.added:
        added = [i | TAKES_LEFT * (i in spec.added_left) | TAKES_RIGHT * (i in spec.added_right) for i in spec.added]
        header.added = add("tokenizer.added", np.array(added, np.int32))
    header.pre_tokenizer = SPACE_RUN if _words_end_at_spaces(spec) else PRE_TOKENIZERS[spec.pre_tokenizer]
    header.n_tokens = n
    if n >= MANY_TOKENS and len(pairs):
        starts = np.searchsorted(pairs[:, 0], np.arange(vocab + 1))
        header.pair_starts = add("tokenizer.pair_starts", starts.astype(np.int32))
    header.unknown = spec.unk_id or 0
    header.suffix = spec.suffix_id or 0
    header.word_chars = spec.max_word_chars
    if spec.scores is not None:
        scores = np.zeros(vocab + 1, np.int32)
        scores[: len(spec.scores) - 1] = spec.scores[:-1]
        scores[vocab] = spec.scores[-1]
        header.scores = add("tokenizer.scores", scores)
    if spec.normalizer is not None:
        _add_normalizer(header, spec.normalizer, add)


def _flags(spec: TokenizerSpec) -> int:
    flags = ADD_BOS * spec.add_bos | ADD_SPACE * spec.add_prefix_space | STRIP_SPACE * spec.strip_space_after_bos
    flags |= UNKNOWN * (spec.unk_id is not None) | SUFFIX * (spec.suffix_id is not None) | FUSE * spec.fuse_unk | BYTES * spec.byte_fallback
    return flags | sum(SPACE_RULES[rule] for rule in spec.space_rules)


def _add_normalizer(header: Header, normalizer: Normalizer, add: Callable) -> None:
    header.normalizer = NORMALIZERS[normalizer.kind]
    header.normal_strings = add("tokenizer.normal_strings", np.frombuffer(normalizer.strings, np.int8))
    if normalizer.map is not None:
        header.normal_map = add("tokenizer.normal_map", normalizer.map)
    if normalizer.classes is not None:
        header.normal_classes = add("tokenizer.normal_classes", normalizer.classes)
    if normalizer.compose is not None:
        header.normal_compose = add("tokenizer.normal_compose", normalizer.compose)
    if normalizer.keys is not None:
        header.normal_compose = add("tokenizer.normal_keys", token_trie.build(normalizer.keys, "normalizer"))


def _keys(spec: TokenizerSpec) -> dict[bytes, int] | None:
    """What the trie holds: characters for bpe-spm, all that text can match for wordpiece and unigram, whole words for byte-level BPE."""
    if spec.kind == "bpe-spm":
        keys = (int(key) & 0xFFFFFFFF for key, _ in spec.characters)
        return {key.to_bytes(max(1, -(-key.bit_length() // 8)), "big"): int(i) for key, (_, i) in zip(keys, spec.characters)}
    if spec.kind != "bpe-bytelevel":
        return spec.keys
    added = set(spec.added)
    words = {token: i for i, token in enumerate(spec.tokens) if i not in added}
    if spec.ignore_merges:
        return words
    if len(spec.tokens) < MANY_TOKENS or spec.pre_tokenizer == "none":
        return None
    # A word that the merges make of its own bytes can be taken at once; any other has to be merged.
    rules = {(left, right): (rank, merged) for left, right, rank, merged in spec.pairs.tolist()}
    ids = spec.byte_ids.tolist()
    return {token: i for token, i in words.items() if 1 < len(token) <= LONGEST_WORD and _merged([ids[b] for b in token], rules) == [i]}


def _merged(ids: list[int], rules: dict[tuple[int, int], tuple[int, int]]) -> list[int]:
    """Join the adjacent pair of lowest rank, leftmost among equals, until there is none."""
    while True:
        best = None
        for at, pair in enumerate(zip(ids, ids[1:])):
            rule = rules.get(pair)
            if rule is not None and (best is None or rule[0] < best[0]):
                best = rule[0], at, rule[1]
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


def _words_end_at_spaces(spec: TokenizerSpec) -> bool:
    """Whether no pair joins over the place before a space that follows something else: there a text can be cut."""
    if spec.kind != "bpe-spm" or spec.pre_tokenizer != "none" or b" " not in _keys(spec):
        return False
    tokens = spec.tokens
    return all(
        tokens[merged] == tokens[left] + tokens[right] and not INNER_SPACE.search(tokens[merged]) for left, right, _, merged in spec.pairs.tolist()
    )


def _check_ids(what: str, ids, least: int, limit: int) -> None:
    for i in ids:
        if not least <= i < limit:
            raise FormatError(f"tokenizer: {what} id {i} is outside {least} … {limit - 1}")
