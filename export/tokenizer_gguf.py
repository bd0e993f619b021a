"""The tokenizer embedded in a GGUF file: byte-level BPE (``gpt2``) and SentencePiece BPE (``llama``)."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from edgepos.errors import FormatError

from . import normalizers
from .config import Config
from .shorten import shorten
from .pre_tokenizers import GGUF_NAMES, byte_level_steps, pre_tokenizer_of_gguf
from .tokenizer_hf import ALPHABET, decoded_bytes
from .tokenizers import BYTE, CONTROL, NORMAL, TokenizerSpec, pairs_array

NORMAL_TYPE, UNKNOWN_TYPE, CONTROL_TYPE, USER_TYPE, UNUSED_TYPE, BYTE_TYPE = range(1, 7)  # llama.cpp, llama_token_type
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE = "\u2581"  # SentencePiece's visible space

_BYTE_LEVEL = byte_level_steps("gpt2")
NFC_NAMES = ("qwen2",)  # GGUF does not say that Qwen's own tokenizer brings texts to NFC


def read_tokenizer(keys: Config, vocab_size: int) -> tuple[TokenizerSpec | None, str | None]:
    """(tokenizer, None), or (None, why) where its kind or pre-tokenizer is not known.

    Raises FormatError for a vocabulary or merges that contradict themselves or the model.
    """
    kind = keys.values.get("tokenizer.ggml.model")
    if kind == "gpt2":
        pre = keys.values.get("tokenizer.ggml.pre", "gpt-2")
        name = pre_tokenizer_of_gguf(pre) if isinstance(pre, str) else None
        if name is None:
            return None, f"{keys.origin}: pre-tokenizer {shorten(pre)} (tokenizer.ggml.pre) is not supported; supported: {', '.join(GGUF_NAMES)}"
        return _Vocabulary(keys, vocab_size).byte_level(name, byte_level_steps(name), pre in NFC_NAMES), None
    if kind == "llama":
        return _Vocabulary(keys, vocab_size).sentence_piece(), None
    what = "no tokenizer" if kind is None else f"tokenizer.ggml.model {shorten(kind)} is not supported"
    return None, f"{keys.origin}: {what}; supported: gpt2, llama"


class _Vocabulary:
    """Tokens, types and special ids, checked against the model."""

    def __init__(self, keys: Config, vocab_size: int):
        self.keys, self.origin = keys, keys.origin
        self.strings = self._list("tokens", str)
        n = len(self.strings)
        if not 1 <= n <= vocab_size:
            raise FormatError(f"{self.origin}: tokenizer.ggml.tokens has {n} tokens, the embedding {vocab_size} rows; they must belong together")
        kinds = self._list("token_type", int) if "tokenizer.ggml.token_type" in keys.values else [NORMAL_TYPE] * n
        if len(kinds) != n:
            raise FormatError(f"{self.origin}: tokenizer.ggml.token_type has {len(kinds)} entries for {n} tokens")
        self.kinds = np.array(kinds, np.int64)
        self.bos = self._id("bos_token_id")
        self.eos = tuple(dict.fromkeys(i for i in map(self._id, ("eos_token_id", "eot_token_id", "eom_token_id")) if i is not None))
        special = self.kinds == CONTROL_TYPE
        self.types = np.where(special, CONTROL, NORMAL).astype(np.uint8)
        self.added = tuple(
            sorted((int(i) for i in np.flatnonzero(special | (self.kinds == USER_TYPE)) if self.strings[i]), key=lambda i: (-len(self.strings[i].encode()), i))
        )

    def _list(self, key: str, kind: type) -> list:
        value = self.keys.values.get(f"tokenizer.ggml.{key}")
        if not isinstance(value, list) or any(type(v) is not kind for v in value):
            raise FormatError(f"{self.origin}: tokenizer.ggml.{key} is {shorten(value)}; a list of {kind.__name__} is needed")
        return value

    def _id(self, key: str) -> int | None:
        ids = self.keys.token_ids(f"tokenizer.ggml.{key}", (), len(self.strings))
        return ids[0] if ids else None

    def _ids(self, strings: list[Any], skip: np.ndarray) -> dict[Any, int]:
        """Token -> id, of the tokens that are not skipped; each may occur once."""
        ids: dict[Any, int] = {}
        for i in np.flatnonzero(~skip):
            if strings[i] and ids.setdefault(strings[i], int(i)) != i:
                raise FormatError(f"{self.origin}: tokens {ids[strings[i]]} and {i} are both {shorten(strings[i])}; keep one")
        return ids

    def byte_level(self, pre: str, step: dict[str, Any], nfc: bool) -> TokenizerSpec:
        """GPT-2's scheme: merges in order, characters that stand for bytes; nfc: the text is brought to that form first."""
        vocab = self._ids(self.strings, np.zeros(len(self.strings), bool))
        rows: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        merges = self._list("merges", str)
        for rank, merge in enumerate(merges):
            halves = merge.split(" ")
            if len(halves) != 2 or not all(halves) or any(t not in vocab for t in (*halves, "".join(halves))):
                raise FormatError(f"{self.origin}: merge {rank} is {shorten(merge)}; two tokens are needed that are, and make, tokens of the vocabulary")
            left, right = (vocab[half] for half in halves)
            if (left, right) in rows:
                raise FormatError(f"{self.origin}: merge {rank} {shorten(merge)} repeats merge {rows[left, right][2]}; keep one")
            rows[left, right] = (left, right, rank, vocab["".join(halves)])
        add_bos = self.keys.flag("tokenizer.ggml.add_bos_token", pre == "llama3") and self.bos is not None
        added = set(self.added)
        return TokenizerSpec(
            kind="bpe-bytelevel",
            tokens=tuple(s.encode("utf-8") if i in added else decoded_bytes(s) for i, s in enumerate(self.strings)),
            token_types=self.types,
            pairs=pairs_array(list(rows.values())),
            byte_ids=np.array([vocab.get(c, -1) for c in sorted(ALPHABET, key=ALPHABET.get)], np.int32),
            characters=np.zeros((0, 2), np.int32),
            added=self.added,
            add_bos=add_bos,
            bos_id=self.bos,
            eos_ids=self.eos,
            add_prefix_space=False,
            pre_tokenizer=pre,
            strip_space_after_bos=False,
            source_json=self._json(vocab, merges, step, pre == "llama3", nfc),
            ignore_merges=pre == "llama3",
            normalizer=normalizers.nfc() if nfc else None,
        )

    def _json(self, vocab: dict[str, int], merges: list[str], step: dict[str, Any], ignore_merges: bool, nfc: bool) -> bytes:
        """The same tokenizer as a tokenizer.json."""
        added = [
            {"id": i, "content": self.strings[i], "special": bool(self.types[i] == CONTROL), "normalized": False}
            | {"single_word": False, "lstrip": False, "rstrip": False}
            for i in sorted(self.added)
        ]
        model = {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False, "ignore_merges": ignore_merges}
        root = {
            "version": "1.0",
            "added_tokens": added,
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": step,
            "post_processor": None,
            "decoder": _BYTE_LEVEL,
            "model": model | {"vocab": vocab, "merges": merges},
        }
        return json.dumps(root, ensure_ascii=False).encode("utf-8")

    def sentence_piece(self) -> TokenizerSpec:
        """SentencePiece BPE: a pair joins when its strings together are a token; a higher score goes first."""
        scores = self._list("scores", float)
        if len(scores) != len(self.strings) or not np.isfinite(scores).all():
            raise FormatError(f"{self.origin}: tokenizer.ggml.scores are not {len(self.strings)} finite numbers, one per token")
        tokens = [s.replace(SPACE, " ").encode("utf-8") for s in self.strings]
        byte_ids = np.full(256, -1, np.int32)
        for i in np.flatnonzero(self.kinds == BYTE_TYPE):
            match = BYTE_TOKEN.fullmatch(self.strings[i])
            if match is None:
                raise FormatError(f"{self.origin}: byte token {i} is {shorten(self.strings[i])}; <0x00> to <0xFF> are needed")
            value = int(match[1], 16)
            tokens[i], byte_ids[value], self.types[i] = bytes([value]), i, BYTE
        ids = self._ids(tokens, self.kinds != NORMAL_TYPE)
        rank = {score: r for r, score in enumerate(sorted(set(scores), reverse=True))}
        pairs = [
            (ids[token[:cut]], ids[token[cut:]], rank[scores[i]], i)
            for token, i in ids.items()
            for cut in range(1, len(token))
            if token[:cut] in ids and token[cut:] in ids
        ]
        rows = [(int.from_bytes(t, "big"), i) for t, i in ids.items() if len(t) <= 4 and all(0x80 <= b < 0xC0 for b in t[1:])]
        prefix = self.keys.flag("tokenizer.ggml.add_space_prefix", True)
        if prefix and b" " not in ids:
            raise FormatError(f"{self.origin}: no token for a space, which goes before every text")
        return TokenizerSpec(
            kind="bpe-spm",
            tokens=tuple(tokens),
            token_types=self.types,
            pairs=pairs_array(pairs),
            byte_ids=byte_ids,
            characters=np.array(sorted(rows), dtype=np.uint32).astype(np.int32).reshape(-1, 2),
            added=self.added,
            add_bos=self.keys.flag("tokenizer.ggml.add_bos_token", True) and self.bos is not None,
            bos_id=self.bos,
            eos_ids=self.eos,
            add_prefix_space=prefix,
            pre_tokenizer="none",
            strip_space_after_bos=prefix,
            space_rules=frozenset({"low-line", "strip-first", "every"} if prefix else {"low-line"}),
        )
