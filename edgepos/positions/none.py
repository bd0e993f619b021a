"""No position encoding, said explicitly: order is known only through the causal mask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .spec import Spec


@dataclass(frozen=True)
class NoPosition(Spec):
    """The encoding of a layer that has none (NoPE)."""

    encoding: ClassVar[str] = "none"
