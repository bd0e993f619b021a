"""Reader: follows a foreign graph from the token ids to the logits, operator by operator.

What an operator does to each kind of tensor (`values.py`) stands in the tables of `moves.py`, `algebra.py`, `norms.py` and
`attention.py`. An operator that none of them knows is refused.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from edgepos.errors import FormatError

from ..block_rows import BlockRows
from . import algebra, attention, compound, contrib, einsum, found_token, images, linears, moves, norms
from .constants import CHOICE, Constants, check_size
from .hints import hint
from .last_row import find_last
from .looks import label, refuse
from .padding import Padding
from .pooling import TokenSum
from .values import Form, Function, Mean, Scores, Statistic
from .writer import Writer

OPERATORS = moves.OPERATORS | algebra.OPERATORS | norms.OPERATORS | linears.OPERATORS | attention.OPERATORS | compound.OPERATORS | einsum.OPERATORS | found_token.OPERATORS | images.OPERATORS

LOOKS = {
    Form: "a tensor",
    Function: "an activation function",
    Mean: "a mean",
    Statistic: "a norm's statistic",
    Scores: "attention scores",
    TokenSum: "a sum over tokens",
    BlockRows: "a matrix of codes",
    images.Pixels: "an image",
    found_token.Marks: "a comparison of the token ids",
    found_token.FoundToken: "the place of a token",
}


class Reader:
    """One reading. values: what is known of each value so far; names: values' readable places for node names."""

    def __init__(self, graph: ir.Graph, constants: Constants, writer: Writer):
        self.graph, self.constants, self.writer = graph, constants, writer
        self.sources = writer.sources
        self.values: dict[ir.Value, object] = {}
        self.caches: dict[ir.Value, tuple[int, ...]] = {}  # shapes of empty caches whose axes the graph does not say
        self.padding = Padding()
        self.met: dict[ir.Value, None] = {}  # computed constants that are inputs of operators on tensors

    @property
    def length(self) -> int:
        return self.sources.length

    def read(self, nodes: list[ir.Node]) -> None:
        """Follow the nodes, in order. Raises UnsupportedError naming the first that is not understood."""
        for node in nodes:
            self.writer.at = node
            arguments = [None if x is None else self.value(x) for x in node.inputs]
            if all(a is None or isinstance(a, np.ndarray) for a in arguments):
                results = self.constants.run(node, arguments)
                self.padding.follow(node)
            else:
                if node.domain == CHOICE:
                    raise refuse(node, "branches that do different things by the length", "branches between tables of positions, and on an empty cache")
                table = OPERATORS if node.domain in ("", "ai.onnx") else contrib.OPERATORS
                if node.op_type not in table:
                    found, known = hint(node.op_type, arguments, self.look(arguments))
                    raise refuse(node, found, known if table is OPERATORS else f"of com.microsoft: {', '.join(sorted(table))}")
                results = self._apply(table[node.op_type], node, arguments)
                if not self.writer.encoder:
                    find_last(node, arguments[0], results[0] if isinstance(results, list) else results, self.length)
            self._note_same(node, arguments)
            if not isinstance(results, list):
                results = [results]
            for value, result in zip(node.outputs, results):
                self.values[value] = result
                if result is not None and not isinstance(result, np.ndarray):
                    self.constants.note_shape(value, tuple(result.shape))

    def _apply(self, operator, node: ir.Node, arguments: list):
        try:
            check_size(node, [a for a in arguments if a is not None])
            self.met.update((x, None) for x, a in zip(node.inputs, arguments) if isinstance(a, np.ndarray))
            masked = self.padding.meet(self, node, arguments)
            return operator(self, node, arguments) if masked is None else masked
        except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError, AttributeError) as error:
            # A damaged graph gives an operator what its definition excludes; NumPy or the attribute's type then says so.
            raise FormatError(f"{label(node)}: its inputs or attributes do not fit together ({' '.join(str(error).split())[:160]})") from error

    def _note_same(self, node: ir.Node, arguments: list) -> None:
        """Note which inputs of a node became values of the canonical graph, to compare both where they differ in the end."""
        for value, argument in zip(node.inputs, arguments):
            made = self.writer.written.get(argument) if isinstance(argument, (Form, Function)) else None
            if made is not None and len(argument.shape) == 3 and argument.shape[:2] == (1, self.length):
                self.writer.foreign.setdefault(made, value)

    def value(self, value: ir.Value) -> object:
        """What is known of a value."""
        if value not in self.values:
            if not self.constants.is_given(value):
                raise refuse(self.writer.at, f"its input '{value.name}' is unknown", "inputs that earlier nodes make")
            self.values[value] = self.constants.given(value, self.length)
        return self.writer.current(self.values[value])

    def note_cache(self, value: ir.Value | None, shape: tuple[int, ...]) -> None:
        """Note the shape of an empty cache where it meets what is joined to it."""
        if value is not None and value in self.graph.inputs:
            self.caches[value] = shape

    def look(self, arguments: list) -> str:
        """The arguments of a node in a message."""
        return ", ".join(
            f"a constant {list(a.shape)}" if isinstance(a, np.ndarray) else f"{LOOKS[type(a)]} {list(a.shape)}" for a in arguments if a is not None
        )

    def unknown(self, node: ir.Node, arguments: list):
        """The error for arguments an operator is not understood with."""
        return refuse(node, *hint(node.op_type, arguments, self.look(arguments)))

    def use_constant(self, value: ir.Value | None, array: np.ndarray) -> None:
        """Note a constant that meets a tensor and differs by token, to be checked at the whole context."""
        if value is None or value in self.writer.lengthy or self.constants.is_given(value):
            return
        if array.ndim >= 2 and self.length in array.shape:
            self.writer.lengthy[value] = array
