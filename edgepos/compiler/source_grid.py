"""Pass: matrices whose source already holds integers keep them; 4-bit codes for those that do not (docs/bundle.md, form w4g32).

Elementwise float64 NumPy only, as in weights.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..export.block_rows import GridRows
from ..export.quantized_rows import Grid
from ..program import GROUP, W4G32
from .weights import ROWS, SCALE_MAX, QuantizedMatrix, divide, mantissa_shift_rows, row_scales

CODES = 15
CLIPS = np.linspace(1.0, 0.7, 13)  # shares of a group's range that the search tries


def from_source(source: GridRows, bits: int) -> QuantizedMatrix | None:
    """The integers of a quantized source as w4g32 (bits 4) or w8g32 (bits 8); None where that form cannot hold them.

    Codes stay as they are; scales and minima become 16-bit multiples of a step of their row. Raises FormatError for a
    scale that is not finite.
    """
    first = source.grid(slice(0, 1))
    if bits == 4 and first.bits == 8 or bits == 8 and first.bits == 4 and not _symmetric(first):
        return None
    blocks = (source.grid(slice(start, start + ROWS)) for start in range(0, len(source), ROWS))
    if bits == 4:
        return _nibbles((grid.codes, grid.scales, grid.minima) for grid in blocks)
    parts = []
    for grid in blocks:
        if grid.bits == 4 and not _symmetric(grid):
            return None
        scales = grid.scales.astype(np.float64)
        row = mantissa_shift_rows(np.abs(scales).max(axis=1) / SCALE_MAX)
        g = _rounded(divide(scales, row_scales(row)[:, None]))
        codes = grid.codes.view(np.int8) - np.int8(8 if grid.bits == 4 else 0)
        parts.append((codes, g.astype(np.int16), row))
    return QuantizedMatrix(*(np.concatenate(part) for part in zip(*parts)))


def _symmetric(grid: Grid) -> bool:
    """Whether the minima are −8 scales, so that codes − 8 need none."""
    return grid.minima is not None and bool((grid.minima == -8 * grid.scales).all())


def quantize_w4(weight: np.ndarray) -> QuantizedMatrix:
    """Float weights [rows, cols] as w4g32: per group the range, or the part of it, with the least squared error."""
    return _nibbles(_searched(weight))


def _searched(weight: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    rows, cols = weight.shape
    groups = -(-cols // GROUP)
    for start in range(0, rows, ROWS):
        part = weight[start : start + ROWS]
        # The padding repeats the last column, so that it widens no range.
        x = np.pad(part.astype(np.float64), ((0, 0), (0, groups * GROUP - cols)), mode="edge").reshape(len(part), groups, GROUP)
        low, high = x.min(axis=2), x.max(axis=2)
        best = np.full(low.shape, np.inf)
        scales, minima = np.zeros_like(low), np.zeros_like(low)
        for clip in CLIPS:
            scale, least = (high - low) * clip / CODES, low + (high - low) * (1 - clip) / 2
            q = np.clip(np.floor(divide(x - least[..., None], scale[..., None]) + 0.5), 0, CODES)
            error = ((q * scale[..., None] + least[..., None] - x) ** 2).sum(axis=2)
            better = error < best
            best, scales, minima = np.where(better, error, best), np.where(better, scale, scales), np.where(better, least, minima)
        yield x, scales, minima


def _nibbles(parts: Iterable[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> QuantizedMatrix:
    """w4g32 of (codes uint8 [rows, K], or numbers [rows, groups, 32] to be coded, scales, minima [rows, groups]) in turn."""
    packed, groups, factors = [], [], []
    for values, scales, minima in parts:
        scales, minima = scales.astype(np.float64), minima.astype(np.float64)
        # 4 units of room, because a minimum moves by up to 15/4 of them below.
        row = mantissa_shift_rows(np.maximum(np.abs(scales), np.abs(minima)).max(axis=1) / (SCALE_MAX - 4))
        unit = row_scales(row)[:, None]
        wanted = divide(scales, unit)
        g = _rounded(wanted)
        # The minimum makes up for the scale's rounding at the middle code, which halves the largest error.
        u = _rounded(divide(minima, unit) + CODES / 2 * (wanted - g))
        if values.ndim == 3:
            step, least = (g * unit)[..., None], (u * unit)[..., None]
            values = np.clip(np.floor(divide(values - least, step) + 0.5), 0, CODES).astype(np.uint8).reshape(len(values), -1)
        packed.append((values[:, 0::2] | values[:, 1::2] << 4).view(np.int8))
        groups.append(np.stack([g, u], axis=2).reshape(len(g), -1).astype(np.int16))
        factors.append(row)
    return QuantizedMatrix(np.concatenate(packed), np.concatenate(groups), np.concatenate(factors), W4G32)


def _rounded(x: np.ndarray) -> np.ndarray:
    return np.clip(np.floor(x + 0.5), -SCALE_MAX, SCALE_MAX)
