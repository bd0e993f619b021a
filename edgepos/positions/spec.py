"""What every position encoding has in common: validation by name and a JSON form.

A spec is a frozen dataclass that says which encoding a model uses and nothing about how it is computed.
Its JSON form is an object with the key `encoding` and one key per field; `from_json(spec.to_json()) == spec`.
"""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass

import numpy as np

from ..errors import ContextError, FormatError, UnsupportedError

POSITION_LIMIT = 2**31  # positions are 0 … 2^31 − 1 (docs/arithmetic.md, rope_phase)


def check_count(name: str, value, least: int, most: int) -> int:
    """`value` as an int between `least` and `most`. Raises FormatError naming `name`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise FormatError(f"{name} is {value!r}; allowed is a whole number from {least} to {most}")
    return int(value)


def is_number(value) -> bool:
    """Whether `value` is a real number, and no bool."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_positive(name: str, value) -> float:
    """`value` as a finite float64 above zero. Raises FormatError naming `name`."""
    try:
        number = float(value) if is_number(value) else math.nan
    except OverflowError:  # a whole number beyond float64
        number = math.inf
    if not math.isfinite(number) or number <= 0:
        raise FormatError(f"{name} is {value!r}; allowed is a finite number above 0")
    return number


def check_row(name: str, row, zero: bool = False) -> tuple[float, ...]:
    """A list, tuple or one-dimensional array of finite numbers above zero (`zero`: or zero), as float64. Raises FormatError naming
    the entry."""
    if isinstance(row, np.ndarray) and row.ndim == 1:
        row = row.tolist()
    if not isinstance(row, (list, tuple)):
        found = f"an array of shape {row.shape}" if isinstance(row, np.ndarray) else repr(row)
        raise FormatError(f"{name} is {found}; allowed is a list of numbers")
    return tuple(0.0 if zero and is_number(v) and v == 0 else check_positive(f"{name}[{j}]", v) for j, v in enumerate(row))


def check_choice(name: str, value, allowed: tuple):
    """`value` if it is one of `allowed`. Raises UnsupportedError naming `name`."""
    if value not in allowed:
        raise UnsupportedError(f"{name} is {value!r}; known are {', '.join(map(str, allowed))}")
    return value


def check_flag(name: str, value) -> bool:
    """`value` if it is a bool. Raises FormatError naming `name`."""
    if not isinstance(value, bool):
        raise FormatError(f"{name} is {value!r}; allowed are true and false")
    return value


def check_context(context) -> int:
    """A context length: 1 … 2^31 tokens. Raises FormatError."""
    return check_count("context", context, 1, POSITION_LIMIT)


def check_positions(positions, limit: int = POSITION_LIMIT) -> np.ndarray:
    """Positions as int64 in their own shape, each in 0 … limit − 1.

    Raises ContextError naming the first position that is out of range, FormatError when they are not whole numbers.
    """
    array = np.asarray(positions)
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise FormatError(f"positions have dtype {array.dtype}; allowed are whole numbers")
    outside = (array < 0) | (array >= limit)
    if outside.any():
        raise ContextError(f"position {array[outside].flat[0]} is outside 0 … {limit - 1}")
    return array.astype(np.int64)


class Spec:
    """Base of the specs. A subclass is a frozen dataclass with a class attribute `encoding`."""

    encoding: str

    def to_json(self) -> dict:
        """The spec as JSON data."""
        return {"encoding": self.encoding} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value):
    if is_dataclass(value):
        return value.to_json()
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def build(cls: type, what: str, data: dict):
    """`cls(**data)` after checking the keys. Raises FormatError naming a key that is unknown or missing."""
    known = {f.name: f for f in fields(cls)}
    for key in data:
        if key not in known:
            raise FormatError(f"{what} has the key {key!r}; known are {', '.join(known)}")
    try:
        return cls(**data)
    except TypeError:
        missing = [name for name in known if name not in data]
        raise FormatError(f"{what} lacks a required key; without a value are {', '.join(missing)}") from None
