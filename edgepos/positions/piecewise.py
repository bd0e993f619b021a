"""The piecewise method: straight lines in the position, one set of nodes per frequency.

Articles on edge transformers propose it. It is fine for slow frequencies and useless for fast ones: a pair that turns by more than
half a circle between two nodes is lost. The bound says so.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..fixedpoint import rshift_round
from .enclosure import SCALED_RADIUS
from .entry_proof import WorstEntry, worst_entry
from .exact import rounded_cos_sin_at
from .phase_proof import FULL_SCALE
from .plan import RotationPlan, check_bytes
from .rope import Rotation
from .spec import check_context, check_count

CHUNK = 4096


class PiecewisePlan(RotationPlan):
    """Nodes every 2^shift positions, correctly rounded int16 cos and sin, with linear interpolation between them."""

    bits = 16
    full_scale = FULL_SCALE

    def __init__(self, spec: Rotation, context: int, shift: int = 4):
        """Raises FormatError for a bad context or shift, UnsupportedError for large tables."""
        self.spec, self.context, self.shift = spec, check_context(context), check_count("shift", shift, 1, 20)
        self.method = f"piecewise-{1 << shift}"
        nodes = self.nodes(context, shift)
        self.bytes = check_bytes(self.size(spec, context, shift), context)
        at = np.minimum(np.arange(nodes, dtype=np.int64) << shift, spec.reach - 1)  # the last node may lie beyond the context
        self.cos, self.sin = rounded_cos_sin_at(spec, at, FULL_SCALE, self.seq_len)

    @staticmethod
    def nodes(context: int, shift: int) -> int:
        """Nodes of a pair."""
        return ((context - 1) >> shift) + 2

    @classmethod
    def size(cls, spec: Rotation, context: int, shift: int) -> int:
        """Bytes of the nodes."""
        return cls.nodes(context, shift) * 2 * spec.pairs * 2

    @property
    def operations(self) -> int:
        """Integer operations per pair."""
        return 12

    @cached_property
    def pair_bounds(self) -> np.ndarray:
        """No error of a pair is larger, float64 [pairs]: found at every position of the context, so it is a proof."""
        worst = np.zeros(self.spec.pairs)
        for start in range(0, self.context, CHUNK):
            p = np.arange(start, min(start + CHUNK, self.context))[:, None]
            for got, exact in zip(self._at(p), self.spec.enclosed_cos_sin(p, self.seq_len)):
                worst = np.maximum(worst, np.abs(got - FULL_SCALE * exact).max(axis=0, initial=0.0))
        return worst + FULL_SCALE * SCALED_RADIUS

    @cached_property
    def worst(self) -> WorstEntry:
        """Where the largest error is, found at every position."""
        at = np.arange(self.context)
        return worst_entry(self.spec, lambda a, b: self._at(at[a:b, None]), at, FULL_SCALE, self.seq_len)

    @property
    def bound(self) -> float:
        return self.worst.bound

    def terms(self) -> dict[str, float]:
        return {"worst_position": self.bound}

    def certificate(self) -> dict:
        return super().certificate() | {"worst": self.worst.to_json()}

    def cos_sin(self, positions) -> tuple[np.ndarray, np.ndarray]:
        return self._at(self.spec.pair_positions(positions, self.context))

    def _at(self, p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        i, f, pair = p >> self.shift, p & ((1 << self.shift) - 1), np.arange(self.spec.pairs)
        results = []
        for node in (self.cos, self.sin):
            low, high = node[i, pair], node[i + 1, pair]
            results.append(rshift_round((low << self.shift) + (high - low) * f, self.shift).astype(np.int16))
        return results[0], results[1]
