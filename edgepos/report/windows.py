"""Texts to measure on, cut into windows of token ids."""

from __future__ import annotations

import codecs
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from ..bounded_file import MOST_BYTES, read_bounded
from ..errors import EdgePosError, FormatError

SAMPLE = Path(__file__).with_name("sample.txt")
TOKEN_BYTES = 64  # of a text are kept for each token that is asked for; words have fewer
MARGIN = 64  # tokens behind a cut that may differ from those of the whole text
_PIECE = 1 << 20
WINDOW = 512  # tokens of context at most, so that figures of different models compare


@dataclass(frozen=True)
class Text:
    """A text with the name and SHA-256 that a report states. documents: its parts, each measured from an empty cache: texts or
    token ids; none: `content` is one."""

    name: str
    content: str
    sha256: str
    documents: tuple[str | list[int], ...] = ()


def read_text(path: str | Path | None = None) -> Text:
    """The text at `path`, or EdgePos's own sample. Raises FormatError when it is missing, empty, too large or not UTF-8."""
    file = SAMPLE if path is None else Path(path)
    digest = hashlib.sha256()
    data, _ = _start(file, None, digest)
    content = _decode(file, data)
    if not content.strip():
        raise FormatError(f"text {file}: it is empty; give a text of at least two tokens")
    return Text("edgepos sample" if path is None else file.name, content, digest.hexdigest())


def read_texts(paths: list[Path], field: str = "text", most_tokens: int | None = None) -> Text:
    """Several files as one: .jsonl has a document per line under `field`, .json is a list of token ids (or a list of such lists),
    anything else is a UTF-8 text. The SHA-256 is of all bytes in order. Of texts and .jsonl only the beginning that gives `most_tokens` is kept,
    the rest is read for the SHA-256 alone. Raises FormatError like `read_text`, naming the line."""
    if not paths:
        return read_text()
    documents: list[str | list[int]] = []
    digest = hashlib.sha256()
    for file in paths:
        most = None if most_tokens is None or file.suffix == ".json" else TOKEN_BYTES * most_tokens + _PIECE
        data, whole = _start(file, most, digest)
        if file.suffix == ".jsonl":
            end = len(data) if whole else data.rfind(b"\n") + 1
            if data and not end:
                raise FormatError(f"text {file}: line 1 has more than {len(data)} bytes; give shorter documents, or ask for more tokens")
            found = list(_lines(file, data[:end], field))
        elif file.suffix == ".json":
            found = _ids(file, data)
        else:
            found = [_decode(file, data, whole)]
        if not any(part.strip() if isinstance(part, str) else part for part in found):
            raise FormatError(f"text {file}: it is empty; give a text of at least two tokens")
        documents += found
    texts = [part for part in documents if isinstance(part, str)]
    return Text(" + ".join(file.name for file in paths), "\n".join(texts), digest.hexdigest(), tuple(documents))


def _start(file: Path, most: int | None, digest) -> tuple[bytes, bool]:
    """(the first `most` bytes of a file, or all of it; whether that is all), digest updated with every byte."""
    try:
        if most is None or not file.is_file():  # a device may never end
            data = read_bounded(file, f"text {file}")
            digest.update(data)
            return data, True
        with open(file, "rb") as stream:
            data, whole = stream.read(min(most, MOST_BYTES)), True
            digest.update(data)
            while piece := stream.read(_PIECE):
                digest.update(piece)
                whole = False
            return data, whole
    except OSError as error:
        raise FormatError(f"text {file}: {error.strerror}; give a readable file") from None


def _decode(file: Path, data: bytes, whole: bool = True) -> str:
    """A text, or the beginning of one, whose last code point may be cut."""
    try:
        content = codecs.getincrementaldecoder("utf-8")().decode(data, final=whole)
    except UnicodeDecodeError as error:
        raise FormatError(f"text {file}: byte {error.start} is not UTF-8; convert the file first") from None
    if "\0" in content:
        raise FormatError(f"text {file}: byte {data.index(0)} is zero, so this is no text; give a text, .jsonl or .json file")
    return content


def _lines(file: Path, data: bytes, field: str):
    for number, line in enumerate(_decode(file, data).splitlines(), 1):
        if line.strip():
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                raise FormatError(f"text {file}: line {number} is not JSON; a .jsonl file has one object per line") from None
            if not isinstance(entry, dict) or not isinstance(entry.get(field), str):
                raise FormatError(f"text {file}: line {number} has no text under {field!r}; name the field with --field")
            yield entry[field]


def _ids(file: Path, data: bytes) -> list[list[int]]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    rows = found if isinstance(found, list) and found and all(isinstance(row, list) for row in found) else [found]
    if not all(isinstance(row, list) and all(type(i) is int and 0 <= i < 2**31 for i in row) for row in rows):
        raise FormatError(f"text {file}: not a JSON list of token ids, nor a list of such lists")
    return rows


def windows(ids: list[int], size: int, bos: int | None) -> list[list[int]]:
    """Cut ids into windows of at most `size` tokens; each starts with `bos` when the model has one. Windows of one token are dropped."""
    if bos is not None and ids[:1] == [bos]:
        ids = ids[1:]
    start = [] if bos is None else [bos]
    step = size - len(start)
    cut = [start + ids[at : at + step] for at in range(0, len(ids), step)]
    return [window for window in cut if len(window) > 1]


def text_windows(tokenizer, text: Text, max_tokens: int, context: int, window: int = WINDOW) -> list[list[int]]:
    """The first `max_tokens` tokens of a text in windows that fit `context` and `window`.

    Ids are used as they are; `tokenizer` may be None for a text of ids alone. Raises EdgePosError when there is nothing to predict.
    """
    size = min(window, context)
    if size < 2:
        raise EdgePosError(f"a context of {size} gives no prediction to measure; at least 2 are needed")
    cut, left = [], max_tokens
    for document in text.documents or (text.content,):
        if left < 1:
            break
        if isinstance(document, str):
            if tokenizer is None:
                raise EdgePosError(f"text {text.name}: the bundle has no tokenizer; give token ids as a .json file")
            ids, bos = _first_ids(tokenizer, document, left), tokenizer.bos_id if tokenizer.adds_bos else None
        else:
            ids, bos = document[:left], None
        left -= len(ids)
        cut += windows(ids, size, bos)
    if not cut:
        raise EdgePosError(f"text {text.name}: it gives no prediction; at least two tokens are needed")
    return cut


def first_tokens(windows: list[list[int]], count: int) -> list[list[int]]:
    """The first `count` tokens of windows, in windows of at least two; at least one window."""
    found, left = [], max(count, 2)
    for window in windows:
        if left < 2:
            break
        found.append(window[:left])
        left -= len(found[-1])
    return found


def _first_ids(tokenizer, document: str, count: int) -> list[int]:
    """The first `count` ids of a text, of which only as much is encoded as that takes."""
    size = 8 * count
    while True:
        ids = tokenizer.encode(document[:size], bos=False)
        if size >= len(document) or len(ids) >= count + MARGIN:
            return ids[:count]
        size *= 2


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
