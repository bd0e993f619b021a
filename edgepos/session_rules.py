"""What every engine asks of its arguments, in one place: the same input is taken or refused by all of them."""

from __future__ import annotations

import operator
import threading
from contextlib import contextmanager

import numpy as np

from .errors import ContextError, EdgePosError, FormatError
from .program import MAX_POSITION


def whole_number(name: str, value, low: int, high: int, error: type[EdgePosError] = EdgePosError) -> int:
    """`value` as an int in low … high. Raises `error` for other types (bool and float among them) and other numbers."""
    try:
        number = None if isinstance(value, (bool, np.bool_)) else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise error(f"{name} is {value!r}; a whole number from {low} to {high} is needed")
    if not low <= number <= high:
        raise error(f"{name} {number} is outside {low} … {high}")
    return number


def whole_numbers(name: str, values) -> np.ndarray:
    """`values` as int64 [n]. Raises EdgePosError when that would change any of them."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = np.empty((0, 0))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise EdgePosError(f"{name}: one row of whole numbers is needed, {type(values).__name__} of {array.dtype}, shape {list(array.shape)}, found")
    if array.size and not (-(2**31) <= int(array.min()) and int(array.max()) < 2**31):
        bad = array.max() if int(array.max()) >= 2**31 else array.min()
        raise EdgePosError(f"{name}: {bad} does not fit 32 bits")
    return array.astype(np.int64)


def checked_ids(ids, vocab: int, length: int, context: int) -> np.ndarray:
    """Token ids int64 [n], n >= 1, each below `vocab`, that still fit the context. Raises EdgePosError or ContextError."""
    tokens = whole_numbers("ids", ids)
    if not len(tokens):
        raise EdgePosError("no tokens to evaluate; give at least one id")
    bad = tokens[(tokens < 0) | (tokens >= vocab)]
    if len(bad):
        raise EdgePosError(f"token id {bad[0]} is outside 0 … {vocab - 1}, the vocabulary")
    if length + len(tokens) > context:
        raise ContextError(f"{len(tokens)} more tokens do not fit: {length} of {context} are used; rewind, reset or open a longer session")
    return tokens


def checked_image(pixels, shape: tuple[int, int, int]) -> np.ndarray:
    """Pixels uint8 [height, width, channels], contiguous; of one channel also [height, width]. Raises EdgePosError."""
    try:
        array = np.asarray(pixels)
    except (ValueError, TypeError):
        array = np.empty(0)
    found = array.shape if array.ndim != 2 or shape[2] != 1 else (*array.shape, 1)
    if array.dtype != np.uint8 or found != shape:
        wanted = f"uint8 [{shape[0]}, {shape[1]}, {shape[2]}] (height, width, channels)"
        raise EdgePosError(f"image: {array.dtype} {list(array.shape)} found, this model reads {wanted}; scale the image to that size")
    return np.ascontiguousarray(array.reshape(shape))


def checked_positions(positions, n: int, last: int, highest: int = MAX_POSITION) -> np.ndarray:
    """Positions int64 [n], ascending above `last` (−1: none yet) and at most `highest`; None counts on. Raises ContextError."""
    if positions is None:
        positions = last + 1 + np.arange(n, dtype=np.int64)
    else:
        positions = whole_numbers("positions", positions)
        if len(positions) != n:
            raise ContextError(f"{len(positions)} positions for {n} tokens; give one each")
    if (np.diff(positions, prepend=last) <= 0).any() or positions[0] < 0 or positions[-1] > highest:
        raise ContextError(f"positions must ascend from {last + 1} to at most {highest}")
    return positions


def checked_logits(logits) -> str:
    """One of "all", "last", "none"."""
    if logits not in ("all", "last", "none"):
        raise EdgePosError(f"logits={logits!r} is unknown; use 'all', 'last' or 'none'")
    return logits


def checked_rewind(n, length: int) -> int:
    """A number of tokens to keep."""
    return whole_number("rewind: the number of tokens to keep", n, 0, length, ContextError)


def checked_state(state) -> bytes:
    """What `restore` is given. Raises FormatError for what is no bytes."""
    if not isinstance(state, (bytes, bytearray, memoryview)):
        raise FormatError(f"saved state: bytes are needed, {type(state).__name__} found")
    return bytes(state)


class OneAtATime:
    """A session may be used by one thread at a time; a second one gets an EdgePosError instead of a damaged cache."""

    def __init__(self):
        self._busy = threading.Lock()

    @contextmanager
    def __call__(self):
        if not self._busy.acquire(blocking=False):
            raise EdgePosError("the session is in use by another thread or by its own trace; give each thread a session")
        try:
            yield
        finally:
            self._busy.release()
