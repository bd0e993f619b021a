"""QuantizedRows: a block-quantized GGUF matrix that becomes float only when it is read; and its own grid of integers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from edgepos.errors import FormatError

GROUP = 32
ROWS = 4096  # rows at a time, so that temporary arrays stay small


@dataclass(frozen=True)
class Block:
    """A GGUF block type: ``columns`` numbers of a row in ``bytes`` bytes."""

    name: str
    columns: int
    bytes: int


F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
FLOATS = {F32: np.dtype("<f4"), F16: np.dtype("<f2"), BF16: np.dtype(ml_dtypes.bfloat16)}
# ggml/src/ggml-common.h; the K types hold super-blocks of 256.
BLOCKS = {
    Q4_0: Block("Q4_0", 32, 18),
    Q4_1: Block("Q4_1", 32, 20),
    6: Block("Q5_0", 32, 22),
    7: Block("Q5_1", 32, 24),
    Q8_0: Block("Q8_0", 32, 34),
    10: Block("Q2_K", 256, 84),
    11: Block("Q3_K", 256, 110),
    12: Block("Q4_K", 256, 144),
    13: Block("Q5_K", 256, 176),
    14: Block("Q6_K", 256, 210),
}


@dataclass(frozen=True)
class Grid:
    """A matrix as the integers its file holds: codes·scales + minima, one scale and minimum per row and 32 columns.

    bits:   4: codes uint8 0 … 15; 8: codes int8
    codes:  [rows, columns]
    scales: float32 [rows, columns/32], finite, of either sign
    minima: like scales, or None (all 0)
    """

    bits: int
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None


@dataclass(frozen=True, eq=False)
class QuantizedRows:
    """Rows of blocks over a mapped file: ``raw`` is uint8 [rows, bytes]. NumPy reads it as float32 of ``shape`` (``__array__``)."""

    name: str
    raw: np.ndarray
    shape: tuple[int, ...]
    kind: int

    @staticmethod
    def of(data: np.ndarray, shape: tuple[int, ...], kind: int) -> QuantizedRows:
        """uint8 ``data`` of a whole tensor of ``shape``."""
        return QuantizedRows(BLOCKS[kind].name, data.reshape(-1, shape[-1] // BLOCKS[kind].columns * BLOCKS[kind].bytes), tuple(shape), kind)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> QuantizedRows:
        """Some rows of a matrix."""
        raw = self.raw[rows]
        return replace(self, raw=raw, shape=(len(raw), self.shape[-1]))

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        out = np.empty((len(self.raw), self.shape[-1]), np.float32)
        for start in range(0, len(out), ROWS):
            part = slice(start, start + ROWS)
            with np.errstate(all="ignore"):  # a hostile scale may overflow; whoever reads the numbers checks them
                out[part] = dequantize(np.ascontiguousarray(self.raw[part]), GGMLQuantizationType(self.kind))
        return out.reshape(self.shape).astype(np.float32 if dtype is None else dtype, copy=False)

    @property
    def has_grid(self) -> bool:
        """Whether ``grid`` gives the file's own integers: Q4_0, Q4_1 and Q8_0 matrices."""
        return self.kind in (Q4_0, Q4_1, Q8_0) and len(self.shape) == 2

    @property
    def bits(self) -> int:
        """Of the codes of ``grid``."""
        return 8 if self.kind == Q8_0 else 4

    def grid(self, rows: slice | np.ndarray) -> Grid:
        """The integers of some rows. Raises FormatError when a scale is not finite."""
        blocks = np.ascontiguousarray(self.raw[rows]).reshape(-1, self.shape[1] // GROUP, BLOCKS[self.kind].bytes)
        scales = blocks[..., :2].copy().view("<f2")[..., 0].astype(np.float32)
        minima, head = None, 2
        if self.kind == Q4_1:
            minima, head = blocks[..., 2:4].copy().view("<f2")[..., 0].astype(np.float32), 4
        elif self.kind == Q4_0:
            minima = -8 * scales
        if not np.isfinite(scales).all() or minima is not None and not np.isfinite(minima).all():
            raise FormatError(f"a {self.name} tensor has a scale that is not finite; the file is damaged")
        packed = blocks[..., head:]
        if self.kind == Q8_0:
            codes = packed.view(np.int8)
        else:
            codes = np.concatenate([packed & 15, packed >> 4], axis=-1)
        return Grid(self.bits, codes.reshape(len(blocks), -1), scales, minima)


@dataclass(frozen=True, eq=False)
class ReorderedRows:
    """Rows of ``array`` in another order, or some of them, chosen when they are read."""

    array: np.ndarray | QuantizedRows
    order: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.order), *self.array.shape[1:])

    def __len__(self) -> int:
        return len(self.order)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        rows = self.array[self.order] if isinstance(self.array, np.ndarray) else np.asarray(self.array)[self.order]
        return rows.astype(np.float32 if dtype is None else dtype, copy=False)

    @property
    def has_grid(self) -> bool:
        return isinstance(self.array, QuantizedRows) and self.array.has_grid

    @property
    def bits(self) -> int:
        """Of the codes of ``grid``."""
        return self.array.bits

    def grid(self, rows: slice | np.ndarray) -> Grid:
        """The integers of some rows; see ``QuantizedRows.grid``."""
        return self.array.grid(self.order[rows])


LazyRows = QuantizedRows | ReorderedRows
