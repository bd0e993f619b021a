"""Checked access to the parts of a tokenizer.json (the ``tokenizers`` library)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .shorten import shorten
from .tokenizers import pairs_array

def is_text(value: Any) -> bool:
    """Whether ``value`` is a string, not empty, of whole characters (JSON can smuggle half surrogates)."""
    return isinstance(value, str) and value != "" and not any(0xD800 <= ord(c) < 0xE000 for c in value)


@dataclass(frozen=True)
class Added:
    """Added tokens: ids, longest first; those that print nothing; those that take the white space before or behind them."""

    ids: tuple[int, ...]
    special: list[int]
    left: frozenset[int]
    right: frozenset[int]


class TokenizerJson:
    """Checked access to the parts of one tokenizer.json. Everything that could change an id is read or refused by name."""

    def __init__(self, origin: str, root: dict[str, Any]):
        self.origin = origin
        self.root = root
        self.model = self.object("model", root.get("model"))

    def object(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise FormatError(f"{self.origin}: {name} is {shorten(value)}; an object is needed")
        return value

    def list(self, name: str, value: Any) -> list:
        if not isinstance(value, list):
            raise FormatError(f"{self.origin}: {name} is {shorten(value)}; a list is needed")
        return value

    def only(self, name: str, value: Any, allowed: tuple, supported: str) -> None:
        if not any(type(value) is type(a) and value == a for a in allowed):
            raise UnsupportedError(f"{self.origin}: {name} {shorten(value)} is not supported; supported: {supported}")

    def steps(self, name: str, key: str) -> list[dict[str, Any]]:
        """The processing steps under ``name``: none, one, or those of a Sequence."""
        value = self.root.get(name)
        if value is None:
            return []
        step = self.object(name, value)
        if step.get("type") != "Sequence":
            return [step]
        return [self.object(name, part) for part in self.list(f"{name}.{key}", step.get(key))]

    def unsupported_steps(self, name: str, steps: list[dict[str, Any]], supported: str) -> UnsupportedError:
        """The error for steps that the runtime has not: they are named with their options."""
        dull = ("type", "trim_offsets", "precompiled_charsmap")
        texts = []
        for step in steps:
            options = ", ".join(f"{key}={shorten(value)}" for key, value in step.items() if key not in dull)
            kind = str(step.get("type"))[:40]
            texts.append(f"{kind}({options})" if options else kind)
        return UnsupportedError(f"{self.origin}: {name} {', '.join(texts) or 'null'} is not supported; supported: {supported}")

    def check_model(self, rules: tuple[tuple[str, tuple, str], ...]) -> None:
        """Refuse every option of the model that is not one of the allowed ones."""
        for key, allowed, supported in rules:
            self.only(f"model {key}", self.model.get(key), allowed, supported)

    def vocab(self) -> dict[str, int]:
        """The model's tokens and their ids; Unigram lists them with their scores."""
        vocab = self.model.get("vocab")
        if self.model.get("type") != "Unigram":
            return self.object("model.vocab", vocab)
        ids: dict[str, int] = {}
        for i, row in enumerate(self.list("model.vocab", vocab)):
            if not isinstance(row, list) or len(row) != 2 or not isinstance(row[0], str) or type(row[1]) not in (int, float):
                raise FormatError(f"{self.origin}: model.vocab entry {i} is {shorten(row)}; a token and a score are needed")
            if ids.setdefault(row[0], i) != i:
                raise FormatError(f"{self.origin}: model.vocab has {shorten(row[0])} at {ids[row[0]]} and at {i}; keep one")
        return ids

    def token_id(self, name: str, token: Any, vocab: dict[str, int]) -> int | None:
        """The id of a token that an option names, None for null."""
        if token is None:
            return None
        if not isinstance(token, str) or token not in vocab:
            raise FormatError(f"{self.origin}: {name} is {shorten(token)}, which is not in the vocabulary")
        return vocab[token]

    def vocabulary(self, vocab_size: int) -> tuple[list[str], dict[str, int]]:
        """(string of every id 0..n-1 including added tokens, BPE vocabulary)."""
        vocab = self.vocab()
        by_id: dict[int, str] = {}
        rows = [("model.vocab", token, i) for token, i in vocab.items()]
        for entry in self.list("added_tokens", self.root.get("added_tokens", [])):
            entry = self.object("added_tokens entry", entry)
            rows.append(("added_tokens", entry.get("content"), entry.get("id")))
        for where, token, i in rows:
            if type(i) is not int or not 0 <= i < vocab_size:
                raise FormatError(
                    f"{self.origin}: {where} gives {shorten(token)} the id {shorten(i)}; the model has ids 0 to "
                    f"{vocab_size - 1}; use the tokenizer that belongs to it"
                )
            if not is_text(token):
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

    def added_tokens(self, decode) -> Added:
        """The added tokens, after ``vocabulary``. decode: what the decoder makes of a token's text."""
        found: dict[int, bytes] = {}
        special, left, right = [], set(), set()
        for entry in self.root.get("added_tokens", []):
            name = f"added token {shorten(entry['content'])}"
            self.only(f"{name} single_word", entry.get("single_word", False), (False,), "false")
            for key, ids in (("special", special), ("lstrip", left), ("rstrip", right)):
                self.only(f"{name} {key}", entry.get(key, False), (True, False), "true or false")
                if entry.get(key, False):
                    (ids.append if isinstance(ids, list) else ids.add)(entry["id"])
            content = entry["content"].encode("utf-8")
            if decode(entry["content"]) != content:
                raise UnsupportedError(
                    f"{self.origin}: {name} would be decoded to other bytes than it is written with; "
                    "supported: added tokens of ASCII characters, or with a character outside GPT-2's alphabet"
                )
            if entry["id"] in found:
                raise FormatError(f"{self.origin}: {name} is listed twice; keep one")
            found[entry["id"]] = content
        self._check_one_pass()
        order = tuple(sorted(found, key=lambda i: (-len(found[i]), i)))
        return Added(order, special, frozenset(left), frozenset(right))

    def _check_one_pass(self) -> None:
        """The library matches normalized=false tokens first, then the others; one pass must do the same."""
        flags = {bool(e.get("normalized", not e.get("special", False))) for e in self.root.get("added_tokens", [])}
        if self.root.get("normalizer") is not None and True in flags:
            raise UnsupportedError(f"{self.origin}: added tokens with normalized true behind a normalizer; supported: normalized false for all")
        if len(flags) > 1:
            raise UnsupportedError(
                f"{self.origin}: added tokens with normalized true and with false are mixed; "
                "supported: one value for all (there is no normalizer, so either will do)"
            )

    def template(self, bos_id: int | None) -> tuple[int | None, bool, int | None]:
        """(BOS, whether texts begin with it, the token after a text or None) by the post-processor and the config."""
        prefix = suffix = None
        for part in self.steps("post_processor", "processors"):
            allowed = ("ByteLevel", "TemplateProcessing", "BertProcessing", "RobertaProcessing")
            self.only("post_processor type", part.get("type"), allowed, ", ".join(allowed))
            if part["type"] in ("BertProcessing", "RobertaProcessing"):
                prefix, suffix = (self._listed(f"post_processor {key}", part.get(key)) for key in ("cls", "sep"))
            elif part["type"] == "TemplateProcessing":
                prefix, suffix = self._template(part)
        if suffix is not None:
            # Such texts begin with what the template says, or with nothing: the config's BOS is no part of them.
            return prefix, prefix is not None, suffix
        if prefix is not None and bos_id is not None and prefix != bos_id:
            raise FormatError(
                f"{self.origin}: post_processor starts texts with token {prefix}, the config's bos_token_id is "
                f"{bos_id}; they must be equal"
            )
        return (bos_id if prefix is None else prefix), prefix is not None, None

    def _listed(self, name: str, value: Any) -> int:
        known = {e["id"] for e in self.root.get("added_tokens", [])}
        if not isinstance(value, list) or len(value) != 2 or type(value[1]) is not int or value[1] not in known:
            raise FormatError(f"{self.origin}: {name} is {shorten(value)}; an added token and its id are needed")
        return value[1]

    def _template(self, template: dict[str, Any]) -> tuple[int | None, int | None]:
        """(token before a text, token after it) of a TemplateProcessing."""
        single = [self.object("post_processor.single", s) for s in self.list("post_processor.single", template.get("single"))]
        kinds = [next(iter(s), None) for s in single]
        if kinds not in (["Sequence"], ["SpecialToken", "Sequence"], ["Sequence", "SpecialToken"], ["SpecialToken", "Sequence", "SpecialToken"]):
            raise UnsupportedError(
                f"{self.origin}: post_processor.single is {shorten(kinds)}; supported: text, or one token and text, with or without one token behind"
            )
        at = kinds.index("Sequence")
        return (self._special(template, single[0]) if at else None), (self._special(template, single[-1]) if at + 1 < len(single) else None)

    def _special(self, template: dict[str, Any], part: dict[str, Any]) -> int:
        name = self.object("post_processor.single", part["SpecialToken"]).get("id")
        tokens = self.object("post_processor.special_tokens", template.get("special_tokens"))
        ids = self.object("post_processor special token", tokens.get(name)).get("ids")
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
        for rank, merge in enumerate(self.list("model.merges", self.model.get("merges"))):
            halves = merge.split(" ") if isinstance(merge, str) else merge
            if not isinstance(halves, list) or len(halves) != 2 or not all(map(is_text, halves)):
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
