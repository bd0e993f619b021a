"""Learned absolute positions: which row of the table each token adds, and the table in integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import ContextError, FormatError, UnsupportedError
from ..fixedpoint import mantissa_shift
from .angles import EXACT_PREC
from .base import Plan
from .spec import POSITION_LIMIT, Spec, check_choice, check_count, check_positions

MAX_ROWS = 2**24
FULL_SCALES = {16: 32767, 8: 127}


@dataclass(frozen=True)
class Learned(Spec):
    """A learned row per position.

    count: rows of the table, the offset's included. offset: row of the first position. pad_id: token id whose tokens are not
    counted (they get row offset − 1); None counts every token. modulo: positions are taken modulo this number first.
    BERT and GPT-2: offset 0, no pad_id; RoBERTa: `Learned.roberta`; OPT: `Learned.opt`.
    """

    count: int
    offset: int = 0
    pad_id: int | None = None
    modulo: int | None = None

    encoding: ClassVar[str] = "learned"

    def __post_init__(self):
        object.__setattr__(self, "count", check_count("count", self.count, 1, MAX_ROWS))
        object.__setattr__(self, "offset", check_count("offset", self.offset, 0, self.count - 1))
        if self.pad_id is not None:
            object.__setattr__(self, "pad_id", check_count("pad_id", self.pad_id, 0, 2**31 - 1))
            if self.offset == 0:
                raise FormatError("offset is 0 with a pad_id; padding needs the row before the first position: 1 or more")
        if self.modulo is not None:
            most = self.count - self.offset
            object.__setattr__(self, "modulo", check_count("modulo", self.modulo, 1, most))

    @classmethod
    def roberta(cls, count: int, pad_id: int = 1) -> Learned:
        """fairseq's rule: the first position is pad_id + 1, padding stays at pad_id."""
        return cls(count, check_count("pad_id", pad_id, 0, MAX_ROWS) + 1, pad_id)

    @classmethod
    def opt(cls, count: int, pad_id: int = 1) -> Learned:
        """OPT's rule: two rows before the first position; count includes them."""
        return cls(count, 2, pad_id)

    @property
    def context(self) -> int:
        """Positions the table has rows for; 2^31 with a modulo."""
        return self.count - self.offset if self.modulo is None else POSITION_LIMIT

    def check_length(self, context: int) -> None:
        """Raises ContextError where the table has no rows for so many positions."""
        if context > self.context:
            raise ContextError(f"context {context} passes the learned table's {self.context} positions; positions.interpolate makes a longer one")

    def positions(self, ids, start: int = 0) -> np.ndarray:
        """Row of each token of ids [..., n], int64; start: tokens already counted before them.

        Raises ContextError when the table has no row for one.
        """
        ids = np.asarray(ids)
        if ids.ndim == 0 or ids.dtype.kind not in "iu":
            raise FormatError(f"ids have dtype {ids.dtype} and shape {ids.shape}; allowed are whole numbers [..., n]")
        counted = np.ones(ids.shape, dtype=np.int64) if self.pad_id is None else (ids != self.pad_id).astype(np.int64)
        rank = np.cumsum(counted, axis=-1) - 1 + check_count("start", start, 0, POSITION_LIMIT)
        return np.where(counted == 1, self.rows(np.maximum(rank, 0)), self.offset - 1)

    def rows(self, positions) -> np.ndarray:
        """Row of each position 0, 1, …, int64. Raises ContextError beyond the table."""
        p = check_positions(positions)
        if self.modulo is not None:
            p = p % self.modulo
        if (p >= self.context).any():
            raise ContextError(f"position {p.max()} has no learned row; the table holds {self.context} positions")
        return p + self.offset


