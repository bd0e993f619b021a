"""Ways to stretch RoPE's frequencies beyond the length of training.

Each class is one `rope_type`. The formulas are those of Hugging Face's `modeling_rope_utils` (and of the papers named below),
evaluated in 256-bit arithmetic instead of float32, with every parameter taken as the exact float64 it is.
`frequencies(theta, rotary_dim, seq_len)` gives mpmath numbers in radians per position; seq_len matters to the
length-dependent kinds only, and None there means the length of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import mpmath

from ..errors import FormatError, UnsupportedError
from .spec import build, check_count, check_flag, check_positive, check_row


def plain_inv_freq(theta: mpmath.mpf, rotary_dim: int) -> list[mpmath.mpf]:
    """theta^(−2j/rotary_dim) for j < rotary_dim/2, in the working precision."""
    return [mpmath.power(theta, -mpmath.mpf(2 * j) / rotary_dim) for j in range(rotary_dim // 2)]


class Scaling(ABC):
    """Base of the scalings."""

    rope_type: ClassVar[str]
    length_dependent: ClassVar[bool] = False

    def to_json(self) -> dict:
        """The Hugging Face spelling: rope_type and the fields."""
        return {"rope_type": self.rope_type} | {
            f.name: list(v) if isinstance(v := getattr(self, f.name), tuple) else v for f in fields(self)
        }

    def _keep_positive(self, *names: str) -> None:
        """Each field as a finite float above 0."""
        for name in names:
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))

    def _keep_length(self, name: str, least: int) -> None:
        """A field as a number of tokens."""
        object.__setattr__(self, name, check_count(name, getattr(self, name), least, 2**31))

    def check(self, theta: float, rotary_dim: int) -> None:
        """Refuse what the formula cannot be evaluated for. Raises FormatError."""

    def exact_attention_factor(self) -> mpmath.mpf:
        """Factor on cos and sin."""
        return mpmath.mpf(1)

    @abstractmethod
    def frequencies(self, theta: mpmath.mpf, rotary_dim: int, seq_len: int | None) -> list[mpmath.mpf]:
        """Radians per position of each pair, in the working precision."""


@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by `factor`. Source: Chen et al., arXiv 2306.15595."""

    factor: float

    rope_type: ClassVar[str] = "linear"

    def __post_init__(self):
        self._keep_positive("factor")

    def frequencies(self, theta, rotary_dim, seq_len):
        return [f / self.factor for f in plain_inv_freq(theta, rotary_dim)]


@dataclass(frozen=True)
class Ntk(Scaling):
    """NTK-aware static: theta · factor^(d/(d−2)). Source: bloc97's post, as given in YaRN, arXiv 2309.00071, section 3.1."""

    factor: float

    rope_type: ClassVar[str] = "ntk"

    def __post_init__(self):
        self._keep_positive("factor")

    def check(self, theta, rotary_dim):
        _check_stretchable(self.rope_type, rotary_dim)

    def frequencies(self, theta, rotary_dim, seq_len):
        return plain_inv_freq(theta * _stretch(mpmath.mpf(self.factor), rotary_dim), rotary_dim)


@dataclass(frozen=True)
class DynamicNtk(Scaling):
    """Dynamic NTK: the base grows with the session's length once that passes the length of training.

    factor; max_position_embeddings: tokens of training.
    """

    factor: float
    max_position_embeddings: int

    rope_type: ClassVar[str] = "dynamic"
    length_dependent: ClassVar[bool] = True

    def __post_init__(self):
        self._keep_positive("factor")
        self._keep_length("max_position_embeddings", 1)

    def check(self, theta, rotary_dim):
        _check_stretchable(self.rope_type, rotary_dim)

    def base(self, theta, rotary_dim: int, seq_len: int | None) -> mpmath.mpf:
        """theta · (factor·L/M − (factor − 1))^(d/(d−2)) with L = max(seq_len, M), M the length of training.

        As 1 + factor·(L − M)/M, which cancels nothing.
        """
        with mpmath.workprec(max(256, mpmath.mp.prec)):
            trained = self.max_position_embeddings
            beyond = max(seq_len or trained, trained) - trained
            return theta * _stretch(1 + mpmath.mpf(self.factor) * beyond / trained, rotary_dim)

    def frequencies(self, theta, rotary_dim, seq_len):
        return plain_inv_freq(self.base(theta, rotary_dim, seq_len), rotary_dim)


