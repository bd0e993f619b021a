"""The other plans (interpolated, split, piecewise), their proofs, and the choice between them."""

import json

import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import EdgePosError, UnsupportedError
from edgepos.positions import (
    Alibi,
    AngleRope,
    BiasTablePlan,
    EmptyPlan,
    Hybrid,
    HybridPlan,
    InterpolatedPlan,
    Learned,
    LearnedBiasPlan,
    LearnedPlan,
    MRope,
    NoPosition,
    PhasePlan,
    PiecewisePlan,
    RelativeBias,
    Rope,
    Sinusoidal,
    Sinusoidal2D,
    SinusoidalPlan,
    SlopePlan,
    SplitPlan,
    T5Bias,
    TablePlan,
    pareto,
)
from edgepos.positions.interpolated import ENTRIES, interpolation_bound, quarter_sine, wave
from edgepos.positions.plan import RotationPlan

SPEC = Rope(64)


def worst_error(plan, at):
    return max(float(np.abs(i - plan.full_scale * e).max()) for i, e in zip(plan.cos_sin(at), plan.spec.cos_sin(at, plan.seq_len)))


def spread(context):
    return np.unique(np.concatenate([np.arange(min(context, 3000)), (np.arange(5000) * 2654435761) % context, [context - 1]]))


@pytest.mark.parametrize("entries", ENTRIES)
@pytest.mark.parametrize("order", [1, 2])
def test_interpolated_waves_stay_within_their_proof(entries, order):
    plan = InterpolatedPlan(SPEC, entries=entries, order=order)
    found = worst_error(plan, spread(2**31))
    assert found <= plan.bound
    j = np.concatenate([(np.arange(200_000) * 2654435761) % 2**26, [0, 1, 2**26 - 1, 2**26]])
    found = float(np.abs(quarter_sine(j, entries, order) - 32767 * np.sin(j * (np.pi / 2**27))).max())
    assert 0.5 + interpolation_bound(entries, order) - 0.06 < found <= 0.5 + interpolation_bound(entries, order)


def test_256_linear_is_the_runtime():
    ours, runtime = InterpolatedPlan(SPEC), PhasePlan(SPEC)
    at = spread(2**31)
    for a, b in zip(ours.cos_sin(at), runtime.cos_sin(at)):
        np.testing.assert_array_equal(a, b)
    assert ours.bound == pytest.approx(runtime.bound, abs=1e-12) and ours.bytes == runtime.bytes
    assert len(wave(256, 1)) == 257


@pytest.mark.parametrize("entry_bits", [16, 32])
@pytest.mark.parametrize("context", [1, 2, 3, 1000, 1024, 1025, 20000])
def test_split_stays_within_its_proof(entry_bits, context):
    plan = SplitPlan(SPEC, context, entry_bits)
    assert worst_error(plan, np.arange(context)) <= plan.bound <= (1.92 if entry_bits == 16 else 0.5001)
    assert plan.bytes >= 2 * 2 * SPEC.pairs * entry_bits // 8 and plan.certificate()["bound"] == plan.bound


def test_split_at_every_position_of_a_large_context():
    plan = SplitPlan(Rope(8), 2**18, 16)
    assert worst_error(plan, np.arange(2**18)) <= plan.bound
    assert plan.bytes == 2 * 512 * 2 * 4 * 2


def test_piecewise_says_where_it_stands():
    """Fast pairs turn by more than half a circle between nodes and are lost; slow ones are fine."""
    plan = PiecewisePlan(SPEC, 2048, 4)
    assert worst_error(plan, np.arange(2048)) <= plan.bound
    assert plan.bound > 32767 and plan.pair_bounds[-1] < 1.1
    assert plan.certificate()["terms"] == {"worst_position": plan.bound}


def test_every_plan_rotates_and_takes_coordinates():
    spec = MRope(Rope(16), (3, 3, 2))
    at = np.random.default_rng(0).integers(0, 500, size=(40, 3))
    x = np.random.default_rng(1).integers(-20000, 20001, size=(2, 40, 16)).astype(np.int16)
    for plan in (InterpolatedPlan(spec, 500, 128, 2), SplitPlan(spec, 500), PiecewisePlan(spec, 500, 1)):
        assert np.abs(plan.rotate_int16(x, at) - spec.rotate(x, at)).max() <= plan.rotation_bound(20000)
        json.dumps(plan.certificate())


