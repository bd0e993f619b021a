"""Every method of any encoding: the plans that are compared, and their bytes, proven bounds and operations, which
`edgepos positions pareto` prints and `show` draws."""

from __future__ import annotations

import numpy as np

from ..errors import UnsupportedError
from .alibi import Alibi
from .alibi_plan import BiasTablePlan, SlopePlan
from .base import Plan
from .bias_plan import LearnedBiasPlan
from .hybrid import of_parts, parts_of
from .interpolated import ENTRIES, ORDERS, InterpolatedPlan
from .learned import Learned, LearnedPlan
from .none import EmptyPlan, NoPosition
from .piecewise import PiecewisePlan
from .plan import PhasePlan, RotationPlan, TablePlan
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D, SinusoidalPlan
from .spec import POSITION_LIMIT, Spec, check_context
from .split import SplitPlan

EXAMINED_BYTES = 2**26  # tables above this are not built for a comparison
NODE_SHIFTS = (2, 4, 6)
EMPTY_ROWS = 2**16  # of a table without columns
AXES = ("bytes", "bound", "operations")


def plans_of(spec: Spec, context: int | None = None, weights=None, most: int = EXAMINED_BYTES) -> list[Plan]:
    """Every plan of one encoding that is compared, in no order of merit; tables of positions only up to `most` bytes.

    context: positions; None means all that the encoding has. weights: the learned table, for what has one. Raises UnsupportedError for a
    hybrid and for a learned encoding without its table, ContextError past a learned table.
    """
    if isinstance(spec, NoPosition):
        return [EmptyPlan(spec)]
    if isinstance(spec, (Learned, T5Bias, RelativeBias)):
        if weights is None:
            raise UnsupportedError(f"{spec.encoding} plans need the model's learned table; give it as weights")
        return _of_table(spec, context, weights)
    if isinstance(spec, (Sinusoidal, Sinusoidal2D)):
        return _sinusoidal(spec, context, most)
    if isinstance(spec, Rotation):
        return _rotations(spec, check_context(spec.reach if context is None else context), most)
    if isinstance(spec, Alibi):
        context = check_context(POSITION_LIMIT if context is None else context)
        return [SlopePlan(spec), *(BiasTablePlan(spec, context, b) for b in (16, 8) if BiasTablePlan.size(spec, context, b) <= most)]
    raise UnsupportedError(f"spec is {getattr(spec, 'encoding', spec)!r}; plans are known for the encodings of positions.from_json")


def _rotations(spec: Rotation, context: int, most: int) -> list[RotationPlan]:
    """Phases and split tables only where angles are multiples of the position."""
    if not spec.pairs:
        return [PhasePlan(spec, context) if spec.linear else TablePlan(spec, min(context, EMPTY_ROWS))]
    plans: list[RotationPlan] = []
    if spec.linear:
        plans += [PhasePlan(spec, context)]
        plans += [InterpolatedPlan(spec, context, n, order) for n in ENTRIES for order in ORDERS if (n, order) != (256, 1)]
    kinds = [(TablePlan, (16, 8)), (SplitPlan, (16, 32) if spec.linear else ()), (PiecewisePlan, NODE_SHIFTS)]
    return plans + [kind(spec, context, n) for kind, numbers in kinds for n in numbers if kind.size(spec, context, n) <= most]


def _sinusoidal(spec: Sinusoidal | Sinusoidal2D, context: int | None, most: int) -> list[SinusoidalPlan]:
    part = spec.part if isinstance(spec, Sinusoidal2D) else spec
    context = POSITION_LIMIT - part.start if context is None else check_context(context)
    tables = [b for b in (16, 8) if TablePlan.size(part, context + part.start, b) <= most]
    return [SinusoidalPlan(spec, context, 16, "phase"), *(SinusoidalPlan(spec, context, bits) for bits in tables)]


def _of_table(spec: Learned | T5Bias | RelativeBias, context: int | None, weights) -> list[Plan]:
    if context is not None:
        check_context(context)
    if not isinstance(spec, Learned):
        return [LearnedBiasPlan(spec, weights)] + [LearnedBiasPlan(spec, weights, b, per) for b in (16, 8) for per in ("head", "tensor")]
    if context is not None:
        spec.check_length(context)
    return [LearnedPlan(spec, weights, bits, per) for bits in (16, 8) for per in ("row", "tensor")]


def method_rows(spec: Spec | dict[str, Spec], context: int, weights=None) -> list[dict]:
    """One row per part and method: part ("" for a plain spec), method, bits, bytes, bound, unit, operations, best.

    operations: integer operations per token (rotary, absolute) or per key and head (biases), counted from the formula. best: no other
    method of the part is at least as good in bytes, bound and operations. Raises UnsupportedError for what has no methods.
    """
    check_context(context)
    parts = parts_of(spec)
    given = {"": weights} if parts is None else of_parts("weights", weights, parts)
    rows = []
    for name, part in ({"": spec} if parts is None else parts).items():
        if not isinstance(part, NoPosition):
            rows += [{"part": name} | row for row in _ranked(plans_of(part, context, given.get(name)))]
    if not rows:
        raise UnsupportedError("this encoding has no methods: nothing is rotated, added or biased")
    return rows


def _ranked(plans: list[Plan]) -> list[dict]:
    """The rows of the plans, by bytes."""
    rows = [_row(plan) for plan in plans]
    for row in rows:
        row["best"] = not any(all(o[a] <= row[a] for a in AXES) and any(o[a] < row[a] for a in AXES) for o in rows)
    return sorted(rows, key=lambda row: (row["bytes"], row["bound"]))


def _row(plan: Plan) -> dict:
    method, bound, unit, operations = plan.method, plan.error, "log2", plan.operations
    if isinstance(plan, RotationPlan):  # so that 8 and 16 bits compare
        bound, unit, operations = plan.bound * 32767 / plan.full_scale, "1/32767", plan.operations * plan.spec.pairs
    elif isinstance(plan, SinusoidalPlan):
        bound, unit = plan.bound * plan.scale, "value"
    elif isinstance(plan, LearnedPlan):
        method, unit = f"table per {plan.per}", "value"
    elif isinstance(plan, LearnedBiasPlan) and plan.factors is not None:
        method = f"table per {plan.per}"
    return {"method": method, "bits": plan.bits, "bytes": plan.bytes, "bound": float(np.float64(bound)), "unit": unit, "operations": operations}
