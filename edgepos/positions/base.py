"""What every plan has, whatever its encoding."""

from __future__ import annotations

from abc import ABC, abstractmethod

from .spec import Spec


class Plan(ABC):
    """Base of the plans.

    Attributes: spec; method; bits of the stored integers; bytes: size of the constants; scale: value of one unit of them (an array where
    rows, heads or parts have a scale each); bound: proven largest error, in the unit each plan names; operations: integer operations per
    pair and token (rotary), per token (added to embeddings) or per key and head (biases), counted from the formula: a guide, not a
    measurement; why: the reason in a sentence when `positions.plan` chose it; certificate(): the proof's terms as data.
    """

    spec: Spec
    method: str
    bits: int
    why: str = ""

    @property
    def error(self) -> float:
        """The bound in the unit in which `positions.plan` takes max_error: units of the last place (rotary, sinusoidal), log2 units
        (biases), the table's own units (learned)."""
        return self.bound

    @property
    def mean_error(self) -> float:
        """The same over rows or heads that have errors of their own, on average: what a factor for each of them is good for."""
        return self.error

    def explain(self, why: str):
        """The plan itself with `why` set."""
        object.__setattr__(self, "why", why)  # some plans are frozen
        return self

    @abstractmethod
    def describe(self) -> str:
        """Method, bits, bytes and error in words."""

    @abstractmethod
    def certificate(self) -> dict:
        """The proof's terms as data."""
