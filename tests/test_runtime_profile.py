"""`edgepos bench`: what it counts, against counts made by hand, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from random_programs import Shape, random_program
from tokenizer_images import image
from typer.testing import CliRunner

import edgepos
from edgepos.cli import app
from edgepos.errors import ContextError, EdgePosError
from edgepos.program import Op
from edgepos.resources import tiny_model_dir
from edgepos.runtime.native import Image
from edgepos.runtime.profile import bandwidth, profile
from edgepos.runtime.session import CSession

SHAPE = Shape(heads=4, kv_heads=2, head_dim=8, v_dim=8, pairs=4, layers=2, width=48, inner=80, vocab=100, context=64)


def total(costs, program, code: Op) -> tuple[int, int]:
    """(bytes, operations) of all operators of a code, without the logits."""
    found = [cost for index, cost in costs.items() if program.ops[index].code == code and index != len(program.ops) - 1]
    assert all(cost.seconds > 0 for cost in found)
    return sum(cost.bytes for cost in found), sum(cost.operations for cost in found)


@pytest.mark.parametrize("batch", [0, 5])
def test_counts_are_those_made_by_hand(batch):
    program = random_program(np.random.default_rng(0), SHAPE)
    prefill, decode = profile(CSession(Image(image(program)), n_batch=batch), program, 11, 3)
    linear = [op for op in program.ops[:-1] if op.code == Op.LINEAR]
    weights = sum(program.arrays[op.tensors[0]].size for op in linear)
    assert weights > 2 * SHAPE.width * SHAPE.inner
    products = sum(program.values[op.out].width * program.values[op.ins[0]].width for op in linear)
    assert total(prefill, program, Op.LINEAR)[1] == 11 * products
    assert total(decode, program, Op.LINEAR)[1] == 3 * products
    assert total(decode, program, Op.LINEAR)[0] >= 3 * weights
    # Query i sees i + 1 slots of 4 heads, 8 + 8 products each, in 2 layers; kv16 keeps 2 heads of 16 int16 a slot.
    assert total(prefill, program, Op.ATTENTION)[1] == 2 * 4 * 16 * sum(range(1, 12))
    assert total(decode, program, Op.ATTENTION)[1] == 2 * 4 * 16 * (12 + 13 + 14)
    assert total(decode, program, Op.ATTENTION)[0] == 2 * 2 * 16 * 2 * (12 + 13 + 14)


def test_profile_leaves_the_session_usable():
    program = random_program(np.random.default_rng(0), SHAPE)
    session = CSession(Image(image(program)))
    expected = session.eval_int([1, 2, 3])
    profile(session, program, 4, 2)
    session.reset()
    assert (session.eval_int([1, 2, 3]) == expected).all()
    with pytest.raises(ContextError):
        profile(session, program, 64, 1)
    with pytest.raises(EdgePosError, match="at least 1"):
        profile(session, program, 0, 1)


def test_bandwidth_is_plausible():
    assert 1e8 < bandwidth() < 1e13


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return edgepos.export_bundle(tiny_model_dir("tiny-rope"), tmp_path_factory.mktemp("bench") / "tiny.edgepos").path


def test_command(bundle):
    done = CliRunner().invoke(app, ["bench", str(bundle), "--prompt", "20", "--tokens", "5", "--profile", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["prefill_tps"] > 0 and found["decode_tps"] > 0 and 0 < found["of_bound"]
    for part in ("prefill", "decode"):
        assert abs(sum(row["share"] for row in found[part]) - 1) < 1e-6
        assert {"LINEAR", "ATTENTION", "NORM", "ADD"} <= {row["operator"] for row in found[part]}
    assert "logits" in {row["operator"] for row in found["decode"]}
    done = CliRunner().invoke(app, ["bench", str(bundle), "--prompt", "20", "--tokens", "5", "--profile"])
    assert done.exit_code == 0 and "of the bandwidth" in done.stdout and "ATTENTION" in done.stdout


def test_command_refuses_what_does_not_fit(bundle):
    done = CliRunner().invoke(app, ["bench", str(bundle), "--prompt", "5000"])
    assert isinstance(done.exception, EdgePosError) and "the context has room for 512 together" in str(done.exception)
