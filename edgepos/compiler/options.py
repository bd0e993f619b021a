"""The options of a compilation, checked by name."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UnsupportedError
from . import weights as weight_formats

WEIGHTS = weight_formats.FORMATS
ACTIVATIONS = ("a16",)
KV = ("kv16", "kv8")
CONTEXT_LIMIT = 2**18


@dataclass(frozen=True)
class Options:
    """weights: format of the matrices. activations: of the inputs of products. kv: of the cache. context: most tokens of a session."""

    weights: str
    activations: str
    kv: str
    context: int

    @property
    def kv_bits(self) -> int:
        return int(self.kv.removeprefix("kv"))


def check(*, weights: str, activations: str, kv: str, context: int | None, limit: int) -> Options:
    """Options after validation; context None is all the model allows, `limit`.

    Raises UnsupportedError naming the option, what was given and what is allowed.
    """
    for name, value, allowed in (("weights", weights, WEIGHTS), ("activations", activations, ACTIVATIONS), ("kv", kv, KV)):
        if value not in allowed:
            raise UnsupportedError(f"option {name} is {value!r}; allowed: {', '.join(allowed)}")
    asked = limit if context is None else context
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= limit:
        raise UnsupportedError(f"option context is {context!r}; allowed: 1 to {limit}, the model's context")
    if asked > CONTEXT_LIMIT:
        raise UnsupportedError(f"option context is {asked}; allowed: 1 to {CONTEXT_LIMIT}; pass context= to plan for fewer tokens")
    return Options(weights, activations, kv, asked)
