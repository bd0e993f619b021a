"""Decoders that give the logits of the last token alone, as modules for generation do: read as if they gave those of every token, which
are the logits of the last token of each beginning of the text."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .values import Form, Function


class LastFound(Exception):
    """The last row is taken from the rows of all tokens by the node that makes `name`; axis: the one of size 1 that stays in its place."""

    def __init__(self, name: str, axis: int | None):
        super().__init__(name)
        self.name, self.axis = name, axis


def find_last(node: ir.Node, x: object, result: object, length: int) -> None:
    """Raise LastFound where a node made one row, the last, of the rows of all tokens."""
    if not isinstance(x, (Form, Function)) or type(result) is not type(x) or length == 1 or result.codes.size * length != x.codes.size or not node.outputs[0].name:
        return
    before = len(x.codes.shape) - len(x.shape)  # the axis of terms of a Form
    for axis, n in enumerate(x.shape):
        if n != length or not np.array_equal(np.take(x.codes, -1, before + axis).ravel(), result.codes.ravel()):
            continue
        if result.shape == (*x.shape[:axis], 1, *x.shape[axis + 1 :]):
            raise LastFound(node.outputs[0].name, None)
        ones = [i for i, size in enumerate(x.shape[:-1]) if size == 1]
        if result.shape == (*x.shape[:axis], *x.shape[axis + 1 :]) and ones:
            raise LastFound(node.outputs[0].name, ones[0])


def keep_all(graph: ir.Graph, rows: dict[str, int | None]) -> None:
    """Let the nodes that make these values hand on all rows."""
    for node in [node for node in graph if node.outputs and node.outputs[0].name in rows]:
        old = node.outputs[0]
        axis = rows[old.name]
        if axis is None:
            new = ir.node("Identity", [node.inputs[0]], name=node.name)
        else:
            axes = ir.val(f"{old.name}.axes", const_value=ir.tensor(np.array([axis], np.int64)))
            graph.initializers[axes.name] = axes
            new = ir.node("Squeeze", [node.inputs[0], axes], name=node.name)
        new.outputs[0].name, old.name = old.name, None
        graph.insert_before(node, new)
        ir.convenience.replace_all_uses_with(old, new.outputs[0], replace_graph_outputs=True)
        graph.remove(node, safe=True)
