"""The tables of a RoPE spec: one row per position in int16 and int8, and the phase method."""

from __future__ import annotations

import numpy as np

from ..fixedpoint import quarter_table
from .plan import PhasePlan, RotationPlan, TablePlan
from .rope import Rope, Rotation
from .table_file import CFunction, TableFile

SAMPLES = 4096


def rope_tables(spec: Rotation, context: int, bits: tuple[int, ...]) -> list[tuple[RotationPlan, TableFile]]:
    """The plans and files for positions 0 … context − 1; none when nothing is rotated, no phases where there are no frequencies."""
    if not spec.pairs:
        return []
    plans = [TablePlan(spec, context, b) for b in bits]
    if not spec.linear:
        return [(plan, _row_file(plan)) for plan in plans]
    phase = PhasePlan(spec, context)
    return [(plan, _row_file(plan)) for plan in plans] + [(phase, _phase_file(phase))]


def measured_error(plan: RotationPlan) -> float:
    """Largest error found, in units of 1/full_scale, against the reference (good to 10^−11 units).

    Every position of a table; for the phase method the first ones, powers of two and their neighbours, and an even
    scatter up to the context.
    """
    last = plan.context - 1
    if isinstance(plan, TablePlan):
        positions = np.arange(plan.context)
    else:
        powers = [p for k in range(32) for p in (2**k - 1, 2**k) if p <= last]
        scatter = (np.arange(SAMPLES, dtype=np.int64) * 2654435761) % plan.context
        positions = np.unique(np.concatenate([np.arange(min(SAMPLES, plan.context)), powers, scatter, [last]]).astype(np.int64))
    worst = 0.0
    for start in range(0, len(positions), SAMPLES):
        chunk = positions[start : start + SAMPLES]
        chunk = plan.spec.diagonal(chunk)
        for integers, exact in zip(plan.cos_sin(chunk), plan.spec.cos_sin(chunk, plan.seq_len)):
            worst = max(worst, float(np.abs(integers - plan.full_scale * exact).max()))
    return worst


def _about(spec: Rotation) -> list[str]:
    """What a header says of the rotation."""
    lines = [f"{spec.encoding}: head_dim {spec.head_dim}, rotary_dim {spec.rotary_dim}, layout {spec.layout}."]
    if isinstance(spec, Rope):
        scaling = "none" if spec.scaling is None else ", ".join(f"{k} {_short(v)}" for k, v in spec.scaling.to_json().items())
        lines.append(f"theta {spec.theta!r}, scaling {scaling}.")
    if spec.axes is not None:
        lines.append("A position has coordinates: pair j turns with coordinate axis[j].")
    if spec.attention_factor != 1:
        lines.append(f"cos and sin are without the attention factor {spec.attention_factor!r}: AMP_M holds it, for other code multiply by it.")
    return lines


def _float32_line(plan: RotationPlan) -> list[str]:
    """How far the integers are from what float32 code computes."""
    distance = plan.float32_distance
    if distance is None:
        return []
    where = f"largest at position {distance.position}, pair {distance.pair}, found over every entry"
    how = where if distance.proof == "every entry" else "by formula"
    return [f"From the float32 computation of transformers, which drifts: at most {distance.bound:.4f} units ({how})."]


def _short(value) -> str:
    return f"[{len(value)} numbers]" if isinstance(value, list) else str(value)


def _partners(spec: Rotation, pairs: str) -> tuple[str, str]:
    """The two components of pair j in C."""
    return ("x[j]", f"x[j + {pairs}]") if spec.layout == "half" else ("x[2 * j]", "x[2 * j + 1]")


def _macros(plan: RotationPlan) -> dict[str, int | float]:
    amp_m, amp_shift = plan.amplitude()
    return {
        "CONTEXT": plan.context,
        "PAIRS": plan.spec.pairs,
        "FULL_SCALE": plan.full_scale,
        "SCALE": plan.scale,
        "BOUND": plan.bound,
        **({"FLOAT32_BOUND": plan.float32_distance.bound} if plan.float32_distance else {}),
        "ATTENTION_FACTOR": plan.spec.attention_factor,
        "AMP_M": amp_m,
        "AMP_SHIFT": amp_shift,
    }


