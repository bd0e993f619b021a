"""A program with another plan for its positions: RoPE and ALiBi from tables instead of phases and slopes, in NumPy.

The runtime has one form of each encoding. What another one of `edgepos.positions` would do to the model's output is measured here, with
the plan's integers in the program's own operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..compiler.constants import amplitude
from ..compiler.steps import FloatProgram, Rotate
from ..errors import UnsupportedError
from ..golden import Machine
from ..golden_session import GoldenSession
from ..positions.alibi_plan import BIAS_BITS, BiasTablePlan, SlopePlan
from ..positions.base import Plan
from ..positions.methods import plans_of
from ..positions.plan import RotationPlan
from ..program import Operation, Program

EXACT = "exact"  # the form of the runtime
FAMILIES = (EXACT, "phase", "table", "split", "piecewise", "slope")
LARGEST_BIAS = 1 << 30  # the weight 0


def name_of(plan: Plan) -> str:
    """A plan's method, with its bits where a method has several: phase, table-8, split-16, phase-64-linear …"""
    return f"{plan.method}-{plan.bits}" if plan.method == "table" else plan.method


def plans_for(source: FloatProgram, context: int, name: str) -> dict[str, Plan]:
    """Operator name → the plan `name` of its encoding for positions below `context`.

    Raises UnsupportedError where the model has no rotation and no slopes, or there is no such plan of one of them; it names those there are.
    """
    specs = {step.name: step.spec for step in source.steps if isinstance(step, Rotate)}
    specs |= {step.name: source.layer_positions(step) for step in source.layers() if step.slopes is not None}
    if not specs:
        raise UnsupportedError(f"positions {name}: only RoPE and ALiBi have other forms, this model has neither; leave it at {EXACT}")
    found = {}
    for spec in set(specs.values()):
        known = {name_of(plan): plan for plan in plans_of(spec, context)}
        if name not in known:
            raise UnsupportedError(f"positions {name}: {spec.encoding} for {context} positions has {EXACT}, {', '.join(known)}")
        found[spec] = known[name]
    return {operator: found[spec] for operator, spec in specs.items()}


class PlannedMachine(Machine):
    """A Machine whose positions come from plans."""

    def __init__(self, program: Program, context: int, plans: Mapping[str, Plan]):
        super().__init__(program, context)
        self.plans = plans

    def turns(self, op: Operation, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
        plan: RotationPlan = self.plans[op.name]
        f_in, f_out = (self.program.values[i].f for i in (op.ins[0], op.out))
        cos, sin = plan.cos_sin(positions)
        return cos.astype(np.int64), sin.astype(np.int64), amplitude(plan.spec, f_in, f_out, plan.full_scale)

    def alibi(self, op: Operation, distance: np.ndarray) -> np.ndarray:
        plan: SlopePlan | BiasTablePlan = self.plans[op.name]
        bias = plan.bias_fixed(distance).astype(np.int64)
        if isinstance(plan, SlopePlan):
            return bias
        return np.where(bias == plan.saturated, LARGEST_BIAS, -bias << (BIAS_BITS - plan.fraction_bits))


class PlannedSession(GoldenSession):
    """A GoldenSession whose positions come from plans, operator name → plan."""

    def __init__(self, program: Program, plans: Mapping[str, Plan], context: int | None = None):
        self.plans = plans
        super().__init__(program, context)

    def _new_machine(self) -> Machine:
        return PlannedMachine(self.program, self.context, self.plans)
