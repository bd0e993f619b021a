"""Float position tables of the canonical graph: computed in float64, stored as float32."""

from __future__ import annotations

import math

import numpy as np

from edgepos.positions import AngleRope, Rope


def rope_tables(spec: Rope | AngleRope, context: int) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position · inv_freq times the attention factor, float32 [context, pairs] each.

    Source: Su et al., RoFormer, arXiv 2104.09864, section 3.2.2, and ``edgepos.positions`` for the scalings.
    """
    cos, sin = spec.cos_sin(np.arange(context), context)
    return (cos * spec.attention_factor).astype(np.float32), (sin * spec.attention_factor).astype(np.float32)


def alibi_slopes(heads: int) -> np.ndarray:
    """The slope of each head, float32 [heads].

    Source: Press et al., Train Short, Test Long, arXiv 2108.12409, and its published code: for a
    power of two, 2^(-8(h+1)/heads); otherwise the slopes of the power of two below, then every
    second slope of the power of two above.
    """
    below = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (h + 1) / below) for h in range(below)]
    slopes += [2.0 ** (-4.0 * (h + 1) / below) for h in range(0, 2 * (heads - below), 2)]
    return np.array(slopes, dtype=np.float64).astype(np.float32)
