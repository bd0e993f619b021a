"""Choice of the next token: section 4 of docs/arithmetic.md in NumPy. The same seed gives the same text on every target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from . import fixedpoint as fx
from .errors import EdgePosError
from .session_rules import whole_number

_MASK = (1 << 64) - 1
_LOG2E_30 = 1549082005  # round(log2(e)·2^30)
_LN2_30 = 744261118
LARGEST = 65536 - 2**-16  # of Q16.16


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
    """Integer parameters: temperature in Q16.16 (0: greedy), top_k (0: all), top_p in 1/65536, penalty in Q16.16 (65536: none)
    of the tokens among the last penalty_last (0: all)."""

    temperature: int = 0
    top_k: int = 0
    top_p: int = 65536
    penalty: int = 65536
    penalty_last: int = 0

    @classmethod
    def of(cls, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, repetition_penalty: float = 1.0, penalty_last: int = 0) -> Sampling:
        """From decimal parameters. Raises EdgePosError for NaN, negative or too large ones."""
        ranges = (("temperature", temperature, 0, LARGEST), ("top_p", top_p, 0, 1), ("repetition_penalty", repetition_penalty, 1, LARGEST))
        for name, value, low, high in ranges:
            if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not (math.isfinite(value) and low <= value <= high):
                raise EdgePosError(f"{name} is {value!r}; a number from {low} to {high} is needed")
        top_k = whole_number("top_k", top_k, 0, fx.INT32_MAX)
        penalty_last = whole_number("penalty_last", penalty_last, 0, fx.INT32_MAX)
        temperature, top_p, penalty = (math.floor(x * 65536 + 0.5) for x in (temperature, top_p, repetition_penalty))
        return cls(temperature, top_k, top_p, penalty, penalty_last)

    def penalized(self, text: Sequence[int]) -> Sequence[int]:
        """The tokens of a text so far whose logits `penalize` changes: none without a penalty."""
        return text[-self.penalty_last :] if self.penalty != 65536 else ()


def penalize(logits: np.ndarray, penalty: int, tokens: Sequence[int]) -> np.ndarray:
    """int32 logits [vocab] with those of `tokens` made less likely, each once."""
    logits = np.array(logits, np.int64)
    ids = np.unique(np.asarray(tokens, np.int64))
    l = logits[ids]
    logits[ids] = np.where(l > 0, fx.div_round_half_up(l << 16, penalty), fx.sat32(fx.rshift_round(l * penalty, 16)))
    return logits.astype(np.int32)


def sample(logits: np.ndarray, f: int, how: Sampling, rng: Rng, text: Sequence[int] = ()) -> int:
    """A token id from int32 logits [vocab] with f fractional bits. text: the ids so far, for the penalty."""
    repeated = how.penalized(text)
    logits = np.asarray(penalize(logits, how.penalty, repeated) if len(repeated) else logits, np.int64)
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


def loss(logits: np.ndarray, f: int, token: int) -> int:
    """−log2 of the probability of `token`, 32 fractional bits, from int32 logits [vocab] with f fractional bits."""
    d = np.asarray(logits, np.int64)
    d = np.minimum(fx.rshift_round((d.max() - d) * _LOG2E_30, f - 2), 1 << 62)
    return int(d[token]) + _log2(int(_pow2(d).sum())) - (39 << 32)


def _pow2(d: np.ndarray) -> np.ndarray:
    """2^(39 − d/2^32) of int64 d >= 0."""
    x = (d & 0xFFFFFF) * _LN2_30 >> 30
    y = (1 << 32) - x + (x * x >> 33)
    return np.where(d >> 32 >= 41, 0, fx.rshift_round(fx.exp2_table()[d >> 24 & 255] * y, np.minimum(d >> 32, 41) + 23))


def _log2(s: int) -> int:
    """log2(s)·2^32 of an int s > 0."""
    n = s.bit_length() - 1
    m, result = (s << 31) >> n, n
    for _ in range(32):
        m = m * m >> 31
        result = result << 1 | m >> 32
        m >>= m >> 32
    return result
