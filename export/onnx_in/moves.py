"""Operators that move, repeat or drop elements: the same for the codes of a tensor as for its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ..block_rows import BlockRows
from .constants import FLOATS
from .found_token import FoundToken, Marks, beside_zeros, reshaped, row_at
from .images import Pixels
from .looks import module_of, refuse
from .sources import Made, TokenIds
from .values import Form, Function, OfRows, Scores, concatenated, constant_form


def _moved(reader, node: ir.Node, arguments: list):
    """Any operator whose first input is moved as later inputs, all constant, say."""
    x, rest = arguments[0], arguments[1:]
    if not all(a is None or isinstance(a, np.ndarray) for a in rest):
        raise reader.unknown(node, arguments)
    if node.op_type == "Reshape":
        _check_traced(reader, node, x.shape, rest[0])

    def move(output: int):
        return lambda array: reader.constants.move(node, np.asarray(array), rest)[output]

    return [moved(reader, node, arguments, x, move(i)) for i in range(len(node.outputs))]


def _check_traced(reader, node: ir.Node, before: tuple[int, ...], wanted: np.ndarray) -> None:
    """Name what an exporter that follows one text does to shapes."""
    sizes = [before[i] if n == 0 and i < len(before) and not node.attributes.get_int("allowzero", 0) else int(n) for i, n in enumerate(wanted.ravel())]
    known = int(np.prod([n for n in sizes if n != -1], dtype=np.int64))
    count = int(np.prod(before, dtype=np.int64))
    if known > 0 and (count % known if -1 in sizes else count != known):
        found = f"a tensor {list(before)} of {reader.length} tokens as one of {sizes}: the exporter fixed the length of its example"
        raise refuse(node, found, "an export for any length (torch.onnx.export with dynamo=True), or for one length throughout (without dynamic axes)")


def moved(reader, node: ir.Node, arguments: list, x, move):
    """A tensor after `move`, a function of one array."""
    if isinstance(x, Form):
        return x.moved(move)
    if isinstance(x, Function):
        return Function(move(x.codes), x.samples)
    if isinstance(x, OfRows):
        return replace(x, rows=move(x.rows))
    if isinstance(x, Scores):
        return _moved_scores(reader, node, arguments, x, move)
    if isinstance(x, (Marks, FoundToken)):
        return reshaped(reader, node, arguments, x, move)
    raise reader.unknown(node, arguments)


def _moved_scores(reader, node: ir.Node, arguments: list, x: Scores, move) -> Scores:
    """Scores keep queries and keys as their last axes; heads may be moved and repeated."""
    n = x.q.shape[1] * x.k.shape[1]
    places = np.arange(n * max(1, int(np.prod(x.lead)))).reshape(x.shape)
    after = move(places)
    heads = after[..., 0, 0].ravel() // n if after.ndim >= 2 and after.shape[-2:] == x.shape[-2:] else None
    if heads is None or (after != heads.reshape(after.shape[:-2])[..., None, None] * n + np.arange(n).reshape(x.shape[-2:])).any():
        raise reader.unknown(node, arguments)
    if x.steps and len(heads) != x.q.shape[0]:
        raise reader.unknown(node, arguments)
    if (heads != np.arange(len(heads))).any() or len(heads) != x.q.shape[0]:
        pick = lambda array: array[heads]  # noqa: E731
        x = replace(x, q=x.q.moved(pick), k=x.k.moved(pick))
    return replace(x, lead=tuple(after.shape[:-2]))


def _same(reader, node: ir.Node, arguments: list):
    return [arguments[0], *[None] * (len(node.outputs) - 1)]


def _dropout(reader, node: ir.Node, arguments: list):
    training = arguments[2] if len(arguments) > 2 else None
    if training is not None and (not isinstance(training, np.ndarray) or training.any()):
        raise reader.writer.refuse("a dropout in training", "graphs exported for inference")
    return _same(reader, node, arguments)


def _cast(reader, node: ir.Node, arguments: list):
    x, to = arguments[0], node.attributes.get_int("to", 1)
    if isinstance(x, Pixels) and ir.DataType(to) in FLOATS:
        return x
    ids = isinstance(x, Form) and any(isinstance(s.what, TokenIds) for s in reader.sources.used(x.codes))
    if not ids and not isinstance(x, (Marks, FoundToken)) and ir.DataType(to) not in FLOATS:
        raise reader.unknown(node, arguments)
    return x


def _concat(reader, node: ir.Node, arguments: list):
    axis = node.attributes.get_int("axis", 0)
    empty = [isinstance(a, np.ndarray) and a.size == 0 for a in arguments]
    kept = [a for a, none in zip(arguments, empty) if not none]
    if len(kept) == 1:  # an empty cache in front
        shape = list(kept[0].shape)
        shape[axis] = 0
        for cache in (x for x, none in zip(node.inputs, empty) if none):
            reader.note_cache(cache, tuple(shape))
        return kept[0]
    if isinstance(kept[-1], FoundToken):
        return beside_zeros(reader, node, kept, axis)
    kept = [reader.writer.as_form(a) for a in kept]
    if not all(isinstance(a, (np.ndarray, Form)) for a in kept):
        raise reader.unknown(node, arguments)
    forms = [constant_form(a) if isinstance(a, np.ndarray) else a for a in kept]
    return concatenated(forms, axis if axis < 0 else axis - len(forms[0].shape))


def _shape(reader, node: ir.Node, arguments: list):
    shape = np.array(arguments[0].shape, np.int64)
    return np.array(shape.prod()) if node.op_type == "Size" else shape[node.attributes.get_int("start", 0) : node.attributes.get_int("end", len(shape))]


def _gather(reader, node: ir.Node, arguments: list):
    table, ids = arguments
    if isinstance(table, np.ndarray):
        return embed(reader, node, table, ids)
    if isinstance(ids, FoundToken):
        if isinstance(table, Form) and len(table.shape) == 2 and node.attributes.get_int("axis", 0) == 0 and ids.shape == (1,) and not ids.zeros:
            return row_at(reader, node, table.moved(lambda array: array[None]), ids, keep=False)  # the rows of a batch of one
        if node.attributes.get_int("axis", 0) != 1 or ids.zeros or ids.shape not in ((), (1,)):
            raise reader.unknown(node, arguments)
        return row_at(reader, node, table, ids, keep=bool(ids.shape))
    return _moved(reader, node, arguments)


def embed(reader, node: ir.Node, table: np.ndarray | BlockRows, ids: Form, at: int = 0) -> Form:
    """Rows of a table, the node's input `at`, for the token ids."""
    writer = reader.writer
    used = reader.sources.used(ids.codes) if isinstance(ids, Form) else []
    is_ids = len(used) == 1 and isinstance(used[0].what, TokenIds) and ids.is_pure
    if not is_ids or table.ndim != 2 or node.attributes.get_int("axis", 0) or not np.array_equal(ids.codes.ravel(), np.arange(reader.length) + used[0].base):
        raise reader.unknown(node, [table, ids])
    if writer.embedding is not None:
        raise writer.refuse("a second table of embeddings read by the token ids", "one")
    origin = node.inputs[at]
    name = origin.name if origin.const_value is not None and origin.name else f"{module_of(node)}.weight"
    weight = writer.weight(name, table, name)
    writer.embedding = (name, table)
    value = writer.graph.embed(weight)
    return reader.sources.form(reader.sources.new(Made(value), table.shape[1]), (*ids.shape, table.shape[1]))


MOVING = ("Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Expand", "Slice", "Split", "Tile")
OPERATORS = {name: _moved for name in MOVING} | {
    "Cast": _cast,
    "CastLike": lambda reader, node, arguments: arguments[0],
    "Concat": _concat,
    "Dropout": _dropout,
    "Gather": _gather,
    "Identity": _same,
    "Shape": _shape,
    "Size": _shape,
}
