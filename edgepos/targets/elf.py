"""How much of an ELF file goes where: what `size` prints, for boards whose binutils are not installed."""

from __future__ import annotations

import struct
from pathlib import Path

from ..errors import FormatError

_WRITE, _ALLOC, _NOBITS = 1, 2, 8


def section_sizes(file: Path) -> dict[str, int]:
    """Bytes of a 32-bit little-endian ELF program: `code` (what is in flash, initial values included), `model`, `data` (RAM that is written).

    Raises FormatError for another file.
    """
    data = file.read_bytes()
    if data[:7] != b"\x7fELF\x01\x01\x01" or len(data) < 52:
        raise FormatError(f"{file.name}: no 32-bit little-endian ELF file came from the compiler; name another with --cc")
    (at,) = struct.unpack_from("<I", data, 32)
    size, count, names = struct.unpack_from("<3H", data, 46)
    headers = [struct.unpack_from("<10I", data, at + i * size) for i in range(count)]
    texts = headers[names][4]
    sizes = {"code": 0, "model": 0, "data": 0}
    for name, kind, flags, _address, _offset, length, *_ in headers:
        if not flags & _ALLOC:
            continue
        title = data[texts + name : data.index(b"\0", texts + name)]
        if title == b".model":
            sizes["model"] += length
            continue
        if kind != _NOBITS:
            sizes["code"] += length
        if flags & _WRITE:
            sizes["data"] += length
    return sizes
