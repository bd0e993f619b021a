"""Comparisons ids ≠ an id. Where one makes nothing but that id's embedding zero, a row of the table says the same. Everywhere else the id is that
of padding, which a text of a bundle does not have: the comparison is true for every token."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..tensor_set import Weight
from .found_token import Marks
from .sources import Made
from .values import Form

MOVES = ("Cast", "CastLike", "Identity", "Reshape", "Squeeze", "Unsqueeze")  # that leave a comparison one number for each token


class Padding:
    """What was computed from such comparisons. ids: the id that each value compares with."""

    def __init__(self):
        self.ids: dict[ir.Value, int] = {}

    def follow(self, node: ir.Node) -> None:
        """Note what a node makes of constants."""
        for token in (self.ids[value] for value in node.inputs if value in self.ids):
            self.ids.update((output, token) for output in node.outputs)

    def meet(self, reader, node: ir.Node, arguments: list) -> Form | None:
        """The result of a node on tensors if it makes the embedding of one id zero. Else its comparisons are noted as those with padding."""
        writer = reader.writer
        result = _zero_row(reader, node, arguments, self.ids)
        for token in (self.ids[value] for value in node.inputs if value in self.ids and result is None):
            if writer.padding not in (None, token):
                raise writer.refuse(f"tokens {writer.padding} and {token} as padding", "one id of padding")
            writer.padding = token
        return result


def _zero_row(reader, node: ir.Node, arguments: list, ids: dict[ir.Value, int]) -> Form | None:
    found = _masked(node, arguments, ids)
    if found is None:
        return None
    token, shape, i = found
    x, writer = arguments[i], reader.writer
    if not isinstance(x, Form) or not x.is_pure or len(shape) > len(x.shape) or shape[-2:] != (reader.length, 1) or x.shape[-2] != reader.length:
        return None
    embed = _embedding(reader, x)
    if embed is None or not _read_once(reader, node.inputs[i]) or writer.zeroed is not None:
        return None
    name, table = writer.embedding
    if not isinstance(table, np.ndarray) or not 0 <= token < len(table):
        return None
    rows = np.array(table)
    rows[token] = 0
    writer.zeroed = token
    writer.graph.read_instead(embed, Weight(writer.name(f"{name.removesuffix('.weight')}.masked.weight"), rows, rows.shape))
    return x


def _masked(node: ir.Node, arguments: list, ids: dict[ir.Value, int]) -> tuple[int, tuple[int, ...], int] | None:
    """(the id, the shape of the comparison, which input it makes zero) of a product or choice."""
    if node.op_type == "Mul":
        for i, value in enumerate(node.inputs):
            if value in ids and _is_comparison(value):
                return ids[value], arguments[i].shape, 1 - i
    if node.op_type == "Where":
        condition, a, b = arguments
        if isinstance(condition, Marks) and _zeros(a):
            return condition.token, condition.shape, 2
        if node.inputs[0] in ids and _is_comparison(node.inputs[0]) and _zeros(b):
            return ids[node.inputs[0]], condition.shape, 1
    return None


def _zeros(x) -> bool:
    return isinstance(x, np.ndarray) and x.size == 1 and not x.any()


def _is_comparison(value: ir.Value) -> bool:
    """Whether a value is the comparison itself, with other axes."""
    node = value.producer()
    while node.op_type in MOVES:
        node = node.inputs[0].producer()
        if node is None:
            return False
    return node.op_type == "Not"


def _embedding(reader, x: Form) -> ir.Value | None:
    """The canonical embeddings that x is, or is a multiple of, if nothing else has read them."""
    used = reader.sources.used(x.codes)
    if len(used) != 1 or not isinstance(used[0].what, Made) or not np.array_equal(x.codes.ravel(), used[0].base + np.arange(x.codes.size)):
        return None
    value = used[0].what.value
    if value.uses():
        return None
    embed = value if value.name == "embed" else value.producer().inputs[0]
    alone = value is embed or [use[0] for use in embed.uses()] == [value.producer()]
    return embed if embed.name == "embed" and embed is not reader.writer.shifted and alone else None


def _read_once(reader, value: ir.Value) -> bool:
    """Whether nothing but this reads the embeddings of the graph on their way here."""
    while True:
        node = value.producer()
        if sum(use[0].op_type not in ("Shape", "Size") for use in value.uses()) != 1 or value in reader.graph.outputs:
            return False
        tensors = [x for x in node.inputs if x is not None and not isinstance(reader.values[x], np.ndarray)]
        if node.op_type == "Gather":
            return True
        if len(tensors) != 1:
            return False
        value = tensors[0]
