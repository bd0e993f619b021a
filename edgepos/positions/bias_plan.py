"""Learned attention biases in integers: int32 in log2 units with 16 fractional bits, added to the scores of ATTENTION."""

from __future__ import annotations

import mpmath
import numpy as np

from ..errors import FormatError
from ..fixedpoint import INT32_MAX, round_half_up
from .alibi_plan import BIAS_BITS, relative_weight
from .angles import EXACT_PREC
from .relative import RelativeBias, T5Bias


def bias_integers(values: np.ndarray) -> np.ndarray:
    """value · log2(e) · 2^16 of natural units, int32 in the values' shape, correctly rounded.

    Raises FormatError for NaN or values too large.
    """
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise FormatError("bias table holds NaN or infinity; allowed are finite numbers")
    # A table by distance repeats the rows of its buckets: each number is rounded once.
    distinct, places = np.unique(values, return_inverse=True)
    with mpmath.workprec(EXACT_PREC):
        unit = mpmath.ldexp(1, BIAS_BITS) / mpmath.ln(2)
        rounded = [round_half_up(mpmath.mpf(v) * unit) for v in distinct.tolist()]
    if rounded and max(map(abs, rounded)) > INT32_MAX:
        raise FormatError(f"bias table holds {np.abs(values).max()}; allowed is below 22713 (2^15 in log2 units)")
    return np.array(rounded, dtype=np.int32)[places].reshape(values.shape)


class LearnedBiasPlan:
    """The integers of a learned table [rows, heads].

    Attributes: spec; table: value · log2(e) · 2^16, int32 [rows, heads], correctly rounded; method "table"; bits 32; bytes; bound:
    2^−17 in log2 units, proven by correct rounding; bound_weight: the same as a relative error of a softmax weight.
    """

    method = "table"
    bits = 32

    def __init__(self, spec: T5Bias | RelativeBias, values):
        """values: the model's table [rows, heads], natural units. Raises FormatError for another shape, NaN, or values too large."""
        values = np.asarray(values, dtype=np.float64)
        if values.ndim != 2 or values.shape[0] != spec.rows:
            raise FormatError(f"bias table has shape {values.shape}; allowed is [{spec.rows}, heads]")
        self.spec = spec
        self.table = bias_integers(values)
        self.table.flags.writeable = False

    @property
    def bytes(self) -> int:
        """Size of the table."""
        return self.table.nbytes

    @property
    def scale(self) -> float:
        """Log2 units of one unit of the table."""
        return 2.0**-BIAS_BITS

    @property
    def bound(self) -> float:
        return 2.0 ** -(BIAS_BITS + 1)

    @property
    def bound_weight(self) -> float:
        return relative_weight(self.bound)

    def bias_fixed(self, query_positions, key_positions) -> np.ndarray:
        """What is added to the scores, int64 [heads, q, k], log2 units with 16 fractional bits."""
        return np.moveaxis(self.table[self.spec.index(query_positions, key_positions)].astype(np.int64), -1, 0)

    def certificate(self) -> dict:
        """The proof's terms as data."""
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "fraction_bits": BIAS_BITS,
            "terms": {"correct_rounding": self.bound},
            "bound": self.bound,
            "bound_weight": self.bound_weight,
        }
