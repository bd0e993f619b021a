"""Operators of com.microsoft, which ONNX Runtime's own tools write, in terms of the standard ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from . import blocks, norms
from .activations import gelu, gelu_tanh, sigmoid
from .algebra import as_function
from .compound import all_empty, attend, mask_steps, merged_heads, rotate, rotation_tables, split_heads, turned
from .looks import module_of
from .values import Form, Function, MaskStep


def _skip_norm(center: bool):
    def read(reader, node: ir.Node, arguments: list):
        """norm(x + skip + bias); the sum is the fourth output."""
        x, skip, gamma, *rest = arguments
        beta, bias = ([*rest, None, None] if center else [None, *rest, None])[:2]
        if not all(isinstance(a, (Form, Function)) for a in (x, skip)) or not (bias is None or isinstance(bias, np.ndarray)):
            raise reader.unknown(node, arguments)
        if bias is not None:
            x = reader.writer.settle(reader.writer.as_form(x).plus(bias))
        total = reader.writer.made(reader.writer.add(x, skip, f"{module_of(node)}.sum"), x.shape)
        return [norms.norm_of(reader, node, total, gamma, beta, center=center), None, None, total][: len(node.outputs)]

    return read


def _activation(function):
    def read(reader, node: ir.Node, arguments: list):
        x, bias = [*arguments, None][:2]
        if not isinstance(x, (Form, Function)) or not (bias is None or isinstance(bias, np.ndarray)):
            raise reader.unknown(node, arguments)
        if bias is not None:
            x = reader.writer.settle(reader.writer.as_form(x).plus(bias))
        f = as_function(reader, x)
        return replace(f, samples=function(f.samples, node))

    return read


def _rotary_embedding(reader, node: ir.Node, arguments: list):
    x, positions, cos, sin = arguments[:4]
    if isinstance(positions, np.ndarray) and positions.size == 1:
        positions = positions.item() + np.arange(reader.length)  # the first of them
    if node.attributes.get_float("scale", 1.0) != 1.0:
        raise reader.writer.refuse(f"scale {node.attributes.get_float('scale', 1.0)}", "scale 1")
    return rotate(reader, node, x, cos, sin, positions, (2, 3))


def _group_query_attention(reader, node: ir.Node, arguments: list):
    q, k, v, *past = [*arguments, *[None] * 5][:5]
    cos, sin = [*arguments, *[None] * 9][7:9]
    attributes = node.attributes
    heads, kv_heads = attributes.get_int("num_heads", 0), attributes.get_int("kv_num_heads", 0)
    if min(heads, kv_heads) < 1 or not isinstance(q, Form) or not all_empty(past):
        raise reader.unknown(node, arguments)
    if k is None and v is None:  # all three in one
        size = q.shape[2] // (heads + 2 * kv_heads)
        cuts = np.cumsum([0, heads, kv_heads, kv_heads]) * size
        q, k, v = (q.moved(lambda a, i=i: a[..., cuts[i] : cuts[i + 1]]) for i in range(3))
    if not isinstance(k, Form) or not isinstance(v, Form) or q.shape[2] % heads or k.shape[2] % kv_heads or v.shape[2] % kv_heads:
        raise reader.unknown(node, arguments)
    given = [*arguments, *[None] * 10][9]
    counted = given is None or (isinstance(given, np.ndarray) and np.array_equal(np.ravel(given), np.arange(reader.length)))
    if not counted or any(a is not None for a in arguments[10:]) or attributes.get_int("smooth_softmax", 0):
        raise reader.writer.refuse("positions that do not count from 0, a bias, a sink, or a smooth softmax", "do_rotary, local_window_size and softcap")
    q, k, v = split_heads(q, heads), split_heads(k, kv_heads), split_heads(v, kv_heads)
    window = attributes.get_int("local_window_size", -1)
    ring = max(0, window) if attributes.get_int("sliding_window_cache", 0) else 0  # places that such a cache always has
    for cache in node.inputs[3:5]:
        reader.note_cache(cache, (1, kv_heads, ring, k.shape[3]))
    if attributes.get_int("do_rotary", 0):
        if not isinstance(cos, np.ndarray) or not isinstance(sin, np.ndarray):
            raise reader.unknown(node, arguments)
        tables = rotation_tables(reader, node, cos, sin, np.arange(reader.length), (7, 8))
        interleaved = bool(attributes.get_int("rotary_interleaved", 0))
        q, k = (turned(reader, x, *tables, interleaved) for x in (q, k))
    steps = [MaskStep("causal", None)]
    if window > 0:
        steps.append(MaskStep("window", window))
    scale, softcap = attributes.get_float("scale", 0.0), attributes.get_float("softcap", 0.0)
    result = merged_heads(attend(reader, node, q, k, v, scale=scale or None, softcap=softcap, steps=steps))
    return [result, *[None] * (len(node.outputs) - 1)]


def _multi_head_attention(reader, node: ir.Node, arguments: list):
    q, k, v, bias, padding, scores_bias, *past = [*arguments, *[None] * 8][:8]
    heads = node.attributes.get_int("num_heads", 0)
    if heads < 1 or not all_empty(past) or padding is not None or not all(isinstance(x, Form) for x in (q, k, v)):
        raise reader.unknown(node, arguments)
    if bias is not None:
        parts = np.split(np.ravel(bias), np.cumsum([q.shape[-1], k.shape[-1]]))
        q, k, v = (reader.writer.settle(x.plus(b)) for x, b in zip((q, k, v), parts))
    steps = mask_steps(reader, node, 5, scores_bias, heads)
    if node.attributes.get_int("unidirectional", 0):
        steps.append(MaskStep("causal", None))
    q, k, v = (split_heads(x, heads) if len(x.shape) == 3 else x for x in (q, k, v))
    scale = node.attributes.get_float("scale", 0.0) or None
    result = merged_heads(attend(reader, node, q, k, v, scale=scale, softcap=0.0, steps=steps))
    return [result, *[None] * (len(node.outputs) - 1)]


OPERATORS = blocks.OPERATORS | {
    "BiasGelu": _activation(lambda x, node: gelu(x)),
    "FastGelu": _activation(lambda x, node: gelu_tanh(x)),
    "Gelu": _activation(lambda x, node: gelu(x)),
    "GroupQueryAttention": _group_query_attention,
    "MultiHeadAttention": _multi_head_attention,
    "QuickGelu": _activation(lambda x, node: x * sigmoid(node.attributes.get_float("alpha", 1.702) * x)),
    "RotaryEmbedding": _rotary_embedding,
    "SimplifiedLayerNormalization": norms.OPERATORS["SimplifiedLayerNormalization"],
    "SkipLayerNormalization": _skip_norm(center=True),
    "SkipSimplifiedLayerNormalization": _skip_norm(center=False),
}
