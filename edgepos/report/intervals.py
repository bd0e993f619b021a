"""Confidence intervals of means over a text, whose neighbouring tokens depend on each other: a bootstrap over blocks."""

from __future__ import annotations

import numpy as np

BLOCK = 64  # consecutive predictions that are drawn together
RESAMPLES = 2000
LEVEL = 0.95
SEED = 20260101  # the same text gives the same interval
METHOD = f"{LEVEL:.0%} bootstrap over blocks of {BLOCK} consecutive predictions, {RESAMPLES} resamples"


def resampled_means(*columns: np.ndarray) -> np.ndarray | None:
    """Means of float64 columns [n] under the same RESAMPLES draws of blocks, float64 [columns, RESAMPLES]; None below three blocks.

    Kuensch's block bootstrap with blocks side by side (Annals of Statistics 17, 1989); the last block may be shorter.
    """
    starts = np.arange(0, len(columns[0]), BLOCK)
    if len(starts) < 3:
        return None
    sums = np.stack([np.add.reduceat(np.asarray(column, np.float64), starts) for column in columns])
    sizes = np.diff(np.append(starts, len(columns[0])))
    drawn = np.random.default_rng(SEED).integers(0, len(starts), (RESAMPLES, len(starts)))
    return np.stack([row[drawn].sum(axis=1) for row in sums]) / sizes[drawn].sum(axis=1)


def interval(means: np.ndarray | None) -> list[float] | None:
    """[low, high] that holds LEVEL of the resampled means."""
    return None if means is None else [float(x) for x in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]
