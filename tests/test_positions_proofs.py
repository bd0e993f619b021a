"""Bounds from every entry: enclosures against 60 and more digits, the worst entry, the distance from float32, rotated vectors."""

import json

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos.positions import (
    Alibi,
    AngleRope,
    BiasTablePlan,
    LearnedBiasPlan,
    MRope,
    PhasePlan,
    PiecewisePlan,
    RelativeBias,
    Rope,
    Sinusoidal,
    SinusoidalPlan,
    SplitPlan,
    T5Bias,
    TablePlan,
    float32_error,
)
from edgepos.positions.alibi_plan import exact_log2_slopes
from edgepos.positions.enclosure import PHASE_ERROR, RADIUS, enclosed_cos_sin, interval_cos_sin, radian_phase
from edgepos.positions.entry_proof import worst_entry, worst_product
from edgepos.positions.exact import exact_cos_sin
from edgepos.positions.float32 import EXHAUSTIVE_ENTRIES, FUNCTION_ERROR, float32_angle

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}
EDGES = [k * 2**61 + d for k in range(8) for d in (-1, 0, 1)]


@settings(max_examples=300, deadline=None)
@given(phase=st.one_of(st.sampled_from(EDGES), st.integers(0, 2**64 - 1)), off=st.integers(-PHASE_ERROR, PHASE_ERROR))
def test_enclosures_hold_around_every_phase(phase, off):
    """Also for angles PHASE_ERROR units away; the proof leaves a factor of 1.5."""
    c, s = enclosed_cos_sin(np.array([phase % 2**64], dtype=np.uint64))
    with mpmath.workdps(60):
        angle = (phase + off) * mpmath.pi / mpmath.mpf(2) ** 63
        assert max(abs(c[0] - mpmath.cos(angle)), abs(s[0] - mpmath.sin(angle))) <= RADIUS / 1.5


def test_enclosures_need_no_math_library():
    """Exact where cos and sin are, and the recorded bits of IEEE additions and products elsewhere."""
    c, s = enclosed_cos_sin(np.arange(4, dtype=np.uint64) << np.uint64(62))
    assert c.tolist() == [1, 0, -1, 0] and s.tolist() == [0, 1, 0, -1]
    c, s = enclosed_cos_sin(np.arange(1, 20001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 % 2**64))
    assert np.bitwise_xor.reduce(np.concatenate([c, s]).view(np.uint64)) == 0x156EB9818C19019


@settings(max_examples=200, deadline=None)
@given(angle=st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.floats(-1e6, 1e6), st.sampled_from([0.0, 5e-324, 1.7e308, -(2.0**53)])))
def test_phases_of_radians(angle):
    with mpmath.workprec(2300):
        exact = mpmath.mpf(angle) / (2 * mpmath.pi) * mpmath.mpf(2) ** 64
        away = (int(radian_phase(np.array([angle]))[0]) - exact) % mpmath.mpf(2) ** 64
        assert min(away, mpmath.mpf(2) ** 64 - away) < 3.1


def test_intervals_hold_the_value():
    for position, pair in ((0, 0), (1, 3), (131071, 1), (2**31 - 1, 0)):
        with mpmath.workprec(256):
            found = interval_cos_sin(Rope(64).exact_angle(position, pair))
        with mpmath.workprec(500):
            angle = position * mpmath.power(10000, -mpmath.mpf(2 * pair) / 64)
            for interval, exact in zip(found, (mpmath.cos(angle), mpmath.sin(angle))):
                assert interval.a <= exact <= interval.b and interval.delta < 1e-40


