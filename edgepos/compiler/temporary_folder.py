"""The folder an export writes into before it gets its name. A killed export leaves it behind; the next one beside it removes it."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nothing there tells a folder that is in use from one that was left
    fcntl = None

NAME = re.compile(r"\.edgepos-[0-9a-f]{16}\.tmp")
LEAST_AGE = 60  # seconds; a younger folder may be about to be locked


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """A new empty folder in `parent`, which is made too; gone at the end unless it was renamed.

    It is locked meanwhile: an unlocked one belongs to a process that was killed. Raises OSError.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_left(parent)
    path = parent / f".edgepos-{secrets.token_hex(8)}.tmp"  # short, so that it fits wherever the bundle's name does
    path.mkdir()
    lock = _lock(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_left(parent: Path) -> None:
    """Remove the folders that killed exports left in `parent`."""
    for path in parent.iterdir():
        if not NAME.fullmatch(path.name) or path.is_symlink():
            continue
        try:
            if time.time() - path.stat().st_mtime < LEAST_AGE or (lock := _lock(path)) is None:
                continue
        except OSError:
            continue
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the folder's lock, which ends with the process; None where it cannot be had."""
    if fcntl is None:
        return None
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
