"""Integer plans for ALiBi, in log2 units: the score's bias is slope · log2(e) · distance, and a weight is 2^score.

`SlopePlan` is what the EdgePos runtime does (docs/arithmetic.md: alibi_bias): one uint32 per head, any distance.
`BiasTablePlan` is a table over distance for runtimes that add a stored bias.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mpmath
import numpy as np

from ..errors import UnsupportedError
from ..fixedpoint import alibi_bias, round_half_up
from .alibi import Alibi
from .angles import EXACT_PREC
from .base import Plan
from .entry_proof import PRODUCT_RADIUS, worst_product
from .spec import POSITION_LIMIT, check_choice, check_context, check_positions

ZERO_WEIGHT_LOG2 = 40  # exp2_neg gives 0 from here on
SLOPE_BITS = 31  # Q1.31
BIAS_BITS = 16
STEEPEST = 2**14  # where a bias saturates: steeper slopes give the same one at every distance
TABLE_FORMATS = {16: (np.int16, 10), 8: (np.int8, 3)}  # dtype, fractional bits
TABLE_BYTES_LIMIT = 2**30
STEEP = 2**20  # table units; far beyond saturation


def exact_log2_slopes(spec: Alibi) -> tuple[mpmath.mpf, ...]:
    """slope · log2(e) of each head to 256 bits."""
    with mpmath.workprec(EXACT_PREC):
        return tuple(s / mpmath.ln(2) for s in spec.exact_slopes())


def relative_weight(error_log2: float) -> float:
    """Largest relative change of a softmax weight whose score is off by `error_log2`, in log2 units: 2^error − 1."""
    with mpmath.workprec(EXACT_PREC):
        return float(mpmath.expm1(error_log2 * mpmath.ln(2)))


@dataclass(frozen=True)
class SlopePlan(Plan):
    """uint32 slopes, Q1.31 unless the largest slope·log2(e) is 2 or more: then every head has fewer fractional bits, at least 17.

    Attributes: spec; method "slope"; bits 32; bytes; scale: of the slopes; bound and bound_weight: of the bias.
    """

    spec: Alibi

    method = "slope"
    bits = 32
    operations = 4

    @cached_property
    def _exact(self) -> tuple[mpmath.mpf, ...]:
        """What the slopes stand for."""
        return tuple(min(slope, mpmath.mpf(STEEPEST)) for slope in exact_log2_slopes(self.spec))

    @cached_property
    def fraction_bits(self) -> int:
        """Fractional bits of the slopes: 31, less for slopes·log2(e) of 2 and more."""
        with mpmath.workprec(EXACT_PREC):
            largest = max(self._exact)
            bits = min(SLOPE_BITS, 32 - mpmath.frexp(largest)[1]) if largest else SLOPE_BITS
            return bits - (round_half_up(mpmath.ldexp(largest, bits)) >= 2**32)

    @property
    def shift(self) -> int:
        """alibi_shift of the ATTENTION operator: fraction_bits − 16, 15 for Q1.31."""
        return self.fraction_bits - BIAS_BITS

    @cached_property
    def slopes(self) -> np.ndarray:
        """slope · log2(e) · 2^fraction_bits, uint32 [heads], rounded half up from 256 bits; 2^14 for what is steeper, where the first distance already has the largest bias."""
        with mpmath.workprec(EXACT_PREC):
            bits = self.fraction_bits
            return np.array([round_half_up(mpmath.ldexp(s, bits)) for s in self._exact], dtype=np.uint32)

    @property
    def bytes(self) -> int:
        """Size of the slopes."""
        return 4 * self.spec.heads

    @property
    def scale(self) -> float:
        """Log2 units per position of one unit of the slopes."""
        return 2.0**-self.fraction_bits

    def bias_fixed(self, distance) -> np.ndarray:
        """What is subtracted from the scores, int64 [heads, ...] in log2 units with 16 fractional bits, at most 2^30."""
        d = check_positions(distance)
        return alibi_bias(self.slopes.reshape(-1, *[1] * d.ndim), d, self.shift)

    def zero_distance(self) -> np.ndarray:
        """The first distance of each head, int64 [heads], at which the bias alone reaches 40: from there on a key has the
        weight 0 exactly, when its content scores no higher than the best key's. 2^31 where there is none."""
        need = (ZERO_WEIGHT_LOG2 << BIAS_BITS) * 2 - 1  # rshift_round(p, n) ≥ t  ⇔  2p ≥ (2t − 1)·2^n
        result = []
        for slope in self.slopes.tolist():
            result.append(min(POSITION_LIMIT, -(-(need << self.shift) // (2 * slope))) if slope else POSITION_LIMIT)
        return np.array(result, dtype=np.int64)

    @cached_property
    def slope_errors(self) -> tuple[float, ...]:
        """|stored slope − slope·log2(e)| of each head, in log2 units per position, rounded up."""
        with mpmath.workprec(EXACT_PREC):
            unit = mpmath.ldexp(1, -self.fraction_bits)
            return tuple(float(np.nextafter(float(abs(q * unit - s)), np.inf)) for q, s in zip(self.slopes.tolist(), self._exact))

    def bound_at(self, distance: int) -> float:
        """Proven largest error of the bias up to a distance, in log2 units: rounding 2^−17 and distance · slope error.

        Holds while the bias is below 2^14, where it saturates (the weight is 0 long before).
        """
        return float(np.nextafter(2.0**-17 + distance * max(self.slope_errors), np.inf))

    @property
    def bound(self) -> float:
        """The largest error of any bias whose weight is not 0, in log2 units: `bound_at` each head's zero_distance."""
        reach = zip(self.zero_distance().tolist(), self.slope_errors)
        return float(np.nextafter(2.0**-17 + max(d * e for d, e in reach), np.inf))

    @property
    def bound_weight(self) -> float:
        """The bound as a relative error of the softmax weight."""
        return relative_weight(self.bound)

    def describe(self) -> str:
        return f"slopes with {self.bits} bits, {self.bytes} bytes, error {self.bound:.4g} in log2 units at any distance"

    def certificate(self) -> dict:
        """The proof's terms as data."""
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "fraction_bits": self.fraction_bits,
            "rounding": 2.0**-17,
            "slope_errors": list(self.slope_errors),
            "zero_distance": self.zero_distance().tolist(),
            "bound": self.bound,
            "bound_weight": self.bound_weight,
        }


class BiasTablePlan(Plan):
    """A bias table over distance, int16 (10 fractional bits) or int8 (3), [heads, context], values −slope·log2(e)·distance.

    The smallest entry (−32768 or −128) is saturated and means weight 0. A runtime that adds it as an ordinary number
    gives each such key the weight 2^−32 or 2^−16 of a key at distance 0 instead: see `leak`.
    """

    method = "table"
    operations = 2

    def __init__(self, spec: Alibi, context: int, bits: int = 16):
        """Raises UnsupportedError for other bits than 16 and 8 and for tables above 2^30 bytes, FormatError for a bad context."""
        self.bits = check_choice("bits", bits, tuple(TABLE_FORMATS))
        dtype, self.fraction_bits = TABLE_FORMATS[bits]
        self.spec, self.context = spec, check_context(context)
        self.bytes = self.size(spec, self.context, bits)
        if self.bytes > TABLE_BYTES_LIMIT:
            raise UnsupportedError(f"a table of {self.bytes} bytes for context {context} passes 2^30; use the slope plan")
        self.saturated = int(np.iinfo(dtype).min)
        self.table = np.stack([self._row(s) for s in exact_log2_slopes(spec)]).astype(dtype)
        self.table.flags.writeable = False

    @staticmethod
    def size(spec: Alibi, context: int, bits: int) -> int:
        """Bytes of the table."""
        return spec.heads * context * bits // 8

    def _row(self, slope: mpmath.mpf) -> np.ndarray:
        """Correctly rounded entries of one head, int64 [context]: float64, and 256 bits next to a rounding tie."""
        with mpmath.workprec(EXACT_PREC):
            step = min(mpmath.ldexp(slope, self.fraction_bits), mpmath.mpf(STEEP))
        scaled = np.minimum(np.arange(self.context) * float(step), STEEP) + 0.5
        rounded = np.floor(scaled)
        part, radius = scaled - rounded, scaled * PRODUCT_RADIUS
        for d in np.flatnonzero((rounded < STEEP) & ((part < radius) | (part > 1 - radius))).tolist():
            with mpmath.workprec(EXACT_PREC):
                rounded[d] = round_half_up(d * step)
        return np.maximum(-rounded.astype(np.int64), self.saturated)

    @property
    def scale(self) -> float:
        """Log2 units of one unit of the table."""
        return 2.0**-self.fraction_bits

    @cached_property
    def worst(self) -> tuple[float, int, int]:
        """(bound, head, distance): no entry that is not saturated is further from the exact bias, in units of the table; found from
        every one of them."""
        rows = []
        for head, slope in enumerate(exact_log2_slopes(self.spec)):
            with mpmath.workprec(EXACT_PREC):
                step = mpmath.ldexp(-slope, self.fraction_bits)
            kept = self.table[head] != self.saturated
            bound, distance = worst_product(np.arange(self.context, dtype=np.float64)[kept], step, self.table[head][kept].astype(np.int64))
            rows.append((bound, head, int(np.flatnonzero(kept)[distance])))
        return max(rows, key=lambda row: row[0])

    @property
    def bound(self) -> float:
        """Proven largest error of an entry that is not saturated, in units of the table."""
        return self.worst[0]

    @property
    def error(self) -> float:
        """The bound in log2 units."""
        return self.bound * self.scale

    @property
    def bound_weight(self) -> float:
        """The bound as a relative error of the softmax weight."""
        return relative_weight(self.error)

    def describe(self) -> str:
        return f"table with {self.bits} bits, {self.bytes} bytes, error {self.error:.4g} in log2 units"

    def zero_distance(self) -> np.ndarray:
        """The first saturated distance of each head, int64 [heads], from which on the weight is 0; context where there is none."""
        hit = self.table == self.saturated
        return np.where(hit.any(axis=1), hit.argmax(axis=1), self.context)

    def leak(self) -> float:
        """Weight that all saturated keys of a full context add up to when the entry is added as an ordinary number, relative
        to a key at distance 0 with the same content, in the worst head."""
        return float((self.table == self.saturated).sum(axis=1).max()) * 2.0 ** (self.saturated * self.scale)

    def bias_fixed(self, distance) -> np.ndarray:
        """Entries at distances in 0 … context − 1, [heads, ...]."""
        return self.table[:, check_positions(distance, self.context)]

    def certificate(self) -> dict:
        """The proof's terms as data."""
        return {
            "spec": self.spec.to_json(),
            "method": self.method,
            "bits": self.bits,
            "fraction_bits": self.fraction_bits,
            "saturated": self.saturated,
            "zero_distance": self.zero_distance().tolist(),
            "terms": {"worst_entry": self.bound},
            "worst": dict(zip(("bound", "head", "distance"), self.worst)),
            "bound": self.bound,
            "bound_weight": self.bound_weight,
            "leak": self.leak(),
        }