def test_pareto_compares_in_one_unit():
    rows = pareto(SPEC, 4096)
    by_name = {(r["method"], r["bits"]): r for r in rows}
    assert [r["bytes"] for r in rows] == sorted(r["bytes"] for r in rows)
    assert 0.4999 < by_name["table", 16]["bound"] <= 0.5
    assert 0.4999 < by_name["table", 8]["bound"] * 127 / 32767 <= 0.5
    assert by_name["phase", 16]["bytes"] == 8 * 32 + 4 * 257 and by_name["phase", 16]["best"]
    assert by_name["split-16", 16]["bytes"] < by_name["table", 16]["bytes"]
    assert {"method", "bits", "bytes", "bound", "operations", "best"} == set(rows[0])


def test_the_cheapest_plan_that_meets_the_request():
    assert isinstance(positions.plan(SPEC, context=4096, max_error=0.5), TablePlan)
    chosen = positions.plan(SPEC, context=4096)
    others = [r for r in pareto(SPEC, 4096) if r["bits"] == 16 and r["bound"] <= 0.58]
    assert chosen.bound <= 0.58 and chosen.bytes == min(r["bytes"] for r in others)
    assert chosen.method in chosen.why and "fewest bytes" in chosen.why
    assert positions.plan(SPEC, bits=8, context=64).full_scale == 127
    assert positions.plan(SPEC, method="split", context=4096, max_error=2.0).method == "split-16"
    assert positions.plan(SPEC).context == 2**31


@pytest.mark.parametrize(
    "request_, named",
    [
        ({"context": 4096, "max_error": 0.4}, "most exact"),
        ({"context": 4096, "max_bytes": 100}, "smallest"),
        ({"method": "table"}, "no plan"),
        ({"bits": 12, "context": 64}, "12"),
        ({"method": "magic", "context": 64}, "method"),
        ({"context": 0}, "context"),
        ({"context": 64, "max_error": float("nan")}, "max_error"),
    ],
)
def test_impossible_requests_are_refused_with_the_best_there_is(request_, named):
    with pytest.raises(EdgePosError, match=named):
        positions.plan(SPEC, **request_)


def test_bad_plans_are_refused():
    for make in (
        lambda: InterpolatedPlan(SPEC, entries=100),
        lambda: InterpolatedPlan(SPEC, order=3),
        lambda: SplitPlan(SPEC, 64, 8),
        lambda: PiecewisePlan(SPEC, 2**31, 1),
    ):
        with pytest.raises(UnsupportedError):
            make()


BIAS = np.random.default_rng(5).normal(size=(32, 4))
ROWS = np.random.default_rng(6).normal(size=(40, 6)) * np.geomspace(0.01, 1, 40)[:, None]
# encoding: (spec, what its plans need, the plan without further wishes)
ANY = {
    "rope": (Rope(64), {}, RotationPlan),
    "mrope": (MRope(Rope(16), (3, 3, 2)), {}, RotationPlan),
    "angles": (AngleRope(4, ((0.0, 0.5), (1.0, 2.0))), {"context": 2}, TablePlan),
    "alibi": (Alibi(12), {}, SlopePlan),
    "t5": (T5Bias(), {"weights": BIAS}, LearnedBiasPlan),
    "t5-layers": (T5Bias(8, 20, layers=4), {"weights": BIAS.reshape(4, 8, 4)}, LearnedBiasPlan),
    "relative": (RelativeBias((3, 2)), {"weights": BIAS[:7].repeat(5, axis=0)}, LearnedBiasPlan),
    "learned": (Learned.roberta(40), {"weights": ROWS}, LearnedPlan),
    "sinusoidal": (Sinusoidal(8, start=2, scale=0.5), {}, SinusoidalPlan),
    "sinusoidal_2d": (Sinusoidal2D(Sinusoidal(8)), {"context": 50}, SinusoidalPlan),
    "none": (NoPosition(), {}, EmptyPlan),
    "hybrid": (Hybrid(Learned.roberta(40), (Rope(8), NoPosition(), Alibi(2))), {"weights": {"learned": ROWS}, "context": 38}, HybridPlan),
    "kinds": ({"full": Rope(8), "sliding": Rope(8, theta=500.0), "off": NoPosition()}, {}, HybridPlan),
}


