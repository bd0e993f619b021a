"""The tables of an ALiBi spec: slopes for any distance, and bias tables over distance."""

from __future__ import annotations

import numpy as np

from .alibi import Alibi
from .alibi_plan import BIAS_BITS, BiasTablePlan, SlopePlan, exact_log2_slopes
from .table_file import CFunction, TableFile


def alibi_tables(spec: Alibi, context: int, bits: tuple[int, ...]) -> list[tuple[SlopePlan | BiasTablePlan, TableFile]]:
    """The plans and files for distances 0 … context − 1."""
    slopes = SlopePlan(spec)
    tables = [BiasTablePlan(spec, context, b) for b in bits]
    return [(slopes, _slope_file(slopes))] + [(plan, _bias_file(plan)) for plan in tables]


def measured_error(plan: SlopePlan | BiasTablePlan, context: int) -> float:
    """Largest error found over every distance up to `context` whose weight is not 0; log2 units for slopes, units of the
    table for a table."""
    exact = np.array([float(s) for s in exact_log2_slopes(plan.spec)])
    worst = 0.0
    for start in range(0, context, 4096):
        d = np.arange(start, min(start + 4096, context))
        if isinstance(plan, SlopePlan):
            error = np.abs(plan.bias_fixed(d) * 2.0**-BIAS_BITS - exact[:, None] * d)
            matters = d[None, :] < plan.zero_distance()[:, None]
        else:
            entries = plan.bias_fixed(d)
            error = np.abs(entries + exact[:, None] * d / plan.scale)
            matters = entries != plan.saturated
        worst = max(worst, float(np.where(matters, error, 0).max()))
    return worst


def _about(spec: Alibi) -> str:
    rule = f"bias_max {spec.bias_max}" if spec.user_slopes is None else "slopes given by the user"
    return f"ALiBi: {spec.heads} heads, {rule}, distance = {'|query - key|' if spec.symmetric else 'query - key'}."


_BIAS_BODY = """\
  uint64_t product = (uint64_t)edgepos_alibi_slopes_slopes[head] * distance;
  uint64_t half = product >> {by}, bias = (half >> 1) + (half & 1); /* rounded half up */
  return (int32_t)(bias < 0x40000000u ? bias : 0x40000000u);
"""


def _slope_file(plan: SlopePlan) -> TableFile:
    about = (
        "ALiBi slopes for integer scores in log2 units. Written by EdgePos.",
        _about(plan.spec),
        f"slopes[head] = slope * log2(e) * 2^{plan.fraction_bits}, uint32. Subtract from a score with 16 fractional bits:",
        "slope * distance >> EDGEPOS_ALIBI_SLOPES_SHIFT, rounded half up, at most 2^30.",
        "Error at most EDGEPOS_ALIBI_SLOPES_BOUND in log2 units, EDGEPOS_ALIBI_SLOPES_BOUND_WEIGHT relative in a weight, proven,",
        "up to the distance zero_distance[head] at which the bias alone passes 40: from there on the weight is 0.",
        "Use: score -= edgepos_alibi_slopes_bias(head, distance);",
    )
    function = CFunction(
        "Bias in log2 units with 16 fractional bits; head < EDGEPOS_ALIBI_SLOPES_HEADS, distance < 2^31.",
        "int32_t edgepos_alibi_slopes_bias(uint32_t head, uint32_t distance)",
        _BIAS_BODY.format(by=plan.shift - 1),
    )
    macros = {"HEADS": plan.spec.heads, "SHIFT": plan.shift, "BOUND": plan.bound, "BOUND_WEIGHT": plan.bound_weight}
    arrays = {"slopes": plan.slopes, "zero_distance": plan.zero_distance().astype(np.uint32)}
    return TableFile(
        "alibi_slopes",
        about,
        macros,
        arrays,
        {"slopes": ("HEADS",), "zero_distance": ("HEADS",)},
        {"kind": "alibi", **plan.certificate(), "arrays": {"slopes": "[head]", "zero_distance": "[head]"}},
        (function,),
    )


def _bias_file(plan: BiasTablePlan) -> TableFile:
    stem = f"alibi_int{plan.bits}"
    upper = f"EDGEPOS_{stem.upper()}"
    power = round(-plan.saturated * plan.scale)
    arrays = {"bias": plan.table, "zero_distance": plan.zero_distance().astype(np.uint32)}
    about = (
        f"ALiBi bias over distance as int{plan.bits}, in log2 units. Written by EdgePos.",
        _about(plan.spec),
        f"bias = entry / 2^{plan.fraction_bits}; error at most {upper}_BOUND unit, {upper}_BOUND_LOG2 in log2 units,",
        f"{upper}_BOUND_WEIGHT relative in a weight, proven.",
        f"The entry {upper}_SATURATED means weight 0, from the distance zero_distance[head] on ({upper}_CONTEXT: nowhere): leave such",
        "keys out. A runtime that adds it as a number gives each of",
        f"them 2^-{power} of the weight of a key at distance 0; in this context they add up to {upper}_LEAK at worst.",
        *(["At long context that passes the signal itself: prefer the slopes or int16."] if plan.bits == 8 else []),
        f"Use: score += edgepos_{stem}_bias[head][distance], distance < {upper}_CONTEXT.",
    )
    macros = {
        "HEADS": plan.spec.heads,
        "CONTEXT": plan.context,
        "FRACTION_BITS": plan.fraction_bits,
        "SCALE": plan.scale,
        "SATURATED": plan.saturated,
        "BOUND": plan.bound,
        "BOUND_LOG2": plan.error,
        "BOUND_WEIGHT": plan.bound_weight,
        "LEAK": plan.leak(),
    }
    return TableFile(
        stem,
        about,
        macros,
        arrays,
        {"bias": ("HEADS", "CONTEXT"), "zero_distance": ("HEADS",)},
        {
            "kind": "alibi",
            **plan.certificate(),
            "context": plan.context,
            "scale": plan.scale,
            "arrays": {"bias": "[head][distance]", "zero_distance": "[head]"},
        },
    )
