"""The choice guide: its tables come from results.json, and `positions advise` keeps to a budget."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from edgepos import positions
from edgepos.errors import FormatError
from edgepos.positions import costs
from edgepos.positions.advice import advise, encodings, measured, options
from edgepos.positions.costs import Shape

SHAPE = Shape(dim=96, heads=4, head_dim=24, layers=4)
NAMES = {"none", "learned", "sinusoidal", "rope", "alibi", "t5", "hybrid"}


def test_the_written_tables_are_those_of_the_results(root):
    script = root / "examples" / "positions" / "make_table.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_cover_every_encoding_and_three_seeds(root):
    results = json.loads((root / "examples" / "positions" / "results.json").read_text())
    assert set(results["encodings"]) == NAMES
    assert sorted((run["encoding"], run["seed"]) for run in results["runs"]) == sorted((n, s) for n in NAMES for s in (1, 2, 3))
    for name, facts in results["encodings"].items():
        losses = [run["loss"]["1x"] for run in results["runs"] if run["encoding"] == name]
        assert facts["loss"]["1x"]["mean"] == pytest.approx(np.mean(losses), abs=1e-4)
        assert facts["loss"]["1x"]["spread"] == pytest.approx(np.std(losses, ddof=1), abs=1e-4)
    assert {"2x linear", "2x ntk", "4x linear", "4x ntk"} <= set(results["encodings"]["rope"]["loss"])
    learned = results["encodings"]["learned"]["loss"]
    assert learned["2x"] is None and learned["2x interpolated"]["mean"] > 0


def test_sizes_are_those_of_the_plans():
    specs = encodings(SHAPE, 256)
    for bits in (16, 8):
        table = positions.TablePlan(specs["rope"], 256, bits)
        assert costs.table_bytes(specs["rope"], SHAPE, 256, bits) == costs.table_bytes(specs["hybrid"], SHAPE, 256, bits) == table.bytes
        assert costs.table_bytes(specs["alibi"], SHAPE, 256, bits) == positions.BiasTablePlan(specs["alibi"], 256, bits).bytes
        assert costs.table_bytes(specs["sinusoidal"], SHAPE, 256, bits) == positions.SinusoidalPlan(specs["sinusoidal"], 256, bits).bytes
        for spec in (specs["t5"], positions.T5Bias(8, 20, False, layers=4)):
            bias = positions.LearnedBiasPlan(spec, np.ones((*([] if spec.layers is None else [4]), spec.rows, 4)), bits)
            assert costs.table_bytes(spec, SHAPE, 256, bits) == bias.bytes
        learned = positions.LearnedPlan(specs["learned"], np.ones((256, 96)), bits)
        assert costs.table_bytes(specs["learned"], SHAPE, 256, bits) == learned.bytes
    assert costs.runtime_bytes(specs["rope"], SHAPE, 10**6) == 8 * 12
    assert costs.runtime_bytes(specs["none"], SHAPE, 256) == costs.operations(specs["none"], SHAPE, 256) == 0


def test_operations_are_those_of_the_form():
    specs = encodings(SHAPE, 256)
    bias = positions.LearnedBiasPlan(specs["t5"], np.ones((32, 4)), 8)
    for name, of_runtime, of_table, times in (
        ("rope", positions.PhasePlan.operations, positions.TablePlan.operations, 4 * 12 * 2),  # layers, pairs, q and k
        ("alibi", 3, positions.BiasTablePlan.operations, 4 * 4 * 100),  # layers, heads, keys
        ("t5", 2, bias.operations, 4 * 4 * 100),
    ):
        runtime, tables = (costs.operations(specs[name], SHAPE, 100, tables=t) for t in (False, True))
        assert runtime - tables == times * (of_runtime - of_table), name
    assert {o.operations for o in options(SHAPE, 100) if o.encoding == "rope" and o.form != "runtime"} == {
        costs.operations(specs["rope"], SHAPE, 100, tables=True)
    }


def test_what_a_program_keeps_is_what_is_promised(root):
    """Bytes of the position tensors of compiled models against `runtime_bytes`; dim 96 needs no padding."""
    from edgepos.compiler import compile_model
    from edgepos.export import load
    from edgepos.program import POSITIONS, Op

    for name in ("learned", "sinusoidal", "rope", "alibi", "t5", "hybrid", "none"):
        compiled = compile_model(load(root / "examples" / "positions" / name), calibration=[1, 2, 3])
        kept = set()
        for op in compiled.program.ops:
            if op.code == Op.EMBED and op.params["source"] == POSITIONS:
                kept |= {op.tensors[0], op.tensors[2]}
            elif op.code == Op.ROPE:
                kept.add(op.tensors[0])
            elif op.code == Op.ATTENTION:
                kept |= {t for t in op.tensors[:2] if t >= 0}
        size = sum(compiled.program.arrays[t].nbytes for t in kept)
        assert size == costs.runtime_bytes(compiled.source.positions(), SHAPE, 128), name


def test_advice_keeps_to_the_budget():
    everything = options(SHAPE, 512)
    assert {o.encoding for o in everything} == NAMES
    assert [o.loss[0] for o in everything] == sorted(o.loss[0] for o in everything)
    for flash, ram in ((0, 0), (100, None), (None, 0), (4000, 768), (10**9, 10**9)):
        found = advise(SHAPE, 512, flash, ram)
        assert found and all((flash is None or o.flash <= flash) and (ram is None or o.ram <= ram) for o in found)
        assert found == [o for o in everything if o in found]
    assert {o.encoding for o in advise(SHAPE, 512, 0, 0)} == {"none"}
    assert "learned" not in {o.encoding for o in advise(SHAPE, 2**25)}
    with pytest.raises(FormatError, match="flash is -1"):
        advise(SHAPE, 512, -1)


def test_the_command_prints_the_options():
    from edgepos.cli import app

    told = CliRunner().invoke(app, ["positions", "advise", "--context", "512", "--flash", "1000", "--ram", "1000"], env={"COLUMNS": "200"})
    assert told.exit_code == 0, told.output
    assert "rope" in told.output and "alibi" in told.output and "learned" not in told.output
    assert f"{measured()['encodings']['alibi']['loss']['1x']['mean']:.3f}" in told.output
