"""The other plans (interpolated, split, piecewise), their proofs, and the choice between them."""

import json

import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import (
    Alibi,
    InterpolatedPlan,
    Learned,
    MRope,
    NoPosition,
    PhasePlan,
    PiecewisePlan,
    Rope,
    Sinusoidal,
    SplitPlan,
    T5Bias,
    TablePlan,
    pareto,
)
from edgepos.positions.interpolated import ENTRIES, interpolation_bound, quarter_sine, wave

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
    assert by_name["table", 16]["bound"] == 0.5
    assert by_name["table", 8]["bound"] == pytest.approx(0.5 * 32767 / 127)
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


def test_encodings_that_do_not_rotate_are_compared_and_their_plans_named():
    specs = [Alibi(4), Sinusoidal(8, start=2, scale=0.5)]
    for spec in specs:
        rows = pareto(spec, 64)
        assert rows and all({"method", "bits", "bytes", "bound", "operations", "best"} <= set(row) for row in rows)
    for spec in [*specs, T5Bias(), NoPosition(), Learned(16, 8)]:
        with pytest.raises(UnsupportedError, match=f"{spec.encoding} does not"):
            positions.plan(spec, context=64)
    for bad in (-1, 1.5, True):
        with pytest.raises(FormatError, match="max_bytes"):
            positions.plan(Rope(8), context=16, max_bytes=bad)
