"""Learned and sinusoidal absolute positions, and models with several encodings."""

import json

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos import positions
from edgepos.errors import ContextError, EdgePosError
from edgepos.positions import (
    Alibi,
    Hybrid,
    Learned,
    LearnedPlan,
    NoPosition,
    Rope,
    Sinusoidal,
    Sinusoidal2D,
    SinusoidalPlan,
    T5Bias,
    interpolate,
)


def cases(shared, kind):
    rows = [c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == kind]
    assert rows
    return rows


def test_learned_case(shared):
    for case in cases(shared, "learned_positions"):
        assert case["offset"] == "roberta"
        assert Learned.roberta(514, case["pad_id"]).positions(case["ids"]).tolist() == case["positions"]


def test_learned_rules():
    ids = [[5, 6, 7, 1], [1, 1, 8, 9]]
    assert Learned(512).positions(ids).tolist() == [[0, 1, 2, 3]] * 2
    assert Learned.opt(2050).positions(ids).tolist() == [[2, 3, 4, 1], [1, 1, 2, 3]]
    assert Learned.roberta(514).positions(ids).tolist() == [[2, 3, 4, 1], [1, 1, 2, 3]]
    assert Learned(512).positions([5, 6], start=10).tolist() == [10, 11]
    assert Learned(4, modulo=4).positions([0] * 6).tolist() == [0, 1, 2, 3, 0, 1]


def test_learned_rules_against_transformers():
    torch = pytest.importorskip("torch")
    roberta = pytest.importorskip("transformers.models.roberta.modeling_roberta")
    ids = torch.tensor([[0, 31414, 232, 2, 1, 1], [1, 1, 0, 9, 9, 2]])
    theirs = roberta.RobertaEmbeddings.create_position_ids_from_input_ids(ids, 1).numpy()
    np.testing.assert_array_equal(Learned.roberta(514, 1).positions(ids.numpy()), theirs)


def test_learned_beyond_the_table():
    with pytest.raises(ContextError, match="4 positions"):
        Learned(4).positions([0] * 5)
    with pytest.raises(ContextError):
        Learned.roberta(6).positions([0] * 5)


def test_interpolation_keeps_the_ends_and_the_padding_rows():
    table = np.random.default_rng(0).normal(size=(10, 3))
    longer, spec = interpolate(table, Learned.roberta(10), 15)
    assert spec == Learned.roberta(17) and longer.shape == (17, 3)
    np.testing.assert_array_equal(longer[:3], table[:3])
    np.testing.assert_array_equal(longer[-1], table[-1])
    np.testing.assert_allclose(longer[3], (table[2:][0] + table[2:][1]) / 2)
    ramp, _ = interpolate(np.arange(5.0)[:, None], Learned(5), 9)
    np.testing.assert_allclose(ramp[:, 0], np.arange(9) / 2)


@pytest.mark.parametrize("bits, full", [(16, 32767), (8, 127)])
@pytest.mark.parametrize("per", ["row", "tensor"])
def test_learned_table_in_integers(bits, full, per):
    table = np.random.default_rng(1).normal(size=(20, 12)).astype(np.float32)
    table[3] = 0
    table[5] *= 100
    spec = Learned(20)
    plan = LearnedPlan(spec, table, bits, per)
    got = plan.values(np.arange(20))
    error = np.abs(got - table).max(axis=1)
    assert (error <= plan.row_errors).all() and plan.bound == plan.row_errors.max()
    assert (plan.row_errors <= error + 1e-12).all()
    largest = np.abs(table).max(axis=1) if per == "row" else np.full(20, np.abs(table).max())
    assert (error <= largest / full * 0.5000001 + 1e-30).all()
    assert (got[3] == 0).all() and plan.table.dtype == (np.int16 if bits == 16 else np.int8)
    json.dumps(plan.certificate())


def test_sinusoidal_case(shared):
    for case in cases(shared, "sinusoidal"):
        row = Sinusoidal(case["dim"], case["convention"]).table([case["position"]])[0]
        np.testing.assert_allclose(row, case["row"], rtol=0, atol=4e-16)


