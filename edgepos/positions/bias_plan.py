"""Learned attention biases in integers, in log2 units: int32 with 16 fractional bits, as ATTENTION adds them, or int16 and int8 with
a factor per head."""

from __future__ import annotations

import math

import mpmath
import numpy as np

from ..errors import FormatError
from ..fixedpoint import INT32_MAX, mantissa_shift, round_half_up, rshift_round
from .alibi_plan import BIAS_BITS, relative_weight
from .angles import EXACT_PREC
from .base import Plan
from .entry_proof import worst_product
from .relative import RelativeBias, T5Bias
from .spec import check_choice, check_count

FULL_SCALES = {32: INT32_MAX, 16: 32767, 8: 127}
PER = ("head", "tensor")
WIDEST_SHIFT = 62  # products are below 2^46: from 47 on all of them round to 0


def rounded_log2(values: np.ndarray, unit: mpmath.mpf) -> np.ndarray:
    """value · log2(e) / unit of natural units, int64 in the values' shape, rounded half up from 256 bits; 0 for a unit of 0."""
    # A table by distance repeats the rows of its buckets: each number is rounded once.
    distinct, places = np.unique(values, return_inverse=True)
    with mpmath.workprec(EXACT_PREC):
        factor = 1 / (unit * mpmath.ln(2)) if unit else mpmath.mpf(0)
        rounded = [round_half_up(mpmath.mpf(v) * factor) for v in distinct.tolist()]
    return np.array(rounded, dtype=np.int64)[places].reshape(values.shape)


def check_values(values) -> np.ndarray:
    """Learned biases as finite float64 below 2^15 in log2 units. Raises FormatError."""
    values = np.asarray(values, dtype=np.float64)
    if not np.isfinite(values).all():
        raise FormatError("bias table holds NaN or infinity; allowed are finite numbers")
    largest = np.abs(values).max(initial=0.0)
    with mpmath.workprec(EXACT_PREC):
        if round_half_up(mpmath.mpf(float(largest)) / mpmath.ln(2) * 2**BIAS_BITS) > INT32_MAX:
            raise FormatError(f"bias table holds {largest}; allowed is below 22713 (2^15 in log2 units)")
    return values


def bias_integers(values) -> np.ndarray:
    """value · log2(e) · 2^16 of natural units, int32 in the values' shape, correctly rounded.

    Raises FormatError for NaN or values too large.
    """
    return rounded_log2(check_values(values), mpmath.mpf(2) ** -BIAS_BITS).astype(np.int32)


