"""tokenizer.json (the ``tokenizers`` library) with byte-level BPE, as in GPT-2.

Everything that could change an id is read or refused by name; nothing is guessed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .json_files import parse_json_object, read_bytes
from .shorten import shorten
from .tokenizers import CONTROL, NORMAL, TokenizerSpec, pairs_array


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte -> the byte (github.com/openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(shifted)}


ALPHABET = byte_alphabet()


def read_tokenizer_json(
    path: Path, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...]
) -> TokenizerSpec:
    """The tokenizer of a model whose embedding has ``vocab_size`` rows.

    Raises UnsupportedError for a setting outside byte-level BPE, FormatError for a vocabulary
    or merge list that contradicts itself; both name the setting and the value.
    """
    source = read_bytes(path)
    root = parse_json_object(source, path.name)
    reader = _Reader(path.name, root)
    reader.check_steps()
    strings, vocab = reader.vocabulary(vocab_size)
    added, special = reader.added_tokens()
    types = np.full(len(strings), NORMAL, np.uint8)
    types[special] = CONTROL
    template_bos = reader.template_bos()
    if template_bos is not None and bos_id is not None and template_bos != bos_id:
        raise FormatError(
            f"{path.name}: post_processor starts texts with token {template_bos}, the config's bos_token_id is "
            f"{bos_id}; they must be equal"
        )
    return TokenizerSpec(
        kind="bpe-bytelevel",
        tokens=tuple(decoded_bytes(s) for s in strings),
        token_types=types,
        pairs=reader.pairs(vocab),
        byte_ids=np.array([vocab.get(c, -1) for c in sorted(ALPHABET, key=ALPHABET.get)], np.int32),
        characters=np.zeros((0, 2), np.int32),
        added=added,
        add_bos=template_bos is not None,
        bos_id=template_bos if template_bos is not None else bos_id,
        eos_ids=eos_ids,
        add_prefix_space=False,
        pre_tokenizer="gpt2",
        strip_space_after_bos=False,
        source_json=source,
    )


def decoded_bytes(token: str) -> bytes:
    """What the ByteLevel decoder makes of a token; text outside the alphabet stays as it is."""
    if all(c in ALPHABET for c in token):
        return bytes(ALPHABET[c] for c in token)
    return token.encode("utf-8")


def _is_text(value: Any) -> bool:
    """Whether ``value`` is a string, not empty, of whole characters (JSON can smuggle half surrogates)."""
    return isinstance(value, str) and value != "" and not any(0xD800 <= ord(c) < 0xE000 for c in value)


class _Reader:
    """Checked access to the parts of one tokenizer.json."""

    def __init__(self, origin: str, root: dict[str, Any]):
        self.origin = origin
        self.root = root
        self.model = self._object("model", root.get("model"))

    def _object(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FormatError(f"{self.origin}: {name} is {shorten(value)}; an object is needed")
        return value

    def _list(self, name: str, value: Any) -> list:
        if not isinstance(value, list):
            raise FormatError(f"{self.origin}: {name} is {shorten(value)}; a list is needed")
        return value

    def _only(self, name: str, value: Any, allowed: tuple, supported: str) -> None:
        if not any(type(value) is type(a) and value == a for a in allowed):
            raise UnsupportedError(f"{self.origin}: {name} {shorten(value)} is not supported; supported: {supported}")

    def _step(self, name: str, value: Any, key: str) -> dict[str, Any]:
        """A processing step; a Sequence of one counts as that one."""
        step = self._object(name, value)
        if step.get("type") == "Sequence":
            parts = self._list(f"{name}.{key}", step.get(key))
            if len(parts) != 1:
                kinds = [p.get("type") if isinstance(p, dict) else p for p in parts]
                raise UnsupportedError(
                    f"{self.origin}: {name} is a Sequence of {shorten(kinds)}; supported: ByteLevel alone"
                )
            step = self._object(name, parts[0])
        return step

    def check_steps(self) -> None:
        """Refuse every step and option that would change an id or a byte."""
        self._only("normalizer", self.root.get("normalizer"), (None,), "null")
        self._only("truncation", self.root.get("truncation"), (None,), "null")
        self._only("padding", self.root.get("padding"), (None,), "null")
        pre = self._step("pre_tokenizer", self.root.get("pre_tokenizer"), "pretokenizers")
        self._only("pre_tokenizer type", pre.get("type"), ("ByteLevel",), "ByteLevel")
        self._only("pre_tokenizer use_regex", pre.get("use_regex", True), (True,), "true")
        self._only("pre_tokenizer add_prefix_space", pre.get("add_prefix_space"), (False,), "false")
        decoder = self._step("decoder", self.root.get("decoder"), "decoders")
        self._only("decoder type", decoder.get("type"), ("ByteLevel",), "ByteLevel")
        self._only("model type", self.model.get("type", "BPE"), ("BPE",), "BPE")
        for key, allowed, supported in (
            ("dropout", (None, 0.0, 0), "null"),
            ("unk_token", (None,), "null"),
            ("continuing_subword_prefix", (None, ""), "null"),
            ("end_of_word_suffix", (None, ""), "null"),
            ("byte_fallback", (None, False), "false"),
            ("ignore_merges", (None, False), "false"),
        ):
            self._only(f"model {key}", self.model.get(key), allowed, supported)

    def vocabulary(self, vocab_size: int) -> tuple[list[str], dict[str, int]]:
        """(string of every id 0..n-1 including added tokens, BPE vocabulary)."""
        vocab = self._object("model.vocab", self.model.get("vocab"))
        by_id: dict[int, str] = {}
        rows = [("model.vocab", token, i) for token, i in vocab.items()]
        for entry in self._list("added_tokens", self.root.get("added_tokens", [])):
            entry = self._object("added_tokens entry", entry)
            rows.append(("added_tokens", entry.get("content"), entry.get("id")))
        for where, token, i in rows:
            if type(i) is not int or not 0 <= i < vocab_size:
                raise FormatError(
                    f"{self.origin}: {where} gives {shorten(token)} the id {shorten(i)}; the model has ids 0 to "
                    f"{vocab_size - 1}; use the tokenizer that belongs to it"
                )
            if not _is_text(token):
                raise FormatError(f"{self.origin}: {where} id {i} is {shorten(token)}; a text, not empty, is needed")
            if by_id.setdefault(i, token) != token:
                raise FormatError(f"{self.origin}: id {i} is both {shorten(by_id[i])} and {shorten(token)}; keep one")
            if where == "added_tokens" and vocab.get(token, i) != i:
                raise FormatError(f"{self.origin}: {shorten(token)} has the ids {vocab[token]} and {i}; keep one")
        if not by_id:
            raise FormatError(f"{self.origin}: model.vocab is empty")
        gap = next((i for i in range(len(by_id)) if i not in by_id), None)
        if gap is not None:
            raise FormatError(
                f"{self.origin}: no token has id {gap}, though ids go up to {max(by_id)}; every id must have a token"
            )
        return [by_id[i] for i in range(len(by_id))], vocab

    def added_tokens(self) -> tuple[tuple[int, ...], list[int]]:
        """(ids that match literally, longest first; ids of special tokens), after ``vocabulary``."""
        found: dict[int, bytes] = {}
        special: list[int] = []
        for entry in self.root.get("added_tokens", []):
            name = f"added token {shorten(entry['content'])}"
            for key in ("single_word", "lstrip", "rstrip"):
                self._only(f"{name} {key}", entry.get(key, False), (False,), "false")
            self._only(f"{name} special", entry.get("special", False), (True, False), "true or false")
            content = entry["content"].encode("utf-8")
            if decoded_bytes(entry["content"]) != content:
                raise UnsupportedError(
                    f"{self.origin}: {name} would be decoded to other bytes than it is written with; "
                    "supported: added tokens of ASCII characters, or with a character outside GPT-2's alphabet"
                )
            if entry["id"] in found:
                raise FormatError(f"{self.origin}: {name} is listed twice; keep one")
            found[entry["id"]] = content
            if entry.get("special", False):
                special.append(entry["id"])
        self._check_one_pass(found)
        return tuple(sorted(found, key=lambda i: (-len(found[i]), i))), special

    def _check_one_pass(self, found: dict[int, bytes]) -> None:
        """The library matches normalized=false tokens first, then the others; one pass must do the same."""
        flags = {bool(e.get("normalized", not e.get("special", False))) for e in self.root.get("added_tokens", [])}
        if len(flags) > 1:
            raise UnsupportedError(
                f"{self.origin}: added tokens with normalized true and with false are mixed; "
                "supported: one value for all (there is no normalizer, so either will do)"
            )

    def template_bos(self) -> int | None:
        """The token a post-processor puts before a text, or None."""
        step = self.root.get("post_processor")
        if step is None:
            return None
        step = self._object("post_processor", step)
        steps = [step]
        if step.get("type") == "Sequence":
            steps = self._list("post_processor.processors", step.get("processors"))
        bos = None
        for part in steps:
            part = self._object("post_processor", part)
            allowed = ("ByteLevel", "TemplateProcessing")
            self._only("post_processor type", part.get("type"), allowed, ", ".join(allowed))
            if part["type"] == "TemplateProcessing":
                if bos is not None:
                    raise UnsupportedError(f"{self.origin}: post_processor has two templates; supported: one")
                bos = self._template_token(part)
        return bos

    def _template_token(self, template: dict[str, Any]) -> int | None:
        """The one token of a template [BOS, text]; None for [text]."""
        single = self._list("post_processor.single", template.get("single"))
        kinds = [next(iter(p), None) if isinstance(p, dict) else None for p in single]
        if kinds == ["Sequence"]:
            return None
        if kinds != ["SpecialToken", "Sequence"]:
            raise UnsupportedError(
                f"{self.origin}: post_processor.single is {shorten(kinds)}; supported: text, or one token and text"
            )
        name = self._object("post_processor.single", single[0]["SpecialToken"]).get("id")
        tokens = self._object("post_processor.special_tokens", template.get("special_tokens"))
        ids = self._object("post_processor special token", tokens.get(name)).get("ids")
        known = {e["id"] for e in self.root.get("added_tokens", [])}
        if not isinstance(ids, list) or len(ids) != 1 or type(ids[0]) is not int or ids[0] not in known:
            raise FormatError(
                f"{self.origin}: post_processor token {shorten(name)} has ids {shorten(ids)}; one added token is needed"
            )
        return ids[0]

    def pairs(self, vocab: dict[str, int]) -> np.ndarray:
        """Rows (left, right, rank, merged); a merge's rank is its place in the list.

        Halves are never empty, so every merge makes a longer text and no merges can form a cycle.
        """
        rows: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        for rank, merge in enumerate(self._list("model.merges", self.model.get("merges"))):
            halves = merge.split(" ") if isinstance(merge, str) else merge
            if not isinstance(halves, list) or len(halves) != 2 or not all(map(_is_text, halves)):
                raise FormatError(f"{self.origin}: merge {rank} is {shorten(merge)}; two tokens are needed")
            for token in (*halves, "".join(halves)):
                if token not in vocab:
                    raise FormatError(
                        f"{self.origin}: merge {rank} {shorten(merge)} needs {shorten(token)}, which is not in the "
                        "vocabulary; use vocabulary and merges of one tokenizer"
                    )
            left, right = vocab[halves[0]], vocab[halves[1]]
            if (left, right) in rows:
                first = rows[left, right][2]
                raise FormatError(f"{self.origin}: merge {rank} {shorten(merge)} repeats merge {first}; keep one")
            rows[left, right] = (left, right, rank, vocab["".join(halves)])
        return pairs_array(list(rows.values()))
