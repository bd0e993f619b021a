"""Every method of any encoding: the plans that are compared, and their bytes, proven bounds and operations, which
`edgepos positions pareto` prints and `show` draws."""

from __future__ import annotations

import numpy as np

from ..errors import ContextError, UnsupportedError
from .alibi import Alibi
from .alibi_plan import BiasTablePlan, SlopePlan
from .angle_rope import AngleRope
from .base import Plan
from .bias_plan import LearnedBiasPlan
from .hybrid import parts_of
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
AXES = ("bytes", "bound", "operations")


def plans_of(spec: Spec, context: int | None = None, weights=None) -> list[Plan]:
    """Every plan of one encoding that is compared, in no order of merit; tables of positions only up to 2^26 bytes.

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
        return _sinusoidal(spec, context)
    reach = spec.context if isinstance(spec, AngleRope) else POSITION_LIMIT
    context = check_context(reach if context is None else context)
    if isinstance(spec, Rotation):
        return _rotations(spec, context, reach)
    if isinstance(spec, Alibi):
        tables = [BiasTablePlan(spec, context, bits) for bits in (16, 8) if spec.heads * context * bits // 8 <= EXAMINED_BYTES]
        return [SlopePlan(spec), *tables]
    raise UnsupportedError(f"spec is {getattr(spec, 'encoding', spec)!r}; plans are known for the encodings of positions.from_json")


def _rotations(spec: Rotation, context: int, reach: int) -> list[RotationPlan]:
    """Phases and split tables only where angles are multiples of the position, pieces where there are angles for the last node."""
    if spec.linear and not spec.pairs:
        return [PhasePlan(spec, context)]
    plans: list[RotationPlan] = []
    if spec.linear:
        plans += [PhasePlan(spec, context)]
        plans += [InterpolatedPlan(spec, context, n, order) for n in ENTRIES for order in ORDERS if (n, order) != (256, 1)]
    row = 4 * max(spec.pairs, 1)
    plans += [TablePlan(spec, context, bits) for bits in (16, 8) if context * row * bits // 16 <= EXAMINED_BYTES]
    if spec.linear and 2 * (2 ** ((context - 1).bit_length() // 2 + 1)) * row <= EXAMINED_BYTES:
        plans += [SplitPlan(spec, context, bits) for bits in (16, 32)]
    for s in NODE_SHIFTS:
        last = (((context - 1) >> s) + 1) << s
        if (context << 2 >> s) * row <= EXAMINED_BYTES and (reach == POSITION_LIMIT or last < reach):
            plans.append(PiecewisePlan(spec, context, s))
    return plans


def _sinusoidal(spec: Sinusoidal | Sinusoidal2D, context: int | None) -> list[SinusoidalPlan]:
    part = spec.part if isinstance(spec, Sinusoidal2D) else spec
    context = POSITION_LIMIT - part.start if context is None else check_context(context)
    tables = [b for b in (16, 8) if (context + part.start) * part.dim * b // 8 <= EXAMINED_BYTES]
    return [SinusoidalPlan(spec, context, 16, "phase"), *(SinusoidalPlan(spec, context, bits) for bits in tables)]


def _of_table(spec: Learned | T5Bias | RelativeBias, context: int | None, weights) -> list[Plan]:
    if context is not None:
        check_context(context)
    if not isinstance(spec, Learned):
        return [LearnedBiasPlan(spec, weights)] + [LearnedBiasPlan(spec, weights, b, per) for b in (16, 8) for per in ("head", "tensor")]
    if context is not None and context > spec.context:
        raise ContextError(f"context {context} passes the learned table's {spec.context} positions; positions.interpolate makes a longer one")
    return [LearnedPlan(spec, weights, bits, per) for bits in (16, 8) for per in ("row", "tensor")]


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
