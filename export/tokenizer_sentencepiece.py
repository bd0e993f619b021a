"""tokenizer.json made from SentencePiece: BPE (Llama 2, Mistral, Gemma) and Unigram (T5, XLM-R)."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from . import normalizers
from .shorten import shorten
from .tokenizer_json import TokenizerJson
from .tokenizers import BYTE, CONTROL, NORMAL, TokenizerSpec, pairs_array

SPACE = "\u2581"  # SentencePiece's sign for a space
BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
UNKNOWN_PENALTY = 10.0  # tokenizers, models/unigram/model.rs
_PREPEND = {"type": "Prepend", "prepend": SPACE}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_BACK = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
_BYTES = [_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
# After _REPLACE there is no space left that this could split.
_IDLE_SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


def is_sentence_piece(reader: TokenizerJson) -> bool:
    """Whether a BPE is SentencePiece's: spaces are written with their sign."""
    return _REPLACE in reader.steps("normalizer", "normalizers") or any(
        step.get("type") == "Metaspace" for step in reader.steps("pre_tokenizer", "pretokenizers")
    )


def _metaspace(reader: TokenizerJson, step: dict[str, Any]) -> tuple[frozenset[str], bool, bool]:
    """(rules, whether a space goes in front, whether every space begins a word) of a Metaspace."""
    reader.only("Metaspace replacement", step.get("replacement"), (SPACE,), "U+2581")
    scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
    reader.only("Metaspace prepend_scheme", scheme, ("always", "first", "never"), "always, first, never")
    reader.only("Metaspace split", step.get("split", True), (True, False), "true or false")
    rules = {"always": {"one", "every"}, "first": {"one"}, "never": set()}[scheme]
    return frozenset(rules), scheme != "never", step.get("split", True)


def _decoder(reader: TokenizerJson) -> bool:
    """Whether the decoder drops the first space of a text. Byte tokens need one that makes bytes of them."""
    steps = reader.steps("decoder", "decoders")
    if steps in (_BYTES, [*_BYTES, _STRIP], [_BACK, {"type": "Fuse"}, _STRIP]):
        return _STRIP in steps
    if [s.get("type") for s in steps] == ["Metaspace"] and not reader.model.get("byte_fallback"):
        return _metaspace(reader, steps[0])[1]
    raise reader.unsupported_steps("decoder", steps, "Metaspace without byte_fallback, or Replace, ByteFallback, Fuse and maybe Strip as Llama 2 has them")


def _tokens(reader: TokenizerJson, strings: list[str], vocab: dict[str, int], byte_tokens: bool, special: list[int], added: tuple[int, ...]):
    """(bytes of every token, types, byte ids)."""
    tokens, types, byte_ids = [], np.full(len(strings), NORMAL, np.uint8), np.full(256, -1, np.int32)
    for i, string in enumerate(strings):
        match = BYTE_TOKEN.fullmatch(string) if byte_tokens and string in vocab else None
        if match:
            value = int(match[1], 16)
            tokens.append(bytes([value]))
            types[i], byte_ids[value] = BYTE, i
            continue
        if " " in string and i not in added:
            raise UnsupportedError(f"{reader.origin}: token {i} is {shorten(string)}, with a space that no text can match; write it as U+2581")
        tokens.append(string.replace(SPACE, " ").encode("utf-8"))
    types[special] = CONTROL
    missing = np.flatnonzero(byte_ids < 0)
    if byte_tokens and len(missing):
        raise FormatError(f"{reader.origin}: byte_fallback is true, but there is no token <0x{missing[0]:02X}>; all 256 are needed")
    return tuple(tokens), types, byte_ids


def _plain(text: str) -> bytes:
    return text.replace(SPACE, " ").encode("utf-8")


def read_bpe(reader: TokenizerJson, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...], source: bytes) -> TokenizerSpec:
    """Characters, or bytes where there is no token, joined by merges."""
    for key in ("truncation", "padding"):
        reader.only(key, reader.root.get(key), (None,), "null")
    normal, split = reader.steps("normalizer", "normalizers"), reader.steps("pre_tokenizer", "pretokenizers")
    words = False
    if normal in ([_PREPEND, _REPLACE], [_REPLACE]) and split in ([], [_IDLE_SPLIT]):
        rules, prefix = frozenset({"every"} if _PREPEND in normal else ()), _PREPEND in normal
    elif not normal and [s.get("type") for s in split] == ["Metaspace"]:
        rules, prefix, words = _metaspace(reader, split[0])
    else:
        supported = "Prepend and Replace as Llama 2 has them, or Metaspace without a normalizer"
        raise reader.unsupported_steps("normalizer and pre_tokenizer", [*normal, *split], supported)
    reader.check_model(
        (
            ("dropout", (None, 0.0, 0), "null"),
            ("continuing_subword_prefix", (None, ""), "null"),
            ("end_of_word_suffix", (None, ""), "null"),
            ("byte_fallback", (None, False, True), "true or false"),
            ("fuse_unk", (None, False, True), "true or false"),
            ("ignore_merges", (None, False), "false"),
        )
    )
    strings, vocab = reader.vocabulary(vocab_size)
    added = reader.added_tokens(_plain)
    tokens, types, byte_ids = _tokens(reader, strings, vocab, bool(reader.model.get("byte_fallback")), added.special, added.ids)
    rows = [(int.from_bytes(_plain(s), "big"), i) for s, i in vocab.items() if len(s) == 1]
    bos, add_bos, suffix = reader.template(bos_id)
    strip = _decoder(reader)
    return TokenizerSpec(
        kind="bpe-spm",
        tokens=tokens,
        token_types=types,
        pairs=reader.pairs(vocab),
        byte_ids=byte_ids,
        characters=np.array(sorted(rows), dtype=np.uint32).astype(np.int32).reshape(-1, 2),
        added=added.ids,
        add_bos=add_bos,
        bos_id=bos,
        eos_ids=eos_ids,
        add_prefix_space=prefix,
        pre_tokenizer="space" if words else "none",
        strip_space_after_bos=strip,
        source_json=source,
        unk_id=reader.token_id("model unk_token", reader.model.get("unk_token"), vocab),
        fuse_unk=bool(reader.model.get("fuse_unk")),
        suffix_id=suffix,
        space_rules=rules | {"low-line"} | ({"strip-first"} if strip else set()),
        added_left=added.left,
        added_right=added.right,
    )