@settings(max_examples=60, deadline=None)
@given(
    half=st.integers(2, 64),
    convention=st.sampled_from(["interleaved", "concatenated"]),
    denominator=st.sampled_from(["half", "half_minus_one"]),
    first=st.sampled_from(["sin", "cos"]),
    start=st.integers(0, 3),
    position=st.one_of(st.sampled_from([0, 1, 131071]), st.integers(0, 2**31 - 4)),
    data=st.data(),
)
def test_sinusoidal_against_mpmath(half, convention, denominator, first, start, position, data):
    spec = Sinusoidal(2 * half, convention, denominator, start, 0.5, first=first)
    component = data.draw(st.integers(0, 2 * half - 1))
    frequency, second = divmod(component, 2) if convention == "interleaved" else (component % half, component // half)
    with mpmath.workdps(60):
        exponent = mpmath.mpf(frequency) / (half if denominator == "half" else half - 1)
        angle = (position + start) * mpmath.power(10000, -exponent)
        exact = (mpmath.sin if (first == "sin") != bool(second) else mpmath.cos)(angle) / 2
        assert abs(spec.table([position])[0, component] - exact) < 4e-16


def test_sinusoidal_against_transformers():
    """Float32 tables: M2M100 (concatenated, half minus one, two rows before), Whisper, DistilBERT (interleaved)."""
    pytest.importorskip("torch")
    at = np.arange(60)
    m2m = pytest.importorskip("transformers.models.m2m_100.modeling_m2m_100").M2M100SinusoidalPositionalEmbedding
    theirs = m2m.get_embedding(62, 32).numpy()
    np.testing.assert_allclose(Sinusoidal(32, "concatenated", "half_minus_one", start=2).table(at), theirs[2:], atol=2e-5)
    whisper = pytest.importorskip("transformers.models.whisper.modeling_whisper")
    np.testing.assert_allclose(Sinusoidal(32, "concatenated", "half_minus_one").table(at), whisper.sinusoids(60, 32).numpy(), atol=2e-5)


@pytest.mark.parametrize("bits, method", [(16, "table"), (8, "table"), (16, "phase")])
def test_sinusoidal_plans_hold(bits, method):
    for spec in (Sinusoidal(32), Sinusoidal(12, "concatenated", "half_minus_one", 2, 0.25, first="cos")):
        plan = SinusoidalPlan(spec, 400, bits, method)
        at = np.arange(400)
        assert np.abs(plan.table(at) * plan.scale - spec.table(at)).max() <= plan.bound * plan.scale * (1 + 1e-9)
        assert plan.bound <= 0.58 and plan.bytes > 0
        json.dumps(plan.certificate())
        with pytest.raises(ContextError):
            plan.table([400])


def test_image_positions():
    part = Sinusoidal(8, "concatenated")
    grid = np.stack(np.meshgrid(np.arange(3), np.arange(4), indexing="ij"), axis=-1).reshape(-1, 2)
    spec = Sinusoidal2D(part)
    table = spec.table(grid)
    assert table.shape == (12, 16) and spec.dim == 16
    np.testing.assert_array_equal(table[:, :8], part.table(grid[:, 0]))
    np.testing.assert_array_equal(table[:, 8:], part.table(grid[:, 1]))
    np.testing.assert_array_equal(Sinusoidal2D(part, False).table(grid), np.roll(table, 8, axis=1))


def test_hybrids():
    rope, none = Rope(64), NoPosition()
    nope = Hybrid(none, (rope, rope, rope, none) * 2)
    assert nope.kinds() == {rope: (0, 1, 2, 4, 5, 6), none: (3, 7)}
    both = Hybrid(Learned(64, modulo=64), (rope,) * 2)
    assert both.embedding.positions([0] * 70)[-1] == 5
    for spec in (nope, both, Hybrid(Sinusoidal(8), (Alibi(4), T5Bias()))):
        assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize("spec", [Learned(8, 2, 1), Learned(8, modulo=4), Sinusoidal(8, "concatenated", scale=2.0), Sinusoidal2D(Sinusoidal(4))])
def test_json_round_trip(spec):
    assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: Learned(0), "count"),
        (lambda: Learned(8, 8), "offset"),
        (lambda: Learned(8, 0, 1), "offset"),
        (lambda: Learned(8, modulo=9), "modulo"),
        (lambda: Learned(8).positions(3), "ids"),
        (lambda: Learned(8).positions([0.5]), "ids"),
        (lambda: LearnedPlan(Learned(8), np.zeros((7, 2))), "position table"),
        (lambda: LearnedPlan(Learned(8), np.full((8, 2), np.inf)), "NaN"),
        (lambda: LearnedPlan(Learned(8), np.zeros((8, 2)), 4), "bits"),
        (lambda: LearnedPlan(Learned(8), np.zeros((8, 2)), 8, "column"), "per"),
        (lambda: interpolate(np.zeros((8, 2)), Learned(8), 1), "length"),
        (lambda: interpolate(np.zeros((8, 2)), Learned(8), 7), "length is 7; allowed is .*8"),
        (lambda: interpolate(np.zeros((8, 2)), Learned(8, modulo=8), 16), "modulo"),
        (lambda: Sinusoidal(7), "dim"),
        (lambda: Sinusoidal(2, denominator="half_minus_one"), "dim"),
        (lambda: Sinusoidal(8, "spiral"), "convention"),
        (lambda: Sinusoidal(8, scale=0), "scale"),
        (lambda: Sinusoidal(8, theta=float("nan")), "theta"),
        (lambda: Sinusoidal(8, start=2).table([2**31 - 1]), "start"),
        (lambda: SinusoidalPlan(Sinusoidal(8), 0), "context"),
        (lambda: SinusoidalPlan(Sinusoidal(8), 4, 8, "phase"), "bits"),
        (lambda: SinusoidalPlan(Sinusoidal(8), 4, 8, "magic"), "method"),
        (lambda: Sinusoidal2D(Rope(8)), "part"),
        (lambda: Sinusoidal2D(Sinusoidal(8)).table([1, 2]), "row, column"),
        (lambda: Hybrid(Rope(8), (NoPosition(),)), "embedding"),
        (lambda: Hybrid(NoPosition(), ()), "layers"),
        (lambda: Hybrid(NoPosition(), (Learned(8),)), r"layers\[0\]"),
    ],
)
def test_bad_input_is_refused_by_name(make, named):
    with pytest.raises(EdgePosError, match=named):
        make()
