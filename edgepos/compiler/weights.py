"""Pass: float weight matrices → int8 rows with integer scales (docs/bundle.md, docs/arithmetic.md section 1).

Only elementwise float64 NumPy decides a bit here: no BLAS, so every machine and thread count gives the same integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..program import GROUP, W4G32, W8, W16G32

FORMATS = ("w8", "w8g32", "w16g32")
SCALE_MAX = 32767
ROWS = 1024  # rows at a time, so that the float64 working set stays small


@dataclass(frozen=True)
class QuantizedMatrix:
    """w int8 [rows, K], K a multiple of 32; g int16 [rows, K/32] or None; row int32 [rows, 2] of (m, h).

    A weight is w·g·m·2^−h (g = 1 where None). form W4G32: two 4-bit codes a byte and a scale and a minimum per group; W16G32: twice
    the rows in w and g, the coarse parts before the fine ones; as docs/bundle.md lays them out.
    """

    w: np.ndarray
    g: np.ndarray | None
    row: np.ndarray
    form: int = W8


def quantize(weight: np.ndarray, form: str) -> QuantizedMatrix:
    """weight float [rows, cols], finite → its integers in `form`, a member of FORMATS.

    w8: per row the largest magnitude is 127 steps. w8g32: that per group of 32 columns, with the group scales as 15-bit
    multiples of one step of the row. w is rounded half up against the rounded scale. w16g32: that is the coarse part; what it leaves
    is quantized again with the row's step, into scales that are rounded up, so that nothing is clipped.
    """
    if form == "w16g32":
        coarse = quantize(weight, "w8g32")
        fine = [_fine(weight[at : at + ROWS], *(part[at : at + ROWS] for part in (coarse.w, coarse.g, coarse.row))) for at in range(0, len(weight), ROWS)]
        w, g = (np.concatenate([first, *parts]) for first, parts in zip((coarse.w, coarse.g), zip(*fine)))
        return QuantizedMatrix(w, g, coarse.row, W16G32)
    rows, cols = weight.shape
    padded = -(-cols // GROUP) * GROUP
    w = np.zeros((rows, padded), np.int8)
    g = np.zeros((rows, padded // GROUP), np.int16) if form == "w8g32" else None
    row = np.zeros((rows, 2), np.int32)
    for start in range(0, rows, ROWS):
        part = slice(start, min(start + ROWS, rows))
        x = np.zeros((part.stop - start, padded), np.float64)
        x[:, :cols] = weight[part]
        if g is None:
            unit = np.abs(x).max(axis=1) / 127
            row[part] = mantissa_shift_rows(unit)
            step = row_scales(row[part])[:, None]
        else:
            x = x.reshape(len(x), -1, GROUP)
            wanted = np.abs(x).max(axis=2) / 127
            unit = wanted.max(axis=1) / SCALE_MAX
            row[part] = mantissa_shift_rows(unit)
            unit = row_scales(row[part])[:, None]
            scale = np.clip(np.floor(divide(wanted, unit) + 0.5), 1, SCALE_MAX)
            g[part] = scale
            step = (scale * unit)[:, :, None]
        q = np.clip(np.floor(divide(x, step) + 0.5), -127, 127)
        w[part] = q.reshape(len(q), padded)
    return QuantizedMatrix(w, g, row)


def _fine(weight: np.ndarray, w: np.ndarray, g: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(w', g') of what w·g leaves of float weights, [rows, K] and [rows, K/32]."""
    unit = row_scales(row)[:, None]
    x = np.zeros(w.shape, np.float64)
    x[:, : weight.shape[1]] = weight
    left = (divide(x, unit) - w * np.repeat(g.astype(np.float64), GROUP, axis=1)).reshape(len(w), -1, GROUP)
    scale = np.clip(np.ceil(np.abs(left).max(axis=2) / 127), 1, SCALE_MAX)
    q = np.floor(left / scale[:, :, None] + 0.5)
    return q.astype(np.int8).reshape(w.shape), scale.astype(np.int16)


def dequantize(w: np.ndarray, g: np.ndarray | None, row: np.ndarray, cols: int, form: int = W8) -> np.ndarray:
    """The float32 weights [rows, cols] that the integers stand for."""
    out = np.empty((len(row), cols), np.float32)
    for start in range(0, len(row), ROWS):
        part = slice(start, min(start + ROWS, len(row)))
        if form == W4G32:
            x = np.stack([w[part] & 15, w[part] >> 4 & 15], axis=2).reshape(len(w[part]), -1).astype(np.float64)
            scale, least = (np.repeat(g[part, i::2].astype(np.float64), GROUP, axis=1) for i in (0, 1))
            x = x * scale + least
        else:
            x = w[part].astype(np.float64)
        if g is not None and form != W4G32:
            x *= np.repeat(g[part].astype(np.float64), GROUP, axis=1)
        if form == W16G32:
            fine = slice(part.start + len(row), part.stop + len(row))
            x += w[fine] * np.repeat(g[fine].astype(np.float64), GROUP, axis=1)
        out[part] = x[:, :cols] * row_scales(row[part])[:, None]
    return out


def mantissa_shift_rows(x: np.ndarray) -> np.ndarray:
    """fixedpoint.mantissa_shift of finite float64 numbers ≥ 0 [n], as int32 [n, 2] of (m, shift)."""
    fraction, exponent = np.frexp(x)
    m = np.floor(np.ldexp(fraction, 31) + 0.5)
    shift = 31 - exponent.astype(np.int64)
    carry = m >= 2.0**31
    m, shift = np.where(carry, 2.0**30, m), shift - carry
    return np.stack([m, np.where(x == 0, 0, shift)], axis=1).astype(np.int32)


def row_scales(row: np.ndarray) -> np.ndarray:
    """m·2^−h of int32 [n, 2], float64 [n]: exact."""
    return np.ldexp(row[:, 0].astype(np.float64), -row[:, 1])


def divide(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """x / by, 0 where by is 0."""
    return np.divide(x, by, out=np.zeros(np.broadcast_shapes(x.shape, by.shape)), where=by != 0)