@pytest.mark.parametrize("bits", [16, 8])
@pytest.mark.parametrize("name", ANY)
def test_every_encoding_has_a_plan_that_says_what_it_is(name, bits):
    spec, given, kind = ANY[name]
    if bits == 8:
        given = given | {"context": given.get("context", 38)}
    plan = positions.plan(spec, bits=bits, **given)
    assert isinstance(plan, kind) and plan.spec == spec
    assert plan.bytes >= 0 and plan.method and plan.why and plan.why == plan.why.strip()
    bounds = plan.bound.values() if isinstance(plan, HybridPlan) else [plan.bound]
    scales = plan.scale.values() if isinstance(plan, HybridPlan) else [plan.scale]
    assert all(0 <= bound < 1 for bound in bounds) and all((np.asarray(scale) > 0).all() for scale in scales)
    for one in plan.parts.values() if isinstance(plan, HybridPlan) else [plan]:
        assert one.operations >= 0 and (one.bits == bits or isinstance(one, (SlopePlan, EmptyPlan)))
        assert one.certificate()["bound"] == one.bound
    json.dumps(plan.certificate())


def test_budgets_hold_for_every_encoding():
    # 8 bits: with an error of half a step of the largest row any factor will do, with less each row needs its own
    exact = positions.plan(Learned(40), bits=8, weights=ROWS)
    small = positions.plan(Learned(40), bits=8, weights=ROWS, max_error=1.0)
    assert (exact.per, small.per) == ("row", "tensor") and small.bytes < exact.bytes and exact.mean_error < small.mean_error
    assert positions.plan(Learned(40), bits=8, weights=ROWS, max_bytes=small.bytes).per == "tensor"
    assert (exact.row_errors <= ROWS.__abs__().max(axis=1) / 127 * 0.5000001).all()
    bias = positions.plan(T5Bias(), bits=8, weights=BIAS * [0.01, 1, 1, 1])
    assert bias.per == "head" and bias.scale[0] < bias.scale[1] / 10
    assert positions.plan(T5Bias(), bits=32, weights=BIAS).bound <= 2.0**-17
    assert isinstance(positions.plan(Alibi(4), bits=8, context=300), SlopePlan)
    table = positions.plan(Alibi(4), bits=8, method="table", context=300, max_error=0.0625)
    assert isinstance(table, BiasTablePlan) and 0.06 < table.error <= 0.0625 and table.bytes == 1200
    assert positions.plan(Sinusoidal(8), context=100).method == "phase" or positions.plan(Sinusoidal(8), context=100).bytes <= 1060
    assert positions.plan(Sinusoidal(8), context=10**6, max_error=0.58).method == "phase"
    assert positions.plan(Sinusoidal(8), context=1000, max_error=0.5).method == "table"
    spec, weights = Hybrid(Learned(40), (Rope(8), NoPosition())), {"learned": ROWS}
    whole = positions.plan(spec, bits=8, context=38, weights=weights)
    least = positions.plan(spec, bits=8, context=38, weights=weights, max_bytes=whole.bytes - 1)
    assert least.bytes < whole.bytes and least.parts["learned"].per == "tensor" and whole.parts["learned"].per == "row"
    assert whole.layer(0) is whole.parts["rope"] and isinstance(whole.layer(1), EmptyPlan)
    assert positions.plan(spec, context=38, weights=weights, max_error={"rope": 0.5}).parts["rope"].method == "table"


