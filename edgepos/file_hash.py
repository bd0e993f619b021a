"""SHA-256 of files, read in pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

_PIECE = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes in hex. Raises OSError when it cannot be read."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