def interpolate(table, spec: Learned, length: int) -> tuple[np.ndarray, Learned]:
    """A table for `length` positions by linear interpolation between the learned rows, float64, and its spec.

    Position p takes the place p·(L − 1)/(length − 1) of the L learned ones, so the ends keep their rows; rows before the offset
    are copied. Raises FormatError, also for a length below the learned one, UnsupportedError for a spec with a modulo.
    """
    table = check_table(table, spec)
    if spec.modulo is not None:
        raise UnsupportedError(f"modulo is {spec.modulo}; a table that repeats needs no interpolation")
    learned = table[spec.offset :]
    check_count("length", length, max(2, len(learned)), MAX_ROWS - spec.offset)
    low, part = np.divmod(np.arange(length, dtype=np.int64) * (len(learned) - 1), length - 1)
    high = np.minimum(low + 1, len(learned) - 1)
    weight = (part / (length - 1))[:, None]
    rows = learned[low] * (1 - weight) + learned[high] * weight
    return np.concatenate([table[: spec.offset], rows]), Learned(spec.offset + length, spec.offset, spec.pad_id)


def check_table(table, spec: Learned) -> np.ndarray:
    """The learned table as finite float64 [count, dim]. Raises FormatError."""
    table = np.asarray(table, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != spec.count or table.shape[1] == 0:
        raise FormatError(f"position table has shape {table.shape}; allowed is [{spec.count}, dim]")
    if not np.isfinite(table).all():
        raise FormatError("position table holds NaN or infinity; allowed are finite numbers")
    return table


class LearnedPlan(Plan):
    """A learned table as int16 or int8 with a factor m·2^−h per row, or one for all rows (`per` "row" or "tensor").

    Attributes: spec; bits; per; table int16 or int8 [count, dim]; factors int32 [count or 1, 2] (m, h); bytes; row_errors:
    largest error of each row, float64 [count]; bound: the largest of them. Errors are exact, found over every entry: 16 bits times a
    mantissa of 31 have a place in float64.
    """

    method = "table"

    def __init__(self, spec: Learned, table, bits: int = 16, per: str = "row"):
        """Raises FormatError for a bad table, UnsupportedError for other bits than 16 and 8 or another `per`."""
        self.bits = check_choice("bits", bits, tuple(FULL_SCALES))
        self.spec, self.per = spec, check_choice("per", per, ("row", "tensor"))
        values = check_table(table, spec)
        largest = np.abs(values).max(axis=1) if per == "row" else np.abs(values).max(keepdims=True).reshape(1)
        with mpmath.workprec(EXACT_PREC):
            factors = [mantissa_shift(mpmath.mpf(v) / FULL_SCALES[bits]) for v in largest.tolist()]
        self.factors = np.array(factors, dtype=np.int32)
        unit = self.scale[:, None]
        # m is rounded, so the largest entry may come out one above full scale: clip it back
        q = np.floor(np.divide(values, unit, out=np.zeros_like(values), where=unit != 0) + 0.5)
        q = np.clip(q, -FULL_SCALES[bits], FULL_SCALES[bits])
        self.table = q.astype(np.int16 if bits == 16 else np.int8)
        self.row_errors = np.nextafter(np.abs(q * unit - values).max(axis=1), np.inf)
        self.bytes = self.table.nbytes + self.factors.nbytes

    @property
    def bound(self) -> float:
        return float(self.row_errors.max())

    @property
    def mean_error(self) -> float:
        """The average of row_errors."""
        return float(self.row_errors.mean())

    @property
    def scale(self) -> np.ndarray:
        """Value of one unit of each row, float64 [count or 1]."""
        return np.ldexp(self.factors[:, 0].astype(np.float64), -self.factors[:, 1])

    @property
    def operations(self) -> int:
        """Integer operations per token: a read and two for the factor, per component."""
        return 3 * self.table.shape[1]

    def describe(self) -> str:
        return f"table with {self.bits} bits, a factor per {self.per}, {self.bytes} bytes, error {self.bound:.4g} in the table's units"

    def values(self, rows) -> np.ndarray:
        """The integers' values at rows, float64 [..., dim]."""
        return self.table[rows] * np.broadcast_to(self.scale, self.spec.count)[rows][..., None]

    def certificate(self) -> dict:
        """The errors as data."""
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "bits": self.bits,
            "per": self.per,
            "positions": self.spec.context,
            "padding_row": None if self.spec.pad_id is None else self.spec.offset - 1,
            "row_errors": self.row_errors.tolist(),
            "bound": self.bound,
        }
