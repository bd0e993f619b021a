"""The canonical graph of each encoding alone, in ONNX Runtime, beside the float64 reference."""

from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from edgepos import positions
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.export import position_graph
from edgepos.positions import (
    Alibi, AngleRope, AxialRope, Hybrid, Learned, MRope, NoPosition, RelativeBias, Rope, Sinusoidal, Sinusoidal2D, T5Bias, from_config,
)  # fmt: skip

CONTEXT, HEADS = 90, 3
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "original_max_position_embeddings": 64}


def run(model: ir.Model, **inputs) -> np.ndarray:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == set(inputs)
    return session.run(None, inputs)[0]


@pytest.fixture
def rng():
    return np.random.default_rng(3)


ROTATIONS = [
    Rope(16), Rope(16, 8), Rope(16, 8, layout="interleaved"), Rope(16, 8, scaling=YARN), Rope(16, 8, scaling=LONG),
    AngleRope(16, lambda p: np.sqrt(p)[:, None] * np.arange(4), 8), AngleRope(4, ((0.0, 0.5),) * CONTEXT),
    MRope(Rope(16), (2, 3, 3)), MRope(Rope(16, layout="interleaved"), (4, 2, 2), interleaved=True), MRope(Rope(16, 8, scaling=YARN), (2, 1, 1)),
    AxialRope(16, (Rope(8), Rope(4, theta=100.0))), AxialRope(18, (Rope(6), Rope(6), Rope(6)), "interleaved"),
    from_config({"model_type": "pixtral", "hidden_size": 64, "num_attention_heads": 4}),
]  # fmt: skip


@pytest.mark.parametrize("spec", ROTATIONS, ids=lambda spec: spec.encoding)
def test_rotations(spec, rng):
    x = rng.normal(size=(1, 7, HEADS * spec.head_dim)).astype(np.float32)
    axes = spec.axes and max(spec.axes) + 1
    at = rng.integers(0, CONTEXT, (1, 7, axes) if axes else (1, 7))
    at[0, 0], at[0, 1] = 0, CONTEXT - 1
    name = "position_coordinates" if axes else "position_ids"
    y = run(position_graph(spec, CONTEXT, heads=HEADS), x=x, **{name: at})
    heads = x.reshape(7, HEADS, spec.head_dim).transpose(1, 0, 2)
    exact = spec.rotate(heads, at[0], CONTEXT).transpose(1, 0, 2).reshape(x.shape)
    np.testing.assert_allclose(y, exact, atol=3e-6)
    assert np.abs(exact - x).max() > 0.1


@pytest.mark.parametrize("spec", [Alibi(6), Alibi(4, symmetric=True), Alibi(2, user_slopes=(0.0, 2.5))])
def test_alibi(spec):
    q, k = np.array([[40, 41, 7]]), np.array([[0, 7, 40, 41, 80]])
    mask = run(position_graph(spec, CONTEXT), position_ids=q, key_position_ids=k)
    np.testing.assert_allclose(mask[0], spec.bias(q[0], k[0]), rtol=1e-6)


@pytest.mark.parametrize("offset", [0, 5])
def test_alibi_positions_from_a_padding_mask(offset):
    """Padding before the text does not move it."""
    spec = Alibi(6)
    given = np.array([[0] * offset + [1] * 7])
    mask = run(position_graph(spec, CONTEXT, padded=True), attention_mask=given)
    at = np.arange(7)
    np.testing.assert_allclose(mask[0, :, offset:, offset:], spec.bias(at, at), rtol=1e-6)


def test_alibi_positions_are_those_of_bloom():
    """Bloom's bias by keys differs from ours by a number per query, which softmax does not see."""
    torch = pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    given = np.array([[0, 0, 1, 1, 1, 1]])
    theirs = bloom.build_alibi_tensor(torch.from_numpy(given), 6, torch.float32).numpy()
    ours = run(position_graph(Alibi(6), CONTEXT, padded=True), attention_mask=given)[0]
    for query in range(2, 6):
        away = ours[:, query, 2 : query + 1] - theirs[:, 0, 2 : query + 1]
        np.testing.assert_allclose(away, np.broadcast_to(away[:, :1], away.shape), atol=1e-6)


BIASES = [T5Bias(32, 60, True), T5Bias(32, 60, False), T5Bias(2, 7, False), T5Bias(4, 9, True), RelativeBias((5,)), RelativeBias((9,), query_minus_key=True)]


@pytest.mark.parametrize("spec", BIASES, ids=str)
def test_biases_by_difference(spec, rng):
    table = rng.normal(size=(spec.rows, HEADS)).astype(np.float32)
    q, k = np.array([[0, 30, 89, 17]]), rng.permutation(CONTEXT)[None]
    mask = run(position_graph(spec, CONTEXT, table=table), position_ids=q, key_position_ids=k)
    np.testing.assert_array_equal(mask[0], table[spec.index(q[0], k[0])].transpose(2, 0, 1))


def test_t5_masks_of_transformers(rng):
    pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    from transformers import T5Config

    sizes = {"d_model": 12, "d_kv": 4, "num_heads": 3, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 40}
    at = np.arange(33)[None]
    for part, spec in from_config({"model_type": "t5"} | sizes).items():
        theirs = t5.T5Attention(T5Config(**sizes, is_decoder=part == "decoder"), has_relative_attention_bias=True)
        table = theirs.relative_attention_bias.weight.detach().numpy()
        mask = run(position_graph(spec, 33, table=table), position_ids=at, key_position_ids=at)
        np.testing.assert_array_equal(mask, theirs.compute_bias(33, 33).detach().numpy())


