"""Texts to measure on, cut into windows of token ids."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from ..errors import EdgePosError, FormatError

SAMPLE = Path(__file__).with_name("sample.txt")
MAX_TEXT_BYTES = 1 << 28
WINDOW = 512  # tokens of context at most, so that figures of different models compare


@dataclass(frozen=True)
class Text:
    """A text with the name and SHA-256 that a report states."""

    name: str
    content: str
    sha256: str


def read_text(path: str | Path | None = None) -> Text:
    """The text at `path`, or EdgePos's own sample. Raises FormatError when it is missing, empty, too large or not UTF-8."""
    file = SAMPLE if path is None else Path(path)
    try:
        size = file.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise FormatError(f"text {file}: {size} bytes found, at most {MAX_TEXT_BYTES} allowed; give a part of it")
        data = file.read_bytes()
        content = data.decode("utf-8")
    except OSError as error:
        raise FormatError(f"text {file}: {error.strerror}; give a readable file") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"text {file}: byte {error.start} is not UTF-8; convert the file first") from None
    if not content.strip():
        raise FormatError(f"text {file}: it is empty; give a text of at least two tokens")
    return Text("edgepos sample" if path is None else file.name, content, hashlib.sha256(data).hexdigest())


def windows(ids: list[int], size: int, bos: int | None) -> list[list[int]]:
    """Cut ids into windows of at most `size` tokens; each starts with `bos` when the model has one. Windows of one token are dropped."""
    if bos is not None and ids[:1] == [bos]:
        ids = ids[1:]
    start = [] if bos is None else [bos]
    step = size - len(start)
    cut = [start + ids[at : at + step] for at in range(0, len(ids), step)]
    return [window for window in cut if len(window) > 1]


def text_windows(tokenizer, text: Text, max_tokens: int, context: int) -> list[list[int]]:
    """The first `max_tokens` tokens of a text in windows that fit `context` and WINDOW.

    Raises EdgePosError when there is nothing to predict.
    """
    size = min(WINDOW, context)
    if size < 2:
        raise EdgePosError(f"a context of {size} gives no prediction to measure; at least 2 are needed")
    bos = tokenizer.bos_id if tokenizer.adds_bos else None
    cut = windows(tokenizer.encode(text.content, bos=False)[:max_tokens], size, bos)
    if not cut:
        raise EdgePosError(f"text {text.name}: it gives no prediction; at least two tokens are needed")
    return cut


def stories(text: str, count: int) -> list[str]:
    """The first `count` stories of a TinyStories text: cut at "Once upon a time" and "One day, ", 300 to 1400 characters long."""
    marks = ("Once upon a time", "One day, ")
    starts = sorted({at for mark in marks for at in _all_indices(text, mark)}) + [len(text)]
    parts = (text[a:b].strip() for a, b in zip(starts, starts[1:]))
    return [part for part in parts if 300 <= len(part) <= 1400][:count]


def _all_indices(text: str, mark: str) -> list[int]:
    found, at = [], text.find(mark)
    while at >= 0:
        found.append(at)
        at = text.find(mark, at + 1)
    return found
