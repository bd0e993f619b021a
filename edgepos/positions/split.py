"""The split method: cos and sin of a coarse and of a fine part of the position, joined by one complex product."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..errors import UnsupportedError
from ..fixedpoint import rshift_round
from .enclosure import IV
from .entry_proof import WorstEntry, worst_entry
from .exact import rounded_cos_sin_at
from .phase_proof import FULL_SCALE, bound_of, rounded_up
from .plan import RotationPlan, check_bytes
from .rope import Rotation
from .spec import check_choice, check_context

ENTRY_SCALES = {16: 32767, 32: 2**30}


class SplitPlan(RotationPlan):
    """Tables of a coarse part (multiples of 2^k) and a fine part (0 … 2^k − 1) of the position, k half of the context's bits.

    cos(a + b) = cos a·cos b − sin a·sin b and likewise sin. entry_bits 16: entries in ±32767, rounded half up; the product is divided by
    32767 with one rounding. entry_bits 32: entries times 2^30, and the result is as good as a direct table.
    """

    bits = 16
    full_scale = FULL_SCALE

    def __init__(self, spec: Rotation, context: int, entry_bits: int = 16):
        """Raises UnsupportedError for other entry_bits than 16 and 32 and for large tables, FormatError for a bad context."""
        check_choice("entry_bits", entry_bits, tuple(ENTRY_SCALES))
        if not spec.linear:
            raise UnsupportedError(f"{spec.encoding} has angles that do not add up over positions; use the table method")
        self.spec, self.context, self.entry_bits = spec, check_context(context), entry_bits
        self.method = f"split-{entry_bits}"
        self.shift, rows = self.parts(context)
        self.bytes = check_bytes(self.size(spec, context, entry_bits), context)
        self.places = [np.arange(n, dtype=np.int64) << s for n, s in zip(rows, (self.shift, 0))]
        self.coarse, self.fine = (rounded_cos_sin_at(spec, p, ENTRY_SCALES[entry_bits], self.seq_len) for p in self.places)

    @staticmethod
    def parts(context: int) -> tuple[int, tuple[int, int]]:
        """(k, (coarse rows, fine rows))."""
        shift = ((context - 1).bit_length() + 1) // 2
        return shift, (((context - 1) >> shift) + 1, min(context, 1 << shift))

    @classmethod
    def size(cls, spec: Rotation, context: int, entry_bits: int) -> int:
        """Bytes of both tables."""
        return sum(cls.parts(context)[1]) * 2 * spec.pairs * entry_bits // 8

    @property
    def operations(self) -> int:
        """Integer operations per pair."""
        return 14

    @cached_property
    def worst(self) -> tuple[WorstEntry, WorstEntry]:
        """The worst entry of the coarse and of the fine table, found over every entry."""
        scale = ENTRY_SCALES[self.entry_bits]
        return tuple(
            worst_entry(self.spec, lambda a, b, t=tables: (t[0][a:b], t[1][a:b]), at, scale, self.seq_len)
            for tables, at in zip((self.coarse, self.fine), self.places)
        )

    def terms(self) -> dict[str, float]:
        """Entries: with every coarse entry off by at most x and every fine one by at most y (units of 1/scale), the product is
        off by x·(|cos b| + |sin b|) + y·(|cos a| + |sin a|) + 2·x·y/scale, and |cos| + |sin| ≤ √2. Then the roundings of the product."""
        scale = ENTRY_SCALES[self.entry_bits]
        x, y = (IV.mpf(worst.bound) for worst in self.worst)
        entries = (IV.sqrt(2) * (x + y) + 2 * x * y / scale) * FULL_SCALE / scale
        terms = {"entries": rounded_up(entries.b), "output_rounding": 0.5}
        return terms if self.entry_bits == 16 else terms | {"product_rounding": FULL_SCALE * 2.0**-31}

    def certificate(self) -> dict:
        return super().certificate() | {"worst": dict(zip(("coarse", "fine"), (w.to_json() for w in self.worst)))}

    @property
    def bound(self) -> float:
        return bound_of(self.terms())

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        p = self.spec.pair_positions(positions, self.context)
        pair = np.arange(self.spec.pairs)
        high, low = p >> self.shift, p & ((1 << self.shift) - 1)
        (ca, sa), (cb, sb) = ([t[at, pair] for t in tables] for tables, at in ((self.coarse, high), (self.fine, low)))
        return self._join(ca * cb - sa * sb), self._join(sa * cb + ca * sb)

    def _join(self, product: np.ndarray) -> np.ndarray:
        if self.entry_bits == 16:
            value = (2 * product + FULL_SCALE) // (2 * FULL_SCALE)
        else:
            value = rshift_round(rshift_round(product, 30) * FULL_SCALE, 30)
        return np.clip(value, -FULL_SCALE, FULL_SCALE).astype(np.int16)
