"""Looking at ONNX nodes: checked attributes and initializers, and the one form of refusal."""

from __future__ import annotations

import onnx_ir as ir

from ..errors import UnsupportedError

MAX_WIDTH = 2**20


def refuse(node: ir.Node, found: str, supported: str) -> UnsupportedError:
    """The error for a node that is not understood: its name, operator, what was found and what is supported."""
    return UnsupportedError(f"node '{node.name}' ({node.op_type}): {found}; supported: {supported}")


def describe(value: ir.Value | None) -> str:
    """A value in a message."""
    if value is None:
        return "missing"
    if value.const_value is not None:
        return f"initializer '{value.name}' {list(const_shape(value))}"
    producer = value.producer()
    return f"'{value.name}'" + (f" of node '{producer.name}' ({producer.op_type})" if producer else "")


def value_name(value: ir.Value) -> str:
    """The name of a value; every value of a canonical graph has one."""
    if not value.name:
        producer = value.producer()
        raise UnsupportedError(f"node '{producer.name if producer else '?'}': an output without a name; name every value of the graph")
    return value.name


def const_shape(value: ir.Value) -> tuple[int, ...]:
    """The shape of an initializer."""
    return tuple(int(d) for d in value.const_value.shape)


def input_count(node: ir.Node, least: int, most: int | None = None) -> None:
    """Refuse a node whose inputs are fewer than `least` or more than `most` (default: exactly `least`)."""
    most = least if most is None else most
    if not least <= len(node.inputs) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise refuse(node, f"{len(node.inputs)} inputs", f"{wanted} inputs")


def attributes(node: ir.Node, **allowed) -> dict:
    """The attributes of a node as Python values, checked.

    allowed: attribute name -> the one value it may have, a tuple of such values, or a type (int, float) for any value of it.
    Raises UnsupportedError naming the node and the attribute.
    """
    found = {}
    for name, attribute in node.attributes.items():
        if name not in allowed:
            raise refuse(node, f"attribute {name}", ", ".join(sorted(allowed)) or "no attributes")
        value = attribute.value
        value = list(value) if isinstance(value, (list, tuple)) else value
        want = allowed[name]
        if isinstance(want, type):
            if not isinstance(value, want):
                raise refuse(node, f"{name} = {value!r}", f"a number ({want.__name__})")
        elif value != want and not (isinstance(want, tuple) and value in want):
            text = " or ".join(str(w) for w in want) if isinstance(want, tuple) else str(want)
            raise refuse(node, f"{name} = {value!r}", f"{name} = {text}")
        found[name] = value
    return found


def float_initializer(node: ir.Node, index: int, *, dims: tuple[int, ...] | None = None, rank: int = 1) -> str:
    """The name of input `index`, which must be a float32 initializer of shape `dims` (or of `rank` axes, none empty).

    Raises UnsupportedError naming the node.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.const_value is None:
        raise refuse(node, f"input {index} is {describe(value)}", "a weight stored as an initializer")
    if value.const_value.dtype != ir.DataType.FLOAT:
        raise refuse(node, f"initializer '{value.name}' is {value.const_value.dtype.name}", "float32 (FLOAT)")
    shape = const_shape(value)
    if (dims is not None and shape != dims) or (dims is None and len(shape) != rank) or 0 in shape:
        wanted = str(list(dims)) if dims is not None else f"{rank} axes, none empty"
        raise refuse(node, f"initializer '{value.name}' has shape {list(shape)}", wanted)
    return value.name


def reshape_dims(node: ir.Node) -> list[int]:
    """The constant shape that a Reshape asks for; raises UnsupportedError naming the node when it is not constant."""
    attributes(node, allowzero=0)
    input_count(node, 2)
    dims = node.inputs[1]
    if dims is None or dims.const_value is None or dims.const_value.dtype != ir.DataType.INT64:
        raise refuse(node, f"shape is {describe(dims)}", "a constant shape")
    return [int(d) for d in dims.const_value.numpy().ravel()]


def scalar(node: ir.Node, index: int) -> float | None:
    """Input `index` if it is a constant float32 number, else None."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.const_value is None or value.const_value.dtype != ir.DataType.FLOAT or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().item())
