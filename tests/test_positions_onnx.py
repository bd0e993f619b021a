"""Tables as ONNX graphs, run in ONNX Runtime beside the references."""

import math

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgepos.positions import (
    Alibi,
    AxialRope,
    BiasTablePlan,
    Learned,
    LearnedBiasPlan,
    LearnedPlan,
    MRope,
    RelativeBias,
    Rope,
    Sinusoidal,
    Sinusoidal2D,
    SinusoidalPlan,
    T5Bias,
    TablePlan,
)
from edgepos.positions.emit_onnx import NEVER, alibi_model, bias_model, learned_model, rope_model, sinusoidal_model

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def run(model, **inputs):
    return ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, inputs)[0]


def attend(model, heads, q, k, scale, kv_heads=None, hidden=None, **inputs):
    """(bias, Y, softmax(Q·K·scale + bias)·V in float64) of a bias graph for random vectors; hidden [q, k]: keys that are not seen."""
    rng = np.random.default_rng(9)
    kv_heads = kv_heads or heads
    vectors = {name: rng.normal(size=(2, h, n, 8)).astype(np.float32) for name, h, n in (("Q", heads, q), ("K", kv_heads, k), ("V", kv_heads, k))}
    bias, y = ort.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, vectors | inputs)
    assert bias.shape == (heads, q, k)
    big = {name: np.repeat(v.astype(np.float64), heads // v.shape[1], axis=1) for name, v in vectors.items()}
    scores = big["Q"] @ big["K"].swapaxes(-1, -2) * scale + bias
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return bias, y, weights / weights.sum(axis=-1, keepdims=True) @ big["V"]


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
    q, k = np.array([0, 7, 250, 299]), np.array([0, 3, 7, 250, 299])
    hidden = None if symmetric else k[None, :] > q[:, None]
    bias, y, expected = attend(alibi_model(plan), 12, 4, 5, 8**-0.5, 3, hidden, query_positions=q, key_positions=k)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
    exact = plan.spec.bias(q, k)
    gone = bias == np.float32(NEVER)
    assert bias.shape == (12, 4, 5) and gone.any() and not gone.all()
    unit = plan.scale * math.log(2)
    assert np.abs(bias - exact)[~gone].max() <= plan.bound * unit * (1 + 1e-5)
    assert (exact[gone] <= (plan.saturated + 0.5) * unit + 1e-9).all()


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize(
    "spec",
    [
        MRope(Rope(16), (2, 3, 3)),
        MRope(Rope(16, layout="interleaved"), (3, 3, 2), interleaved=True),
        MRope(Rope(16, 8), (2, 1, 1)),
        AxialRope(16, (Rope(8), Rope(4, theta=100.0))),
    ],
)
def test_rope_with_coordinates_in_onnx_runtime(spec, bits):
    plan = TablePlan(spec, 60, bits)
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 3, 5, 16)).astype(np.float32)
    at = rng.integers(0, 60, size=(2, 5, max(spec.axes) + 1))
    y = run(rope_model(plan), x=x, position_ids=at)
    exact = np.stack([spec.rotate(x[b], at[b]) for b in range(2)])
    largest = np.abs(x).max()
    assert np.abs(y - exact).max() <= 2 * largest * plan.bound * plan.scale + 2e-6 * largest


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("spec", [T5Bias(), T5Bias(32, 128, False), T5Bias(2, 2, False), T5Bias(64, 1000)])
def test_t5_bias_in_onnx_runtime(spec, bits):
    values = np.random.default_rng(2).normal(size=(spec.rows, 3)) * [0.01, 1, 7]
    plan = LearnedBiasPlan(spec, values, bits)
    q, k = np.array([0, 5, 400, 3000]), np.array([0, 1, 4, 5, 6, 90, 400, 2990, 100000])
    hidden = None if spec.bidirectional else k[None, :] > q[:, None]
    bias, y, expected = attend(bias_model(plan), 3, 4, 9, 1.0, 1, hidden, query_positions=q, key_positions=k)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
    error = np.abs(bias - values[spec.index(q, k)].transpose(2, 0, 1))
    assert error.max() <= plan.bound * math.log(2) + 1e-6
    if bits != 32:  # each head has its own scale
        assert (error.max(axis=(1, 2)) <= plan.scale / 2 * math.log(2) * (1 + 1e-5) + 1e-7).all() and plan.scale[0] < plan.scale[1]


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_relative_bias_in_onnx_runtime(bits):
    spec = RelativeBias((2, 3), query_minus_key=True)
    values = np.random.default_rng(3).normal(size=(spec.rows, 2))
    places = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), axis=-1).reshape(-1, 2)
    rows = spec.index(places, places)
    plan = LearnedBiasPlan(spec, values, bits)
    bias, y, expected = attend(bias_model(plan), 2, 12, 12, 8**-0.5, rows=rows)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
    assert np.abs(bias - values[rows].transpose(2, 0, 1)).max() <= plan.bound * math.log(2) + 1e-6


