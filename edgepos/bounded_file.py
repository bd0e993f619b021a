"""Files read whole, of at most so many bytes: a device or a pipe that never ends takes no more memory."""

from __future__ import annotations

from pathlib import Path

from .errors import FormatError

MOST_BYTES = 1 << 28


def read_bounded(file: Path, name: str = "") -> bytes:
    """The bytes of a file that messages call `name`. Raises FormatError when there are more than MOST_BYTES, OSError when it cannot be read."""
    with open(file, "rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise FormatError(f"{name or file}: more than {MOST_BYTES} bytes; give a part of it")
    return data
