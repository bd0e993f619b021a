"""How far integers are from the usual float32 computation of RoPE, and how far that is from exact mathematics.

transformers forms position · inv_freq in float32 and takes float32 cos and sin of it: the angle has 24 bits, so its error grows with the
position. Here inv_freq is the exact one rounded to float32, which is the best float32 can have; position and product are rounded as
IEEE 754 says, so the angle is known exactly; and its cos and sin count as off by up to FUNCTION_ERROR, whatever library takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from .angles import Angles
from .enclosure import SCALED_RADIUS, enclosed_cos_sin, radian_phase
from .entry_proof import CHUNK, FUNCTIONS
from .phase_proof import FULL_SCALE
from .spec import check_context

EXHAUSTIVE_ENTRIES = 2**23  # positions · pairs up to here are compared one by one
FUNCTION_ERROR = 2.0**-23  # of float32 cos and sin: two units in the last place next to 1


@dataclass(frozen=True)
class Float32Distance:
    """bound: no integer is further from the float32 computation, in units of 1/full_scale, at positions 0 … context − 1.

    proof "every entry": found over every position and pair, the largest at position, pair and function. proof "formula": the plan's
    own bound plus that of the float32 roundings, which is largest at that position and pair; function is "". growth: (n, bound)
    for the positions below n, n the powers of two and the context.
    """

    bound: float
    proof: str
    position: int
    pair: int
    function: str
    growth: tuple[tuple[int, float], ...]

    def to_json(self) -> dict:
        """The fields as JSON data."""
        return asdict(self) | {"growth": [list(step) for step in self.growth]}


def float32_cos_sin(spec: Angles, positions, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin as float32 code computes them: float32 inv_freq, float32 product, float32 functions; [n, pairs] each."""
    angle = float32_angle(spec, spec.pair_positions(positions), seq_len)
    return np.cos(angle), np.sin(angle)


def float32_angle(spec: Angles, p: np.ndarray, seq_len: int | None) -> np.ndarray:
    """The rounded product of the rounded position and the rounded inv_freq, float32 [..., pairs], from `pair_positions`."""
    return p.astype(np.float32) * spec.inv_freq(seq_len).astype(np.float32)


def float32_error(spec: Angles, context: int, seq_len: int | None = None) -> float:
    """Largest distance of float32 cos and sin from exact mathematics in units of 1/32767: a bound, see Float32Distance."""

    def exact(p: np.ndarray) -> list[np.ndarray]:
        return [FULL_SCALE * t for t in spec.enclosed_cos_sin(p[:, None], seq_len)]

    return float32_distance(spec, exact, FULL_SCALE * SCALED_RADIUS, context, FULL_SCALE, seq_len).bound


def float32_distance(
    spec: Angles, values: Callable[[np.ndarray], tuple], error: float, context: int, scale: int, seq_len: int | None = None
) -> Float32Distance:
    """The distance of `values`, which gives cos and sin [n, pairs] times scale at positions [n] and is within `error` of the exact
    ones, from the float32 computation. Linear specs only."""
    check_context(context)
    steps = sorted({min(2**k, context) for k in range(32)})
    if context * spec.pairs > EXHAUSTIVE_ENTRIES:
        return _by_formula(spec, error, steps, scale, seq_len)
    radius = scale * (2 * SCALED_RADIUS + FUNCTION_ERROR)
    rows = max(1, CHUNK // max(1, spec.pairs))
    growth, best = [], (0.0, 0, 0, FUNCTIONS[0])
    for first, last in zip([0, *steps], steps):
        for start in range(first, last, rows):
            p = np.arange(start, min(start + rows, last))
            theirs = enclosed_cos_sin(radian_phase(float32_angle(spec, p[:, None], seq_len).astype(np.float64)))
            for function, ours, other in zip(FUNCTIONS, values(p), theirs):
                away = np.abs(ours - scale * other)
                if away.size and away.max() > best[0]:
                    at, pair = np.unravel_index(int(away.argmax()), away.shape)
                    best = float(away[at, pair]), start + int(at), int(pair), function
        growth.append((last, float(np.nextafter(best[0] + radius, np.inf))))
    return Float32Distance(growth[-1][1], "every entry", *best[1:], tuple(growth))


def _by_formula(spec: Angles, error: float, steps: list[int], scale: int, seq_len: int | None) -> Float32Distance:
    """position, inv_freq and product are each off by at most 2^−24 of themselves (2^−149 where inv_freq is subnormal), so the angle is
    off by at most position · (inv_freq · 3.01 · 2^−24 + 2^−148), and no cos or sin by more than that, nor by more than 2."""
    inv_freq = spec.inv_freq(seq_len)
    pair = int(inv_freq.argmax())
    per_position = float(inv_freq[pair]) * 3.01 * 2.0**-24 + 2.0**-148

    def bound(n: int) -> float:
        return (error + scale * (min(2.0, (n - 1) * per_position) + FUNCTION_ERROR)) * (1 + 2.0**-40)

    growth = tuple((n, bound(n)) for n in steps)
    return Float32Distance(growth[-1][1], "formula", steps[-1] - 1, pair, "", growth)
