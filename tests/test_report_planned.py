"""Other forms of the positions inside the integer program: equal where the plan is the runtime's own, right where it is another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli import edgepos as command

from edgepos.compiler.match import match
from edgepos.compiler.pipeline import compile
from edgepos.compiler.steps import Place
from edgepos.errors import EdgePosError
from edgepos.export import load
from edgepos.golden_session import GoldenSession
from edgepos.program import Op
from edgepos.report.planned import PlannedSession, plans_for
from edgepos.resources import tiny_model_dir

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "positions"


@pytest.fixture(scope="module")
def models():
    """Name → (canonical, float operators, program for 96 tokens)."""
    found = {}
    for name in ("tiny-rope", "tiny-alibi"):
        canonical = load(tiny_model_dir(name))
        found[name] = (canonical, match(canonical.model), compile(canonical, context=96))
    return found


def ids(program, n: int) -> list[int]:
    return np.random.default_rng(n).integers(0, program.header.vocab, n).tolist()


@pytest.mark.parametrize("name, form", [("tiny-rope", "phase"), ("tiny-alibi", "slope")])
def test_the_own_form_gives_the_own_bits(models, name, form):
    _, source, program = models[name]
    tokens = ids(program, 40)
    assert (PlannedSession(program, plans_for(source, 96, form)).eval_int(tokens) == GoldenSession(program).eval_int(tokens)).all()


@pytest.mark.parametrize("bits, full", [(16, 32767), (8, 127)])
def test_a_rotation_by_a_table(models, bits, full):
    """Every rotated value against float64 with the rounded table, computed here: only the one rounding of the output is between them."""
    _, source, program = models["tiny-rope"]
    tokens, seen, pairs = ids(program, 24), {}, 0
    session = PlannedSession(program, plans_for(source, 96, f"table-{bits}"))
    session.eval_int(tokens, trace=lambda index, output: seen.setdefault(program.ops[index].out, output))
    for op in program.ops:
        if op.code != Op.ROPE:
            continue
        spec = next(step.spec for step in source.steps if step.name == op.name)
        angle = np.arange(24)[:, None] * np.array([float(f) for f in spec.theta ** (-2.0 * np.arange(spec.pairs) / spec.rotary_dim)])
        cos, sin = (np.floor(f(angle) * full + 0.5)[:, None] / full for f in (np.cos, np.sin))
        x = seen[op.ins[0]].reshape(24, op.params["heads"], -1) * 2.0 ** -program.values[op.ins[0]].f
        a, b = spec.split(x)
        wanted = spec.join(a * cos - b * sin, a * sin + b * cos, x[..., spec.rotary_dim :]) * 2.0 ** program.values[op.out].f
        ours = seen[op.out].reshape(wanted.shape)
        assert np.abs(ours - wanted).max() <= 0.5 + np.abs(wanted).max() * 2.0**-28
        pairs += spec.pairs
    assert pairs > 0


def test_a_bias_from_a_table(models):
    """Entries of one attention by hand: rounded to 2^-10, and the weight 0 beyond what int8 holds."""
    _, source, program = models["tiny-alibi"]
    op = next(op for op in program.ops if op.code == Op.ATTENTION)
    distance = np.arange(96)[None]
    slopes = program.arrays[op.tensors[0]].view(np.uint32) * 2.0 ** -(16 + op.params["alibi_shift"])
    exact = slopes[:, None, None] * distance[None]
    fine = PlannedSession(program, plans_for(source, 96, "table-16")).machine.alibi(op, distance)
    assert np.abs(fine * 2.0**-16 - exact)[exact < 31.9].max() <= 2.0**-11 + 1e-6 and (fine[exact > 32.1] == 1 << 30).all()
    coarse = PlannedSession(program, plans_for(source, 96, "table-8")).machine.alibi(op, distance)
    held = exact < 15.9
    assert np.abs(coarse * 2.0**-16 - exact)[held].max() <= 2.0**-4 + 1e-6 and (coarse[exact > 16.1] == 1 << 30).all() and (exact > 16.1).any()


@pytest.fixture(scope="module")
def committed():
    """Name → (float operators, program for 96 tokens) of models with a table of positions."""
    found = {}
    for name in ("learned", "sinusoidal", "t5", "hybrid"):
        canonical = load(EXAMPLES / name)
        found[name] = match(canonical.model), compile(canonical, context=96)
    return found


@pytest.mark.parametrize("name, form", [("learned", "table-16"), ("sinusoidal", "table-16"), ("t5", "table-32")])
def test_the_own_table_gives_the_own_bits(committed, name, form):
    source, program = committed[name]
    tokens = ids(program, 40)
    assert (PlannedSession(program, plans_for(source, 96, form)).eval_int(tokens) == GoldenSession(program).eval_int(tokens)).all()


@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
def test_rows_of_eight_bits(committed, name):
    """Against the float table, computed here: half a step of the largest number of the row, or of a sine."""
    source, program = committed[name]
    step = next(step for step in source.steps if isinstance(step, Place))
    op = next(op for op in program.ops if op.name == step.name)
    table = source.read(step.table).astype(np.float64)
    session = PlannedSession(program, plans_for(source, 96, "table-8"))
    rows, factors = (session.machine.tensor(op.tensors[i]).astype(np.float64) for i in (0, 2))
    values = rows[:, : table.shape[1]] * (factors[:, 0] * 2.0 ** -factors[:, 1])[:, None]
    unit = (np.abs(table).max(axis=1, keepdims=True) if name == "learned" else step.spec.scale) / 127
    assert np.abs(rows).max() == 127 and (np.abs(values - table) <= 0.5 * unit * (1 + 1e-5)).all()
    tokens = ids(program, 30)
    assert (session.eval_int(tokens) != GoldenSession(program).eval_int(tokens)).any()


@pytest.mark.parametrize("form, bits", [("table-8", 8), ("table-8-tensor", 8), ("table-16", 16)])
def test_a_learned_bias_with_fewer_bits(committed, form, bits):
    source, program = committed["t5"]
    op = next(op for op in program.ops if op.code == Op.ATTENTION)
    exact = program.arrays[op.tensors[1]] * 2.0**-16
    session = PlannedSession(program, plans_for(source, 96, form))
    ours = session.machine.tensor(op.tensors[1]) * 2.0**-16
    largest = np.abs(exact).max() if form.endswith("tensor") else np.abs(exact).max(axis=1, keepdims=True)
    assert ours.shape == exact.shape and (ours != exact).any()
    # A bucket that no distance reaches may be the largest of its head: then the unit is larger than what is seen here.
    assert (np.abs(ours - exact) <= 0.5 * np.maximum(largest, np.abs(ours).max()) / (2 ** (bits - 1) - 1) + 2.0**-16).all()


def test_what_there_is_not(models):
    _, source, _ = models["tiny-alibi"]
    with pytest.raises(EdgePosError, match="positions phase: alibi for 96 positions has exact, slope, table-16, table-8"):
        plans_for(source, 96, "phase")
    source.steps = [step for step in source.steps if type(step).__name__ != "Attend"]
    with pytest.raises(EdgePosError, match="encodes no positions"):
        plans_for(source, 96, "table-8")


def test_a_sweep_over_positions(tmp_path):
    folder = tmp_path / "out"
    arguments = ["sweep", tiny_model_dir("tiny-rope"), "-o", folder, "--weights", "w8", "--kv", "kv16", "--max-tokens", 100, "--jobs", 2, "--json"]
    rows = {row["formats"]: row for row in json.loads(command(*arguments, "--positions", "exact,table-8,slope").stdout)}
    exact, coarse = (rows.pop(f"w8 a16 kv16{name}") for name in ("", " table-8"))
    assert exact["best"] and not coarse["best"] and coarse["error"] > 1.2 * exact["error"] and not rows
    assert coarse["bytes"] - exact["bytes"] == 512 * 8 * 2
    (failed,) = json.loads((folder / "sweep.json").read_text())["failed"]
    assert "slope" in failed["label"] and "has exact, phase" in failed["error"]
    assert "--positions" in command(*arguments, "--positions", "tabel-8", expect=1).stderr
