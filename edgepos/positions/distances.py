"""Relative biases as the runtime looks them up: one row per distance, in one direction or in both."""

from __future__ import annotations

import numpy as np

from ..errors import UnsupportedError
from .relative import RelativeBias, T5Bias

MAX_DISTANCES = 2**16  # rows of a bias table for one direction


def distance_rows(spec: T5Bias | RelativeBias, both: bool = False) -> np.ndarray:
    """Row of the learned table for the distances 0, 1, …, n − 1 of keys before the query, int64 [n].

    both: for key position − query position −(n − 1), …, n − 1 instead, int64 [2n − 1]. Distances of n − 1 and more all have the
    last of them. Raises UnsupportedError for a spec whose rows never end, has more than one coordinate, or needs more than 2^16
    distances.
    """
    if isinstance(spec, T5Bias):
        last = spec.thresholds[-1] if spec.thresholds else spec.exact_buckets
    elif len(spec.extents) == 1 and spec.clip:
        last = spec.extents[0]
    else:
        raise UnsupportedError(f"relative bias with extents {list(spec.extents)}, clip {spec.clip}; a decoder needs one clipped coordinate")
    if last >= MAX_DISTANCES:
        raise UnsupportedError(f"{spec.encoding} bias tells {last + 1} distances apart; a decoder's table holds up to {MAX_DISTANCES}")
    return spec.bucket(np.arange(-last, last + 1) if both else -np.arange(last + 1))


def learned_rows(spec: T5Bias | RelativeBias, by_distance: np.ndarray, both: bool = False) -> np.ndarray:
    """The learned table [rows, heads] behind a table [n, heads] by distance (both: [2n − 1, heads]); rows that no distance reaches are 0."""
    rows = distance_rows(spec, both)
    table = np.zeros((spec.rows, by_distance.shape[1]), by_distance.dtype)
    table[rows] = by_distance
    return table
