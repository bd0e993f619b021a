"""Tables as ONNX graphs, run in ONNX Runtime beside the references."""

import math

import numpy as np
import onnxruntime as ort
import pytest

from edgepos.errors import UnsupportedError
from edgepos.positions import Alibi, BiasTablePlan, MRope, Rope, TablePlan
from edgepos.positions.emit_onnx import NEVER, alibi_model, rope_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def run(model, **inputs):
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize(
    "spec", [Rope(16), Rope(16, layout="interleaved"), Rope(16, 8), Rope(16, 8, layout="interleaved"), Rope(16, 8, scaling=YARN)]
)
def test_rope_in_onnx_runtime(spec, bits):
    plan = TablePlan(spec, 200, bits)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 3, 5, 16)).astype(np.float32)
    at = rng.integers(0, 200, size=(2, 5))
    y = run(rope_model(plan), x=x, position_ids=at)
    exact = np.stack([spec.rotate(x[b], at[b]) for b in range(2)])
    largest = np.abs(x).max()
    assert np.abs(y - exact).max() <= 2 * largest * spec.attention_factor * plan.bound * plan.scale + 2e-6 * largest
    assert rope_model(plan) == rope_model(plan)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("symmetric", [False, True])
def test_alibi_in_onnx_runtime(bits, symmetric):
    plan = BiasTablePlan(Alibi(12, symmetric=symmetric), 300, bits)
    q, k = np.array([0, 7, 250, 299]), np.array([0, 3, 7, 100, 299])
    bias = run(alibi_model(plan), query_positions=q, key_positions=k)
    exact = plan.spec.bias(q, k)
    gone = bias == np.float32(NEVER)
    assert bias.shape == (12, 4, 5) and gone.any() and not gone.all()
    unit = plan.scale * math.log(2)
    assert np.abs(bias - exact)[~gone].max() <= plan.bound * unit * (1 + 1e-5)
    assert (exact[gone] <= (plan.saturated + 0.5) * unit + 1e-9).all()


def test_coordinates_are_refused():
    with pytest.raises(UnsupportedError, match="coordinates"):
        rope_model(TablePlan(MRope(Rope(8), (2, 1, 1)), 8))
