"""TensorSet: the tensors of one source by name, taken as Weights with their expected shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edgepos.errors import FormatError

from .block_rows import GridRows
from .quantized_rows import LazyRows, ReorderedRows
from .shorten import shorten


@dataclass(frozen=True, eq=False)
class Weight:
    """A named tensor that has not been read yet.

    ``array`` is a view, usually of a mapped file, of dtype float32, float16 or bfloat16, or rows of a
    quantized file; reading it means converting to float32 and reshaping to ``shape``.
    """

    name: str
    array: np.ndarray | GridRows
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

    @property
    def arrays(self) -> Mapping[str, np.ndarray | LazyRows]:
        """Every tensor by name, those made by ``split`` too."""
        return self._arrays

    def without_prefix(self, prefix: str) -> TensorSet:
        """The same tensors, ``prefix`` removed from the names that have it; raises FormatError when two names become one."""
        arrays = {name.removeprefix(prefix): array for name, array in self._arrays.items()}
        if len(arrays) != len(self._arrays):
            raise FormatError(f"{self._origin}: a tensor is there with and without the prefix '{prefix}'; keep one")
        return TensorSet(self._origin, arrays)

    def rename(self, name: str, new: str) -> None:
        """Give a tensor another name; nothing happens when it is not there."""
        if name in self._arrays:
            self._arrays[new] = self._arrays.pop(name)

    def transpose(self, name: str) -> None:
        """Let a matrix [in, out] stand as [out, in]."""
        if name in self._arrays:
            self._arrays[name] = self._arrays[name].T

    def split(self, name: str, parts: Mapping[str, int]) -> None:
        """Replace a tensor by runs of its rows: new name -> number of rows. Raises FormatError when they do not add up."""
        array = self.take(name, (sum(parts.values()), *self._shape_behind(name))).array
        start = 0
        for new, rows in parts.items():
            self._arrays[new] = array[start : start + rows]
            start += rows

    def split_heads(self, name: str, parts: Sequence[str], heads: int, head_dim: int) -> None:
        """Replace a tensor whose rows are ordered [head][part][head_dim] by its parts, [heads * head_dim, ...] each."""
        array = self.take(name, (heads * len(parts) * head_dim, *self._shape_behind(name))).array
        order = np.arange(len(array)).reshape(heads, len(parts), head_dim)
        for i, new in enumerate(parts):
            self._arrays[new] = ReorderedRows(array, order[:, i].ravel())

    def _shape_behind(self, name: str) -> tuple[int, ...]:
        return tuple(self._arrays[name].shape[1:]) if name in self._arrays else ()

    def finish(self, ignore: Callable[[str], bool] = lambda name: False) -> None:
        """Raise FormatError when a tensor was never taken and ``ignore(name)`` is false."""
        left = sorted(n for n in self._arrays if n not in self._taken and not ignore(n))
        if left:
            shown = ", ".join(shorten(n) for n in left[:3]) + (" ..." if len(left) > 3 else "")
            raise FormatError(
                f"{self._origin}: {len(left)} unexpected tensor(s): {shown}; this architecture with this config "
                "has no place for them; check the config or remove them"
            )
