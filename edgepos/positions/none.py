"""No position encoding, said explicitly: order is known only through the causal mask. Its plan says that there is nothing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .base import Plan
from .spec import Spec


@dataclass(frozen=True)
class NoPosition(Spec):
    """The encoding of a layer that has none (NoPE)."""

    encoding: ClassVar[str] = "none"


@dataclass(frozen=True)
class EmptyPlan(Plan):
    """The plan of NoPosition: no constants, no operations, no error."""

    spec: NoPosition = NoPosition()

    method = "none"
    bits = 0
    bytes = 0
    scale = 1.0
    bound = 0.0
    operations = 0

    def describe(self) -> str:
        return "nothing is rotated, added or biased: 0 bytes, error 0"

    def certificate(self) -> dict:
        """The proof's terms as data: there are none."""
        return {"spec": self.spec.to_json(), "method": self.method, "terms": {}, "bound": self.bound}
