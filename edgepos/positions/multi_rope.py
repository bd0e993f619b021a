"""Rotary encodings of positions with several coordinates: time, height, width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import mpmath
import numpy as np

from ..errors import FormatError, UnsupportedError
from .rope import LAYOUTS, Rope, Rotation
from .spec import build, check_choice, check_count, check_flag

MAX_AXES = 8


def _rope(name: str, value) -> Rope:
    """A Rope given as spec or as its JSON form."""
    if isinstance(value, dict):
        data = dict(value)
        if data.pop("encoding", "rope") != "rope":
            raise UnsupportedError(f"{name} has the encoding {value['encoding']!r}; allowed is rope")
        value = build(Rope, name, data)
    if not isinstance(value, Rope):
        raise FormatError(f"{name} is {value!r}; allowed is a Rope")
    return value


@dataclass(frozen=True)
class MRope(Rotation):
    """M-RoPE: the frequencies of one Rope, each pair turned by one of three coordinates (time, height, width).

    sections: pairs per coordinate, summing to the pairs of `rope`. interleaved False (Qwen2-VL, arXiv 2409.12191): the
    sections follow each other; True (Qwen3-VL): coordinates take turns, pair j of axis a = j mod n while
    j < n·sections[a], the rest goes to axis 0. Text has the same number in every coordinate, which is plain RoPE.
    """

    rope: Rope
    sections: tuple[int, ...]
    interleaved: bool = False

    encoding: ClassVar[str] = "mrope"

    def __post_init__(self):
        object.__setattr__(self, "rope", _rope("rope", self.rope))
        if not isinstance(self.sections, (list, tuple)) or not 1 <= len(self.sections) <= MAX_AXES:
            raise FormatError(f"sections is {self.sections!r}; allowed is a list of 1 to {MAX_AXES} pair counts")
        pairs = self.rope.pairs
        sections = tuple(check_count(f"sections[{a}]", n, 0, pairs) for a, n in enumerate(self.sections))
        if sum(sections) != pairs:
            raise FormatError(f"sections {list(sections)} sum to {sum(sections)}; allowed is the number of pairs, {pairs}")
        object.__setattr__(self, "sections", sections)
        check_flag("interleaved", self.interleaved)

    head_dim = property(lambda self: self.rope.head_dim)
    rotary_dim = property(lambda self: self.rope.rotary_dim)
    layout = property(lambda self: self.rope.layout)
    length_dependent = property(lambda self: self.rope.length_dependent)

    @property
    def axes(self) -> tuple[int, ...]:
        count = len(self.sections)
        if not self.interleaved:
            return tuple(a for a, n in enumerate(self.sections) for _ in range(n))
        return tuple(j % count if j < count * self.sections[j % count] else 0 for j in range(self.pairs))

    def exact_attention_factor(self) -> mpmath.mpf:
        return self.rope.exact_attention_factor()

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        return self.rope.frequencies(seq_len)


@dataclass(frozen=True)
class AxialRope(Rotation):
    """2-D (or n-D) axial RoPE of vision models: each coordinate turns its own pairs with its own Rope.

    head_dim; parts: one Rope per coordinate, whose rotary_dim, theta and scaling give its frequencies (their head_dim
    and layout are not used); their rotary dims sum up to at most head_dim. layout pairs the components of the head.
    Source: Qwen2-VL's vision encoder, arXiv 2409.12191: parts = (Rope(head_dim/2), Rope(head_dim/2)), layout half.
    """

    head_dim: int
    parts: tuple[Rope, ...]
    layout: str = "half"

    encoding: ClassVar[str] = "axial_rope"

    def __post_init__(self):
        object.__setattr__(self, "head_dim", check_count("head_dim", self.head_dim, 1, 2**16))
        if not isinstance(self.parts, (list, tuple)) or not 1 <= len(self.parts) <= MAX_AXES:
            raise FormatError(f"parts is {self.parts!r}; allowed is a list of 1 to {MAX_AXES} Ropes")
        object.__setattr__(self, "parts", tuple(_rope(f"parts[{a}]", p) for a, p in enumerate(self.parts)))
        for a, part in enumerate(self.parts):
            if part.exact_attention_factor() != 1:
                raise UnsupportedError(f"parts[{a}] has an attention factor; axial RoPE knows none")
        if self.rotary_dim > self.head_dim:
            raise FormatError(f"rotary_dim of the parts sums to {self.rotary_dim}; allowed is up to head_dim {self.head_dim}")
        check_choice("layout", self.layout, LAYOUTS)

    rotary_dim = property(lambda self: sum(part.rotary_dim for part in self.parts))
    length_dependent = property(lambda self: any(part.length_dependent for part in self.parts))

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(a for a, part in enumerate(self.parts) for _ in range(part.pairs))

    def frequencies(self, seq_len: int | None) -> list[mpmath.mpf]:
        return [f for part in self.parts for f in part.frequencies(seq_len)]


def multimodal_positions(segments) -> np.ndarray:
    """(time, height, width) of each token of a mixed prompt, int64 [n, 3].

    segments: ("text", n) or ("grid", t, h, w), the grid of an image (t = 1) or a video after spatial merging, row-major.
    Each segment starts one past the largest number used so far, as in Qwen2-VL (arXiv 2409.12191, section 2.1).
    """
    rows, start = [], 0
    for segment in segments:
        kind, *sizes = segment
        sizes = [check_count(f"size of {kind}", n, 1, 2**31) for n in sizes]
        if (kind, len(sizes)) == ("text", 1):
            rows.append(np.repeat(np.arange(sizes[0])[:, None], 3, axis=1) + start)
        elif (kind, len(sizes)) == ("grid", 3):
            rows.append(np.stack(np.meshgrid(*(np.arange(n) for n in sizes), indexing="ij"), axis=-1).reshape(-1, 3) + start)
        else:
            raise UnsupportedError(f"segment is {segment!r}; known are ('text', n) and ('grid', t, h, w)")
        start = int(rows[-1].max()) + 1
    return np.concatenate(rows) if rows else np.zeros((0, 3), dtype=np.int64)
