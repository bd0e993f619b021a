"""How a node of a foreign graph is named in a message."""

from __future__ import annotations

import re

import onnx_ir as ir

from edgepos.errors import UnsupportedError

from ..shorten import shorten


OPERATOR = re.compile(r"\w{1,60}")


def label(node: ir.Node) -> str:
    """The name and operator of a node."""
    name = node.name or (node.outputs[0].name if node.outputs else None) or "?"
    op = str(node.op_type)
    return f"node {shorten(name)} ({op if OPERATOR.fullmatch(op) else shorten(op)})"


def refuse(node: ir.Node, found: str, supported: str) -> UnsupportedError:
    """The error for a node that is not understood: its name and operator, what it looks like, what is supported."""
    return UnsupportedError(f"{label(node)}: {found}; supported: {supported}")


# The path of modules a node came from, as PyTorch's exporter notes it: the last entry is the operator, the one before its module.
SCOPES = "pkg.torch.onnx.name_scopes"
SCOPE = re.compile(r"'([\w.]+)', '[^']*'\]$")
NODE_PATH = re.compile(r"/?((?:[\w.]+/)+)\w+")


def module_of(node: ir.Node) -> str:
    """A readable name for what a node computes: that of the module it came from, where the exporter noted it, else its own."""
    found = SCOPE.search(node.metadata_props.get(SCOPES, ""))
    if found:
        return found[1]
    name = node.name or next((v.name for v in node.outputs if v.name), None) or node.op_type.lower()
    path = NODE_PATH.fullmatch(name)
    return path[1].rstrip("/").replace("/", ".") if path else name
