"""Which plan for which budget: every method with its bytes, proven error and operations, and the cheapest that meets a request."""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .interpolated import ENTRIES, ORDERS, InterpolatedPlan
from .piecewise import PiecewisePlan
from .plan import PhasePlan, RotationPlan, TablePlan
from .rope import Rotation
from .spec import POSITION_LIMIT, Spec, check_choice, check_context, check_positive
from .split import SplitPlan

METHODS = ("auto", "phase", "table", "split", "piecewise")
EXAMINED_BYTES = 2**26  # tables above this are not built for a comparison
NODE_SHIFTS = (2, 4, 6)
DEFAULT_ERROR = 0.58
# The plans of encodings that do not rotate.
PLANS = {
    "alibi": "SlopePlan or BiasTablePlan",
    "t5": "LearnedBiasPlan",
    "relative": "LearnedBiasPlan",
    "learned": "LearnedPlan",
    "sinusoidal": "SinusoidalPlan",
    "sinusoidal_2d": "SinusoidalPlan",
    "hybrid": "the plans of its parts",
    "none": "nothing: there is nothing to compute",
}


def candidates(spec: Rotation, context: int) -> list[RotationPlan]:
    """Every plan that is compared, in no order of merit; direct tables and pieces only up to 2^26 bytes, phases and split
    tables only where angles are multiples of the position."""
    check_context(context)
    plans: list[RotationPlan] = []
    if spec.linear:
        plans += [PhasePlan(spec, context)]
        plans += [InterpolatedPlan(spec, context, n, order) for n in ENTRIES for order in ORDERS if (n, order) != (256, 1)]
    row = 4 * spec.pairs
    plans += [TablePlan(spec, context, bits) for bits in (16, 8) if context * row * bits // 16 <= EXAMINED_BYTES]
    if spec.linear and 2 * (2 ** ((context - 1).bit_length() // 2 + 1)) * row <= EXAMINED_BYTES:
        plans += [SplitPlan(spec, context, bits) for bits in (16, 32)]
    plans += [PiecewisePlan(spec, context, s) for s in NODE_SHIFTS if (context << 2 >> s) * row <= EXAMINED_BYTES]
    return plans


def pareto(spec: Spec, context: int, weights=None) -> list[dict]:
    """One row per plan, by bytes: method, bits, bytes, bound (units of 1/32767 for every row, so that they compare),
    operations (integer operations per token: a pair's times the pairs), best (no other plan is at least as good in all three).

    Encodings that do not rotate give the rows of `methods.method_rows`, learned ones with their table as `weights`.
    """
    if not isinstance(spec, Rotation):
        from .methods import method_rows  # which has the rotations from here

        return method_rows(spec, context, weights)
    rows = [_row(plan) for plan in candidates(spec, context)]
    axes = ("bytes", "bound", "operations")
    for row in rows:
        row["best"] = not any(all(o[a] <= row[a] for a in axes) and any(o[a] < row[a] for a in axes) for o in rows)
    return sorted(rows, key=lambda row: (row["bytes"], row["bound"]))


def plan(
    spec: Rotation,
    bits: int = 16,
    method: str = "auto",
    context: int = POSITION_LIMIT,
    max_error: float | None = None,
    max_bytes: int | None = None,
) -> RotationPlan:
    """The plan of least bytes (then least error) that meets a request; its attribute `why` says so in a sentence.

    bits: 16 or 8; method: a family of methods or "auto"; context: positions; max_error: proven error in units of the last
    place (default 0.58, what the runtime promises); max_bytes: of constants. Raises UnsupportedError naming the best that
    can be had when nothing meets it, and for an encoding that does not rotate, whose plans are few and have names of their own.
    """
    if not isinstance(spec, Rotation):
        raise UnsupportedError(f"plan chooses among ways to rotate, {spec.encoding} does not; use {PLANS.get(spec.encoding, 'its own plan')}, and pareto to compare")
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or max_bytes < 0):
        raise FormatError(f"max_bytes is {max_bytes!r}; allowed is a whole number from 0")
    check_choice("method", method, METHODS)
    max_error = DEFAULT_ERROR if max_error is None else check_positive("max_error", max_error)
    allowed = [p for p in candidates(spec, context) if p.bits == bits and (method == "auto" or p.method.startswith(method))]
    if not allowed:
        raise UnsupportedError(f"no plan has {bits!r} bits and method {method!r} at context {context}; tables end at 2^26 bytes")
    fits = [p for p in allowed if p.bound <= max_error and (max_bytes is None or p.bytes <= max_bytes)]
    if not fits:
        smallest, finest = min(allowed, key=lambda p: p.bytes), min(allowed, key=lambda p: p.bound)
        room = "" if max_bytes is None else f" in {max_bytes} bytes"
        raise UnsupportedError(
            f"no plan has an error up to {max_error}{room}; the smallest is {_describe(smallest)}, the most exact {_describe(finest)}"
        )
    chosen = min(fits, key=lambda p: (p.bytes, p.bound))
    why = f"{_describe(chosen)}: the fewest bytes of the {len(fits)} plans that meet the request, of {len(allowed)} examined"
    object.__setattr__(chosen, "why", why)
    return chosen


def _row(plan: RotationPlan) -> dict:
    return {
        "method": plan.method,
        "bits": plan.bits,
        "bytes": plan.bytes,
        "bound": plan.bound * 32767 / plan.full_scale,
        "operations": plan.operations * plan.spec.pairs,
    }


def _describe(plan: RotationPlan) -> str:
    return f"{plan.method} with {plan.bits} bits, {plan.bytes} bytes, error {plan.bound:.4g} of 1/{plan.full_scale}"