@pytest.mark.parametrize("bits", [32, 16, 8])
def test_a_table_per_layer_in_onnx_runtime(bits):
    spec = T5Bias(8, 20, False, layers=3)
    values = np.random.default_rng(5).normal(size=(3, 8, 2)) * np.array([1, 4, 0.1])[:, None, None]
    plan = LearnedBiasPlan(spec, values, bits)
    at = np.arange(6)
    for layer in range(3):
        hidden = at[None, :] > at[:, None]
        given = {"query_positions": at, "key_positions": at, "layer": np.array(layer)}
        bias, y, expected = attend(bias_model(plan), 2, 6, 6, 1.0, None, hidden, **given)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
        assert np.abs(bias - values[layer][spec.index(at, at)].transpose(2, 0, 1)).max() <= plan.bound * math.log(2) + 1e-6
        np.testing.assert_allclose(bias, plan.bias_fixed(at, at, layer) * 2.0**-16 * math.log(2), rtol=0, atol=2.0**-17)


def test_the_integers_feed_the_operator():
    """int16 and int8 initializers, DequantizeLinear, and a path from there into RotaryEmbedding or Attention's mask."""
    bias = np.random.default_rng(6).normal(size=(32, 2))
    for bits, kind in ((16, onnx.TensorProto.INT16), (8, onnx.TensorProto.INT8)):
        graphs = {
            "RotaryEmbedding": [rope_model(TablePlan(Rope(8), 9, bits))],
            "Attention": [alibi_model(BiasTablePlan(Alibi(2), 9, bits)), bias_model(LearnedBiasPlan(T5Bias(), bias, bits))],
        }
        for op, model in ((op, onnx.load_model_from_string(m)) for op, models in graphs.items() for m in models):
            stored = {t.name for t in model.graph.initializer if t.data_type == kind}
            reached = set()
            for node in model.graph.node:
                if reached & set(node.input) or (stored & set(node.input)):
                    reached |= set(node.output)
            last = next(node for node in model.graph.node if node.op_type == op)
            assert stored and reached & set(last.input[1:]), (op, bits)
            assert any(node.op_type == "DequantizeLinear" for node in model.graph.node)


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("per", ["row", "tensor"])
@pytest.mark.parametrize("spec", [Learned(40), Learned.opt(40), Learned(40, modulo=8)])
def test_learned_positions_in_onnx_runtime(spec, per, bits):
    values = np.random.default_rng(4).normal(size=(40, 6))
    plan = LearnedPlan(spec, values, bits, per)
    at = np.array([[0, 3, 7], [37, 2, 8]])
    embedding = run(learned_model(plan), position_ids=at)
    assert np.abs(embedding - values[spec.rows(at)]).max() <= plan.bound + 1e-6


@pytest.mark.parametrize("bits", [16, 8])
def test_sinusoidal_positions_in_onnx_runtime(bits):
    spec = Sinusoidal(12, "concatenated", "half_minus_one", 2, scale=0.5)
    plan = SinusoidalPlan(spec, 50, bits)
    at = np.array([[0, 3, 49], [17, 2, 8]])
    error = np.abs(run(sinusoidal_model(plan), position_ids=at) - spec.table(at.ravel()).reshape(2, 3, 12)).max()
    assert error <= plan.bound * plan.scale + 1e-6
    for row_first in (True, False):
        flat = Sinusoidal2D(spec, row_first)
        places = np.array([[[0, 3], [49, 2]]])
        embedding = run(sinusoidal_model(SinusoidalPlan(flat, 50, bits)), position_ids=places)
        assert np.abs(embedding[0] - flat.table(places[0])).max() <= plan.bound * plan.scale + 1e-6