@pytest.mark.parametrize(
    "spec, request_, named",
    [
        (Alibi(4), {"max_error": 1e-9}, r"error up to 1e-09; the smallest is slopes with 32 bits, 16 bytes, error 8.*the most exact slopes"),
        (Alibi(4), {"context": 300, "max_bytes": 15}, "at most 15 bytes; the smallest is slopes with 32 bits, 16 bytes"),
        (Alibi(4), {"method": "table"}, "tables up to 2\\^26 bytes"),
        (T5Bias(), {}, "give it as weights"),
        (T5Bias(), {"weights": BIAS[:31]}, "bias table has shape"),
        (T5Bias(), {"weights": BIAS, "bits": 8, "max_error": 1e-3}, "the smallest is table with 8 bits, a factor per tensor, 136 bytes, error 0.0"),
        (RelativeBias((3, 2)), {}, "give it as weights"),
        (Learned(40), {}, "give it as weights"),
        (Learned(40), {"weights": ROWS, "context": 41}, "passes the learned table's 40 positions; positions.interpolate"),
        (Learned(40), {"weights": ROWS, "max_bytes": 480, "bits": 16}, "at most 480 bytes; the smallest is table with 16 bits, a factor per tensor, 488 bytes"),
        (Learned(40), {"weights": ROWS, "bits": 32}, "no plan has 32 bits"),
        (Learned(40), {"weights": ROWS, "method": "phase"}, "learned has table with 16, table with 8"),
        (Sinusoidal(8), {"max_error": 0.5}, "most exact phase"),
        (Sinusoidal(8, start=2), {"context": 2**31}, "context"),
        (Rope(8), {"bits": True}, "bits is True"),
        (Rope(8), {"context": 16, "max_bytes": 1.5}, "max_bytes"),
        (Hybrid(Learned(40), (Rope(8),)), {"context": 40}, "give it as weights"),
        (Hybrid(Learned(40), (Rope(8),)), {"context": 40, "weights": ROWS}, "weights is a ndarray"),
        (Hybrid(Learned(40), (Rope(8),)), {"context": 40, "max_error": {"rope_9": 0.5}}, "max_error names the part 'rope_9'"),
        (Hybrid(Learned(40), (Rope(8),)), {"context": 40, "weights": {"rope_9": ROWS}}, "'rope_9'; the parts are learned, rope"),
        (Hybrid(NoPosition(), (Rope(8), Alibi(4))), {"context": 40, "max_bytes": 50}, "no plans of all parts fit in 50 bytes; the smallest have"),
    ],
)
def test_impossible_requests_of_any_encoding_say_what_there_is(spec, request_, named):
    with pytest.raises(EdgePosError, match=named):
        positions.plan(spec, **request_)


@pytest.mark.parametrize("bits", [16, 8])
def test_a_rotation_of_nothing(bits):
    nothing = positions.plan(AngleRope(8, lambda p: np.zeros((len(p), 0)), 0), bits=bits)
    assert nothing.bytes == 0 and nothing.rotate_int16(np.arange(8, dtype=np.int16), 5).tolist() == list(range(8))
    for spec in (Rope(8, 0), MRope(Rope(8, 0), (0, 0, 0))):
        plan = positions.plan(spec, bits=bits, max_error=0.1)
        assert plan.method == "phase" and plan.bytes == 0 and "nothing is rotated" in plan.why and plan.context == 2**31
        x = np.arange(8, dtype=np.int16)
        at = 2**31 - 1 if spec.axes is None else [2**31 - 1] * 3
        np.testing.assert_array_equal(plan.rotate_int16(x, at), x)
        assert [row["method"] for row in pareto(spec, 4096)] == ["phase"]


def test_encodings_that_do_not_rotate_are_compared():
    for spec, weights in ((Alibi(4), None), (Sinusoidal(8, start=2, scale=0.5), None), (T5Bias(), BIAS), (Learned(40), ROWS)):
        rows = pareto(spec, 40, weights)
        assert rows and all({"method", "bits", "bytes", "bound", "operations", "best"} <= set(row) for row in rows)
    forms = {(row["method"], row["bits"]): row["bytes"] for row in pareto(T5Bias(), 40, BIAS)}
    assert forms["table", 32] == 512 and forms["table per head", 16] == 256 + 32 and forms["table per head", 8] == 128 + 32
