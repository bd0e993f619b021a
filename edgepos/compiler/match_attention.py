"""Parts of pass 1: an Attention node of a canonical graph, its cache and its mask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from .match_positions import WINDOW, alibi_slopes_of, window_of
from .match_tables import BIAS, bias_of
from .nodes import attributes, describe, input_count, refuse


@dataclass(frozen=True)
class Heads:
    """Attributes of an Attention. both: tokens see those behind them, too. cached: it continues a cache. scale: None for 1/√k_dim."""

    heads: int
    kv_heads: int
    scale: float | None
    softcap: float
    both: bool
    cached: bool

    def dims(self, node: ir.Node, q: int, k: int, v: int) -> tuple[int, int]:
        """(k_dim, v_dim) of the widths of q, k and v."""
        k_dim, v_dim = k // self.kv_heads, v // self.kv_heads
        if k % self.kv_heads or v % self.kv_heads or q != self.heads * k_dim:
            raise refuse(node, f"widths q {q}, k {k}, v {v} for {self.heads} and {self.kv_heads} heads", "whole heads of one size")
        if not 2 <= k_dim <= 512 or not 1 <= v_dim <= 512:
            raise refuse(node, f"head_dim {k_dim} for k, {v_dim} for v", "2 to 512 for k, 1 to 512 for v")
        return k_dim, v_dim


def heads_of(node: ir.Node) -> Heads:
    found = attributes(node, q_num_heads=int, kv_num_heads=int, scale=float, is_causal=(0, 1), softcap=float, qk_matmul_output_mode=0)
    both = found.get("is_causal", 0) == 0
    heads, kv_heads = found.get("q_num_heads", 0), found.get("kv_num_heads", 0)
    if not 1 <= kv_heads <= 1024 or not 1 <= heads <= 65535 or heads % kv_heads:
        raise refuse(node, f"q_num_heads {heads}, kv_num_heads {kv_heads}", "1 to 1024 KV heads and a multiple of them as query heads")
    if both and (len(node.inputs) > 4 or len(node.outputs) > 1):
        raise refuse(node, "is_causal = 0 (its default) with a cache", "is_causal 1, or 0 without past and present")
    cached = not both and (len(node.inputs) > 3 or len(node.outputs) > 1)
    input_count(node, *((6, 6) if cached else (3, 4) if both else (3, 3)))
    scale, softcap = found.get("scale", 0.0), found.get("softcap", 0.0)
    if not 0 <= scale < float("inf"):
        raise refuse(node, f"scale {scale}", "a finite number above 0")
    if softcap != 0 and not 1e-3 <= softcap <= 1e6:
        raise refuse(node, f"softcap = {softcap}", "0, or a number from 0.001 to 1e6")
    return Heads(heads, kv_heads, scale or None, softcap, both, cached)


def caches_of(node: ir.Node, layer: int, inputs: Mapping[str, ir.Value]) -> list[ir.Value]:
    """The outputs of a causal Attention that are its cache, behind checks of the inputs that they continue."""
    if len(node.outputs) != 3:
        raise refuse(node, f"{len(node.outputs)} outputs", "3: y, present_key, present_value")
    for index, what in ((4, "past_key"), (5, "past_value")):
        if node.inputs[index] is None or node.inputs[index] is not inputs.get(f"{what}.{layer}"):
            raise refuse(node, f"input {index} is {describe(node.inputs[index])}", f"the graph input {what}.{layer}")
    for value, what in zip(node.outputs[1:], ("present_key", "present_value")):
        if value.name != f"{what}.{layer}":
            raise refuse(node, f"output '{value.name}'", f"{what}.{layer}")
        if value.uses():
            raise refuse(node, f"its output '{value.name}' is read by another node", "present outputs that only leave the graph")
    return list(node.outputs[1:])


def mask_of(node: ir.Node, heads: Heads, rotated: Collection[str], inputs: Mapping[str, ir.Value]) -> tuple[dict[str, Any], Collection[ir.Node]]:
    """(what input 3 adds to the scores, as fields of Attend; the nodes that make it). rotated: names of the rotary outputs."""
    mask = node.inputs[3] if len(node.inputs) > 3 else None
    kinds = mask.producer().metadata_props if mask is not None and mask.producer() is not None else {}
    if heads.both and mask is not None and BIAS not in kinds:
        raise refuse(node, f"mask {describe(mask)} of attention in both directions", "a learned relative bias, or none")
    if mask is None:
        return {}, ()
    if WINDOW in kinds:
        window, parts = window_of(mask, inputs)
        return {"window": window}, parts
    if BIAS in kinds:
        if node.inputs[0].name in rotated:
            raise refuse(node, "rotary positions and a relative bias", "one position encoding per layer")
        bias, relative, parts = bias_of(node, mask, heads.heads, inputs, heads.both)
        return {"bias": bias, "relative": relative}, parts
    if rotated:
        raise refuse(node, "rotary positions and an ALiBi mask", "one position encoding")
    slopes, parts = alibi_slopes_of(node, mask, heads.heads, inputs)
    return {"slopes": slopes}, parts
