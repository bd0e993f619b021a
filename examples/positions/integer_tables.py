"""The tables of a decoder with integers in place of the exact numbers, by the plans of `edgepos.positions`.

This isolates what 16-bit or 8-bit positions cost: everything else stays in float32.
"""

from dataclasses import replace

import numpy as np
import torch
from decoder import Decoder, embedding_spec, layer_specs

from edgepos import positions


def substituted(model: Decoder, n: int, bits: int):
    """`Decoder.tables(n)` of 16-bit or 8-bit tables: rows to add, per layer cos and sin, per layer a bias.

    RoPE and sinusoids: correctly rounded to 1/32767 or 1/127 (times the scale). Learned rows: a scale per row. ALiBi: a bias table
    by distance in log2 units with 10 or 3 fractional bits. T5: a scale per head.
    """
    p = np.arange(n)
    added = None
    spec = embedding_spec(model.spec)
    if isinstance(spec, positions.Learned):
        plan = positions.LearnedPlan(spec, model.model.embed_positions.weight.detach().double().numpy(), bits)
        added = tensor(plan.values(spec.rows(p)))
    elif isinstance(spec, positions.Sinusoidal):
        plan = positions.SinusoidalPlan(spec, n, bits)
        added = tensor(plan.table(p) * plan.scale)
    layers = layer_specs(model.spec, model.size.layers)
    return added, [rotation(layer, n, bits) for layer in layers], [bias(model, i, layer, n, bits) for i, layer in enumerate(layers)]


def rotation(spec: positions.Spec, n: int, bits: int):
    """(cos, sin) of a layer that rotates, else None."""
    if not isinstance(spec, positions.Rope):
        return None
    plan = positions.TablePlan(spec, n, bits)
    return tuple(tensor(t * plan.scale) for t in plan.cos_sin(np.arange(n)))


def bias(model: Decoder, i: int, spec: positions.Spec, n: int, bits: int):
    """The bias [heads, n, n] of layer i in natural units, None where it has none."""
    p = np.arange(n)
    if isinstance(spec, positions.Alibi):
        plan = positions.BiasTablePlan(spec, n, bits)
        return tensor(plan.bias_fixed(np.maximum(p[:, None] - p[None, :], 0)) * plan.scale * np.log(2))
    if isinstance(spec, positions.T5Bias):
        owner = model.model if spec.layers is None else model.model.layers[i]
        plan = positions.LearnedBiasPlan(replace(spec, layers=None), owner.relative_attention_bias.weight.detach().double().numpy(), bits)
        return tensor(np.moveaxis((plan.table * plan.scale)[spec.index(p, p)], -1, 0) * np.log(2))
    return None


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
