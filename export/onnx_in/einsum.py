"""Einsum of two operands: a product of matrices after moving axes, as what it is a linear, or the scores or result of an attention."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from . import attention
from .linears import linear
from .moves import moved
from .values import Form, Function, Scores

EQUATION = re.compile(r"([A-Za-z]+),([A-Za-z]+)->([A-Za-z]*)")


def _einsum(reader, node: ir.Node, arguments: list):
    found = EQUATION.fullmatch(node.attributes.get_string("equation", "").replace(" ", ""))
    letters = found.groups() if found else ()
    if len(arguments) != 2 or not found or any(len(set(x)) != len(x) for x in letters):
        raise reader.unknown(node, arguments)
    (a, b), (left, right, out) = arguments, letters
    if len(a.shape) != len(left) or len(b.shape) != len(right):
        raise reader.unknown(node, arguments)
    if isinstance(a, np.ndarray):
        a, b, left, right = b, a, right, left
    sizes = dict(zip(left, a.shape)) | dict(zip(right, b.shape))
    batch = [x for x in out if x in left and x in right]
    summed = [x for x in left if x in right and x not in out]
    rows, columns = [x for x in out if x in left and x not in right], [x for x in out if x in right and x not in left]
    if set(left) != {*batch, *rows, *summed} or set(right) != {*batch, *columns, *summed} or tuple(sizes[x] for x in left) != tuple(a.shape):
        raise reader.unknown(node, arguments)

    def count(axes: list[str]) -> int:
        return int(np.prod([sizes[x] for x in axes], dtype=np.int64))

    def arranged(x, axes: str, order: list[str], shape: tuple[int, ...]):
        move = lambda array: array.transpose([axes.index(letter) for letter in order]).reshape(shape)  # noqa: E731
        return move(x) if isinstance(x, np.ndarray) else moved(reader, node, arguments, x, move)

    lead = tuple(sizes[x] for x in batch)
    a = arranged(a, left, [*batch, *rows, *summed], (*lead, count(rows), count(summed)))
    if isinstance(b, np.ndarray):
        if count(batch) != 1 or not isinstance(a, (Form, Function)):
            raise reader.unknown(node, arguments)
        matrix = arranged(b, right, [*columns, *summed, *batch], (count(columns), count(summed)))
        result = linear(reader, node, a, matrix, node.inputs[1] if b is arguments[1] else node.inputs[0])
    else:
        if not isinstance(a, (Form, Function, Scores)):
            raise reader.unknown(node, arguments)
        result = attention.product(reader, node, a, arranged(b, right, [*batch, *summed, *columns], (*lead, count(summed), count(columns))))
    made = [*batch, *rows, *columns]
    order = [made.index(x) for x in out]
    return moved(reader, node, arguments, result, lambda array: array.reshape([sizes[x] for x in made]).transpose(order))


OPERATORS = {"Einsum": _einsum}
