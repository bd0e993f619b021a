"""Config: typed, checked access to the keys of a Hugging Face ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .shorten import shorten
from .tensor_set import TensorSet

MAX_SIZE = 2**31 - 1  # sizes are int32 in the bundle
MAX_CONTEXT = 2**20  # a position table of this length is already 512 MB at head_dim 128


def check_context(origin: str, asked: int | None, limit: int, limit_name: str) -> int:
    """The context to build for: ``asked``, or all ``limit`` positions of the model.

    Raises UnsupportedError when ``asked`` is not in 1..limit or the result exceeds MAX_CONTEXT.
    """
    if asked is not None and (isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= limit):
        raise UnsupportedError(f"{origin}: context {asked} is not possible; {limit_name} allows 1 to {limit}")
    context = limit if asked is None else asked
    if context > MAX_CONTEXT:
        raise UnsupportedError(
            f"{origin}: {limit_name} {context} is above the {MAX_CONTEXT} positions EdgePos plans for; "
            "pass a smaller context="
        )
    return context


def check_plain(place: str, values: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    """Raise UnsupportedError unless each key of ``plain`` is absent, null or has the value there; ``place`` stands in front of the key."""
    for key, needed in plain.items():
        if values.get(key, needed) not in (needed, None):
            raise UnsupportedError(f"{place}{key} is {shorten(values[key])}; supported: {shorten(needed)}")


REQUIRED: Any = object()


class Config:
    """The keys of one config file. Every method raises FormatError naming key, value and what is allowed.

    A key that is absent or null takes ``default`` as it is; without a default it is required.
    """

    def __init__(self, values: dict[str, Any], origin: str = "config.json"):
        self.values = values
        self.origin = origin

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is REQUIRED:
                raise FormatError(f"{self.origin}: key '{key}' is missing; save the config with the model again")
            return default
        return value

    def wrong(self, key: str, value: Any, allowed: str) -> FormatError:
        """The error for key = value where ``allowed`` is needed."""
        return FormatError(f"{self.origin}: {key} is {shorten(value)}; {allowed} is needed")

    def size(self, key: str, default: Any = REQUIRED) -> Any:
        """A whole number in 1..2^31-1."""
        value = self._get(key, default)
        if self.values.get(key) is None:
            return value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_SIZE:
            raise self.wrong(key, value, f"a whole number from 1 to {MAX_SIZE}")
        return value

    def size_of(self, keys: tuple[str, ...], default: Any = REQUIRED) -> Any:
        """The size under any of several spellings; FormatError when two of them differ."""
        present = [key for key in keys if self.values.get(key) is not None]
        found = {key: self.size(key) for key in present}
        if len(set(found.values())) > 1:
            raise FormatError(
                f"{self.origin}: "
                + " but ".join(f"{key} is {value}" for key, value in found.items())
                + "; they mean the same, so they must be equal"
            )
        return next(iter(found.values())) if found else self.size(keys[0], default)

    def number(self, key: str, default: float = REQUIRED) -> float:
        """A finite number as float."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300:
            raise self.wrong(key, value, "a finite number")
        return float(value)

    def epsilon(self, key: str, default: float) -> float:
        """A norm's epsilon: above 0 (so that a zero row is defined) and at most 1."""
        value = self.number(key, default)
        if not 2.0**-126 <= value <= 1.0:
            raise self.wrong(key, value, "a number above 0 (a normal float32) and at most 1")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, value, "a string")
        return value

    def token_ids(self, key: str, default: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """A token id, a list of them, or null (no such token), as a tuple; ids are below vocab_size."""
        if key not in self.values:
            ids = default
        else:
            value = self.values[key]
            ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise self.wrong(key, token, f"a token id from 0 to {vocab_size - 1}")
        return ids

    def context(self, asked: int | None, limit: int) -> int:
        """``check_context`` against max_position_embeddings = ``limit``."""
        return check_context(self.origin, asked, limit, "max_position_embeddings")

    def check_tied_head(
        self, tensors: TensorSet, head: str, embed: str, shape: tuple[int, int]
    ) -> None:
        """Accept a stored copy of a tied head only when it equals the embedding.

        Raises FormatError when they differ: the config says one thing, the weights another.
        """
        if head not in tensors:
            return
        if not same_values(tensors.take(head, shape).array, tensors.take(embed, shape).array):
            raise FormatError(
                f"{self.origin}: tie_word_embeddings is true but '{head}' differs from '{embed}'; "
                "set tie_word_embeddings to false or remove the tensor"
            )


def same_values(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays of equal shape hold equal values; read in pieces, so mapped files stay mapped."""
    rows = max(1, 2**22 // max(1, math.prod(a.shape[1:])))
    return all(np.array_equal(a[i : i + rows], b[i : i + rows]) for i in range(0, len(a), rows))
