"""Operators of com.microsoft, which ONNX Runtime's own tools write, in terms of the standard ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from . import blocks, moves, norms
from .activations import gelu, gelu_tanh, sigmoid
from .algebra import as_function
from .compound import all_empty, attend, mask_steps, merged_heads, rotate, rotation_tables, split_heads, turned
from .linears import linear
from .looks import module_of
from .positions import place
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
        norms.refuse_statistics(reader, node)
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
    return _attended(reader, node, [split_heads(x, heads) if len(x.shape) == 3 else x for x in (q, k, v)], scores_bias)


def _attended(reader, node: ir.Node, qkv: list[Form], scores_bias) -> list:
    """The outputs of an attention of q, k and v [1, heads, S, n] with a bias as input 5."""
    steps = mask_steps(reader, node, 5, scores_bias, qkv[0].shape[1])
    if node.attributes.get_int("unidirectional", 0):
        steps.append(MaskStep("causal", None))
    scale = node.attributes.get_float("scale", 0.0) or None
    result = merged_heads(attend(reader, node, *qkv, scale=scale, softcap=0.0, steps=steps))
    return [result, *[None] * (len(node.outputs) - 1)]


def _attention(reader, node: ir.Node, arguments: list):
    """Attention over one matrix for q, k and v [in, out]."""
    x, weights, bias, mask, past, scores_bias = [*arguments, *[None] * 6][:6]
    heads, writer = node.attributes.get_int("num_heads", 0), reader.writer
    constants = isinstance(weights, np.ndarray) and weights.ndim == 2 and (bias is None or isinstance(bias, np.ndarray))
    if not isinstance(x, (Form, Function)) or not constants or heads < 1 or not all_empty([past]) or node.attributes.get_int("do_rotary", 0):
        raise reader.unknown(node, arguments)
    if mask is not None and not (isinstance(mask, np.ndarray) and mask.ndim <= 2 and (np.ravel(mask) == (reader.length if mask.size == 1 else 1)).all()):
        raise writer.refuse("a mask of padding that is not all ones", "texts without padding")
    sizes = list(node.attributes.get_ints("qkv_hidden_sizes", [])) or [weights.shape[1] // 3] * 3
    if len(sizes) != 3 or sum(sizes) != weights.shape[1] or any(n < 1 or n % heads for n in sizes):
        raise writer.refuse(f"q, k and v of {sizes} for {heads} heads in {weights.shape[1]} columns", "sizes that add up, of whole heads")
    rows = linear(reader, node, x, weights.T, node.inputs[1], bias)
    cuts = np.cumsum([0, *sizes])
    return _attended(reader, node, [split_heads(rows.moved(lambda a, i=i: a[..., cuts[i] : cuts[i + 1]]), heads) for i in range(3)], scores_bias)


def _embed_layer_norm(reader, node: ir.Node, arguments: list):
    """norm(rows of tokens + rows of positions + row of the type). Its count of real tokens is None: all of them are."""
    ids, kinds, words, positions, types, gamma, beta, mask, order = [*arguments, *[None] * 9][:9]
    s, writer = reader.length, reader.writer
    tables = all(isinstance(a, np.ndarray) and a.ndim == 2 for a in (words, positions))
    if not tables or not all(a is None or isinstance(a, np.ndarray) for a in (kinds, types, mask, order)) or positions.shape[1] != words.shape[1]:
        raise reader.unknown(node, arguments)
    if mask is not None and not np.all(mask == 1) or order is not None and not np.array_equal(np.ravel(order), np.arange(s)):
        raise writer.refuse("a mask of padding or positions that do not count from 0", "texts without padding")
    row = np.zeros(words.shape[1])
    if types is not None:
        kind = np.zeros(1, np.int64) if kinds is None else np.unique(kinds)
        if kind.size != 1:
            raise writer.refuse("several types of tokens in a text", "one type")
        row = np.asarray(types[int(kind[0])], np.float64)
    x = moves.embed(reader, node, words, ids, at=2)
    writer.limit(len(positions))
    total = writer.made(place(writer, writer.value(x), positions.astype(np.float64) + row), x.shape)
    y = norms.norm_of(reader, node, total, gamma, beta, center=True, usual=1e-12)
    return [y, None, total][: len(node.outputs)]


OPERATORS = blocks.OPERATORS | {
    "Attention": _attention,
    "BiasGelu": _activation(lambda x, node: gelu(x)),
    "EmbedLayerNormalization": _embed_layer_norm,
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
