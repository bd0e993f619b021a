"""Positions in the canonical graph: RotaryEmbedding with its tables, and the ALiBi mask."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir

from ..errors import EdgePosError
from ..positions import Rope
from .nodes import attributes, const_shape, describe, float_initializer, refuse

TABLE_TOLERANCE = 1e-6  # float32 of numbers up to 1 rounds by 3e-8; a wrong theta or layout is off by far more
ROPE_FACTS = ("layout", "head_dim", "rotary_dim")
ROPE_EXTRAS = ("theta", "scaling", "angles")
WINDOW = "edgepos.window"
ROWS = 4096


def rope_of(node: ir.Node, width: int) -> tuple[int, Rope]:
    """(heads, rotation) of a RotaryEmbedding over [1, S, width].

    The metadata says which rotation is meant; the cos and sin tables must agree with it to float precision.
    Raises UnsupportedError naming the node.
    """
    found = attributes(node, num_heads=int, interleaved=(0, 1), rotary_embedding_dim=int)
    facts = _facts(node, "edgepos.rope", ROPE_FACTS, ROPE_EXTRAS)
    if "angles" in facts:
        raise refuse(node, "rotation by a table of angles", "rotation by frequencies, which integer programs turn into increments; `edgepos tables` emits this one")
    try:
        spec = Rope(**facts)
    except EdgePosError as error:
        raise refuse(node, f"edgepos.rope: {error}", "a rotation EdgePos knows") from None
    heads = found.get("num_heads", 0)
    if heads < 1 or heads * spec.head_dim != width or heads > 65535:
        raise refuse(node, f"num_heads {heads} of head_dim {spec.head_dim} for width {width}", "num_heads · head_dim = width")
    if found.get("interleaved", 0) != int(spec.layout == "interleaved"):
        raise refuse(node, f"interleaved {found.get('interleaved', 0)} but layout '{spec.layout}'", "attribute and metadata that agree")
    if (found.get("rotary_embedding_dim", 0) or spec.head_dim) != spec.rotary_dim or not spec.pairs:
        raise refuse(
            node, f"rotary_embedding_dim {found.get('rotary_embedding_dim', 0)} but rotary_dim {spec.rotary_dim}", "attribute and metadata that agree"
        )
    names = [float_initializer(node, index, rank=2) for index in (1, 2)]
    shapes = [const_shape(node.inputs[index]) for index in (1, 2)]
    if shapes[0] != shapes[1] or shapes[0][1] != spec.pairs:
        raise refuse(node, f"tables {shapes[0]} and {shapes[1]}", f"two tables [context, {spec.pairs}]")
    # A table that more nodes share has been checked at the first of them.
    if not _checked_before(node, facts):
        _check_tables(node, spec, names)
    return heads, spec


def _facts(node: ir.Node, key: str, allowed: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict:
    """The JSON object in metadata `key`, which has every key of `allowed`."""
    text = node.metadata_props.get(key)
    try:
        facts = json.loads(text) if text is not None else None
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        raise refuse(node, f"metadata {key} is {text!r}", f"a JSON object with {', '.join(allowed)}")
    for name in facts:
        if name not in (*allowed, *optional):
            raise refuse(node, f"metadata {key} has the key '{name}'", ", ".join((*allowed, *optional)))
    for name in allowed:
        if name not in facts:
            raise refuse(node, f"metadata {key} lacks the key '{name}'", ", ".join(allowed))
    return facts


def _checked_before(node: ir.Node, facts: dict) -> bool:
    for user, _ in node.inputs[1].uses():
        if user is node:
            return False
        if user.op_type == "RotaryEmbedding" and list(user.inputs[1:3]) == list(node.inputs[1:3]):
            return user.metadata_props.get("edgepos.rope") == node.metadata_props["edgepos.rope"]
    return False


def _check_tables(node: ir.Node, spec: Rope, names: list[str]) -> None:
    cos, sin = (node.inputs[index].const_value.numpy() for index in (1, 2))
    for start in range(0, len(cos), ROWS):
        positions = np.arange(start, min(start + ROWS, len(cos)))
        for name, table, exact in zip(names, (cos, sin), spec.cos_sin(positions, len(cos))):
            wrong = ~(np.abs(table[positions] - exact * spec.attention_factor) <= TABLE_TOLERANCE)
            if wrong.any():
                row, pair = np.argwhere(wrong)[0]
                raise refuse(
                    node,
                    f"'{name}' holds {table[start + row, pair]} at position {start + row}, pair {pair}, "
                    f"but its metadata (theta {spec.theta}, {spec.layout}) gives {exact[row, pair]:.9g}",
                    "tables that agree with the metadata",
                )


def window_of(mask: ir.Value, inputs: dict[str, ir.Value]) -> tuple[int, list[ir.Node]]:
    """(keys a token sees, nodes that make the mask) of an attn_mask position − key position < window.

    Raises UnsupportedError naming the part that differs.
    """
    less = mask.producer()
    wanted = "Less(Sub(Unsqueeze(position_ids), Unsqueeze(key_position_ids)), window)"
    window = _facts(less, WINDOW, ("window",))["window"]
    if less.op_type != "Less" or len(less.inputs) != 2 or less.inputs[1].const_value is None or less.inputs[1].const_value.numpy().tolist() != window:
        raise refuse(less, f"its inputs with window {window!r}", wanted)
    if isinstance(window, bool) or not isinstance(window, int) or not 1 <= window <= 2**20:
        raise refuse(less, f"window {window!r}", "1 to 2^20 keys")
    sub = less.inputs[0].producer() if less.inputs[0] is not None else None
    if sub is None or sub.op_type != "Sub":
        raise refuse(less, f"input 0 is {describe(less.inputs[0])}", wanted)
    nodes = [less, sub]
    for value, source, axes in zip(sub.inputs, ("position_ids", "key_position_ids"), ([1, 3], [1, 2])):
        unsqueeze = value.producer() if value is not None else None
        if unsqueeze is None or unsqueeze.op_type != "Unsqueeze" or len(unsqueeze.inputs) != 2:
            raise refuse(sub, f"{describe(value)} where Unsqueeze is expected", wanted)
        x, axes_value = unsqueeze.inputs
        if x is not inputs.get(source) or axes_value.const_value is None or axes_value.const_value.numpy().tolist() != axes:
            raise refuse(unsqueeze, f"inputs {describe(x)}, {describe(axes_value)}", f"{source} with axes {axes}")
        nodes.append(unsqueeze)
    return window, nodes


def alibi_slopes_of(attention: ir.Node, mask: ir.Value, heads: int, inputs: dict[str, ir.Value]) -> tuple[str, list[ir.Node]]:
    """(initializer of the slopes, nodes that make the mask) of an attn_mask slopes · (key position − query position).

    Raises UnsupportedError naming the attention node or the part that differs.
    """
    wanted = "no mask, or Mul(slopes [1, heads, 1, 1], Cast(Sub(Unsqueeze(key_position_ids), Unsqueeze(position_ids))))"
    mul = mask.producer()
    if mul is None or mul.op_type != "Mul" or "edgepos.alibi" not in mul.metadata_props or len(mul.inputs) != 2:
        raise refuse(attention, f"attn_mask is {describe(mask)}", wanted)
    slopes, steps = mul.inputs
    name = float_initializer(mul, 0, dims=(1, heads, 1, 1))
    facts = _facts(mul, "edgepos.alibi", ("heads",))
    if facts["heads"] != heads:
        raise refuse(mul, f"metadata edgepos.alibi says {facts['heads']} heads for {heads}", "metadata that agrees with the attention")
    values = slopes.const_value.numpy()
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise refuse(mul, f"slopes from {values.min()} to {values.max()}", "finite slopes of at least 0")
    nodes = [mul]

    def producer(value: ir.Value | None, op: str, **allowed) -> ir.Node:
        node = value.producer() if value is not None else None
        if node is None or node.op_type != op:
            raise refuse(mul, f"{describe(value)} where {op} is expected", wanted)
        attributes(node, **allowed)
        nodes.append(node)
        return node

    cast = producer(steps, "Cast", to=int(ir.DataType.FLOAT), saturate=1)
    sub = producer(cast.inputs[0], "Sub")
    for value, source, axes in zip(sub.inputs, ("key_position_ids", "position_ids"), ([1, 2], [1, 3])):
        unsqueeze = producer(value, "Unsqueeze")
        x, axes_value = unsqueeze.inputs
        if x is not inputs.get(source) or axes_value.const_value is None or axes_value.const_value.numpy().tolist() != axes:
            raise refuse(unsqueeze, f"inputs {describe(x)}, {describe(axes_value)}", f"{source} with axes {axes}")
    return name, nodes
