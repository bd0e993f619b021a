"""Models with more than one encoding: one added to the embeddings, others per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..errors import FormatError
from .alibi import Alibi
from .learned import Learned
from .none import NoPosition
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import Spec

ADDED = (Learned, Sinusoidal, Sinusoidal2D, NoPosition)
IN_LAYERS = (Rotation, Alibi, T5Bias, RelativeBias, NoPosition)


@dataclass(frozen=True)
class Hybrid(Spec):
    """Several encodings in one model.

    embedding: what is added to the token or patch embeddings (Learned, Sinusoidal, Sinusoidal2D, NoPosition). layers: what each
    layer's attention does (a rotary encoding, Alibi, T5Bias, RelativeBias, NoPosition), layer by layer. Learned
    positions modulo N with RoPE is `Hybrid(Learned(N, modulo=N), (Rope(64),) * layers)`; RoPE in three layers of four is
    `Hybrid(NoPosition(), (rope, rope, rope, NoPosition()) * n)`. A learned bias with `layers` = n is in n layers, which take its tables in
    their order. Raises FormatError naming the field.
    """

    embedding: Spec
    layers: tuple[Spec, ...]

    encoding: ClassVar[str] = "hybrid"

    def __post_init__(self):
        object.__setattr__(self, "embedding", _checked("embedding", self.embedding, ADDED))
        if not isinstance(self.layers, (list, tuple)) or not self.layers:
            raise FormatError(f"layers is {self.layers!r}; allowed is a list with one spec per layer")
        layers = tuple(_checked(f"layers[{i}]", layer, IN_LAYERS) for i, layer in enumerate(self.layers))
        object.__setattr__(self, "layers", layers)
        for layer, places in self.kinds().items():
            tables = getattr(layer, "layers", None)
            if tables not in (None, len(places)):
                raise FormatError(f"layers has {len(places)} of {layer.encoding} with {tables} tables; allowed is a table for each, or one for all")

    def kinds(self) -> dict[Spec, tuple[int, ...]]:
        """Each different spec of the layers with the layers that use it: layers of one kind share one table."""
        result: dict[Spec, tuple[int, ...]] = {}
        for i, layer in enumerate(self.layers):
            result[layer] = (*result.get(layer, ()), i)
        return result


def in_some(rotation: Rotation, turns: list) -> Hybrid:
    """A rotation in the layers where `turns` holds something true."""
    none = NoPosition()
    return Hybrid(none, tuple(rotation if turn else none for turn in turns))


def parts_of(spec: Spec | dict[str, Spec]) -> dict[str, Spec] | None:
    """Name → spec of what a Hybrid or a dict consists of, without NoPosition; None for a plain spec.

    Parts of a hybrid have their encoding as name, with a number where two have the same: rope, rope_2.
    """
    if isinstance(spec, dict):
        return {name: part for name, part in spec.items() if not isinstance(part, NoPosition)}
    if not isinstance(spec, Hybrid):
        return None
    result: dict[str, Spec] = {}
    for part in dict.fromkeys((spec.embedding, *spec.kinds())):
        if not isinstance(part, NoPosition):
            same = sum(other.encoding == part.encoding for other in result.values())
            result[f"{part.encoding}_{same + 1}" if same else part.encoding] = part
    return result


def of_parts(what: str, values, parts: dict[str, Spec]) -> dict:
    """Values given as {part: value}, None for none. Raises FormatError for another form or a part that there is not."""
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise FormatError(f"{what} is a {type(values).__name__}; allowed is an object with one entry per part: {', '.join(parts) or 'none'}")
    for name in values:
        if name not in parts:
            raise FormatError(f"{what} names the part {name!r}; the parts are {', '.join(parts) or 'none'}")
    return values


def _checked(name: str, value, allowed: tuple[type, ...]) -> Spec:
    """A spec given as such or as JSON, of one of the allowed classes."""
    from . import from_json

    if isinstance(value, dict):
        value = from_json(value)
    if not isinstance(value, allowed):
        found = getattr(value, "encoding", value)
        raise FormatError(f"{name} is {found!r}; allowed are {', '.join(cls.__name__ for cls in allowed)}")
    return value