@settings(max_examples=25, deadline=None)
@given(theta=st.floats(2.0, 1e7), pairs=st.integers(1, 12), context=st.integers(1, 60), bits=st.sampled_from([8, 16]))
def test_the_worst_entry_is_the_largest_of_all(theta, pairs, context, bits):
    """Against 256-bit arithmetic at every entry."""
    plan = TablePlan(Rope(2 * pairs, theta=theta), context, bits)
    errors = {}
    for position in range(context):
        for pair in range(pairs):
            with mpmath.workdps(60):
                for name, table, exact in zip(("cos", "sin"), (plan.cos, plan.sin), exact_cos_sin(plan.spec, position, pair)):
                    errors[position, pair, name] = abs(int(table[position, pair]) - plan.full_scale * exact)
    largest, worst = max(errors.values()), plan.worst
    assert largest <= plan.bound <= largest + 2.0**-31 and plan.bound <= 0.5
    assert errors[worst.position, worst.pair, worst.function] >= largest - 1e-12
    assert worst.entries == 2 * context * pairs and 1 <= worst.decided <= 64
    assert plan.certificate()["worst"] == worst.to_json()


def test_one_altered_entry_changes_the_bound_and_its_place():
    plan = TablePlan(Rope(16), 500)
    good = plan.bound
    cos = plan.cos.copy()
    cos[123, 4] += 1
    found = worst_entry(plan.spec, lambda a, b: (cos[a:b], plan.sin[a:b]), np.arange(500), 32767, None)
    assert (found.position, found.pair, found.function) == (123, 4, "cos") and 0.5 < found.bound <= 1.5 and good <= 0.5


def test_tables_without_entries_have_no_error():
    for spec in (Rope(8, 0), Rope(8)):
        assert TablePlan(spec, 1).bound == 0
    assert PiecewisePlan(Rope(8, 0), 10).bound == 0


@pytest.mark.parametrize("spec", [Rope(32, scaling=YARN), AngleRope(8, lambda p: np.sqrt(p)[:, None] * np.array([1.0, -40.0, 1e9, 0.0])).tabulated(700)])
@pytest.mark.parametrize("make", [TablePlan, PiecewisePlan])
def test_bounds_hold_at_every_position(spec, make):
    plan = make(spec, 700)
    found = max(np.abs(i - plan.full_scale * e).max() for i, e in zip(plan.cos_sin(np.arange(700)), spec.enclosed_cos_sin(np.arange(700)[:, None])))
    assert found - 1e-9 <= plan.bound <= found + 1e-9
    json.dumps(plan.certificate())


@pytest.mark.parametrize("entry_bits", [16, 32])
def test_split_bounds_come_from_the_entries(entry_bits):
    plan = SplitPlan(Rope(32), 3000, entry_bits)
    scale = {16: 32767, 32: 2**30}[entry_bits]
    x, y = (w.bound for w in plan.worst)
    assert plan.terms()["entries"] == pytest.approx(32767 / scale * (2**0.5 * (x + y) + 2 * x * y / scale), rel=1e-12)
    assert all(0.4 < v <= 0.5 for v in (x, y))
    found = max(np.abs(i - 32767 * e).max() for i, e in zip(plan.cos_sin(np.arange(3000)), plan.spec.cos_sin(np.arange(3000))))
    assert found <= plan.bound


@pytest.mark.parametrize("make", [PhasePlan, TablePlan, lambda s, c: TablePlan(s, c, 8), SplitPlan])
@pytest.mark.parametrize("spec", [Rope(64), Rope(16, 12, theta=5e5, scaling=YARN), MRope(Rope(16), (2, 3, 3))])
def test_distance_from_float32_is_found_at_every_entry(make, spec):
    plan = make(spec, 3000)
    at = np.arange(3000)
    angle = float32_angle(spec, at[:, None], None).astype(np.float64)  # libm's cos and sin of the rounded angle
    away = np.maximum(*(np.abs(i - plan.full_scale * f(angle)) for i, f in zip(plan.cos_sin(spec.diagonal(at)), (np.cos, np.sin))))
    distance = plan.float32_distance
    extra = plan.full_scale * FUNCTION_ERROR
    assert distance.proof == "every entry" and away[distance.position, distance.pair] == pytest.approx(away.max(), abs=1e-9)
    for n, bound in distance.growth:
        assert bound == pytest.approx(away[:n].max() + extra, abs=1e-9) and bound >= away[:n].max()
    assert [n for n, _ in distance.growth] == [2**k for k in range(12)] + [3000] and distance.growth[-1][1] == distance.bound
    assert plan.certificate()["float32"] == json.loads(json.dumps(distance.to_json()))


