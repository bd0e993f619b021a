"""The row of one token that is looked for by its id, as CLIP pools: comparisons of the token ids, and what is found by them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from . import pooling
from .sources import TokenIds
from .values import Form


@dataclass(frozen=True, eq=False)
class Marks:
    """1 or true where the token ids are `token`, else 0."""

    token: int
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FoundToken:
    """The place of the first token with an id (kind "token"; 0 where there is none), or with the largest id; zeros: how many
    coordinates 0 stand in front of it along the last axis."""

    kind: str
    token: int
    shape: tuple[int, ...]
    zeros: int = 0


def is_ids(reader, x: object) -> bool:
    """Whether a tensor is the token ids, all of them in order."""
    if not isinstance(x, Form) or not x.is_pure:
        return False
    used = reader.sources.used(x.codes)
    return len(used) == 1 and isinstance(used[0].what, TokenIds) and np.array_equal(x.codes.ravel(), used[0].base + np.arange(reader.length))


def reshaped(reader, node: ir.Node, arguments: list, x: Marks | FoundToken, move) -> Marks | FoundToken:
    """Marks or a place after `move`, which may only change their axes."""
    places = np.arange(int(np.prod(x.shape, dtype=np.int64))).reshape(x.shape)
    after = move(places)
    if getattr(x, "zeros", 0) or not np.array_equal(after.ravel(), places.ravel()):
        raise reader.unknown(node, arguments)
    return replace(x, shape=after.shape)


def beside_zeros(reader, node: ir.Node, arguments: list, axis: int) -> FoundToken:
    """A place behind coordinates 0, which are those of the batch."""
    *zeros, found = arguments
    axis = axis if axis < 0 else axis - len(found.shape)
    if axis != -1 or found.zeros or not all(isinstance(z, np.ndarray) and not z.any() for z in zeros):
        raise reader.unknown(node, arguments)
    count = sum(z.shape[-1] for z in zeros)
    return replace(found, shape=(*found.shape[:-1], found.shape[-1] + count), zeros=count)


def row_at(reader, node: ir.Node, x: Form, found: FoundToken, keep: bool) -> Form:
    """The row of x [1, S, width] at a place."""
    if not isinstance(x, Form) or len(x.shape) != 3 or x.shape[:2] != (1, reader.length):
        raise reader.unknown(node, [x, found])
    return pooling.pooled(reader, x, found.kind, keep, found.token)


def _equal(reader, node: ir.Node, arguments: list) -> Marks:
    ids, token = arguments if not isinstance(arguments[0], np.ndarray) else arguments[::-1]
    if not is_ids(reader, ids) or not isinstance(token, np.ndarray) or token.size != 1 or int(token.item()) != token.item():
        raise reader.unknown(node, arguments)
    return Marks(int(token.item()), ids.shape)


def _not(reader, node: ir.Node, arguments: list) -> np.ndarray:
    """Ids that are not a certain one: all of them, until it is known what for (`padding.py`)."""
    x = arguments[0]
    if not isinstance(x, Marks):
        raise reader.unknown(node, arguments)
    reader.padding.ids[node.outputs[0]] = x.token
    return np.ones(x.shape, bool)


def _argmax(reader, node: ir.Node, arguments: list) -> FoundToken:
    x, axis = arguments[0], node.attributes.get_int("axis", 0)
    rank = len(x.shape)
    if not (isinstance(x, Marks) or is_ids(reader, x)) or axis not in (-1, rank - 1) or x.shape[-1] != reader.length or node.attributes.get_int("select_last_index", 0):
        raise reader.unknown(node, arguments)
    shape = (*x.shape[:-1], 1) if node.attributes.get_int("keepdims", 1) else x.shape[:-1]
    return FoundToken("token", x.token, shape) if isinstance(x, Marks) else FoundToken("largest_id", 0, shape)


def _gather_nd(reader, node: ir.Node, arguments: list) -> Form:
    x, found = arguments
    batch = node.attributes.get_int("batch_dims", 0)
    if isinstance(found, np.ndarray) and isinstance(x, Form):
        return x.moved(lambda array: reader.constants.move(node, array, [found])[0])
    if not isinstance(found, FoundToken) or found.zeros + batch != 1 or found.shape != (1, 2 - batch):
        raise reader.unknown(node, arguments)
    return row_at(reader, node, x, found, keep=False)


OPERATORS = {"Equal": _equal, "Not": _not, "ArgMax": _argmax, "GatherND": _gather_nd}
