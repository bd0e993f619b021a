"""Confidence intervals of means over a text, whose neighbouring tokens depend on each other: a bootstrap over blocks."""

from __future__ import annotations

import numpy as np

BLOCK = 64  # consecutive predictions that are drawn together
LEAST = 2 * BLOCK + 1  # predictions that have an interval: they make three blocks
RESAMPLES = 2000
LEVEL = 0.95
SEED = 20260101  # the same text gives the same interval
Z = 1.959964  # the normal distribution's quantile for LEVEL
METHOD = f"{LEVEL:.0%} bootstrap over blocks of {BLOCK} consecutive predictions, {RESAMPLES} resamples, widened as Student's t for few blocks"


def resampled_means(*columns: np.ndarray) -> np.ndarray | None:
    """Means of float64 columns [n] under the same RESAMPLES draws of blocks, float64 [columns, RESAMPLES]; None below three blocks.

    Kuensch's block bootstrap with blocks side by side (Annals of Statistics 17, 1989); the last block may be shorter. Draws of few blocks
    vary too little: their distance from the mean is multiplied by what Student's t has over the normal distribution, within the column's range.
    """
    if len(columns[0]) < LEAST:
        return None
    starts = np.arange(0, len(columns[0]), BLOCK)
    sums = np.stack([np.add.reduceat(np.asarray(column, np.float64), starts) for column in columns])
    sizes = np.diff(np.append(starts, len(columns[0])))
    drawn = np.random.default_rng(SEED).integers(0, len(starts), (RESAMPLES, len(starts)))
    means = np.stack([row[drawn].sum(axis=1) for row in sums]) / sizes[drawn].sum(axis=1)
    mean = (sums.sum(axis=1) / len(columns[0]))[:, None]
    low, high = (np.array([pick(column) for column in columns], np.float64)[:, None] for pick in (np.min, np.max))
    return np.clip(mean + _widening(len(starts)) * (means - mean), low, high)


def _widening(blocks: int) -> float:
    """Student's t over the normal distribution's quantile, blocks − 1 degrees of freedom (two terms of the Cornish-Fisher expansion),
    and the square root of blocks / (blocks − 1) for the variance that is drawn from."""
    free = blocks - 1
    t = Z + (Z**3 + Z) / (4 * free) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * free**2)
    return t / Z * (blocks / free) ** 0.5


def interval(means: np.ndarray | None) -> list[float] | None:
    """[low, high] that holds LEVEL of the resampled means."""
    return None if means is None else [float(x) for x in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])]
