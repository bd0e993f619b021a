"""TensorSet: the tensors of one source by name, taken as Weights with their expected shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edgepos.errors import FormatError

from .quantized_rows import LazyRows
from .shorten import shorten


@dataclass(frozen=True, eq=False)
class Weight:
    """A named tensor that has not been read yet.

    ``array`` is a view, usually of a mapped file, of dtype float32, float16 or bfloat16, or rows of a
    quantized file; reading it means converting to float32 and reshaping to ``shape``.
    """

    name: str
    array: np.ndarray | LazyRows
    shape: tuple[int, ...]


class TensorSet:
    """Named arrays (usually memory-mapped), each taken by the family that builds the graph.

    A tensor that is missing, has another shape, or is never taken is an error:
    a weight that silently does nothing is a wrong model.
    """

    def __init__(self, origin: str, arrays: Mapping[str, np.ndarray | LazyRows]):
        self._origin = origin
        self._arrays = dict(arrays)
        self._taken: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    def take(self, name: str, shape: tuple[int, ...]) -> Weight:
        """The tensor ``name`` of ``shape``; raises FormatError when missing or of another shape."""
        if name not in self._arrays:
            raise FormatError(
                f"{self._origin}: tensor '{name}' is missing; the config asks for it with shape {list(shape)}; "
                "save the complete model again"
            )
        array = self._arrays[name]
        if tuple(array.shape) != tuple(shape):
            raise FormatError(
                f"{self._origin}: tensor '{name}' has shape {list(array.shape)}, the config asks for "
                f"{list(shape)}; config and weights must come from the same model"
            )
        self._taken.add(name)
        return Weight(name, array, tuple(shape))

    def finish(self, ignore: Callable[[str], bool] = lambda name: False) -> None:
        """Raise FormatError when a tensor was never taken and ``ignore(name)`` is false."""
        left = sorted(n for n in self._arrays if n not in self._taken and not ignore(n))
        if left:
            shown = ", ".join(shorten(n) for n in left[:3]) + (" ..." if len(left) > 3 else "")
            raise FormatError(
                f"{self._origin}: {len(left)} unexpected tensor(s): {shown}; this architecture with this config "
                "has no place for them; check the config or remove them"
            )
