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
    `Hybrid(NoPosition(), (rope, rope, rope, NoPosition()) * n)`. Raises FormatError naming the field.
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

    def kinds(self) -> dict[Spec, tuple[int, ...]]:
        """Each different spec of the layers with the layers that use it: layers of one kind share one table."""
        result: dict[Spec, tuple[int, ...]] = {}
        for i, layer in enumerate(self.layers):
            result[layer] = (*result.get(layer, ()), i)
        return result


def _checked(name: str, value, allowed: tuple[type, ...]) -> Spec:
    """A spec given as such or as JSON, of one of the allowed classes."""
    from . import from_json

    if isinstance(value, dict):
        value = from_json(value)
    if not isinstance(value, allowed):
        found = getattr(value, "encoding", value)
        raise FormatError(f"{name} is {found!r}; allowed are {', '.join(cls.__name__ for cls in allowed)}")
    return value
