"""Error of every operator: the integer values beside those of the float graph, for the same tokens."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ..golden_session import GoldenSession
from ..program import NONE, Program
from ..float_session import FloatSession


def sqnr_db(reference: np.ndarray, value: np.ndarray) -> float | None:
    """Signal to quantization noise ratio in dB; None when both are zero or the noise is."""
    reference = np.asarray(reference, np.float64)
    noise = float(((reference - value) ** 2).sum())
    signal = float((reference**2).sum())
    if noise == 0 or signal == 0:
        return None
    return 10 * np.log10(signal / noise)


def layer_errors(program: Program, model: ir.Model, ids: list[int]) -> list[dict]:
    """One entry per operator with an output, in data-flow order: name, op, sqnr_db, saturations, f.

    `ids` is one window; the integers are computed by golden, whose bits are every engine's. sqnr_db is None for values the
    float graph does not have under the same name, or without any error.
    """
    computed = {node.outputs[0].name for node in model.graph if node.outputs[0].name is not None}
    last = program.ops[-1].name
    wanted = [op.name for op in program.ops if op.out != NONE and op.name in computed and op.name != last]
    output = "embedding" if program.embedding else "logits"
    floats = FloatSession(_with_outputs(model, wanted)).values(ids, [output, *wanted])
    if last not in floats:
        floats[last] = floats[output]

    session = GoldenSession(program, max(len(ids), 1))
    entries: list[dict] = []
    before = 0

    def trace(index: int, output: np.ndarray) -> None:
        nonlocal before
        op = program.ops[index]
        f = program.values[op.out].f
        reference = floats.get(op.name)
        entries.append(
            {
                "name": op.name,
                "op": op.code.name,
                "f": f,
                "sqnr_db": None if reference is None else sqnr_db(reference[0], output * 2.0**-f),
                "saturations": session.saturations - before,
            }
        )
        before = session.saturations

    (session.embed_int if program.embedding else session.eval_int)(ids, trace=trace)
    return entries


def _with_outputs(model: ir.Model, names: list[str]) -> ir.Model:
    """A copy of the graph (weights shared) that also returns the named values."""
    model = model.clone()
    by_name = {value.name: value for node in model.graph for value in node.outputs}
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(by_name[name] for name in names if name not in present)
    return model
