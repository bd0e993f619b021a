"""GGUF files as mapped views: every length is checked against the file before anything is believed or allocated.

Format: github.com/ggml-org/ggml, docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .config import Config
from .mapped_file import map_bytes
from .quantized_rows import BLOCKS, FLOATS, QuantizedRows
from .shorten import shorten

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY, BOOL = 8, 9, 7
SCALARS = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"), 5: np.dtype("<i4"),
    6: np.dtype("<f4"), BOOL: np.dtype("u1"), 10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
MAX_KEYS, MAX_TENSORS, MAX_NAME = 65536, 65536, 65535
ALIGNMENT = 32  # where general.alignment is missing


@dataclass(frozen=True)
class GgufFile:
    """metadata: key -> int, float, bool, str, or list of them. tensors: name -> array of shape [rows, columns], or [n].

    F32, F16 and BF16 tensors are views of the mapped file, the other types QuantizedRows over such views.
    """

    name: str
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray | QuantizedRows]


def open_gguf(path: Path) -> GgufFile:
    """The file at ``path``, its tensors unread.

    Raises FormatError naming the byte offset, key or tensor that does not fit the file, UnsupportedError for a version or
    tensor type that is not known.
    """
    try:
        data = map_bytes(path)
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror}) in {path.parent}") from None
    cursor = _Cursor(path.name, data)
    if cursor.take(4, "magic").tobytes() != MAGIC:
        raise FormatError(f"{path.name}: does not start with GGUF; it is no GGUF file")
    version = cursor.number(4, "version")
    if version not in VERSIONS:
        kind = "a big-endian file" if version << 8 & 0xFFFFFFFF == 0 and version else f"GGUF version {version}"
        raise UnsupportedError(f"{path.name}: {kind}; supported: little-endian, version {' or '.join(map(str, VERSIONS))}")
    n_tensors = cursor.count(8, "number of tensors", MAX_TENSORS, 24)
    n_keys = cursor.count(8, "number of keys", MAX_KEYS, 13)
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = cursor.string("key")
        if key in metadata:
            raise FormatError(f"{path.name}: key {shorten(key)} appears twice; keep one")
        metadata[key] = cursor.value(key)
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= 4096 or alignment & (alignment - 1):
        raise FormatError(f"{path.name}: general.alignment is {shorten(alignment)}; a power of two from 8 to 4096 is needed")
    entries = [cursor.entry() for _ in range(n_tensors)]
    start = -(-cursor.at // alignment) * alignment
    tensors = _map_tensors(path.name, data, start, alignment, entries)
    return GgufFile(path.name, metadata, tensors)


class _Cursor:
    """Reads from the start of the file; nothing is taken that is not there."""

    def __init__(self, origin: str, data: np.ndarray):
        self.origin, self.data, self.at = origin, data, 0

    def take(self, n: int, what: str) -> np.ndarray:
        if n > len(self.data) - self.at:
            raise FormatError(
                f"{self.origin}: {what} at byte {self.at} needs {shorten(n)} bytes, but only {len(self.data) - self.at} are left; "
                "the file is truncated or damaged"
            )
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, width: int, what: str) -> int:
        return int.from_bytes(self.take(width, what).tobytes(), "little")

    def count(self, width: int, what: str, most: int, least_bytes: int) -> int:
        """A number of things of at least ``least_bytes`` each, which must fit the rest of the file."""
        at, n = self.at, self.number(width, what)
        if n > most or n * least_bytes > len(self.data) - self.at:
            raise FormatError(f"{self.origin}: {what} at byte {at} is {shorten(n)}; the file has no room for so many (at most {most} are allowed)")
        return n

    def string(self, what: str) -> str:
        at, raw = self.at, self.raw_string(what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise FormatError(f"{self.origin}: {what} at byte {at} is not UTF-8") from None

    def raw_string(self, what: str) -> bytes:
        return self.take(self.number(8, f"length of a {what}"), what).tobytes()

    def value(self, key: str) -> Any:
        """The value of a metadata key, behind its type."""
        kind = self.number(4, f"type of key {shorten(key)}")
        if kind == STRING:
            return self.string(f"value of {shorten(key)}")
        if kind == ARRAY:
            return self._array(key)
        return self._scalars(kind, 1, key)[0]

    def _array(self, key: str) -> list:
        kind, what = self.number(4, f"type of array {shorten(key)}"), f"length of array {shorten(key)}"
        if kind == STRING:
            n = self.count(8, what, 2**31, 8)
            return [self.string(f"string of {shorten(key)}") for _ in range(n)]
        return self._scalars(kind, self.count(8, what, 2**31, 1), key)

    def _scalars(self, kind: int, n: int, key: str) -> list:
        if kind not in SCALARS:
            raise UnsupportedError(f"{self.origin}: key {shorten(key)} has type {kind}; supported: numbers, strings, and arrays of them")
        dtype = SCALARS[kind]
        values = self.take(n * dtype.itemsize, f"value of {shorten(key)}").view(np.uint8).tobytes()
        numbers = np.frombuffer(values, dtype).tolist()
        return [bool(v) for v in numbers] if kind == BOOL else numbers

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """(name, shape with rows first, type, offset) of a tensor."""
        name = self.string("tensor name")
        if len(name) > MAX_NAME:
            raise FormatError(f"{self.origin}: a tensor name of {len(name)} characters; at most {MAX_NAME} are allowed")
        dims = self.number(4, f"number of dimensions of {shorten(name)}")
        if not 1 <= dims <= 4:
            raise FormatError(f"{self.origin}: tensor {shorten(name)} has {dims} dimensions; 1 to 4 are allowed")
        shape = struct.unpack(f"<{dims}Q", self.take(8 * dims, f"shape of {shorten(name)}").tobytes())[::-1]
        return name, shape, self.number(4, f"type of {shorten(name)}"), self.number(8, f"offset of {shorten(name)}")


def _map_tensors(origin: str, data: np.ndarray, start: int, alignment: int, entries: list) -> dict[str, np.ndarray | QuantizedRows]:
    """The tensors, after checking types, shapes and that their bytes are in the file and shared by no two."""
    tensors: dict[str, np.ndarray | QuantizedRows] = {}
    spans: list[tuple[int, int, str]] = []
    for name, shape, kind, offset in entries:
        where = f"{origin}: tensor {shorten(name)}"
        if name in tensors:
            raise FormatError(f"{where} appears twice; keep one")
        if kind not in FLOATS and kind not in BLOCKS:
            known = ", ".join([*(str(d) for d in ("F32", "F16", "BF16")), *(block.name for block in BLOCKS.values())])
            raise UnsupportedError(f"{where} has GGUF type {kind}; supported: {known}")
        count = math.prod(shape)
        if not 1 <= count < 2**48:
            raise FormatError(f"{where} has shape {shorten(list(shape))}; numbers above 0 that fit the file are needed")
        if kind in FLOATS:
            size = count * FLOATS[kind].itemsize
        else:
            block = BLOCKS[kind]
            if shape[-1] % block.columns:
                raise FormatError(f"{where} has rows of {shape[-1]} numbers; {block.name} needs a multiple of {block.columns}")
            size = count // block.columns * block.bytes
        if offset % alignment or offset + size > len(data) - start:
            raise FormatError(
                f"{where} has {size} bytes at offset {offset}; the file has {max(0, len(data) - start)} bytes of tensors, and offsets are "
                f"multiples of {alignment}; the file is truncated or damaged"
            )
        view = data[start + offset : start + offset + size]
        tensors[name] = view.view(FLOATS[kind]).reshape(shape) if kind in FLOATS else QuantizedRows.of(view, shape, kind)
        spans.append((offset, offset + size, name))
    spans.sort()
    for (_, end, name), (begin, _, other) in zip(spans, spans[1:]):
        if begin < end:
            raise FormatError(f"{origin}: tensors {shorten(name)} and {shorten(other)} overlap at offset {begin}; the file is damaged")
    return tensors


def block_sizes(file: GgufFile, keys: Config, name: str) -> tuple[int, int, int]:
    """(width, heads, layers) of an architecture whose heads divide the width. Raises FormatError naming the key."""
    dim, heads, layers = (keys.size(f"{name}.{key}") for key in ("embedding_length", "attention.head_count", "block_count"))
    if dim % heads:
        raise FormatError(f"{file.name}: {name}.embedding_length {dim} is not a multiple of attention.head_count {heads}")
    if layers > len(file.tensors):
        raise FormatError(f"{file.name}: {name}.block_count is {layers}, but the file has {len(file.tensors)} tensors")
    return dim, heads, layers