def read_unigram(reader: TokenizerJson, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...], source: bytes) -> TokenizerSpec:
    """The cut with the highest sum of scores; truncation and padding are the caller's business and are not read."""
    normalizer, rules = _unigram_normalizer(reader)
    split = reader.steps("pre_tokenizer", "pretokenizers")
    kinds = [s.get("type") for s in split]
    if kinds not in (["Metaspace"], ["WhitespaceSplit", "Metaspace"]):
        raise reader.unsupported_steps("pre_tokenizer", split, "Metaspace, or WhitespaceSplit and Metaspace")
    more, prefix, words = _metaspace(reader, split[-1])
    if not words or (len(split) == 2 and not {"every"} <= more):
        raise reader.unsupported_steps("pre_tokenizer", split, "Metaspace with split true, and with prepend_scheme always behind WhitespaceSplit")
    strings, vocab = reader.vocabulary(vocab_size)
    unk = reader.model.get("unk_id")
    if type(unk) is not int or not 0 <= unk < len(vocab):
        raise FormatError(f"{reader.origin}: model unk_id is {shorten(unk)}; the id of a token is needed")
    reader.only("model byte_fallback", reader.model.get("byte_fallback", False), (False, True), "true or false")
    added = reader.added_tokens(_plain)
    fallback = bool(reader.model.get("byte_fallback"))
    tokens, types, byte_ids = _tokens(reader, strings, vocab, fallback, added.special, added.ids)
    keys: dict[bytes, int] = {}
    for string, i in vocab.items():
        if keys.setdefault(_plain(string), i) != i:
            raise FormatError(f"{reader.origin}: tokens {keys[_plain(string)]} and {i} are the same text {shorten(string)}; keep one")
    bos, add_bos, suffix = reader.template(bos_id)
    strip = _decoder(reader)
    return TokenizerSpec(
        kind="unigram",
        tokens=tokens,
        token_types=types,
        pairs=pairs_array([]),
        byte_ids=byte_ids,
        characters=np.zeros((0, 2), np.int32),
        added=added.ids,
        add_bos=add_bos,
        bos_id=bos,
        eos_ids=eos_ids,
        add_prefix_space=prefix,
        pre_tokenizer="whitespace" if len(split) == 2 else "space",
        strip_space_after_bos=strip,
        source_json=source,
        unk_id=unk,
        fuse_unk=True,
        byte_fallback=fallback,
        suffix_id=suffix,
        keys=keys,
        scores=fixed_scores([float(row[1]) for row in reader.model["vocab"]], len(strings), reader.origin),
        normalizer=normalizer,
        space_rules=rules | more | ({"strip-first"} if strip else set()),
        added_left=added.left,
        added_right=added.right,
    )


def _unigram_normalizer(reader: TokenizerJson):
    """(tables or None, rules) of what T5's and XLM-R's tokenizers do before they cut."""
    steps = reader.steps("normalizer", "normalizers")
    normalizer, rules, rest = None, set(), list(steps)
    if rest and rest[0].get("type") == "Precompiled":
        normalizer = normalizers.precompiled(rest.pop(0).get("precompiled_charsmap"), reader.origin)
    if rest and rest[0] == {"type": "Strip", "strip_left": False, "strip_right": True}:
        rules.add("strip-end")
        rest.pop(0)
    if rest and rest[0] in [{"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": space} for space in (" ", SPACE)]:
        rules.add("collapse")
        rest.pop(0)
    if rest:
        raise reader.unsupported_steps("normalizer", steps, "Precompiled, then maybe Strip (right) and Replace of two or more spaces by one")
    return normalizer, frozenset(rules)


def fixed_scores(scores: list[float], n: int, origin: str) -> np.ndarray:
    """int32 [n + 1]: scores times the largest power of two that fits, and last the score of an unknown character.

    SentencePiece's scores are float32: with those of about 1 and more nothing is rounded, so sums and ties are the library's.
    """
    values = np.array(scores, np.float64)
    if not np.isfinite(values).all():
        raise FormatError(f"{origin}: model.vocab has a score that is no finite number")
    unknown = values.min() - UNKNOWN_PENALTY
    largest = max(np.abs(values).max(), abs(unknown))
    if largest >= 2.0**30:
        raise FormatError(f"{origin}: model.vocab has a score of {largest:g}; below 2^30 is allowed")
    f = 30
    while largest * 2.0**f >= 2**31 - 1:
        f -= 1
    table = np.zeros(n + 1, np.int32)
    table[: len(values)] = np.rint(values * 2.0**f).astype(np.int32)
    table[n] = round(unknown * 2.0**f)
    return table