class LearnedBiasPlan(Plan):
    """The integers of a learned table [rows, heads], or [layers, rows, heads] where the spec has a table per layer.

    Attributes: spec; bits 32, 16 or 8; per: which numbers share a factor, "head" or "tensor" (16 and 8 bits); table: integers in the
    shape of the values, value · log2(e) / unit, correctly rounded; factors: int32 [..., heads or 1, 2] of (m, h) with unit = m·2^−h, the
    largest magnitude of the head or tensor over 32767 or 127 (None with 32 bits, whose unit is 2^−16); method "table"; bytes; entry_bound: the
    largest error of all entries in log2 units, at `worst`, ([layer,] row, head); bound: of `bias_fixed`, in log2 units; bound_weight: the
    same as a relative error of a softmax weight.
    """

    method = "table"

    def __init__(self, spec: T5Bias | RelativeBias, values, bits: int = 32, per: str = "head"):
        """values: the model's table, natural units.

        Raises FormatError for another shape, NaN, or values too large, UnsupportedError for other bits or another `per`.
        """
        check_choice("bits", bits, tuple(FULL_SCALES))
        values = np.asarray(values, dtype=np.float64)
        wanted = (spec.rows,) if spec.layers is None else (spec.layers, spec.rows)
        if values.ndim != len(wanted) + 1 or values.shape[:-1] != wanted or not values.shape[-1]:
            raise FormatError(f"bias table has shape {values.shape}; allowed is [{', '.join(map(str, wanted))}, heads]")
        self.spec, self.bits, self.per = spec, bits, check_choice("per", per, PER)
        values = check_values(values)
        if bits == 32:
            self.table, self.factors = bias_integers(values), None
        else:
            self.table, self.factors = _with_factors(values, bits, per)
        self.table.flags.writeable = False
        self.entry_bound, self.worst = self._worst_entry(values)

    def _worst_entry(self, values: np.ndarray) -> tuple[float, tuple[int, ...]]:
        """(bound in log2 units, place): no entry · scale is further from its value · log2(e), and where the largest error is."""
        found = []
        *layers, _, heads = values.shape
        for *layer, head in np.ndindex(*layers, heads):
            m, h = (1, BIAS_BITS) if self.factors is None else self.factors[(*layer, head % self.factors.shape[-2])].tolist()
            if m:
                with mpmath.workprec(EXACT_PREC):
                    step = mpmath.ldexp(1, h) / (m * mpmath.ln(2))
                at = (*layer, slice(None), head)
                units, row = worst_product(values[at], step, self.table[at].astype(np.int64))
                found.append((units * math.ldexp(m, -h) * (1 + 2.0**-52), (*layer, row, head)))
        return max(found, default=(0.0, (0,) * values.ndim), key=lambda f: f[0])

    @property
    def heads(self) -> int:
        """Attention heads."""
        return self.table.shape[-1]

    @property
    def operations(self) -> int:
        """Integer operations per key and head: read and add, and with a factor a product and a shift."""
        return 2 if self.factors is None else 4

    @property
    def bytes(self) -> int:
        """Size of the table and its factors."""
        return self.table.nbytes + (0 if self.factors is None else self.factors.nbytes)

    @property
    def scale(self) -> float | np.ndarray:
        """Log2 units of one unit of the table; float64 [..., heads or 1] where there are factors."""
        if self.factors is None:
            return 2.0**-BIAS_BITS
        return np.ldexp(self.factors[..., 0].astype(np.float64), -self.factors[..., 1])

    def layer(self, layer: int | None) -> tuple[np.ndarray, np.ndarray | None]:
        """(table [rows, heads], factors [heads or 1, 2] or None) of a layer; None where all layers share one. Raises FormatError."""
        if self.spec.layers is None:
            if layer is not None:
                raise FormatError(f"layer is {layer!r}; all layers share one table, so it must be None")
            return self.table, self.factors
        layer = check_count("layer", layer, 0, self.spec.layers - 1)
        return self.table[layer], None if self.factors is None else self.factors[layer]

    @property
    def mean_error(self) -> float:
        """Half a unit of each head on average, in log2 units."""
        return float(np.mean(self.scale)) / 2

    def terms(self) -> dict[str, float]:
        """The terms whose sum is the bound, in log2 units."""
        entry = {"worst_entry": self.entry_bound}
        return entry if self.factors is None else entry | {"output_rounding": 2.0 ** -(BIAS_BITS + 1)}

    @property
    def bound(self) -> float:
        total = sum(self.terms().values())
        return total if self.factors is None else float(np.nextafter(total, np.inf))

    @property
    def bound_weight(self) -> float:
        return relative_weight(self.bound)

    def bias_fixed(self, query_positions, key_positions, layer: int | None = None) -> np.ndarray:
        """What is added to the scores, int64 [heads, q, k], log2 units with 16 fractional bits.

        layer: which layer's table, where the spec has several. Factors: rshift_round(entry · m, h − 16) of docs/arithmetic.md.
        """
        table, factors = self.layer(layer)
        entries = table[self.spec.index(query_positions, key_positions)].astype(np.int64)
        if factors is not None:
            shifts = np.clip(factors[:, 1].astype(np.int64) - BIAS_BITS, 0, WIDEST_SHIFT)
            entries = rshift_round(entries * factors[:, 0].astype(np.int64), shifts)
        return np.moveaxis(entries, -1, 0)

    def describe(self) -> str:
        shared = "" if self.factors is None else f", a factor per {self.per}"
        return f"table with {self.bits} bits{shared}, {self.bytes} bytes, error {self.bound:.4g} in log2 units"

    def certificate(self) -> dict:
        """The proof's terms as data."""
        unit = {"fraction_bits": BIAS_BITS} if self.factors is None else {"per": self.per, "factors": self.factors.tolist()}
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "bits": self.bits,
            **unit,
            "terms": self.terms(),
            "worst": list(self.worst),
            "bound": self.bound,
            "bound_weight": self.bound_weight,
        }


def _with_factors(values: np.ndarray, bits: int, per: str) -> tuple[np.ndarray, np.ndarray]:
    """(integers in the values' shape, factors [..., heads or 1, 2]) of values [..., rows, heads]."""
    full = FULL_SCALES[bits]
    groups = np.moveaxis(values, -1, -2)  # [..., heads, rows]
    shape = groups.shape
    if per == "tensor":
        groups = groups.reshape(*shape[:-2], 1, -1)
    flat = groups.reshape(-1, groups.shape[-1])
    integers, factors = [], []
    for group in flat:
        with mpmath.workprec(EXACT_PREC):
            m, h = mantissa_shift(mpmath.mpf(float(np.abs(group).max())) / mpmath.ln(2) / full)
            unit = mpmath.ldexp(m, -h)
        # m is rounded by 2^-31 of itself, far too little to carry the largest entry past full scale
        integers.append(rounded_log2(group, unit))
        factors.append((m, h))
    table = np.moveaxis(np.array(integers).reshape(shape), -1, -2)
    dtype = np.int16 if bits == 16 else np.int8
    return np.ascontiguousarray(table.astype(dtype)), np.array(factors, dtype=np.int32).reshape(*groups.shape[:-1], 2)
