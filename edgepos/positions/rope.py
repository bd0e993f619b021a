"""Rotary position encoding: spec, exact frequencies, float64 reference.

Source: Su et al., RoFormer, arXiv 2104.09864, section 3.2.2: pair j of a head is rotated by position · inv_freq_j with
inv_freq_j = theta^(−2j/rotary_dim). `rope_scaling.py` holds the ways to stretch these frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError
from ..fixedpoint import round_half_up
from .rope_scaling import Scaling, check_scaling, plain_inv_freq
from .spec import Spec, check_choice, check_count, check_positions, check_positive

LAYOUTS = ("half", "interleaved")
EXACT_PREC = 256  # bits: 96 behind the point of a turn, 32 in front of it, the rest to spare
FREQUENCY_LIMIT = 2**32


@dataclass(frozen=True)
class Rope(Spec):
    """Which rotation a head of q or k gets.

    head_dim: components of a head. rotary_dim: how many of them are rotated, the first ones (default: all; also the
    denominator of the exponent). theta: the base. layout: "half" pairs j with j + rotary_dim/2 (Hugging Face),
    "interleaved" pairs 2j with 2j + 1 (the paper, llama2.c, GGUF's Llama). scaling: None, an object of
    `rope_scaling`, or its dict form {"rope_type": …}.

    Raises FormatError or UnsupportedError naming the field.
    """

    head_dim: int
    rotary_dim: int | None = None
    theta: float = 10000.0
    layout: str = "half"
    scaling: Scaling | None = None

    encoding: ClassVar[str] = "rope"

    def __post_init__(self):
        check_count("head_dim", self.head_dim, 1, 2**16)
        rotary_dim = self.head_dim if self.rotary_dim is None else self.rotary_dim
        check_count("rotary_dim", rotary_dim, 0, self.head_dim)
        if rotary_dim % 2:
            raise FormatError(f"rotary_dim is {rotary_dim}; allowed is an even number up to head_dim {self.head_dim}")
        object.__setattr__(self, "head_dim", int(self.head_dim))
        object.__setattr__(self, "rotary_dim", int(rotary_dim))
        object.__setattr__(self, "theta", check_positive("theta", self.theta))
        check_choice("layout", self.layout, LAYOUTS)
        object.__setattr__(self, "scaling", check_scaling(self.scaling, self.theta, self.rotary_dim))

    @property
    def pairs(self) -> int:
        """Rotated pairs per head."""
        return self.rotary_dim // 2

    @property
    def length_dependent(self) -> bool:
        """True when the frequencies depend on the session's length."""
        return self.scaling is not None and self.scaling.length_dependent

    @property
    def attention_factor(self) -> float:
        """Factor on the rotated components (YaRN, LongRoPE); 1.0 for the other kinds."""
        return float(self.exact_attention_factor())

    def exact_attention_factor(self) -> mpmath.mpf:
        """The attention factor to 256 bits."""
        with mpmath.workprec(EXACT_PREC):
            return mpmath.mpf(1) if self.scaling is None else self.scaling.exact_attention_factor()

    def exact_inv_freq(self, seq_len: int | None = None) -> tuple[mpmath.mpf, ...]:
        """Radians per position of each pair to about 256 bits, from theta and the factors as exact float64 numbers."""
        if seq_len is not None:
            seq_len = check_count("seq_len", seq_len, 1, 2**31)
        return _exact_inv_freq(self, seq_len if self.length_dependent else None)

    def inv_freq(self, seq_len: int | None = None) -> np.ndarray:
        """Radians per position of each pair, float64 [rotary_dim/2], each correctly rounded.

        seq_len matters to the length-dependent scalings only; None is the length of training.
        """
        return np.array([float(f) for f in self.exact_inv_freq(seq_len)], dtype=np.float64)

    def increments(self, seq_len: int | None = None) -> np.ndarray:
        """Turns · 2^64 per position of each pair, uint64 [rotary_dim/2], rounded half up from the exact formula."""
        return np.array(_turns(self, seq_len if self.length_dependent else None, 64), dtype=np.uint64)

    def phase(self, positions, seq_len: int | None = None) -> np.ndarray:
        """Angle of each pair in turns · 2^64 mod 2^64, uint64 [..., rotary_dim/2]; error below 1.25 units.

        Formed of 96-bit increments: the reference must be better than the 64-bit increments it judges.
        """
        p = check_positions(positions).astype(np.uint64)[..., None]
        wide = _turns(self, seq_len if self.length_dependent else None, 96)
        high = np.array([w >> 32 for w in wide], dtype=np.uint64)
        low = np.array([w & 0xFFFFFFFF for w in wide], dtype=np.uint64)
        with np.errstate(over="ignore"):
            return p * high + ((p * low) >> np.uint64(32))

    def cos_sin(self, positions, seq_len: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """cos and sin of position · inv_freq without the attention factor, float64 [n, rotary_dim/2] each.

        positions: whole numbers [n] (any shape) in 0 … 2^31 − 1. Error below 4·10^−16, at every position.
        Raises ContextError for a position out of range.
        """
        phase = self.phase(positions, seq_len)
        with np.errstate(over="ignore"):
            octant = phase + np.uint64(2**61)  # quadrants centred on the axes keep the angle within π/4
        quadrant = (octant >> np.uint64(62)).astype(np.int64)
        offset = (octant & np.uint64(2**62 - 1)).astype(np.int64) - 2**61
        angle = offset * (np.pi * 2.0**-63)
        c, s = np.cos(angle), np.sin(angle)
        cosine = np.choose(quadrant, [c, -s, -c, s])
        sine = np.choose(quadrant, [s, c, -s, -c])
        return cosine + 0.0, sine + 0.0

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and the second components of the rotated pairs, each [..., rotary_dim/2]."""
        if x.ndim == 0 or x.shape[-1] != self.head_dim:
            raise FormatError(f"vector has shape {x.shape}; its last axis must be head_dim {self.head_dim}")
        if self.layout == "half":
            return x[..., : self.pairs], x[..., self.pairs : self.rotary_dim]
        return x[..., 0 : self.rotary_dim : 2], x[..., 1 : self.rotary_dim : 2]

    def join(self, a: np.ndarray, b: np.ndarray, rest: np.ndarray) -> np.ndarray:
        """The inverse of `split`; rest [..., head_dim − rotary_dim] follows unrotated."""
        if self.layout == "half":
            return np.concatenate([a, b, rest], axis=-1)
        turned = np.stack([a, b], axis=-1).reshape(*a.shape[:-1], self.rotary_dim)
        return np.concatenate([turned, rest], axis=-1)

    def rotate(self, x, positions, seq_len: int | None = None) -> np.ndarray:
        """x [..., head_dim] rotated to its positions, float64; the attention factor is on the rotated components.

        positions broadcast against x.shape[:-1]: one number for a vector, [n] for x of shape [heads, n, head_dim].
        """
        x = np.asarray(x, dtype=np.float64)
        a, b = self.split(x)
        c, s = (self.attention_factor * t for t in self.cos_sin(positions, seq_len))
        return self.join(a * c - b * s, a * s + b * c, x[..., self.rotary_dim :])


@lru_cache(maxsize=64)
def _exact_inv_freq(spec: Rope, seq_len: int | None) -> tuple[mpmath.mpf, ...]:
    with mpmath.workprec(EXACT_PREC):
        theta, dim = mpmath.mpf(spec.theta), spec.rotary_dim
        if spec.scaling is None:
            result = plain_inv_freq(theta, dim)
        else:
            result = spec.scaling.frequencies(theta, dim, seq_len)
    for j, f in enumerate(result):
        if not 0 <= f < FREQUENCY_LIMIT:
            raise FormatError(f"inv_freq of pair {j} is {mpmath.nstr(f, 6)}; allowed is 0 to below 2^32 radians per position")
    return tuple(result)


@lru_cache(maxsize=64)
def _turns(spec: Rope, seq_len: int | None, bits: int) -> tuple[int, ...]:
    """inv_freq / 2π in units of 2^−bits turns, rounded half up, modulo one turn."""
    with mpmath.workprec(EXACT_PREC):
        unit = mpmath.ldexp(1, bits) / (2 * mpmath.pi)
        return tuple(round_half_up(f * unit) % 2**bits for f in spec.exact_inv_freq(seq_len))
