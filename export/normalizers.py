"""Normalizer tables, asked of the `tokenizers` library: its Unicode version, not Python's, decides what a text becomes."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import numpy as np

from edgepos.errors import FormatError

from .tokenizers import Normalizer

KEEP, SHIFT, STRING, APART, HANGUL = range(5)
SURROGATES = range(0xD800, 0xE000)
MOST_STRING = 255
_STEP = 1 << 15  # code points asked for at a time
HANGUL_SYLLABLES = range(0xAC00, 0xAC00 + 11172)
PREPEND = (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0xD4E, 0x110BD, 0x110CD, 0x111C2, 0x111C3, 0x1193F, 0x11941,
           0x11A3A, *range(0x11A84, 0x11A8A), 0x11D46, 0x11F02)  # fmt: skip
# UAX #29, Grapheme_Cluster_Break=Prepend


class _Strings:
    """Length-prefixed strings, each stored once."""

    def __init__(self):
        self.blob = bytearray()
        self._known: dict[bytes, int] = {}

    def offset(self, string: bytes, origin: str) -> int:
        if len(string) > MOST_STRING:
            raise FormatError(f"{origin}: a normalizer's string has {len(string)} bytes; at most {MOST_STRING} are allowed")
        if string not in self._known:
            self._known[string] = len(self.blob)
            self.blob += bytes([len(string)]) + string
        return self._known[string]


def _code_points() -> Iterable[list[int]]:
    for start in range(0, 0x110000, _STEP):
        points = [c for c in range(start, start + _STEP) if c not in SURROGATES]
        if points:
            yield points


def _ask(change: Callable[[str], str], sign: str, prefix: str = "", suffix: str = "") -> dict[int, str]:
    """What every code point becomes between ``prefix`` and ``suffix``; `sign` must stay as it is and divide the answers."""
    found: dict[int, str] = {}
    for points in _code_points():
        parts = change(sign.join(prefix + chr(c) + suffix for c in points if chr(c) != sign)).split(sign)
        found |= zip((c for c in points if chr(c) != sign), parts, strict=True)
    found[ord(sign)] = change(prefix + sign + suffix)
    return found


def _runs(values: dict[int, Any], default: Any) -> list[tuple[int, Any]]:
    """(first code point, value) wherever the value changes."""
    runs: list[tuple[int, Any]] = []
    for c in range(0x110000):
        value = values.get(c, default)
        if not runs or runs[-1][1] != value:
            runs.append((c, value))
    return runs


def _map_rows(actions: dict[int, tuple[int, int]]) -> np.ndarray:
    return np.array([(c << 3 | action, argument) for c, (action, argument) in _runs(actions, (KEEP, 0))], np.int32)


@lru_cache(maxsize=1)
def nfc() -> Normalizer:
    """Unicode normalization form C."""
    from tokenizers import normalizers

    decompose, whole = normalizers.NFD().normalize_str, normalizers.NFC().normalize_str
    strings, actions, pairs = _Strings(), {}, []
    for c, parts in _ask(decompose, "\n").items():
        if c in HANGUL_SYLLABLES:
            actions[c] = (HANGUL, 0)
        elif parts != chr(c):
            actions[c] = (STRING, strings.offset(parts.encode(), "NFC"))
            first = whole(parts[:-1])
            if whole(chr(c)) == chr(c) and len(first) == 1 and whole(first + parts[-1]) == chr(c):
                pairs.append((ord(first), ord(parts[-1]), c))
    runs = _runs(_combining_classes(decompose), 0)
    return Normalizer(
        kind="nfc",
        strings=bytes(strings.blob) or b"\0",
        map=_map_rows(actions),
        classes=np.array([c << 8 | value for c, value in runs], np.int32),
        compose=np.array(sorted(pairs), np.int32),
    )


def _combining_classes(decompose: Callable[[str], str]) -> dict[int, int]:
    """Canonical combining class of every code point that has one, by the order in which it is put beside known marks."""
    known = {unicodedata.combining(chr(c)): chr(c) for c in range(0x10FFF, 0x2FF, -1) if c not in SURROGATES and decompose(chr(c)) == chr(c)}
    known.pop(0)
    low, high = known[min(known)], known[max(known)]
    # Python may know newer marks than the library, which moves nothing past those.
    known = {k: m for k, m in known.items() if m in (low, high) or decompose(high + m)[0] == m or decompose(m + low)[0] == low}
    marks = {c for c, text in _ask(decompose, "\n", prefix=high).items() if text == chr(c) + high}
    marks |= {c for c, text in _ask(decompose, "\n", suffix=low).items() if text == low + chr(c)}
    classes = {}
    for c in marks:
        # Neither moves past the other: the classes are equal.
        equal = [k for k, mark in known.items() if decompose(chr(c) + mark)[0] == chr(c) and decompose(mark + chr(c))[0] == mark]
        below = [k for k, mark in known.items() if decompose(chr(c) + mark)[0] == mark]
        classes[c] = equal[0] if equal else max(below, default=0) + 1
    return classes


def bert(options: dict[str, bool | None]) -> Normalizer:
    """BertNormalizer and BertPreTokenizer in one: words are divided by bytes 0xFF, and a sign is a word."""
    return _bert(tuple(options.items()))


@lru_cache(maxsize=4)
def _bert(options: tuple[tuple[str, bool | None], ...]) -> Normalizer:
    from tokenizers import normalizers, pre_tokenizers

    change = normalizers.BertNormalizer(**dict(options)).normalize_str
    breaks = _breaks(pre_tokenizers.BertPreTokenizer())
    strings, actions = _Strings(), {}
    for c, text in _ask(change, "|").items():
        out = b"".join({0: x.encode(), 1: b"\xff", 2: b"\xff" + x.encode() + b"\xff"}[breaks.get(ord(x), 0)] for x in text)
        if out == chr(c).encode():
            continue
        if out == b"\xff" + chr(c).encode() + b"\xff" or out == b"\xff\xff" + chr(c).encode() + b"\xff\xff":
            actions[c] = (APART, 0)
        elif c in HANGUL_SYLLABLES and text == unicodedata.normalize("NFD", chr(c)):
            actions[c] = (HANGUL, 0)
        elif len(text) == 1 and breaks.get(ord(text), 0) == 0:
            actions[c] = (SHIFT, ord(text) - c)
        else:
            actions[c] = (STRING, strings.offset(out, "BertNormalizer"))
    return Normalizer(kind="map", strings=bytes(strings.blob) or b"\0", map=_map_rows(actions))


def _breaks(pre_tokenizer: Any) -> dict[int, int]:
    """1 for code points that divide words and vanish, 2 for those that are words of their own."""
    found = {}
    for points in _code_points():
        # What lies between the letters joins them, divides them or is a word between them; the ! divides one question from the next.
        for text, (start, _) in pre_tokenizer.pre_tokenize_str("".join(f"a{chr(c)}b!" for c in points)):
            if start % 4 == 0 and text == "a":
                found.setdefault(points[start // 4], 1)
            elif start % 4 == 1 and len(text) == 1:
                found[points[start // 4]] = 2
    return found


def precompiled(blob: str, origin: str) -> Normalizer:
    """SentencePiece's precompiled map: a double array (darts) of keys and the strings that they become."""
    try:
        data = base64.b64decode(blob, validate=True)
        size = int.from_bytes(data[:4], "little")
        units = np.frombuffer(data, "<u4", size // 4, 4)
    except (ValueError, TypeError):
        raise FormatError(f"{origin}: precompiled_charsmap is no double array and strings in base64; use the model's own file") from None
    text = data[4 + size :]
    strings, keys = _Strings(), {}
    for key, at in _darts_keys(units, origin):
        end = text.find(b"\0", at)
        if end < 0:
            raise FormatError(f"{origin}: precompiled_charsmap has a string at {at} without an end in its {len(text)} bytes")
        keys[key] = strings.offset(text[at:end], origin)
    return Normalizer(kind="strings", strings=bytes(strings.blob) or b"\0", classes=_grapheme_classes(), keys=keys)


def _darts_keys(units: np.ndarray, origin: str) -> Iterable[tuple[bytes, int]]:
    """(key, value) of a double array; keys that another key begins are left out, since the shortest one is taken."""
    n, labels, seen = len(units), np.arange(1, 256, dtype=np.int64), 0
    if n == 0:
        return

    def base(unit: int, at: int) -> int:
        return at ^ ((unit >> 10) << ((unit & (1 << 9)) >> 6))

    stack = [(b"", base(int(units[0]), 0))]
    while stack:
        key, at = stack.pop()
        seen += 1
        if seen > n:
            raise FormatError(f"{origin}: precompiled_charsmap leads in circles; use the model's own file")
        children = at ^ labels
        inside = children < n
        units_there = units[np.where(inside, children, 0)].astype(np.int64)
        for i in np.flatnonzero(inside & ((units_there & (1 << 31 | 0xFF)) == labels)):
            unit, child = int(units_there[i]), key + bytes([i + 1])
            below = base(unit, int(children[i]))
            if unit >> 8 & 1:
                if below >= n:
                    raise FormatError(f"{origin}: precompiled_charsmap has a value outside its {n} units")
                yield child, int(units[below]) & 0x7FFFFFFF
            else:
                stack.append((child, below))


@lru_cache(maxsize=1)
def _grapheme_classes() -> np.ndarray:
    """int32 runs of code points << 2 | class: 1 goes on with the grapheme before it, 2 begins one, 3 stands alone."""
    from tokenizers import normalizers

    # A map of the one key 'a' to X: it is applied to the whole grapheme that begins with 'a', if it is short.
    units = np.zeros(256, "<u4")
    units[0], units[1 ^ 0x61] = 1 << 10, 0x61 | 1 << 8 | 1 << 10
    probe = normalizers.Precompiled((len(units) * 4).to_bytes(4, "little") + units.tobytes() + b"X\0").normalize_str
    classes = {c: 1 for c, text in _ask(probe, "\n", "a").items() if text == "X"}
    controls = (c for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Zl", "Zp"))
    classes |= {c: 3 for c in controls if c not in classes} | dict.fromkeys(PREPEND, 2)
    return np.array([c << 2 | value for c, value in _runs(classes, 0)], np.int32)