@dataclass(frozen=True)
class Yarn(Scaling):
    """YaRN: high frequencies stay, low ones are divided by `factor`, with a linear ramp between. Source: arXiv 2309.00071.

    original_max_position_embeddings: tokens of training. beta_fast, beta_slow: rotations within that length at which
    the ramp starts and ends. truncate: whole pair numbers for the ramp's ends. The attention factor is `attention_factor`,
    else from mscale and mscale_all_dim when both are set and not 0, else 0.1·ln(factor) + 1.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    rope_type: ClassVar[str] = "yarn"

    def __post_init__(self):
        self._keep_positive("factor", "beta_fast", "beta_slow")
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            if getattr(self, name):
                self._keep_positive(name)
        if self.attention_factor == 0:
            self._keep_positive("attention_factor")
        self._keep_length("original_max_position_embeddings", 1)
        check_flag("truncate", self.truncate)
        if self.beta_fast < self.beta_slow:
            raise FormatError(f"beta_fast is {self.beta_fast}; allowed is a number not below beta_slow {self.beta_slow}")

    def check(self, theta, rotary_dim):
        if theta <= 1:
            raise FormatError(f"theta is {theta}; YaRN allows a number above 1 (it divides by its logarithm)")

    def exact_attention_factor(self):
        if self.attention_factor is not None:
            return mpmath.mpf(self.attention_factor)
        if self.mscale and self.mscale_all_dim:
            return self._mscale(self.mscale) / self._mscale(self.mscale_all_dim)
        return self._mscale(1)

    def _mscale(self, weight: float) -> mpmath.mpf:
        if self.factor <= 1:
            return mpmath.mpf(1)
        return mpmath.mpf(weight) * mpmath.log(self.factor) / 10 + 1

    def ramp_ends(self, theta: mpmath.mpf, rotary_dim: int) -> tuple[mpmath.mpf, mpmath.mpf]:
        """Pair numbers at which the ramp starts and ends."""

        def pair_of(rotations: float) -> mpmath.mpf:
            turns = self.original_max_position_embeddings / (rotations * 2 * mpmath.pi)
            return rotary_dim * mpmath.log(turns) / (2 * mpmath.log(theta))

        low, high = pair_of(self.beta_fast), pair_of(self.beta_slow)
        if self.truncate:
            low, high = mpmath.floor(low), mpmath.ceil(high)
        low, high = max(low, mpmath.mpf(0)), min(high, mpmath.mpf(rotary_dim - 1))
        return low, high + mpmath.mpf("0.001") if low == high else high

    def frequencies(self, theta, rotary_dim, seq_len):
        low, high = self.ramp_ends(theta, rotary_dim)
        result = []
        for j, f in enumerate(plain_inv_freq(theta, rotary_dim)):
            ramp = min(max((j - low) / (high - low), mpmath.mpf(0)), mpmath.mpf(1))
            result.append(f / self.factor * ramp + f * (1 - ramp))
        return result


@dataclass(frozen=True)
class Llama3(Scaling):
    """Llama 3.1: long waves divided by `factor`, short ones kept, smooth between the two wavelengths."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int

    rope_type: ClassVar[str] = "llama3"

    def __post_init__(self):
        self._keep_positive("factor", "low_freq_factor", "high_freq_factor")
        self._keep_length("original_max_position_embeddings", 1)
        if self.high_freq_factor <= self.low_freq_factor:
            raise FormatError(
                f"high_freq_factor is {self.high_freq_factor}; allowed is a number above low_freq_factor {self.low_freq_factor}"
            )

    def frequencies(self, theta, rotary_dim, seq_len):
        length, low, high = self.original_max_position_embeddings, self.low_freq_factor, self.high_freq_factor
        result = []
        for f in plain_inv_freq(theta, rotary_dim):
            waves = length * f / (2 * mpmath.pi)  # full turns within the length of training
            smooth = min(max((waves - low) / (mpmath.mpf(high) - low), mpmath.mpf(0)), mpmath.mpf(1))
            result.append((1 - smooth) * f / self.factor + smooth * f)
        return result


