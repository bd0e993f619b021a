"""Which plan for which budget: the cheapest that meets a request, for every encoding."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FormatError, UnsupportedError
from .alibi_plan import SlopePlan
from .base import Plan
from .hybrid import Hybrid, of_parts, parts_of
from .methods import EXAMINED_BYTES, method_rows, plans_of
from .none import EmptyPlan, NoPosition
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import Spec, check_choice, check_context, check_count, check_positive

METHODS = ("auto", "phase", "table", "split", "piecewise", "slope")
BITS = (8, 16, 32)
DEFAULT_ERROR = 0.58  # of the last place: what the runtime promises for angles
MAX_BYTES = 2**63 - 1
OF_ANGLES = (Rotation, Sinusoidal, Sinusoidal2D)  # what has DEFAULT_ERROR


@dataclass(frozen=True)
class HybridPlan(Plan):
    """The plans of a model with several encodings.

    Attributes: spec: the Hybrid, or {part: spec}; parts: the plan of each part, by the names of `hybrid.parts_of`; bits: those asked for;
    bytes: of all parts; scale, bound, error, operations: {part: that of its plan}, since their units differ.
    """

    spec: Hybrid | dict[str, Spec]
    parts: dict[str, Plan]
    bits: int

    method = "parts"

    @property
    def bytes(self) -> int:
        """Size of all constants."""
        return sum(plan.bytes for plan in self.parts.values())

    scale = property(lambda self: {name: plan.scale for name, plan in self.parts.items()})
    bound = property(lambda self: {name: plan.bound for name, plan in self.parts.items()})
    error = property(lambda self: {name: plan.error for name, plan in self.parts.items()})
    operations = property(lambda self: {name: plan.operations for name, plan in self.parts.items()})

    def layer(self, layer: int) -> Plan:
        """The plan of what the attention of a layer does. Raises FormatError for a layer that the spec has not."""
        if not isinstance(self.spec, Hybrid):
            raise FormatError("these parts are kinds of layers; take plan.parts[kind]")
        spec = self.spec.layers[check_count("layer", layer, 0, len(self.spec.layers) - 1)]
        return EmptyPlan() if isinstance(spec, NoPosition) else next(plan for plan in self.parts.values() if plan.spec == spec)

    def describe(self) -> str:
        return "; ".join(f"{name}: {plan.describe()}" for name, plan in self.parts.items()) or EmptyPlan().describe()

    def certificate(self) -> dict:
        """The certificate of each part."""
        return {"method": self.method, "parts": {name: plan.certificate() for name, plan in self.parts.items()}}


def pareto(spec: Spec, context: int, weights=None) -> list[dict]:
    """One row per plan, by bytes: method, bits, bytes, bound (rotary: units of 1/32767 for every row, so that they compare; else in the
    row's unit), operations (integer operations per token: a pair's times the pairs), best (no other plan is at least as good in
    all three).

    Encodings that do not rotate give the rows of `methods.method_rows`, learned ones with their table as `weights`.
    """
    rows = method_rows(spec, context, weights)
    if not isinstance(spec, Rotation):
        return rows
    return [{key: value for key, value in row.items() if key not in ("part", "unit")} for row in rows]


def plan(
    spec: Spec | dict[str, Spec],
    bits: int = 16,
    method: str = "auto",
    context: int | None = None,
    max_error: float | dict[str, float] | None = None,
    max_bytes: int | None = None,
    weights=None,
) -> Plan:
    """The plan that meets a request; its attribute `why` says in a sentence why it is this one.

    bits: 16 or 8 of the integers that are stored or computed, 32 for learned biases; slopes (ALiBi) meet every number of bits. method: a
    family of methods or "auto". context: positions, default all that the encoding has. max_error: proven error (`Plan.error`): rotary and
    sinusoidal in units of the last place, default 0.58, what the runtime promises; biases in log2 units; learned rows in their own
    units. max_bytes: of constants. weights: the learned table of Learned, T5Bias and RelativeBias.

    With an error given the plan has the fewest bytes (then the least error); learned encodings and ALiBi without one get the least error
    (then the fewest bytes). A Hybrid, or a dict of specs as from_config returns, gives a HybridPlan: max_bytes holds for all parts
    together, weights is {part: table}, max_error one number for each part in its own unit or {part: error}.

    Raises UnsupportedError naming the best that can be had when nothing meets the request, or a method or bits that there are not,
    FormatError for numbers out of range or a bad table.
    """
    check_choice("method", method, METHODS)
    check_choice("bits", bits, BITS)
    if context is not None:
        check_context(context)
    if max_bytes is not None:
        check_count("max_bytes", max_bytes, 0, MAX_BYTES)
    if parts_of(spec) is not None:
        return _hybrid(spec, bits, method, context, max_error, max_bytes, weights)
    if max_error is not None:
        check_positive("max_error", max_error)
    if isinstance(spec, NoPosition):
        return EmptyPlan(spec).explain(EmptyPlan(spec).describe())
    return _chosen(spec, bits, method, context, max_error, max_bytes, weights)


def _chosen(spec: Spec, bits: int, method: str, context, max_error: float | None, max_bytes: int | None, weights) -> Plan:
    if isinstance(spec, Rotation) and not spec.pairs:
        found = plans_of(spec, context)[0]
        return found.explain(f"rotary_dim is 0, nothing is rotated: {found.method} with {found.bytes} bytes of increments")
    if max_error is None and isinstance(spec, OF_ANGLES):
        max_error = DEFAULT_ERROR

    def asked(plans: list[Plan]) -> list[Plan]:
        return [p for p in plans if (p.bits == bits or isinstance(p, SlopePlan)) and (method == "auto" or p.method.startswith(method))]

    def meeting(plans: list[Plan]) -> list[Plan]:
        return [p for p in plans if (max_error is None or p.error <= max_error) and (max_bytes is None or p.bytes <= max_bytes)]

    most = EXAMINED_BYTES
    if max_error is not None and weights is None:  # tables larger than a plan that computes and fits cannot be chosen: not built
        most = min((p.bytes for p in meeting(asked(plans_of(spec, context, most=0)))), default=most)
    examined = plans_of(spec, context, weights, most)
    allowed = asked(examined)
    if not allowed:
        known = ", ".join(sorted({f"{p.method} with {p.bits}" for p in examined}))
        raise UnsupportedError(f"no plan has {bits!r} bits and method {method!r}; {spec.encoding} has {known}, tables up to 2^26 bytes")
    fits = meeting(allowed)
    if not fits:
        smallest, finest = min(allowed, key=lambda p: p.bytes), min(allowed, key=lambda p: p.error)
        limits = ([] if max_error is None else [f"an error up to {max_error}"]) + ([] if max_bytes is None else [f"at most {max_bytes} bytes"])
        raise UnsupportedError(
            f"no plan has {' and '.join(limits)}; the smallest is {smallest.describe()}, the most exact {finest.describe()}"
        )
    if max_error is None:
        chosen, merit = min(fits, key=lambda p: (p.error, p.mean_error, p.bytes)), "the least error"
    else:
        chosen, merit = min(fits, key=lambda p: (p.bytes, p.error)), "the fewest bytes"
    counted = "the only plan that meets the request" if len(fits) == 1 else f"{merit} of the {len(fits)} plans that meet the request"
    return chosen.explain(f"{chosen.describe()}: {counted}, of {len(allowed)} examined")


def _hybrid(spec, bits: int, method: str, context, max_error, max_bytes: int | None, weights) -> HybridPlan:
    """The choice of each part; where they are too large together, each with the fewest bytes that its error allows."""
    parts = parts_of(spec)
    errors = of_parts("max_error", max_error if isinstance(max_error, dict) else dict.fromkeys(parts, max_error), parts)
    weights = of_parts("weights", weights, parts)

    def choose(least: bool) -> HybridPlan:
        found = {}
        for name, part in parts.items():
            error = errors.get(name)
            if error is not None:
                error = check_positive(f"max_error of {name}", error)
            elif least and not isinstance(part, OF_ANGLES):
                error = float("inf")
            found[name] = _chosen(part, bits, method, context, error, None, weights.get(name))
        return HybridPlan(spec, found, bits)

    result = choose(least=False)
    if max_bytes is not None and result.bytes > max_bytes:
        result = choose(least=True)
        if result.bytes > max_bytes:
            raise UnsupportedError(f"no plans of all parts fit in {max_bytes} bytes; the smallest have {result.bytes}: {result.describe()}")
    return result.explain("; ".join(f"{name}: {part.why}" for name, part in result.parts.items()) or EmptyPlan().describe())
