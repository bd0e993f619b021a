"""The standard operators RotaryEmbedding and Attention, in terms of what the parts of an attention are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from .attention import attended
from .values import GRID, Form, MaskStep, Scores, concatenated


def split_heads(x: Form, heads: int) -> Form:
    """[1, S, heads · n] as [1, heads, S, n]."""
    return x.moved(lambda a: a.reshape(1, a.shape[1], heads, -1).swapaxes(1, 2))


def merged_heads(x: Form) -> Form:
    """[1, heads, S, n] as [1, S, heads · n]."""
    return x.moved(lambda a: np.ascontiguousarray(a.swapaxes(1, 2)).reshape(1, a.shape[2], -1))


def turned(reader, x: Form, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> Form:
    """x [1, heads, S, n] with its first 2·pairs components rotated by angles given as cos, sin [S, pairs]."""
    pairs = cos.shape[1]
    n = 2 * pairs
    first, second = (slice(0, n, 2), slice(1, n, 2)) if interleaved else (slice(0, pairs), slice(pairs, n))
    a, b = (x.moved(lambda array, part=part: array[..., part]) for part in (first, second))
    left = a.scaled(cos).joined(b.scaled(-sin))
    right = b.scaled(cos).joined(a.scaled(sin))
    rest = x.moved(lambda array: array[..., n:])
    if interleaved:
        stacked = concatenated([y.moved(lambda array: array[..., None]) for y in (left, right)], -1)
        parts = [stacked.moved(lambda array: array.reshape(*array.shape[:-2], n))]
    else:
        parts = [left, right]
    return concatenated([*parts, rest] if rest.shape[-1] else parts, -1)


def rotation_tables(
    reader, node: ir.Node, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray | None, places: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin [S, pairs] at the length of reading, the inputs of the node at `places`; whole tables bound the context and are checked later."""
    s = reader.length
    if positions is None:
        tables = [np.asarray(t, np.float64).reshape(-1, t.shape[-1]) for t in (cos, sin)]
        for index, table in zip(places, tables):
            reader.use_constant(node.inputs[index], table)
    else:
        if not np.array_equal(np.ravel(positions), np.arange(s)) or cos.ndim != 2 or cos.shape != sin.shape:
            raise reader.writer.refuse("positions that do not count from 0", "position_ids of the tokens in order")
        caches = tuple(reader.writer.cached(node.inputs[place], table) for place, table in zip(places, (cos, sin)))
        reader.writer.caches.append(caches)
        tables = [t.array[:s] for t in caches]
    if tables[0].shape != tables[1].shape or len(tables[0]) != s:
        raise reader.writer.refuse(f"tables of shape {list(cos.shape)} and {list(sin.shape)} for {s} tokens", "one row per token")
    return tables[0], tables[1]


def _rotary_embedding(reader, node: ir.Node, arguments: list):
    x, cos, sin = arguments[:3]
    return rotate(reader, node, x, cos, sin, arguments[3] if len(arguments) > 3 else None, (1, 2))


def rotate(reader, node: ir.Node, x, cos, sin, positions, places: tuple[int, int]):
    """A rotation operator on x [1, heads, S, n] or, with num_heads, [1, S, heads · n]; cos and sin are its inputs at `places`."""
    constants = [a for a in (cos, sin, positions) if a is not None]
    if not isinstance(x, Form) or not all(isinstance(a, np.ndarray) for a in constants) or len(constants) < 2:
        raise reader.unknown(node, [x, cos, sin, positions])
    heads, flat = node.attributes.get_int("num_heads", 0), len(x.shape) == 3
    if flat and (heads < 1 or x.shape[2] % heads):
        raise reader.writer.refuse(f"num_heads {heads} for a width of {x.shape[2]}", "num_heads that divides the width")
    x = split_heads(x, heads) if flat else x
    tables = rotation_tables(reader, node, cos, sin, positions, places)
    dim = node.attributes.get_int("rotary_embedding_dim", 0) or x.shape[-1]
    if 2 * tables[0].shape[1] != dim or dim > x.shape[-1]:
        raise reader.writer.refuse(f"tables of {tables[0].shape[1]} pairs for {dim} components", "one pair for two components")
    result = turned(reader, x, *tables, bool(node.attributes.get_int("interleaved", 0)))
    return merged_heads(result) if flat else result


