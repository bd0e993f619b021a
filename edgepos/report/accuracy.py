"""The `accuracy` section: an integer session against the float model on a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from .metrics import Comparison


def compare(reference, session, windows: Iterable[list[int]], progress: Callable[[int], None] | None = None) -> dict:
    """Run both sessions over the windows (lists of token ids) from a fresh cache each and compare their logits.

    `progress(tokens)` is called after each window. Returns the figures of `Comparison.result`.
    """
    comparison = Comparison()
    for window in windows:
        reference.reset()
        session.reset()
        comparison.add(reference.eval(window), session.eval(window), np.asarray(window[1:]))
        if progress is not None:
            progress(len(window))
    return comparison.result()
