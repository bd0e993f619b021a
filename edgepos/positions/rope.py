"""Rotary position encoding.

Source: Su et al., RoFormer, arXiv 2104.09864, section 3.2.2: pair j of a head is rotated by position · inv_freq_j with
inv_freq_j = theta^(−2j/rotary_dim). `rope_scaling.py` holds the ways to stretch these frequencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError
from .angles import EXACT_PREC, Angles
from .rope_scaling import Scaling, check_scaling, plain_inv_freq
from .spec import check_choice, check_count, check_positive

LAYOUTS = ("half", "interleaved")


class Rotation(Angles):
    """Base of the rotary encodings: head_dim, rotary_dim and layout say which components of a head form a pair."""

    head_dim: int
    rotary_dim: int
    layout: str

    @property
    def pairs(self) -> int:
        """Rotated pairs per head."""
        return self.rotary_dim // 2

    @property
    def attention_factor(self) -> float:
        """Factor on the rotated components (YaRN, LongRoPE); 1.0 for the other kinds."""
        return float(self.exact_attention_factor())

    def exact_attention_factor(self) -> mpmath.mpf:
        """The attention factor to 256 bits."""
        return mpmath.mpf(1)

    def split(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and the second components of the rotated pairs, each [..., pairs]."""
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

        positions broadcast against x.shape[:-1]: one number for a vector, [n] for x of shape [heads, n, head_dim]
        ([n, axes] where a position has coordinates).
        """
        x = np.asarray(x, dtype=np.float64)
        a, b = self.split(x)
        c, s = (self.attention_factor * t for t in self.cos_sin(positions, seq_len))
        return self.join(a * c - b * s, a * s + b * c, x[..., self.rotary_dim :])


@dataclass(frozen=True)
class Rope(Rotation):
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
        object.__setattr__(self, "head_dim", check_count("head_dim", self.head_dim, 1, 2**16))
        object.__setattr__(self, "rotary_dim", check_rotary_dim(self.rotary_dim, self.head_dim))
        object.__setattr__(self, "theta", check_positive("theta", self.theta))
        check_choice("layout", self.layout, LAYOUTS)
        object.__setattr__(self, "scaling", check_scaling(self.scaling, self.theta, self.rotary_dim))

    @property
    def length_dependent(self) -> bool:
        """True for dynamic NTK and LongRoPE: their frequencies depend on the session's length."""
        return self.scaling is not None and self.scaling.length_dependent

    def exact_attention_factor(self) -> mpmath.mpf:
        """The attention factor to 256 bits."""
        with mpmath.workprec(EXACT_PREC):
            return mpmath.mpf(1) if self.scaling is None else self.scaling.exact_attention_factor()

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        """theta^(−2j/rotary_dim), stretched by the scaling."""
        theta = mpmath.mpf(self.theta)
        if self.scaling is None:
            return plain_inv_freq(theta, self.rotary_dim)
        return self.scaling.frequencies(theta, self.rotary_dim, seq_len)


def check_rotary_dim(rotary_dim: int | None, head_dim: int) -> int:
    """An even number of rotated components up to head_dim; None means all. Raises FormatError."""
    rotary_dim = check_count("rotary_dim", head_dim if rotary_dim is None else rotary_dim, 0, head_dim)
    if rotary_dim % 2:
        raise FormatError(f"rotary_dim is {rotary_dim}; allowed is an even number up to head_dim {head_dim}")
    return rotary_dim
