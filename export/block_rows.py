"""BlockRows: a matrix of codes of 2, 4 or 8 bits with a scale per block of a row, as ONNX Runtime's MatMulNBits holds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgepos.errors import FormatError

from .quantized_rows import GROUP, ROWS, Grid, LazyRows


@dataclass(frozen=True, eq=False)
class BlockRows:
    """(code − zero) · scale of every ``size`` columns; NumPy reads it as float32 of ``shape`` (``__array__``).

    packed: uint8 [rows, bytes], the codes of a row, low bits first, its last block whole
    scales: float [rows, blocks]
    zeros:  float [rows, blocks], or None: 2^(width − 1), the middle code
    width:  bits of a code, 2, 4 or 8
    """

    packed: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    width: int
    size: int
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.packed), self.columns

    @property
    def ndim(self) -> int:
        return 2

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, rows: slice | np.ndarray) -> BlockRows:
        """Some rows, in any order."""
        return replace(self, packed=self.packed[rows], scales=self.scales[rows], zeros=None if self.zeros is None else self.zeros[rows])

    def same_as(self, other: object) -> bool:
        """Whether another matrix holds the same integers."""
        return (
            isinstance(other, BlockRows)
            and (self.width, self.size, self.shape) == (other.width, other.size, other.shape)
            and np.array_equal(self.packed, other.packed)
            and np.array_equal(self.scales, other.scales)
            and np.array_equal(self._zeros(), other._zeros())
        )

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        out = np.empty(self.shape, np.float32)
        for start in range(0, len(out), ROWS):
            part = self[start : start + ROWS]
            codes = part._codes().reshape(*part.scales.shape, self.size).astype(np.float32)
            with np.errstate(all="ignore"):  # a hostile scale may overflow; whoever reads the numbers checks them
                values = (codes - part._zeros()[..., None]) * part.scales.astype(np.float32)[..., None]
            out[start : start + ROWS] = values.reshape(len(part), -1)[:, : self.columns]
        return out.astype(np.float32 if dtype is None else dtype, copy=False)

    @property
    def bits(self) -> int:
        """Of the codes of ``grid``."""
        return 8 if self.width == 8 else 4

    @property
    def has_grid(self) -> bool:
        """Whether ``grid`` gives the codes exactly: whole groups of 32 columns, and no zero of 8-bit codes but the middle."""
        whole = self.size % GROUP == 0 and self.columns % GROUP == 0
        return whole and (self.width < 8 or self.zeros is None or bool((self.zeros == 128).all()))

    def grid(self, rows: slice | np.ndarray) -> Grid:
        """The integers of some rows by groups of 32 columns. Raises FormatError when a scale is not finite."""
        part = self[rows]
        repeat, groups = self.size // GROUP, self.columns // GROUP
        scales = np.repeat(part.scales.astype(np.float32), repeat, axis=1)[:, :groups]
        zeros = np.repeat(part._zeros(), repeat, axis=1)[:, :groups]
        codes, minima = part._codes()[:, : self.columns], None
        if self.width == 8:
            codes = (codes ^ 0x80).view(np.int8)
        else:
            with np.errstate(all="ignore"):
                minima = -zeros * scales
        if not np.isfinite(scales).all() or minima is not None and not np.isfinite(minima).all():
            raise FormatError("a matrix of codes has a scale or zero point that is not finite; the file is damaged")
        return Grid(self.bits, codes, scales, minima)

    def _codes(self) -> np.ndarray:
        """uint8 [rows, blocks · size]."""
        if self.width == 8:
            return self.packed
        return unpacked(self.packed, self.width)

    def _zeros(self) -> np.ndarray:
        return np.full(self.scales.shape, 2 ** (self.width - 1), np.float32) if self.zeros is None else self.zeros.astype(np.float32)


def unpacked(packed: np.ndarray, width: int) -> np.ndarray:
    """Codes of ``width`` bits from bytes [rows, n], low bits first: uint8 [rows, n · 8/width]."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    return (packed[..., None] >> shifts & np.uint8(2**width - 1)).reshape(len(packed), -1)


GridRows = LazyRows | BlockRows
