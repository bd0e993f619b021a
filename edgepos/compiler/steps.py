"""The float operator list between the canonical graph and the integer program.

One dataclass per operator of docs/bundle.md. Values have names (those of the ONNX graph), weights are names of initializers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..errors import UnsupportedError
from ..positions import NoPosition, Rope, Spec
from .constants import alibi_spec


@dataclass(frozen=True)
class Step:
    """name: of the ONNX node, for messages and reports; out: the value it defines; width: elements per token of out."""

    name: str
    out: str
    width: int

    @property
    def inputs(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Embed(Step):
    weight: str


@dataclass(frozen=True)
class _Unary(Step):
    x: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True)
class Norm(_Unary):
    """center: LayerNorm if true, else RMSNorm. epsilon is the float32 of the graph."""

    gamma: str
    beta: str | None
    epsilon: float
    center: bool


@dataclass(frozen=True)
class Linear(_Unary):
    weight: str
    bias: str | None


@dataclass(frozen=True)
class Act(_Unary):
    """function: a key of activations.FUNCTIONS."""

    function: str


@dataclass(frozen=True)
class Rotate(_Unary):
    heads: int
    spec: Rope


@dataclass(frozen=True)
class _Binary(Step):
    a: str
    b: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.a, self.b)


@dataclass(frozen=True)
class Add(_Binary):
    pass


@dataclass(frozen=True)
class Mul(_Binary):
    pass


@dataclass(frozen=True)
class Attend(Step):
    """Causal attention with the KV cache of `layer`. slopes: ALiBi initializer or None."""

    q: str
    k: str
    v: str
    layer: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    slopes: str | None

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.q, self.k, self.v)


@dataclass
class FloatProgram:
    """steps in execution order; the last one is the Linear that makes the logits.

    weights: initializer name -> function that reads it as float32. shapes: their shapes.
    """

    steps: list[Step]
    vocab: int
    family: str
    weights: dict[str, Callable[[], np.ndarray]] = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)

    def read(self, name: str) -> np.ndarray:
        """Initializer `name` as float32. Raises UnsupportedError when a number is not finite."""
        array = np.asarray(self.weights[name](), dtype=np.float32)
        finite = np.isfinite(array)
        if not finite.all():
            at = [int(i) for i in np.argwhere(~finite)[0]]
            raise UnsupportedError(f"tensor '{name}': element {at} is {array[tuple(at)]}; every weight must be finite")
        return array

    def layers(self) -> list[Attend]:
        return [step for step in self.steps if isinstance(step, Attend)]

    def positions(self) -> Spec:
        """The position encoding of the model."""
        for step in self.steps:
            if isinstance(step, Rotate):
                return step.spec
            if isinstance(step, Attend) and step.slopes is not None:
                return alibi_spec(self.read(step.slopes).ravel())
        return NoPosition()
