"""Choice of the next token: section 4 of docs/arithmetic.md in NumPy. The same seed gives the same text on every target."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import fixedpoint as fx
from .errors import EdgePosError
from .session_rules import whole_number

_MASK = (1 << 64) - 1
_LOG2E_30 = 1549082005  # round(log2(e)·2^30)


class Rng:
    """PCG-XSH-RR 64/32."""

    def __init__(self, seed: int):
        self.state = 0
        self.next()
        self.state = (self.state + seed) & _MASK
        self.next()

    def next(self) -> int:
        """The next uint32."""
        old = self.state
        self.state = (old * 6364136223846793005 + 1442695040888963407) & _MASK
        x = (((old >> 18) ^ old) >> 27) & 0xFFFFFFFF
        rot = old >> 59
        return (x >> rot | x << (32 - rot)) & 0xFFFFFFFF

    def below(self, total: int) -> int:
        """A number in 0 … total − 1."""
        return self.next() * total >> 32


@dataclass(frozen=True)
class Sampling:
    """Integer parameters: temperature in Q16.16 (0: greedy), top_k (0: all), top_p in 1/65536."""

    temperature: int = 0
    top_k: int = 0
    top_p: int = 65536

    @classmethod
    def of(cls, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0) -> Sampling:
        """From decimal parameters. Raises EdgePosError for NaN, negative or too large ones."""
        for name, value, high in (("temperature", temperature, 65536 - 2**-16), ("top_p", top_p, 1)):
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not (math.isfinite(value) and 0 <= value <= high):
                raise EdgePosError(f"{name} is {value!r}; a number from 0 to {high} is needed")
        top_k = whole_number("top_k", top_k, 0, fx.INT32_MAX)
        return cls(math.floor(temperature * 65536 + 0.5), top_k, math.floor(top_p * 65536 + 0.5))


def sample(logits: np.ndarray, f: int, how: Sampling, rng: Rng) -> int:
    """A token id from int32 logits [vocab] with f fractional bits."""
    logits = np.asarray(logits, np.int64)
    if how.temperature == 0:
        return int(np.argmax(logits))
    factor = int(fx.div_round_half_up(_LOG2E_30 << 16, how.temperature))
    k = max(0, fx.bitlen(factor) - 31)
    factor = min(int(fx.rshift_round(factor, k)), fx.INT32_MAX)
    distance = -fx.requant(logits - logits.max(), factor, 30 + f - 16 - k)
    weight = fx.exp2_neg(distance, 24)

    order = np.argsort(-logits, kind="stable")
    if 0 < how.top_k < len(order):
        order = order[: how.top_k]
    running = np.cumsum(weight[order])
    need = max(1, (int(running[-1]) * how.top_p + 65535) >> 16)
    order = np.sort(order[: int(np.searchsorted(running, need)) + 1])

    running = np.cumsum(weight[order])
    draw = rng.below(int(running[-1]))
    return int(order[np.searchsorted(running, draw, side="right")])
