"""Every method of any encoding with its bytes, proven bound and operations: what `edgepos positions pareto` prints and `show` draws."""

from __future__ import annotations

from ..errors import UnsupportedError
from .alibi import Alibi
from .alibi_plan import BiasTablePlan, SlopePlan
from .bias_plan import LearnedBiasPlan
from .choose import pareto
from .emit import parts_of
from .learned import Learned, LearnedPlan
from .none import NoPosition
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D, SinusoidalPlan
from .spec import Spec, check_context


def method_rows(spec: Spec | dict[str, Spec], context: int, weights=None) -> list[dict]:
    """One row per part and method: part ("" for a plain spec), method, bits, bytes, bound, unit, operations, best.

    operations: integer operations per token (rotary, absolute) or per key and head (biases), counted from the formula. best: no other
    method of the part is at least as good in bytes, bound and operations. Raises UnsupportedError for what has no methods.
    """
    check_context(context)
    parts = parts_of(spec)
    given = {"": weights} if parts is None else weights or {}
    rows = []
    for name, part in ({"": spec} if parts is None else parts).items():
        found = _rows(part, context, given.get(name))
        axes = ("bytes", "bound", "operations")
        for row in found:
            better = (o for o in found if all(o[a] <= row[a] for a in axes) and any(o[a] < row[a] for a in axes))
            rows.append({"part": name} | row | {"best": next(better, None) is None})
    if not rows:
        raise UnsupportedError("this encoding has no methods: nothing is rotated, added or biased")
    return rows


def _rows(spec: Spec, context: int, weights) -> list[dict]:
    if isinstance(spec, NoPosition):
        return []
    if isinstance(spec, Rotation):
        kept = ("method", "bits", "bytes", "bound", "operations")
        return [{key: row[key] for key in kept} | {"unit": "1/32767"} for row in pareto(spec, context)]
    if isinstance(spec, Alibi):
        tables = [BiasTablePlan(spec, context, bits) for bits in (16, 8)]
        return [_row(SlopePlan(spec), "log2", 4, 1.0), *(_row(plan, "log2", 2, plan.scale) for plan in tables)]
    if isinstance(spec, (Sinusoidal, Sinusoidal2D)):
        part = spec.part if isinstance(spec, Sinusoidal2D) else spec
        plans = [SinusoidalPlan(part, context, 16), SinusoidalPlan(part, context, 8), SinusoidalPlan(part, context, 16, "phase")]
        return [_row(plan, "value", spec.dim * 2 + (plan.inner.operations - 3) * spec.dim // 2, plan.scale) for plan in plans]
    if isinstance(spec, Learned) and weights is not None:
        plans = [LearnedPlan(spec, weights, bits, per) for bits in (16, 8) for per in ("row", "tensor")]
        return [_row(plan, "value", 3 * plan.table.shape[1], 1.0) | {"method": f"table per {plan.per}"} for plan in plans]
    if isinstance(spec, (T5Bias, RelativeBias)) and weights is not None:
        return [_row(LearnedBiasPlan(spec, weights), "log2", 2, 1.0)]
    raise UnsupportedError(f"{spec.encoding}: methods are known for rotary, ALiBi and sinusoidal specs, and for learned ones with their table")


def _row(plan, unit: str, operations: int, scale: float) -> dict:
    return {"method": plan.method, "bits": plan.bits, "bytes": plan.bytes, "bound": plan.bound * scale, "unit": unit, "operations": operations}
