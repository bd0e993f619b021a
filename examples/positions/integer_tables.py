"""The tables of a decoder with integers in place of the exact numbers, by the plans of `edgepos.positions`.

This isolates what 16-bit or 8-bit positions cost: everything else stays in float32.
"""

import numpy as np
import torch
from decoder import Decoder, embedding_spec, layer_specs

from edgepos import positions
from edgepos.positions.distances import distance_rows


def substituted(model: Decoder, n: int, bits: int):
    """`Decoder.tables(n)` of 16-bit or 8-bit tables: rows to add, cos and sin per layer, bias.

    RoPE and sinusoids: correctly rounded to 1/32767 or 1/127 (times the scale). Learned rows: a scale per row. ALiBi: a bias table
    by distance in log2 units with 10 or 3 fractional bits. T5: a table by distance with a scale per head.
    """
    p = np.arange(n)
    added, bias = None, None
    spec = embedding_spec(model.spec)
    if isinstance(spec, positions.Learned):
        plan = positions.LearnedPlan(spec, model.model.embed_positions.weight.detach().double().numpy(), bits)
        added = tensor(plan.values(spec.rows(p)))
    elif isinstance(spec, positions.Sinusoidal):
        plan = positions.SinusoidalPlan(spec, n, bits)
        added = tensor(plan.table(p) * plan.scale)
    layers = layer_specs(model.spec, model.size.layers)
    turns = [rotation(layer, n, bits) for layer in layers]
    kind = layers[0]
    away = np.maximum(p[:, None] - p[None, :], 0)
    if isinstance(kind, positions.Alibi):
        plan = positions.BiasTablePlan(kind, n, bits)
        bias = tensor(plan.bias_fixed(away) * plan.scale * np.log(2))
    elif isinstance(kind, positions.T5Bias):
        values = bias_by_head(model, kind, bits)
        bias = tensor(values[:, np.minimum(away, values.shape[1] - 1)])
    return added, turns, bias


def rotation(spec: positions.Spec, n: int, bits: int):
    """(cos, sin) of a layer that rotates, else None."""
    if not isinstance(spec, positions.Rope):
        return None
    plan = positions.TablePlan(spec, n, bits)
    return tuple(tensor(t * plan.scale) for t in plan.cos_sin(np.arange(n)))


def bias_by_head(model: Decoder, spec: positions.T5Bias, bits: int) -> np.ndarray:
    """The bias [heads, distances] after rounding to `bits` with a scale per head."""
    table = model.model.relative_attention_bias.weight.detach().double().numpy()
    by_head = table[distance_rows(spec)].T
    plan = positions.LearnedPlan(positions.Learned(len(by_head)), by_head, bits)
    return plan.values(np.arange(len(by_head)))


def tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float32))
