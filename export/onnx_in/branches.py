"""If: the branch that texts from an empty cache take, put in place of the node; where that depends on the length, both and a choice."""

from __future__ import annotations

from collections import deque

import onnx_ir as ir

from edgepos.errors import EdgePosError

from .constants import CHOICE, Constants
from .frame import Frame
from .looks import refuse

BRANCHES = ("then_branch", "else_branch")
MOST = 1000


def has_branches(graph: ir.Graph) -> bool:
    return any(node.op_type == "If" for node in graph)


def put_in_place(graph: ir.Graph, frame: Frame, lengths: list[int], length: int) -> None:
    """Replace every If of a graph by what it does in texts of these lengths; length: of reading.

    Raises UnsupportedError naming a condition that depends on the token ids.
    """
    constants = Constants(graph, [(frame.ids, None), *frame.others.items()], length)
    constants.note_shape(frame.ids, (1,) * (len(frame.ids.shape) - 1) + (length,))
    waiting, done = deque(node for node in graph if node.op_type == "If"), 0
    while waiting:
        node = waiting.popleft()
        done += 1
        if done > MOST:
            raise refuse(node, f"more than {MOST} branches", "up to that")
        taken = _taken(constants, node, lengths)
        parts, inner = [], []
        for name, when in zip(BRANCHES, (True, False)):
            if when in taken:
                values, nodes = _moved(graph, node, name)
                parts.append(values)
                inner += nodes
            else:
                _forget(node.attributes[name].as_graph())
        waiting.extendleft(n for n in reversed(inner) if n.op_type == "If")
        for output, values in zip(node.outputs, zip(*parts)):
            _replace(graph, output, values[0] if len(values) == 1 else _choice(graph, node, values))
        graph.remove(node, safe=True)


def _taken(constants: Constants, node: ir.Node, lengths: list[int]) -> set[bool]:
    try:
        return {bool(constants.at(node.inputs[0], n).item()) for n in lengths}
    except (EdgePosError, ValueError, AttributeError) as error:
        why = " ".join(str(error).split())[:160]
        raise refuse(node, f"a branch on a condition that needs more than the length ({why})", "conditions on an empty cache and on the length") from None


def _moved(graph: ir.Graph, node: ir.Node, name: str) -> tuple[list[ir.Value], list[ir.Node]]:
    """(outputs, nodes) of a branch after its nodes and weights were moved in front of the node."""
    branch = node.attributes[name].as_graph()
    outputs, nodes = list(branch.outputs), list(branch)
    if len(outputs) != len(node.outputs):
        raise refuse(node, f"{len(outputs)} results of its {name}", f"{len(node.outputs)}, as the node has")
    branch.outputs.clear()
    for weight in list(branch.initializers.values()):
        del branch.initializers[weight.name]
        while weight.name in graph.initializers:
            weight.name = f"{weight.name}.{name}"
        graph.initializers[weight.name] = weight
    branch.remove(nodes)
    graph.insert_before(node, nodes)
    return outputs, nodes


def _forget(branch: ir.Graph) -> None:
    """Let the nodes of a branch that is not taken read nothing, so that none of it counts as a use."""
    branch.outputs.clear()
    for node in ir.traversal.RecursiveGraphIterator(branch):
        for index in range(len(node.inputs)):
            node.replace_input_with(index, None)


def _choice(graph: ir.Graph, node: ir.Node, values: tuple[ir.Value, ...]) -> ir.Value:
    choice = ir.node("If", [node.inputs[0], *values], {}, domain=CHOICE, name=node.name)
    graph.insert_before(node, choice)
    return choice.outputs[0]


def _replace(graph: ir.Graph, old: ir.Value, new: ir.Value) -> None:
    if new not in graph.inputs and new.const_value is None:
        new.name, old.name = old.name, None  # logits are known by their name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
