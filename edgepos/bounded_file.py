"""Files read whole, of at most so many bytes: a device or a pipe that never ends takes no more memory."""

from __future__ import annotations

from pathlib import Path

from .errors import FormatError

MOST_BYTES = 1 << 28


def read_bounded(file: Path, name: str = "", most: int | None = None, advice: str = "give a part of it") -> bytes:
    """The bytes of a file that messages call `name`. Raises FormatError with `advice` when there are more than `most` (None: MOST_BYTES),
    OSError when it cannot be read."""
    most = MOST_BYTES if most is None else most
    with open(file, "rb") as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise FormatError(f"{name or file}: more than {most} bytes; {advice}")
    return data
