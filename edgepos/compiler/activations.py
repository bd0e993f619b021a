"""Tables of activation functions: T[j] = round(f((j − 1024)/64)·2^Ft), j = 0 … 2048, from mpmath (docs/arithmetic.md, ACT)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np

from ..fixedpoint import round_half_up

ENTRIES = 2049
DIGITS = 30


@dataclass(frozen=True)
class Function:
    """f: of an mpmath number. low, high: the exact ends, f's limit at the table's ends. left, right: 1 where f is the identity beyond them."""

    f: Callable[[mpmath.mpf], mpmath.mpf]
    low: int
    high: int
    left: int
    right: int


def _sigmoid(x):
    return 1 / (1 + mpmath.exp(-x))


def _gelu(x):
    return x * mpmath.erfc(-x / mpmath.sqrt(2)) / 2


def _gelu_tanh(x):
    return x * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (x + mpmath.mpf("0.044715") * x**3))) / 2


QUICK = "1.702"  # of CLIP's GELU


FUNCTIONS = {
    "quick_gelu": Function(lambda x: x * _sigmoid(mpmath.mpf(QUICK) * x), 0, 16, 0, 1),
    "silu": Function(lambda x: x * _sigmoid(x), 0, 16, 0, 1),
    "gelu": Function(_gelu, 0, 16, 0, 1),
    "gelu_tanh": Function(_gelu_tanh, 0, 16, 0, 1),
    "relu": Function(lambda x: x if x > 0 else mpmath.mpf(0), 0, 16, 0, 1),
    "sigmoid": Function(_sigmoid, 0, 1, 0, 0),
    "tanh": Function(mpmath.tanh, -1, 1, 0, 0),
}


def fraction_bits(name: str) -> int:
    """Ft: the largest for which every entry is at most 2^30."""
    return 30 - (FUNCTIONS[name].high - 1).bit_length()


@lru_cache(maxsize=None)
def table(name: str) -> np.ndarray:
    """int32 [2049] of the function `name`, a key of FUNCTIONS."""
    function = FUNCTIONS[name]
    bits = fraction_bits(name)
    with mpmath.workdps(DIGITS):
        middle = [round_half_up(mpmath.ldexp(function.f(mpmath.mpf(j - 1024) / 64), bits)) for j in range(1, ENTRIES - 1)]
    entries = [function.low << bits, *middle, function.high << bits]
    result = np.array(entries, dtype=np.int32)
    result.setflags(write=False)
    return result
