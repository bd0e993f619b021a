"""Learned relative biases: which row of a learned table a query and a key use.

`T5Bias` buckets distances logarithmically, `RelativeBias` clips them (Shaw, Swin). The rules here are whole-number rules; the
learned values become integers in `bias_plan.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from ..errors import ContextError, FormatError
from ..fixedpoint import relative_row, t5_bucket
from .spec import Spec, check_count, check_flag

MAX_BUCKETS = 512
MAX_AXES = 3
MAX_LAYERS = 4096


def _check_layers(layers) -> int | None:
    return None if layers is None else check_count("layers", layers, 1, MAX_LAYERS)


def check_whole(name: str, values) -> np.ndarray:
    """Whole numbers of either sign below 2^31, as int64 in their own shape. Raises FormatError."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise FormatError(f"{name} has dtype {array.dtype}; allowed are whole numbers")
    array = array.astype(np.int64)
    if (np.abs(array) >= 2**31).any():
        raise FormatError(f"{name} holds a number outside ±(2^31 − 1)")
    return array


@dataclass(frozen=True)
class T5Bias(Spec):
    """T5's relative bias: one learned number per bucket and head.

    num_buckets; max_distance: from here on all distances share the last bucket; bidirectional: half of the buckets for
    keys after the query (encoder), else all for keys before it (decoder). layers: None when all layers share one table (T5), else
    how many layers have a table each (UMT5). Source: Raffel et al., arXiv 1910.10683, section 2.1, and its code: distances below
    half of a side's buckets have their own, the others floor(log) ones.
    """

    num_buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True
    layers: int | None = None

    encoding: ClassVar[str] = "t5"

    def __post_init__(self):
        check_flag("bidirectional", self.bidirectional)
        least = 4 if self.bidirectional else 2
        object.__setattr__(self, "num_buckets", check_count("num_buckets", self.num_buckets, least, MAX_BUCKETS))
        least = self.exact_buckets + 1
        object.__setattr__(self, "max_distance", check_count("max_distance", self.max_distance, least, 2**31 - 1))
        object.__setattr__(self, "layers", _check_layers(self.layers))

    @property
    def side_buckets(self) -> int:
        """Buckets of one direction."""
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    @property
    def exact_buckets(self) -> int:
        """Distances 0 … exact_buckets − 1 have a bucket of their own."""
        return self.side_buckets // 2

    @property
    def rows(self) -> int:
        """Rows of the learned table."""
        return self.num_buckets

    @property
    def thresholds(self) -> tuple[int, ...]:
        """The first distance of each logarithmic bucket after the first, ascending; whole numbers from exact arithmetic."""
        return _thresholds(self.side_buckets - self.exact_buckets, self.exact_buckets, self.max_distance)

    def bucket(self, key_minus_query) -> np.ndarray:
        """Bucket of key position − query position, int64 in the argument's shape.

        With d the distance, e = exact_buckets, n = side_buckets − e: d below e is its own bucket, else e +
        floor(n · log(d/e) / log(max_distance/e)), at most e + n − 1; the floor is exact at every distance. Keys after the query
        count from side_buckets on when bidirectional, else as distance 0.
        """
        relative = check_whole("key_minus_query", key_minus_query)
        return t5_bucket(self.thresholds, self.exact_buckets, self.side_buckets if self.bidirectional else 0, relative)

    def index(self, query_positions, key_positions) -> np.ndarray:
        """Row of the learned table of each query and key, int64 [q, k]."""
        q, k = (np.atleast_1d(check_whole("positions", p)) for p in (query_positions, key_positions))
        return self.bucket(k[None, :] - q[:, None])


@lru_cache(maxsize=64)
def _thresholds(n: int, e: int, longest: int) -> tuple[int, ...]:
    """For k = 1 … n − 1 the smallest d with n·log(d/e) ≥ k·log(longest/e), that is d^n ≥ longest^k · e^(n−k)."""
    result = []
    for k in range(1, n):
        goal = longest**k * e ** (n - k)
        low, high = e, longest  # e is below the goal's root, longest is not
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if middle**n >= goal else (middle, high)
        result.append(high)
    return tuple(result)


@dataclass(frozen=True)
class RelativeBias(Spec):
    """A learned table over clipped differences, in one or more coordinates.

    extents: the largest difference of each coordinate; a coordinate has 2·extent + 1 values, combined row-major. (w,) is
    Shaw et al. (arXiv 1803.02155) clipped at w; (h − 1, w − 1) is a Swin window (arXiv 2103.14030) of h × w. clip False refuses
    larger differences instead. query_minus_key: the sign of the difference (Swin True, Shaw False). layers: None when all layers share
    one table, else how many layers have a table each.
    """

    extents: tuple[int, ...]
    clip: bool = True
    query_minus_key: bool = False
    layers: int | None = None

    encoding: ClassVar[str] = "relative"

    def __post_init__(self):
        if not isinstance(self.extents, (list, tuple)) or not 1 <= len(self.extents) <= MAX_AXES:
            raise FormatError(f"extents is {self.extents!r}; allowed is a list of 1 to {MAX_AXES} whole numbers")
        extents = tuple(check_count(f"extents[{a}]", n, 0, 2**15) for a, n in enumerate(self.extents))
        object.__setattr__(self, "extents", extents)
        check_flag("clip", self.clip)
        check_flag("query_minus_key", self.query_minus_key)
        object.__setattr__(self, "layers", _check_layers(self.layers))

    @property
    def rows(self) -> int:
        """Rows of the learned table."""
        return int(np.prod([2 * n + 1 for n in self.extents], dtype=np.int64))

    def bucket(self, key_minus_query) -> np.ndarray:
        """Row of key − query, int64; [...] for one coordinate, else [..., axes] → [...].

        Raises ContextError for a difference beyond an extent when clip is False.
        """
        relative = check_whole("key_minus_query", key_minus_query)
        if len(self.extents) == 1:
            relative = relative[..., None]
        if relative.shape[-1:] != (len(self.extents),):
            raise FormatError(f"differences have shape {relative.shape}; the last axis must hold {len(self.extents)} coordinates")
        relative = -relative if self.query_minus_key else relative
        extents = np.array(self.extents, dtype=np.int64)
        if not self.clip and (np.abs(relative) > extents).any():
            raise ContextError(f"a difference passes the extents {list(self.extents)} of the learned table")
        return relative_row(relative, self.extents)

    def index(self, query_positions, key_positions) -> np.ndarray:
        """Row of each query and key, int64 [q, k]; positions [n] for one coordinate, else [n, axes]."""
        q, k = (check_whole("positions", p).reshape(-1, len(self.extents)) for p in (query_positions, key_positions))
        difference = k[None, :, :] - q[:, None, :]
        return self.bucket(difference[..., 0] if len(self.extents) == 1 else difference)
