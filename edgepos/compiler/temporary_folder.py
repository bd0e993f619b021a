"""The folder an export writes into before it gets its name, and the one the bundle it replaces goes to meanwhile.

A killed export leaves them behind: the next one beside them removes the first and puts the second back.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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


def old_folder(path: Path) -> Path:
    """Where the bundle `path` stands while another takes its place; the same for every process."""
    return path.parent / f".edgepos-{hashlib.sha256(os.fsencode(path.name)).hexdigest()[:16]}.old"


def put_back(path: Path) -> bool:
    """Give the bundle that an export killed while it replaced it its name again; True if there was one. Raises OSError."""
    old = old_folder(path)
    if os.path.lexists(path) or old.is_symlink() or not (old / "manifest.json").is_file() or not (old / "model.gguf").is_file():
        return False
    with _alone_in(path.parent):
        if os.path.lexists(path) or not old.is_dir():
            return False
        os.rename(old, path)
    return True


def move(folder: Path, path: Path, check: Callable[[], None]) -> None:
    """Rename the complete `folder` to `path`, in the place of what stands there, which is deleted only after that.

    check: called when no other export can change `path` any more. Raises OSError and what check raises.
    """
    with _alone_in(path.parent):
        check()
        if not os.path.lexists(path):
            os.rename(folder, path)
            return
        old = old_folder(path)
        if not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)  # left by an export that was killed while it deleted it
        try:
            os.rename(path, old)
            os.rename(folder, path)
        except BaseException:
            if not os.path.lexists(path):
                os.rename(old, path)
            raise
        shutil.rmtree(old, ignore_errors=True)


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """No other export renames anything in `parent` meanwhile, where the file system knows locks."""
    descriptor = None if fcntl is None else os.open(parent, os.O_RDONLY)
    try:
        if descriptor is not None:
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


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