@pytest.mark.parametrize("spec", [RelativeBias((3, 2)), RelativeBias((3, 2), query_minus_key=True), RelativeBias((1, 2, 3))], ids=str)
def test_biases_by_coordinates(spec, rng):
    axes = len(spec.extents)
    table = rng.normal(size=(spec.rows, HEADS)).astype(np.float32)
    q, k = rng.integers(0, 8, (1, 5, axes)), rng.integers(0, 8, (1, 11, axes))
    mask = run(position_graph(spec, CONTEXT, table=table), position_coordinates=q, key_position_coordinates=k)
    np.testing.assert_array_equal(mask[0], table[spec.index(q[0], k[0])].transpose(2, 0, 1))


def test_a_window_of_swin(rng):
    torch = pytest.importorskip("torch")
    swin = pytest.importorskip("transformers.models.swin.modeling_swin")
    spec = from_config({"model_type": "swin", "window_size": 4})
    theirs = swin.SwinRelativePositionBias(HEADS, (4, 4))
    table = rng.normal(size=(spec.rows, HEADS)).astype(np.float32)
    theirs.relative_position_bias_table.data = torch.from_numpy(table)
    at = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij"), axis=-1).reshape(1, 16, 2)
    mask = run(position_graph(spec, 4, table=table), position_coordinates=at, key_position_coordinates=at)
    np.testing.assert_array_equal(mask, theirs().detach().numpy())


@pytest.mark.parametrize("spec", [Learned(CONTEXT), Learned(CONTEXT, 2), Learned(20, 3), Learned(20, 3, modulo=17), Learned(20, modulo=6)], ids=str)
def test_learned(spec, rng):
    table = rng.normal(size=(spec.count, 10)).astype(np.float32)
    at = np.array([[0, 3, min(spec.context, CONTEXT) - 1, 1]])
    rows = run(position_graph(spec, CONTEXT, table=table), position_ids=at)
    np.testing.assert_array_equal(rows[0], table[spec.rows(at[0])])


@pytest.mark.parametrize("spec", [Learned.roberta(40), Learned.roberta(40, 4), Learned.opt(40), Learned(9, 2, 1, modulo=3)], ids=str)
def test_learned_behind_padding(spec, rng):
    table = rng.normal(size=(spec.count, 10)).astype(np.float32)
    model = position_graph(spec, CONTEXT, table=table)
    ids = rng.integers(0, 8, (1, 20))
    ids[0, [0, 5, 19]] = spec.pad_id
    for before in (0, 6):
        rows = run(model, input_ids=ids, tokens_before=np.array([before]))
        np.testing.assert_array_equal(rows[0], table[spec.positions(ids[0], before)])


SINUSOIDS = [
    Sinusoidal(12), Sinusoidal(12, "concatenated", "half_minus_one", start=2, scale=0.5), Sinusoidal(12, first="cos"),
    Sinusoidal2D(Sinusoidal(6)), Sinusoidal2D(Sinusoidal(6, "concatenated"), row_first=False),
]  # fmt: skip


@pytest.mark.parametrize("spec", SINUSOIDS, ids=str)
def test_sinusoids(spec, rng):
    flat = isinstance(spec, Sinusoidal)
    at = rng.integers(0, CONTEXT, (1, 9) if flat else (1, 9, 2))
    rows = run(position_graph(spec, CONTEXT), **{"position_ids" if flat else "position_coordinates": at})
    np.testing.assert_allclose(rows[0], spec.table(at[0]), atol=1e-7)


def test_the_model_says_what_it_is():
    for spec in (Rope(8), Sinusoidal2D(Sinusoidal(4)), RelativeBias((1, 1))):
        table = np.zeros((spec.rows, 2)) if isinstance(spec, RelativeBias) else None
        model = position_graph(spec, 16, table=table)
        assert positions.from_json(json.loads(model.metadata_props["edgepos.position_encoding"])) == spec
        assert model.opset_imports[""] == 23 and model.metadata_props["edgepos.context"] == "16"


REFUSED = [
    (NoPosition(), {}, UnsupportedError, "none has no graph"),
    (Hybrid(NoPosition(), (Rope(8),)), {}, UnsupportedError, "each encoding of a hybrid"),
    (Learned(8), {}, FormatError, "table is missing"),
    (Learned(8), {"table": np.zeros((9, 4))}, FormatError, r"\[9, 4\]"),
    (T5Bias(), {"table": np.zeros(32)}, FormatError, r"\[32, heads\]"),
    (Rope(8), {"table": np.zeros((8, 4))}, FormatError, "no learned table"),
    (Rope(8), {"heads": 0}, FormatError, "heads"),
    (Rope(8), {"padded": True}, UnsupportedError, "padded"),
    (AxialRope(8, (Rope(2, 0),)), {}, UnsupportedError, "no pair"),
    (AngleRope(4, ((0.0, 0.5),) * 3), {}, ContextError, "position 15 has no angles"),
]


@pytest.mark.parametrize("spec, options, error, named", REFUSED, ids=lambda value: getattr(value, "encoding", ""))
def test_refused_by_name(spec, options, error, named):
    with pytest.raises(EdgePosError, match=named) as caught:
        position_graph(spec, 16, **options)
    assert type(caught.value) is error
    with pytest.raises(FormatError, match="context"):
        position_graph(Rope(8), 0)
