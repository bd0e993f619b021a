"""Model files mapped into memory, whose pages are given back after use: an export reads each tensor about once."""

from __future__ import annotations

import mmap
import weakref
from pathlib import Path

import numpy as np

_open: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def map_bytes(path: Path) -> np.ndarray:
    """The bytes of a file as a read-only uint8 view; an empty array for an empty file. Raises OSError."""
    with open(path, "rb") as file:
        if not path.stat().st_size:
            return np.zeros(0, np.uint8)
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    _open.add(mapped)
    return np.frombuffer(mapped, np.uint8)


def release_pages() -> None:
    """Give back the memory that mapped files occupy; the views stay valid and read their pages again."""
    for mapped in list(_open):
        if hasattr(mmap, "MADV_DONTNEED"):
            mapped.madvise(mmap.MADV_DONTNEED)