def test_where_positions_are_too_many_the_distance_is_a_formula():
    """It holds where the exhaustive one can be had, and is not far above."""
    spec = Rope(64)
    context = EXHAUSTIVE_ENTRIES // spec.pairs
    inside, beyond = PhasePlan(spec, context).float32_distance, PhasePlan(spec, context + 1).float32_distance
    assert (inside.proof, beyond.proof, beyond.function) == ("every entry", "formula", "")
    for (n, found), (same, formula) in zip(inside.growth[:-1], beyond.growth):
        assert n == same and found <= formula <= 6 * found + 0.6
    assert PhasePlan(spec).float32_distance.bound < 2 * 32767 + 1


def test_float32_distance_holds_for_transformers():
    """Their module, with its own float32 inv_freq: no further from our integers than the bound of exactly rounded frequencies by more
    than what the difference of the frequencies explains."""
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    spec, context = Rope(64), 4096
    module = llama.LlamaRotaryEmbedding(LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=64))
    at = np.arange(context)
    theirs = [t[0, :, :32].numpy().astype(np.float64) for t in module(torch.zeros(1), torch.tensor(at)[None])]
    plan = TablePlan(spec, context)
    away = np.max([np.abs(i - 32767 * t) for i, t in zip(plan.cos_sin(at), theirs)], axis=0)
    frequencies = np.abs(module.inv_freq.numpy().astype(np.float64) - spec.inv_freq().astype(np.float32))
    allowed = plan.float32_distance.bound + 32767 * context * frequencies * (1 + 1e-6)
    assert (away <= allowed).all()
    same = frequencies == 0
    assert same.any() and away[:, same].max() <= plan.float32_distance.bound
    assert float32_error(spec, context) == pytest.approx(plan.float32_distance.bound, abs=1)


def test_angles_by_a_function_have_no_float32_form():
    plan = TablePlan(AngleRope(8, lambda p: p[:, None] * np.array([1.0, 0.5, 0.25, 0.0])).tabulated(20), 20)
    assert plan.float32_distance is None and plan.certificate()["float32"] is None


def test_sinusoidal_certificates_have_no_rotation():
    certificate = SinusoidalPlan(Sinusoidal(8, start=2), 50).certificate()
    assert "rotation" not in certificate and certificate["float32"]["proof"] == "every entry" and certificate["worst"]["entries"] == 2 * 52 * 4


