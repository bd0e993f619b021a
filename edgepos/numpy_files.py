"""Reading .npy and .npz files that may be damaged, or made to harm."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from tokenize import TokenError
from zipfile import BadZipFile

from .errors import FormatError

# What NumPy and zipfile raise for damaged files; RuntimeError: encrypted entries, unknown compression, recursion.
_DAMAGED = (ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError, RuntimeError, SyntaxError, TokenError, BadZipFile, zlib.error)


@contextmanager
def reading(name: str, advice: str) -> Iterator[None]:
    """Turns what reading a NumPy file raises into a FormatError that names the file."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{name}: {error.strerror or 'no array file'}; {advice}") from None
    except _DAMAGED:
        raise FormatError(f"{name}: damaged, or no file of numbers alone; {advice}") from None
