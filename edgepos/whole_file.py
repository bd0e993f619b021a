"""Files that are never seen half-written: they have another name until they are complete."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import EdgePosError


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """The path beside `file` to write to. It takes the name, and the place of the file that has it, at the end of the block; when that fails nothing stays.

    Raises EdgePosError when the file cannot be written, or its name is that of a folder, device or pipe.
    """
    with _beside(file) as temporary:
        yield temporary
        os.replace(temporary, file)


def check_place(file: Path) -> None:
    """Raise EdgePosError now where `whole_file` would, not when there is something to lose."""
    with _beside(file) as temporary:
        temporary.touch()


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    temporary = file.parent / f".edgepos-{secrets.token_hex(8)}.tmp"  # short, so that it fits wherever the file's name does
    try:
        if file.exists() and not file.is_file():
            raise EdgePosError(f"{file}: cannot be written (it is there and no regular file); name another one")
        yield temporary
    except OSError as error:
        raise EdgePosError(f"{file}: cannot be written ({error.strerror or error}); choose a writable place with enough room") from None
    finally:
        with suppress(OSError):  # also where the folder is none
            temporary.unlink()