@pytest.mark.parametrize("make", [lambda s: PhasePlan(s, 2**17), lambda s: TablePlan(s, 4096), lambda s: TablePlan(s, 4096, 8), lambda s: SplitPlan(s, 4096)])
@pytest.mark.parametrize("scaling", [None, YARN | {"attention_factor": 1.5}])
@pytest.mark.parametrize("limit, dtype", [(32767, np.int16), (127, np.int8)])
def test_headroom_is_where_nothing_saturates(make, scaling, limit, dtype):
    """Up to it every component of every direction is within the bound of the exact one; two above it something saturates."""
    spec = Rope(2, scaling=scaling, theta=10000.0)
    plan = make(spec)
    h = plan.headroom(limit)
    rotate = plan.rotate_int16 if dtype is np.int16 else plan.rotate_int8
    at = np.arange(4096)
    for x in ([h, h], [h, -h], [-h, -h], [h, 0], [h, h // 2]):
        y = rotate(np.broadcast_to(np.array(x, dtype=dtype), (4096, 2)), at).astype(float)
        assert np.abs(y - spec.rotate(np.broadcast_to(x, (4096, 2)), at)).max() <= plan.rotation_bound(h)
        length = np.hypot(*x)
        assert (np.abs(np.hypot(y[:, 0], y[:, 1]) - spec.attention_factor * length) <= plan.norm_bound(length)).all()
    assert spec.attention_factor * np.sqrt(2) * (h + 2) * (1 + plan.stretch_bound()) > limit


def test_norm_bound_at_the_extremes():
    """Vectors of 64 components, all at the headroom or with one that is not 0, and the bound is not idle: a scan comes to a third of it."""
    for make in (lambda s: TablePlan(s, 2000, 8), lambda s: TablePlan(s, 2000)):
        plan = make(Rope(64))
        h, at = plan.headroom(), np.arange(2000)
        one = np.zeros(64, dtype=np.int16)
        one[0] = h
        for x in (np.full(64, h, dtype=np.int16), np.where(np.arange(64) % 2, -h, h).astype(np.int16), one, np.ones(64, dtype=np.int16)):
            y = plan.rotate_int16(np.broadcast_to(x, (2000, 64)), at).astype(float)
            length = np.linalg.norm(x.astype(float))
            assert np.abs(np.linalg.norm(y, axis=1) - length).max() <= plan.norm_bound(length)
        pair = plan.rotate_int16(np.broadcast_to(one, (2000, 64)), at)[:, [0, 32]].astype(float)
        assert np.abs(np.hypot(*pair.T) - h).max() >= plan.stretch_bound() * h / 3


@pytest.mark.parametrize("bits", [16, 8])
def test_alibi_tables_are_compared_entry_by_entry(bits):
    plan = BiasTablePlan(Alibi(5), 400, bits)
    slopes = exact_log2_slopes(plan.spec)
    with mpmath.workdps(60):
        errors = {
            (h, d): abs(int(e) + slopes[h] * d / plan.scale) for h, row in enumerate(plan.table) for d, e in enumerate(row) if e != plan.saturated
        }
        largest = max(errors.values())
    bound, head, distance = plan.worst
    assert largest <= bound == plan.bound <= min(0.5, largest + 2.0**-31) and errors[head, distance] == largest
    assert BiasTablePlan(Alibi(2, user_slopes=(1e9, 1e9)), 3, bits).bound == 0  # all but distance 0 are saturated


def test_learned_biases_are_compared_entry_by_entry():
    values = np.random.default_rng(8).normal(size=(32, 3)) * np.array([1.0, 1e-9, 3000.0])
    plan = LearnedBiasPlan(T5Bias(), values)
    with mpmath.workdps(60):
        errors = np.array([[abs(int(e) / mpmath.mpf(2) ** 16 - mpmath.mpf(v) / mpmath.ln(2)) for e, v in zip(*rows)] for rows in zip(plan.table, values.tolist())])
        largest = errors.max()
    assert largest <= plan.bound <= min(2.0**-17 * (1 + 2.0**-50), largest + 2.0**-46) and errors[plan.worst] == largest
    assert plan.bound == plan.terms()["worst_entry"]


def test_products_of_an_altered_table_pass_half_a_unit():
    entries = np.array([0, 3, 7, 10])
    bound, at = worst_product(np.arange(4.0), mpmath.mpf(10) / 3, entries)
    assert bound == pytest.approx(1 / 3, abs=1e-9) and at in (1, 2)
    entries[3] += 1
    bound, at = worst_product(np.arange(4.0), mpmath.mpf(10) / 3, entries)
    assert bound == pytest.approx(1, abs=1e-9) and at == 3


@pytest.mark.parametrize("bits, per", [(16, "head"), (8, "tensor")])
def test_biases_with_factors_are_compared_entry_by_entry(bits, per):
    values = np.random.default_rng(9).normal(size=(2, 5, 3)) * np.array([1.0, 1e-3, 0.0])
    plan = LearnedBiasPlan(RelativeBias((2,), layers=2), values, bits, per)
    exact = values / np.log(2)
    errors = np.abs(plan.table * plan.scale[:, None, :] - exact)
    assert errors.max() <= plan.entry_bound <= errors.max() + 1e-9 * plan.scale.max() and errors[plan.worst] == pytest.approx(errors.max())
    assert plan.bound == pytest.approx(plan.entry_bound + 2.0**-17)
