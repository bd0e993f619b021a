"""The float operator list between the canonical graph and the integer program.

One dataclass per operator of docs/bundle.md. Values have names (those of the ONNX graph), weights are names of initializers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..errors import UnsupportedError
from ..export.image_graph import Picture
from ..positions import Hybrid, Learned, NoPosition, RelativeBias, Rope, Sinusoidal, Spec, T5Bias
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
class Patches(Step):
    """The patches of an image, as bytes minus the zero; rows of zeros in front of them."""

    picture: Picture


@dataclass(frozen=True)
class Embed(Step):
    """scale: a factor on every row."""

    weight: str
    scale: float = 1.0


@dataclass(frozen=True)
class Place(Step):
    """The row position + offset of a table of positions; a spec with a modulo takes the position modulo that first."""

    table: str
    spec: Learned | Sinusoidal
    offset: int

    @property
    def modulo(self) -> int:
        """Positions that the table is repeated after; 0: it is not."""
        return getattr(self.spec, "modulo", None) or 0


@dataclass(frozen=True)
class _Unary(Step):
    x: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.x,)


@dataclass(frozen=True)
class Norm(_Unary):
    """center: LayerNorm if true, else RMSNorm. epsilon is the float32 of the graph. groups: equal parts normed each on its own."""

    gamma: str
    beta: str | None
    epsilon: float
    center: bool
    groups: int = 1


@dataclass(frozen=True)
class Linear(_Unary):
    """softcap: y becomes softcap · tanh(y / softcap); 0: it stays."""

    weight: str
    bias: str | None
    softcap: float = 0.0


@dataclass(frozen=True)
class Act(_Unary):
    """function: a key of activations.FUNCTIONS."""

    function: str


@dataclass(frozen=True)
class Pool(_Unary):
    """One row of all rows of a text; kind: of program.POOLS; token: the id that kind "token" looks for. Every step behind it works on that row."""

    kind: str
    token: int = 0


@dataclass(frozen=True)
class Unit(_Unary):
    """A row over its Euclidean norm."""


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
    """Causal attention over the KV cache of `layer`, or attention of all tokens to all (`both`).

    slopes: ALiBi initializer or None. bias: initializer of a relative bias by distance [n, heads] or None; relative: its spec.
    window: keys a token sees, its own included; 0: all. softcap: of the scores, 0: none.
    """

    q: str
    k: str
    v: str
    layer: int
    heads: int
    kv_heads: int
    k_dim: int
    v_dim: int
    scale: float
    slopes: str | None = None
    bias: str | None = None
    relative: T5Bias | RelativeBias | None = None
    window: int = 0
    softcap: float = 0.0
    both: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.q, self.k, self.v)


@dataclass
class FloatProgram:
    """steps in execution order; the last one makes the logits (a Linear) or, where there is a Pool, the embedding.

    vocab: rows of the table of tokens, 1 where there is none. picture: the image that it reads in their place. labels: names of the classes
    that its row has logits of. weights: initializer name -> function that reads it as float32. shapes: their shapes.
    """

    steps: list[Step]
    vocab: int
    family: str
    weights: dict[str, Callable[[], np.ndarray]] = field(repr=False)
    shapes: dict[str, tuple[int, ...]] = field(repr=False)
    picture: Picture | None = None
    labels: tuple[str, ...] | None = None

    def read(self, name: str) -> np.ndarray:
        """Initializer `name` as float32. Raises UnsupportedError when a number is not finite."""
        array = np.asarray(self.weights[name](), dtype=np.float32)
        finite = np.isfinite(array)
        if not finite.all():
            at = [int(i) for i in np.argwhere(~finite)[0]]
            raise UnsupportedError(f"tensor '{name}': element {at} is {array[tuple(at)]}; every weight must be finite")
        return array

    @property
    def pool(self) -> Pool | None:
        """The pooling of a model that gives an embedding."""
        return next((step for step in self.steps if isinstance(step, Pool)), None)

    def layers(self) -> list[Attend]:
        return [step for step in self.steps if isinstance(step, Attend)]

    def positions(self) -> Spec:
        """The position encoding of the model; a Hybrid where layers differ or one adds to what the embeddings have."""
        rotations = {step.out: step.spec for step in self.steps if isinstance(step, Rotate)}
        layers = [self.layer_positions(step, rotations) for step in self.layers()]
        added = next((step.spec for step in self.steps if isinstance(step, Place)), NoPosition())
        if any(layer != layers[0] for layer in layers) or NoPosition() not in (added, layers[0]):
            return Hybrid(added, tuple(layers))
        return added if layers[0] == NoPosition() else layers[0]

    def layer_positions(self, step: Attend, rotations: Mapping[str, Rope] = MappingProxyType({})) -> Spec:
        """The encoding in a layer; rotations: those of the values that may be its queries."""
        if step.slopes is not None:
            return alibi_spec(self.read(step.slopes).ravel())
        return step.relative or rotations.get(step.q, NoPosition())