@dataclass(frozen=True)
class LongRope(Scaling):
    """LongRoPE: one divisor per pair, a long and a short set. Source: Ding et al., arXiv 2402.13753.

    long_factor is used when the session's length passes original_max_position_embeddings, else short_factor. factor: the
    stretch of the context, which gives the attention factor sqrt(1 + ln(factor)/ln(original length)) unless that is given.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    factor: float = 1.0
    attention_factor: float | None = None

    rope_type: ClassVar[str] = "longrope"
    length_dependent: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("short_factor", "long_factor"):
            object.__setattr__(self, name, check_row(name, getattr(self, name)))
        self._keep_positive("factor")
        if self.attention_factor is not None:
            self._keep_positive("attention_factor")
        self._keep_length("original_max_position_embeddings", 2)

    def check(self, theta, rotary_dim):
        for name in ("short_factor", "long_factor"):
            _check_length(name, getattr(self, name), rotary_dim)

    def exact_attention_factor(self):
        if self.attention_factor is not None:
            return mpmath.mpf(self.attention_factor)
        if self.factor <= 1:
            return mpmath.mpf(1)
        return mpmath.sqrt(1 + mpmath.log(self.factor) / mpmath.log(self.original_max_position_embeddings))

    def frequencies(self, theta, rotary_dim, seq_len):
        longer = seq_len is not None and seq_len > self.original_max_position_embeddings
        divisors = self.long_factor if longer else self.short_factor
        return [f / d for f, d in zip(plain_inv_freq(theta, rotary_dim), divisors)]


@dataclass(frozen=True)
class Proportional(Scaling):
    """Pairs span the whole head, but only the first share of them turns; the others have frequency 0.

    partial_rotary_factor: the share of pairs that turn. The exponent's denominator stays rotary_dim, which is head_dim here.
    """

    partial_rotary_factor: float = 1.0
    factor: float = 1.0

    rope_type: ClassVar[str] = "proportional"

    def __post_init__(self):
        self._keep_positive("factor")
        share = self.partial_rotary_factor
        if share != 0 and check_positive("partial_rotary_factor", share) > 1:
            raise FormatError(f"partial_rotary_factor is {share}; allowed is 0 to 1")

    def frequencies(self, theta, rotary_dim, seq_len):
        turning = int(self.partial_rotary_factor * rotary_dim // 2)
        plain = plain_inv_freq(theta, rotary_dim)
        return [f / self.factor if j < turning else mpmath.mpf(0) for j, f in enumerate(plain)]


@dataclass(frozen=True)
class Factors(Scaling):
    """One divisor per pair, as GGUF files carry Llama 3's scaling (`rope_freqs.weight`)."""

    factors: tuple[float, ...]

    rope_type: ClassVar[str] = "factors"

    def __post_init__(self):
        object.__setattr__(self, "factors", check_row("factors", self.factors))

    def check(self, theta, rotary_dim):
        _check_length("factors", self.factors, rotary_dim)

    def frequencies(self, theta, rotary_dim, seq_len):
        return [f / d for f, d in zip(plain_inv_freq(theta, rotary_dim), self.factors)]


@dataclass(frozen=True)
class Custom(Scaling):
    """Frequencies given by the user, in radians per position, one per pair; theta is not used."""

    inv_freq: tuple[float, ...]

    rope_type: ClassVar[str] = "custom"

    def __post_init__(self):
        object.__setattr__(self, "inv_freq", check_row("inv_freq", self.inv_freq, zero=True))

    def check(self, theta, rotary_dim):
        _check_length("inv_freq", self.inv_freq, rotary_dim)

    def frequencies(self, theta, rotary_dim, seq_len):
        return [mpmath.mpf(f) for f in self.inv_freq]


SCALINGS: dict[str, type[Scaling]] = {
    cls.rope_type: cls for cls in (Linear, Ntk, DynamicNtk, Yarn, Llama3, LongRope, Proportional, Factors, Custom)
}


def scaling_from_dict(data: dict) -> Scaling | None:
    """The scaling of a Hugging Face `rope_scaling` dict (without theta); None for "default".

    Raises UnsupportedError for an unknown rope_type, FormatError for a key that is unknown, missing or out of range.
    """
    data = dict(data)
    kind = data.pop("rope_type", None)
    old = data.pop("type", kind)
    kind = old if kind is None else kind
    if old != kind:
        raise FormatError(f"rope scaling says type {old!r} and rope_type {kind!r}; they must agree")
    if kind in (None, "default", "none"):
        if data:
            raise FormatError(f"rope scaling of type {kind!r} has the key {next(iter(data))!r}; it takes none")
        return None
    if not isinstance(kind, str) or kind not in SCALINGS:
        raise UnsupportedError(f"rope_type is {kind!r}; known are default, {', '.join(SCALINGS)}")
    return build(SCALINGS[kind], f"rope scaling {kind!r}", data)


def check_scaling(scaling, theta: float, rotary_dim: int) -> Scaling | None:
    """A scaling given as object, dict or None, checked against theta and rotary_dim."""
    if isinstance(scaling, dict):
        scaling = scaling_from_dict(scaling)
    if scaling is None:
        return None
    if not isinstance(scaling, Scaling):
        raise UnsupportedError(f"scaling is {scaling!r}; allowed are None, a dict with rope_type, or a Scaling")
    scaling.check(theta, rotary_dim)
    return scaling


def _stretch(amount: mpmath.mpf, rotary_dim: int) -> mpmath.mpf:
    """amount^(d/(d−2)), the change of base that divides the slowest frequency by `amount`."""
    return mpmath.power(amount, mpmath.mpf(rotary_dim) / (rotary_dim - 2))


def _check_stretchable(kind: str, rotary_dim: int) -> None:
    if rotary_dim == 2:
        raise FormatError(f"rotary_dim is 2; rope_type {kind!r} allows 4 and more (its exponent divides by rotary_dim − 2)")


def _check_length(name: str, row: tuple[float, ...], rotary_dim: int) -> None:
    if len(row) != rotary_dim // 2:
        raise FormatError(f"{name} has {len(row)} entries; rotary_dim {rotary_dim} needs {rotary_dim // 2}")
