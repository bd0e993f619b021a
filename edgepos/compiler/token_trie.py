"""Tries of byte strings in the layout of docs/bundle.md."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError

MOST_BYTES = 1024  # of a key, which bounds what one look-up can cost
MOST_NODES = (1 << 24) - 1


def build(keys: dict[bytes, int], what: str) -> np.ndarray:
    """int32 [n + 1, 2]: per node its first child | the byte that leads to it << 24, and the id of the key that ends there or -1.

    Nodes are in the order of their depth, children in the order of their bytes; those of a node end where the next node's begin.
    """
    items = sorted((key, i) for key, i in keys.items() if key)
    longest = max((len(key) for key, _ in items), default=0)
    if longest > MOST_BYTES:
        raise FormatError(f"{what}: a token has {longest} bytes; at most {MOST_BYTES} are allowed")
    texts = [key for key, _ in items]
    queue = [(0, len(items), 0, 0)]  # items [low, high) share the first `depth` bytes
    first, ids = [], []
    for low, high, depth, _ in queue:
        first.append(len(queue))
        ends_here = low < high and len(texts[low]) == depth
        ids.append(items[low][1] if ends_here else -1)
        low += ends_here
        while low < high:
            byte, end = texts[low][depth], low + 1
            while end < high and texts[end][depth] == byte:
                end += 1
            queue.append((low, end, depth + 1, byte))
            low = end
    if len(first) > MOST_NODES:
        raise FormatError(f"{what}: {len(first)} different beginnings of tokens; at most {MOST_NODES} are allowed")
    rows = np.empty((len(first) + 1, 2), np.int64)
    rows[:-1, 0] = np.array(first) | np.array([entry[3] for entry in queue]) << 24
    rows[:-1, 1] = ids
    rows[-1] = len(first), -1
    return rows.astype(np.uint32).view(np.int32)