def attend(reader, node: ir.Node, q: Form, k: Form, v: Form, *, scale: float | None, softcap: float, steps: list[MaskStep]) -> Form:
    """Attention of q [1, heads, S, n], k and v [1, KV heads, S, n] → [1, heads, S, n]."""
    heads, kv_heads = q.shape[1], k.shape[1]
    s = reader.length
    if heads % kv_heads or v.shape[1] != kv_heads or any(x.shape[0] != 1 or x.shape[2] != s for x in (q, k, v)) or q.shape[3] != k.shape[3]:
        raise reader.unknown(node, [q, k, v])
    repeat = lambda a: np.repeat(a, heads // kv_heads, axis=0)  # noqa: E731
    q, k, v = (x.moved(lambda a: a[0]) for x in (q, k, v))
    samples = GRID * (scale or 1 / math.sqrt(q.shape[2]))
    if softcap:
        samples = softcap * np.tanh(samples / softcap)
    lead = (1, heads)
    scores = Scores(q, k.moved(repeat), lead, samples, tuple(replace(step, lead=lead) for step in steps), probabilities=True)
    return attended(reader, node, scores, v.moved(repeat))


def all_empty(past: list) -> bool:
    """Whether the inputs of a cache are absent or hold no tokens."""
    return all(p is None or (isinstance(p, np.ndarray) and not p.size) for p in past)


def mask_steps(reader, node: ir.Node, index: int, mask, heads: int) -> list[MaskStep]:
    """The mask given as input `index`: numbers are added, booleans keep."""
    if mask is None:
        return []
    shape = (1, heads, reader.length, reader.length)
    if not isinstance(mask, np.ndarray) or np.broadcast_shapes(mask.shape, shape) != shape:
        raise reader.writer.refuse("a mask that depends on the token ids or does not fit the scores", "masks made from positions")
    return [MaskStep("where" if mask.dtype == np.bool_ else "add", node.inputs[index])]


def _attention(reader, node: ir.Node, arguments: list):
    q, k, v, mask, *past = [*arguments, *[None] * 6][:6]
    attributes = node.attributes
    if not all(isinstance(x, Form) for x in (q, k, v)) or not all_empty(past):
        raise reader.unknown(node, arguments)
    if len(node.outputs) > 3 and node.outputs[3].uses():
        raise reader.writer.refuse("its scores are used", "attention whose output is used")
    flat = len(q.shape) == 3
    if flat:
        heads, kv_heads = attributes.get_int("q_num_heads", 0), attributes.get_int("kv_num_heads", 0)
        if min(heads, kv_heads) < 1 or q.shape[2] % heads or k.shape[2] % kv_heads or v.shape[2] % kv_heads:
            raise reader.writer.refuse(f"q_num_heads {heads}, kv_num_heads {kv_heads}", "numbers that divide the widths")
        q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    for cache, x in zip(node.inputs[4:6], (k, v)):
        reader.note_cache(cache, (1, x.shape[1], 0, x.shape[3]))
    steps = mask_steps(reader, node, 3, mask, q.shape[1])
    if attributes.get_int("is_causal", 0):
        steps.append(MaskStep("causal", None))
    scale, softcap = attributes.get_float("scale", 0.0), attributes.get_float("softcap", 0.0)
    result = attend(reader, node, q, k, v, scale=scale or None, softcap=softcap, steps=steps)
    return [merged_heads(result) if flat else result, *[None] * (len(node.outputs) - 1)]


OPERATORS = {"Attention": _attention, "RotaryEmbedding": _rotary_embedding}