def _row_file(plan: TablePlan) -> TableFile:
    stem = f"rope_int{plan.bits}"
    upper = f"EDGEPOS_{stem.upper()}"
    a, b = _partners(plan.spec, f"{upper}_PAIRS")
    row = "position" if plan.spec.axes is None else f"position[edgepos_{stem}_axis[j]]"
    cell = f"edgepos_{stem}_%s[{row}][j]"
    about = (
        f"cos and sin of RoPE as int{plan.bits}, one row per position. Written by EdgePos.",
        *_about(plan.spec),
        f"value = entry * {upper}_SCALE. Error at most {upper}_BOUND unit (1/{plan.full_scale}) against exact cos and sin, proven:",
        f"found over every entry, largest at position {plan.worst.position}, pair {plan.worst.pair} of {plan.worst.function}.",
        *_float32_line(plan),
        f"Use, layout {plan.spec.layout}, for pair j < {upper}_PAIRS, then * {upper}_AMP_M >> {upper}_AMP_SHIFT (64 bits), saturated:",
        f"  ya = {a} * {cell % 'cos'} - {b} * {cell % 'sin'};",
        f"  yb = {a} * {cell % 'sin'} + {b} * {cell % 'cos'};",
    )
    shape = ("CONTEXT", "PAIRS")
    indices = {"cos": "[position][pair]", "sin": "[position][pair]"}
    description = {"kind": "rope", **plan.certificate(), "scale": plan.scale, "arrays": indices}
    arrays = {"cos": plan.cos, "sin": plan.sin} | _axis_array(plan.spec)
    return TableFile(stem, about, _macros(plan), arrays, {"cos": shape, "sin": shape, "axis": ("PAIRS",)}, description)


def _axis_array(spec: Rotation) -> dict[str, np.ndarray]:
    """The coordinate of each pair as an array, where positions have several."""
    return {} if spec.axes is None else {"axis": np.array(spec.axes, dtype=np.uint8)}


_PHASE_BODY = """\
  uint32_t p = (uint32_t)((position * edgepos_rope_phase_increments[pair] + ((uint64_t)1 << 35)) >> 36);
  int32_t value[2];
  int k;
  for (k = 0; k < 2; k++, p += 0x4000000u) { /* sin(p), then cos(p) = sin(p + a quarter turn) */
    uint32_t j = (p & 0x4000000u) ? 0x4000000u - (p & 0x3ffffffu) : (p & 0x3ffffffu);
    uint32_t i = j >> 18, next = i < 256 ? i + 1 : i;
    int64_t q = edgepos_rope_phase_quarter[i], step = edgepos_rope_phase_quarter[next] - q;
    int32_t s = (int32_t)((q * 0x40000 + step * (int64_t)(j & 0x3ffffu) + ((int64_t)1 << 32)) >> 33);
    value[k] = (p & 0x8000000u) ? -s : s;
  }
  *sine = value[0];
  *cosine = value[1];
"""


def _phase_file(plan: PhasePlan) -> TableFile:
    row = "position" if plan.spec.axes is None else "position[edgepos_rope_phase_axis[j]]"
    a, b = _partners(plan.spec, "EDGEPOS_ROPE_PHASE_PAIRS")
    about = (
        "cos and sin of RoPE at any position below 2^31 from 64-bit phases. Written by EdgePos.",
        *_about(plan.spec),
        "increments: turns * 2^64 per position; position * increment mod 2^64 is the phase, exactly reduced.",
        "quarter: 32767 * 2^15 * (1 + h^2/16) * sin(j*h), h = pi/512, the same for every model.",
        f"value = integer * EDGEPOS_ROPE_PHASE_SCALE. Error at most EDGEPOS_ROPE_PHASE_BOUND units (1/{plan.full_scale}) against exact",
        "cos and sin for positions below EDGEPOS_ROPE_PHASE_CONTEXT, proven.",
        *_float32_line(plan),
        f"Use: int32_t c, s; edgepos_rope_phase_sincos({row}, j, &c, &s); then * EDGEPOS_ROPE_PHASE_AMP_M >> EDGEPOS_ROPE_PHASE_AMP_SHIFT:",
        f"  ya = {a} * c - {b} * s; yb = {a} * s + {b} * c;",
    )
    function = CFunction(
        "cos and sin of a pair at a position, scaled by 32767; pair < EDGEPOS_ROPE_PHASE_PAIRS.",
        "void edgepos_rope_phase_sincos(uint32_t position, uint32_t pair, int32_t *cosine, int32_t *sine)",
        _PHASE_BODY,
    )
    return TableFile(
        "rope_phase",
        about,
        _macros(plan) | {"QUARTER_ENTRIES": 257},
        {"increments": plan.increments, "quarter": quarter_table().astype(np.int32)} | _axis_array(plan.spec),
        {"increments": ("PAIRS",), "quarter": ("QUARTER_ENTRIES",), "axis": ("PAIRS",)},
        {"kind": "rope", **plan.certificate(), "scale": plan.scale, "arrays": {"increments": "[pair]", "quarter": "[257]"}},
        (function,),
    )
