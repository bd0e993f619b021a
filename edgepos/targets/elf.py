"""Sections of ELF files: how much goes where, what `size` prints, for boards whose binutils are not installed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from ..errors import FormatError

_WRITE, _ALLOC, _NOBITS = 1, 2, 8


@dataclass(frozen=True)
class Section:
    """A section's header and, where it is in the file, its bytes."""

    name: str
    kind: int
    flags: int
    length: int
    link: int
    info: int
    data: bytes


def read_sections(file: Path) -> list[Section]:
    """The sections of a 32-bit little-endian ELF file. Raises FormatError for another file."""
    data = file.read_bytes()
    if data[:7] != b"\x7fELF\x01\x01\x01" or len(data) < 52:
        raise FormatError(f"{file.name}: no 32-bit little-endian ELF file came from the compiler; name another with --cc")
    (at,) = struct.unpack_from("<I", data, 32)
    size, count, names = struct.unpack_from("<3H", data, 46)
    headers = [struct.unpack_from("<10I", data, at + i * size) for i in range(count)]
    texts = headers[names][4]
    sections = []
    for name, kind, flags, _address, offset, length, link, info, *_ in headers:
        title = data[texts + name : data.index(b"\0", texts + name)].decode("utf-8", "replace")
        sections.append(Section(title, kind, flags, length, link, info, b"" if kind == _NOBITS else data[offset : offset + length]))
    return sections


def section_sizes(file: Path) -> dict[str, int]:
    """Bytes of a program: `code` (what is in flash, initial values included), `model`, `data` (RAM that is written). Raises like `read_sections`."""
    sizes = {"code": 0, "model": 0, "data": 0}
    for section in read_sections(file):
        if not section.flags & _ALLOC:
            continue
        if section.name == ".model":
            sizes["model"] += section.length
            continue
        if section.kind != _NOBITS:
            sizes["code"] += section.length
        if section.flags & _WRITE:
            sizes["data"] += section.length
    return sizes
