"""Attention: scores between two products, whatever is done to them in between, back to q, k, v, mask and scale."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from . import masks
from .activations import identify_softcap, slope_of
from .rope_tables import rope_spec
from .rotation import EXACT, unrotate
from .sources import Heads
from .values import GRID, Form, Scores, Source, concatenated, pure


def product(reader, node: ir.Node, a, b) -> Form | Scores:
    """A product of two tensors that both depend on the ids: q·k, or probabilities · v."""
    s = reader.length
    a, b = (reader.writer.as_form(x) for x in (a, b))
    if min(len(a.shape), len(b.shape)) < 2 or not isinstance(b, Form):
        raise reader.unknown(node, [a, b])
    try:
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise reader.unknown(node, [a, b]) from None
    if isinstance(a, Scores):
        if not a.probabilities or lead != a.lead or b.shape[-2] != s:
            raise reader.unknown(node, [a, b])
        return attended(reader, node, a, _heads(b, lead))
    if a.shape[-2] != s or b.shape[-1] != s or a.shape[-1] != b.shape[-2]:
        raise reader.unknown(node, [a, b])
    return Scores(_heads(a, lead), _heads(b.moved(lambda x: x.swapaxes(-1, -2)), lead), tuple(lead), GRID.copy())


def attended(reader, node: ir.Node, scores: Scores, v: Form) -> Form:
    """What heads of v [heads, S, n] become, [*lead, S, n]."""
    s, (heads, _, n) = reader.length, v.shape
    source = reader.sources.new(Heads(scores, v, node), heads * n)
    by_head = reader.sources.form(source, (s, heads, n)).codes[0].swapaxes(0, 1)
    return pure(by_head.reshape(*scores.lead, s, n))


def _heads(x: Form, lead: tuple[int, ...]) -> Form:
    """[*, S, n] as [heads, S, n]."""
    return x.moved(lambda array: np.broadcast_to(array, (*lead, *x.shape[-2:])).reshape(-1, *x.shape[-2:]))


def softmax(reader, node: ir.Node, arguments: list) -> Scores:
    x = arguments[0]
    if not isinstance(x, Scores) or x.probabilities or node.attributes.get_int("axis", -1) not in (-1, len(x.shape) - 1):
        raise reader.unknown(node, arguments)
    return replace(x, probabilities=True)


def write_attention(writer, used: list[Source], first: np.ndarray) -> ir.Value:
    """The canonical attention of all heads in `used`, whose outputs stand side by side as `first`, the codes of token 0, says."""
    wanted = np.concatenate([source.base + np.arange(source.width) for source in used])
    if not np.array_equal(first, wanted):
        raise writer.refuse("heads of an attention in another order than computed, or some of them", "all heads, in order")
    parts = [source.what for source in used]
    writer.at = parts[0].node
    q, k, v = (_stacked([pick(p) for p in parts]) for pick in (lambda p: p.scores.q, lambda p: p.scores.k, lambda p: p.v))
    heads, _, k_dim = q.shape
    v_dim = v.shape[2]
    if v_dim != k_dim:
        raise writer.refuse(f"heads of {k_dim} for q and k and {v_dim} for v", "heads of one size")
    samples = parts[0].scores.samples
    if any(not np.array_equal(p.scores.samples, samples) for p in parts):
        raise writer.refuse("heads with different scales", "one scale for all heads")
    scale, softcap = _scale(writer, samples)
    mask = masks.identify(writer, [(p.scores.q.shape[0], p.scores.steps) for p in parts])

    q_base, q_turn = unrotate(writer, q)
    k_base, k_turn = unrotate(writer, k)
    v_base, v_turn = unrotate(writer, v)
    if v_turn is not None or (q_turn is None) != (k_turn is None) or (q_turn is not None and not q_turn.same_as(k_turn)):
        raise writer.refuse("q, k and v that are turned differently by position", "one rotation of q and k, none of v")
    spec = None
    if q_turn is not None:
        spec, gain = rope_spec(writer, q_turn, k_dim)
        q_base, k_base = (_divided(x, spec.rotary_dim, gain) for x in (q_base, k_base))
    group = 1 if writer.encoder else _group(k_base, v_base)  # an encoder's keys are not shared: their rows are repeated
    if heads % group:
        raise writer.refuse(f"{heads} query heads that share keys in runs of {group}", "whole groups")
    q_base, factor = _without_factor(q_base)
    k_base, k_factor = _without_factor(k_base)
    v_base = v_base.moved(lambda x: x[::group])
    k_base = k_base.moved(lambda x: x[::group])

    layer, graph = writer.layers, writer.graph
    prefix = f"layers.{layer}.attn"
    scale = scale * factor * k_factor
    if abs(scale * math.sqrt(k_dim) - 1) <= 4 * writer.constants.rounding:
        scale = 1 / math.sqrt(k_dim)  # a 16-bit constant, or one on q and one on k, stands for it
    if writer.encoder:
        if softcap:
            raise writer.refuse("capped scores in an encoder", "plain attention of all tokens to all tokens, or causal")
        q_base = q_base.scaled(np.float64(scale * math.sqrt(k_dim)))  # the canonical scale is 1/sqrt(n)
        if abs(scale * math.sqrt(k_dim) - 1) < 1e-6:
            q_base = Form(q_base.codes, np.ones_like(q_base.coefs), q_base.const)
    values = [_value(writer, x, part) for x, part in zip((q_base, k_base, v_base), "qkv")]
    if spec is not None:
        values[0] = graph.rope(values[0], writer.name(f"{prefix}.q.rope"), heads=heads, spec=spec)
        values[1] = graph.rope(values[1], writer.name(f"{prefix}.k.rope"), heads=heads // group, spec=spec)
        if q_turn.exact > EXACT:
            writer.narrow |= {table.name: q_turn.exact / 2 for table in values[1].producer().inputs[1:3]}
    writer.layers += 1
    if writer.encoder:
        return graph.self_attention(*values, prefix, heads=heads, mask=mask.write(graph, heads), causal=not mask.both)
    return graph.attention(
        *values, layer, heads=heads, kv_heads=heads // group, head_dim=k_dim, mask=mask.write(graph, heads), window=mask.window,
        scale=scale, softcap=softcap,
    )  # fmt: skip


def _stacked(forms: list[Form]) -> Form:
    return forms[0] if len(forms) == 1 else concatenated(forms, -3)


def _scale(writer, samples: np.ndarray) -> tuple[float, float]:
    """(scale, softcap or 0) of scores."""
    slope = slope_of(samples)
    if slope is not None and slope > 0:
        return slope, 0.0
    cap = identify_softcap(samples)
    if cap is None:
        raise writer.refuse("scores that are neither scaled nor capped before the softmax", "one positive scale, then a softcap")
    return cap.scale, cap.cap


def _group(k: Form, v: Form) -> int:
    """How many query heads share each key head."""
    heads = len(k.codes[0])
    for group in range(heads, 0, -1):
        if heads % group == 0 and all(_repeats(x, group) for x in (k, v)):
            return group
    return 1


def _repeats(x: Form, group: int) -> bool:
    arrays = (x.codes[0], x.coefs[0]) + (() if x.const is None else (x.const,))
    return all(np.array_equal(a, np.repeat(a[::group], group, axis=0)) for a in arrays)


def _divided(x: Form, rotary_dim: int, factor: float) -> Form:
    """x with its rotated components, the first, divided by a factor that the rotation has instead."""
    if factor == 1:
        return x
    by = np.where(np.arange(x.shape[2]) < rotary_dim, 1 / factor, 1.0)
    coefs = x.coefs * by
    # float32 rounds the factor; what is left of 1 is no factor of the model.
    return Form(x.codes, np.where(np.abs(coefs - 1) < 1e-6, 1.0, coefs), None if x.const is None else x.const * by)


def _without_factor(x: Form) -> tuple[Form, float]:
    """The factor that is on all components, taken out."""
    factor = float(x.coefs.flat[0])
    if factor > 0 and (x.coefs == factor).all() and x.const is None:
        return Form(x.codes, np.ones_like(x.coefs)), factor
    return x, 1.0


def _value(writer, x: Form, part: str) -> ir.Value:
    """q, k or v [heads, S, n] as a canonical value [1, S, heads · n]."""
    flat = x.moved(lambda a: np.ascontiguousarray(a.swapaxes(0, 1)).reshape(1, writer.length, -1))
    writer.part = part
    value = writer.value(flat)
    writer.part = ""
    return value


OPERATORS = {"Softmax": softmax}
