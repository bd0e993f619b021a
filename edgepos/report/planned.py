"""A program with another plan for its positions: RoPE and ALiBi from tables instead of phases and slopes, rows and biases with fewer bits, in NumPy.

The runtime has one form of each encoding. What another one of `edgepos.positions` would do to the model's output is measured here, with
the plan's integers in the program's own operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..compiler.constants import amplitude, planned_rows
from ..compiler.position_tables import encodings
from ..compiler.steps import FloatProgram, Place, Rotate
from ..errors import UnsupportedError
from ..golden import Machine
from ..golden_session import GoldenSession
from ..positions.alibi_plan import BIAS_BITS, BiasTablePlan, SlopePlan
from ..positions.base import Plan
from ..positions.bias_plan import LearnedBiasPlan
from ..positions.learned import LearnedPlan
from ..positions.methods import plans_of
from ..positions.plan import RotationPlan
from ..positions.sinusoidal import Sinusoidal, SinusoidalPlan
from ..program import BIDIRECTIONAL, NONE, Operation, Program

EXACT = "exact"  # the form of the runtime
FAMILIES = (EXACT, "phase", "table", "split", "piecewise", "slope")
LARGEST_BIAS = 1 << 30  # the weight 0


def name_of(plan: Plan) -> str:
    """A plan's method, with its bits where a method has several: phase, table-8, split-16, phase-64-linear …; of learned tables with one
    factor for all numbers, table-8-tensor."""
    shared = "-tensor" * (getattr(plan, "per", "") == "tensor")
    return f"{plan.method}-{plan.bits}{shared}" if plan.method == "table" else plan.method


def plans_for(source: FloatProgram, context: int, name: str) -> dict[str, Plan]:
    """Operator name → the plan `name` of its encoding for positions below `context`.

    Raises UnsupportedError where the model has no position encoding, or there is no such plan of one it has; it names those there are.
    """
    specs = {step.name: step.spec for step in source.steps if isinstance(step, (Rotate, Place))}
    specs |= {step.name: source.layer_positions(step) for step in source.layers() if step.slopes is not None or step.bias is not None}
    if not specs:
        raise UnsupportedError(f"positions {name}: this model encodes no positions; leave it at {EXACT}")
    found, weights = {}, dict(encodings(source))
    for spec in set(specs.values()):
        reach = len(weights[spec]) if isinstance(spec, Sinusoidal) else context
        known = {name_of(plan): plan for plan in plans_of(spec, reach, weights.get(spec))}
        if name not in known:
            raise UnsupportedError(f"positions {name}: {spec.encoding} for {context} positions has {EXACT}, {', '.join(known)}")
        found[spec] = known[name]
    return {operator: found[spec] for operator, spec in specs.items()}


class PlannedMachine(Machine):
    """A Machine whose positions come from plans."""

    def __init__(self, program: Program, context: int, plans: Mapping[str, Plan]):
        super().__init__(program, context)
        self.plans = plans
        self.replaced: dict[int, np.ndarray] = {}
        for op in program.ops:
            self._replace(op, plans.get(op.name))

    def _replace(self, op: Operation, plan: Plan | None) -> None:
        """Put what a plan has in the place of the operator's tensors."""
        if isinstance(plan, (LearnedPlan, SinusoidalPlan)):
            self.replaced[op.tensors[0]], self.replaced[op.tensors[2]] = planned_rows(plan, len(self.program.arrays[op.tensors[2]]))
        elif isinstance(plan, LearnedBiasPlan):
            columns, both = self.program.arrays[op.tensors[1]].shape[1], op.params["mask"] == BIDIRECTIONAL
            # keys from the furthest before to the furthest behind the query, or from the query backwards
            keys, query = (np.arange(columns), columns // 2) if both else (np.arange(columns)[::-1], columns - 1)
            layer = None if plan.spec.layers is None else op.params["layer"]
            self.replaced[op.tensors[1]] = plan.bias_fixed(np.array([query]), keys, layer)[:, 0]

    def tensor(self, index: int) -> np.ndarray | None:
        return self.replaced[index] if index != NONE and index in self.replaced else super().tensor(index)

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
