"""How far the usual float32 computation of RoPE is from exact mathematics.

transformers forms position · inv_freq in float32 and takes float32 cos and sin of it: the angle has 24 bits, so its error grows with the
position. Fixed-point phases do not drift; this says by how much float32 does, in the unit of the plans' bounds.
"""

from __future__ import annotations

import numpy as np

from .angles import Angles
from .phase_proof import FULL_SCALE
from .spec import check_context

CHUNK = 4096


def float32_cos_sin(spec: Angles, positions, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin as float32 code computes them: float32 inv_freq, float32 product, float32 functions; [n, pairs] each."""
    p = spec.pair_positions(positions).astype(np.float32)
    angle = p * spec.inv_freq(seq_len).astype(np.float32)
    return np.cos(angle), np.sin(angle)


def float32_error(spec: Angles, context: int, seq_len: int | None = None) -> float:
    """Largest error of float32 cos and sin in units of 1/32767, measured at the last 4096 positions of a context, where it is
    largest, and the first ones."""
    check_context(context)
    worst = 0.0
    for start in sorted({0, max(0, context - CHUNK)}):
        at = np.arange(start, min(start + CHUNK, context))
        if spec.axes is not None:
            at = np.repeat(at[:, None], max(spec.axes) + 1, axis=1)
        for got, exact in zip(float32_cos_sin(spec, at, seq_len), spec.cos_sin(at, seq_len)):
            worst = max(worst, float(np.abs(got - exact).max(initial=0.0)) * FULL_SCALE)
    return worst
