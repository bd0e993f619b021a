"""What a foreign graph's results are in the canonical graph. Linears and norms wait until it is known which part of them is used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ..block_rows import BlockRows
from .values import Form, Scores


@dataclass(frozen=True, eq=False)
class TokenIds:
    """The graph's input of token ids, one component."""


@dataclass(frozen=True, eq=False)
class Made:
    """A value of the canonical graph."""

    value: ir.Value


@dataclass(frozen=True, eq=False)
class Patches:
    """Patches of an image by a convolution: kernel [d, channels, size, size], bias [d] or None. Tokens in front of them have no components."""

    kernel: np.ndarray
    bias: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Row:
    """A value [1, width] of the canonical graph: one row for a whole text, the components of token 0."""

    value: ir.Value


@dataclass(frozen=True, eq=False)
class Linear:
    """x times the transpose of rows [out, in] plus bias [out]. stored: the name of the weight where the graph holds it, else None."""

    x: ir.Value
    rows: np.ndarray | BlockRows
    bias: np.ndarray | None
    name: str
    stored: str | None


@dataclass(frozen=True, eq=False)
class Norm:
    """The norm of x over groups equal parts; gamma and beta are [width of a part]."""

    x: ir.Value
    groups: int
    center: bool
    epsilon: float
    gamma: np.ndarray
    beta: np.ndarray | None
    name: str


@dataclass(frozen=True, eq=False)
class Centered:
    """Components minus their mean; rows [*, n] of the codes they came from, in the order of this source's components."""

    rows: np.ndarray


@dataclass(frozen=True, eq=False)
class Heads:
    """Attention of some heads: probabilities times v [heads, S, n]."""

    scores: Scores
    v: Form
    node: ir.Node
