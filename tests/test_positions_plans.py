"""RoPE's integer plans: the proof of each bound, and the integers against exact mathematics."""

import json

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos import fixedpoint
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.positions import PhasePlan, Rope, TablePlan
from edgepos.positions.exact import exact_cos_sin
from edgepos.positions.phase_proof import EXHAUSTIVE_MAX, exhaustive_error, interpolation_error, runtime_interpolation

EXTREMES = [0, 1, 2, 4095, 65536, 131071, 2**30, 2**31 - 1]


def units_off(plan, position, pair):
    """Errors of cos and sin in units of 1/full_scale, in 256-bit arithmetic."""
    integers = [int(t[0, pair]) for t in plan.cos_sin([position])]
    exact = exact_cos_sin(plan.spec, position, pair, plan.seq_len)
    with mpmath.workdps(50):
        return [abs(i - plan.full_scale * e) for i, e in zip(integers, exact)]


def test_phase_bound_is_proven_below_0_58():
    plan = PhasePlan(Rope(64))
    assert 0.577 < plan.bound <= 0.58
    certificate = plan.certificate()
    assert plan.bound >= sum(certificate["terms"].values())
    assert certificate["terms"]["phase_rounding"] >= 32767 * 2 * np.pi / 2**29
    assert certificate["terms"]["increment"] >= 32767 * 2 * np.pi * (2**31 - 1) / 2**65
    assert len(certificate["per_segment"]) == 256
    json.dumps(certificate)


def test_interpolation_bound_holds_and_is_tight():
    """Against a dense sample of every segment, in float64 (good to 10^-11 units)."""
    table = fixedpoint.quarter_table()
    bounds = runtime_interpolation().per_segment
    part = np.linspace(0, 1, 513)
    for i in range(256):
        chord = (table[i] + (table[i + 1] - table[i]) * part) / 2**15
        worst = np.abs(chord - 32767 * np.sin((i + part) * (np.pi / 512))).max()
        assert worst <= bounds[i] + 1e-11
        assert worst >= bounds[i] - 1e-5


def test_interpolation_bound_notices_a_changed_entry():
    table = fixedpoint.quarter_table().copy()
    table[77] += 4000
    changed = interpolation_error(table)
    assert changed.segment in (76, 77) and changed.worst > 0.1


def test_plain_entries_would_be_worse():
    """numerics.md: without the factor 1 + h²/16 the interpolation alone costs 0.154."""
    plain = np.array([round(32767 * 2**15 * float(np.sin(j * np.pi / 512))) for j in range(257)])
    assert interpolation_error(plain).worst == pytest.approx(32767 * (np.pi / 512) ** 2 / 8, rel=1e-3)


def test_recorded_exhaustive_maximum():
    """All 2^26 + 1 phases of the quarter wave; the proof bounds it from above, by less than 0.001."""
    found = exhaustive_error()
    assert found == pytest.approx(EXHAUSTIVE_MAX, abs=5e-7)
    assert 0 <= 0.5 + runtime_interpolation().worst - found < 0.001


@settings(max_examples=100, deadline=None)
@given(
    theta=st.floats(2.0, 1e7),
    pairs=st.integers(1, 64),
    position=st.one_of(st.sampled_from(EXTREMES), st.integers(0, 2**31 - 1)),
    data=st.data(),
)
def test_phase_stays_within_its_bound(theta, pairs, position, data):
    plan = PhasePlan(Rope(2 * pairs, theta=theta))
    assert max(units_off(plan, position, data.draw(st.integers(0, pairs - 1)))) <= plan.bound


def test_phase_bound_is_reached():
    """The bound says something: a scan comes within 0.01 of it."""
    plan = PhasePlan(Rope(128))
    at = np.arange(30_000)
    worst = max(np.abs(i - 32767 * e).max() for i, e in zip(plan.cos_sin(at), plan.spec.cos_sin(at)))
    assert plan.bound - 0.01 < worst <= plan.bound


@pytest.mark.parametrize("bits, dtype, full", [(16, np.int16, 32767), (8, np.int8, 127)])
def test_table_is_correctly_rounded(bits, dtype, full):
    spec = Rope(32, theta=10000.0)
    plan = TablePlan(spec, 300, bits)
    cos, sin = plan.cos_sin(np.arange(300))
    assert cos.dtype == dtype and cos.shape == (300, 16) and plan.bytes == 2 * 300 * 16 * bits // 8
    assert plan.full_scale == full and plan.scale == 1 / full and 0.49 < plan.bound <= 0.5
    for position in (0, 1, 2, 17, 255, 299):
        for pair in range(16):
            c, s = exact_cos_sin(spec, position, pair)
            with mpmath.workdps(50):
                assert cos[position, pair] == mpmath.floor(full * c + mpmath.mpf("0.5"))
                assert sin[position, pair] == mpmath.floor(full * s + mpmath.mpf("0.5"))


def test_near_ties_are_decided_exactly(monkeypatch):
    """With every entry sent through interval arithmetic the table is the same."""
    from edgepos.positions import exact

    fast = TablePlan(Rope(8), 64, 16)
    monkeypatch.setattr(exact, "SCALED_RADIUS", 1.0)
    slow = TablePlan(Rope(8), 64, 16)
    np.testing.assert_array_equal(fast.cos, slow.cos)
    np.testing.assert_array_equal(fast.sin, slow.sin)


@settings(max_examples=30, deadline=None)
@given(theta=st.floats(2.0, 1e7), pairs=st.integers(1, 16), context=st.integers(1, 400), bits=st.sampled_from([8, 16]), data=st.data())
def test_table_stays_within_half_a_unit(theta, pairs, context, bits, data):
    plan = TablePlan(Rope(2 * pairs, theta=theta), context, bits)
    position, pair = data.draw(st.integers(0, context - 1)), data.draw(st.integers(0, pairs - 1))
    assert max(units_off(plan, position, pair)) <= 0.5


def test_plans_refuse_by_name():
    for context in (0, -1, 2**31 + 1, 1.5, None):
        with pytest.raises(FormatError, match="context"):
            TablePlan(Rope(8), context)
        with pytest.raises(FormatError, match="context"):
            PhasePlan(Rope(8), context)
    with pytest.raises(UnsupportedError, match="bits"):
        TablePlan(Rope(8), 16, 12)
    with pytest.raises(UnsupportedError, match="phase plan"):
        TablePlan(Rope(128), 2**31)
    with pytest.raises(ContextError, match="position 16"):
        TablePlan(Rope(8), 16).cos_sin([16])
    with pytest.raises(ContextError, match="position 16"):
        PhasePlan(Rope(8), 16).cos_sin([16])


PLANS = [PhasePlan, lambda spec: TablePlan(spec, 4096), lambda spec: TablePlan(spec, 4096, 8)]


@pytest.mark.parametrize("make", PLANS)
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotated_vectors_stay_within_the_bound(make, layout):
    spec = Rope(64, 48, layout=layout)
    plan = make(spec)
    rng = np.random.default_rng(3)
    at = rng.integers(0, 4096, size=200)
    x = rng.integers(-23169, 23170, size=(4, 200, 64)).astype(np.int16)
    y = plan.rotate_int16(x, at)
    assert y.dtype == np.int16 and y.shape == x.shape
    exact = spec.rotate(x, at)
    assert np.abs(y - exact).max() <= plan.rotation_bound(23169)
    np.testing.assert_array_equal(y[..., 48:], x[..., 48:])
    a, b = (t.astype(float) for t in spec.split(y))
    p, q = (t.astype(float) for t in spec.split(x))
    change = np.abs(np.hypot(a, b) - np.hypot(p, q))
    assert (change <= plan.stretch_bound() * np.hypot(p, q) + np.sqrt(0.5)).all()
    length = np.sqrt((p**2 + q**2).sum(axis=-1))
    assert (np.abs(np.sqrt((a**2 + b**2).sum(axis=-1)) - length) <= plan.norm_bound(length.max())).all()


@pytest.mark.parametrize("make", PLANS)
def test_rotation_never_wraps(make, shared):
    """rotation_headroom: a pair at the edge of int16 grows by √2 and saturates."""
    case = next(c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == "rotation_headroom")
    spec = Rope(2, theta=10000.0)
    plan = make(spec)
    at = np.arange(4096)
    for x in (case["x"], [-32768, -32768], [32767, -32768]):
        x = np.array(x, dtype=np.int16)
        exact = spec.rotate(np.broadcast_to(x, (4096, 2)), at)
        y = plan.rotate_int16(np.broadcast_to(x, (4096, 2)), at)
        assert np.abs(y - np.clip(exact, -32767, 32767)).max() <= plan.rotation_bound(32768)
        assert np.abs(exact).max() > 46000 and np.abs(y.astype(int)).max() == 32767


def test_rotation_within_headroom_does_not_saturate():
    plan = PhasePlan(Rope(2))
    at = np.arange(100_000)
    for x in ([23169, 23169], [-23169, 23169], [32765, 0]):
        y = plan.rotate_int16(np.broadcast_to(np.array(x, dtype=np.int16), (100_000, 2)), at)
        exact = plan.spec.rotate(np.broadcast_to(x, (100_000, 2)), at)
        assert np.abs(y - exact).max() <= plan.rotation_bound(32765)


def test_rotation_refuses_other_dtypes():
    with pytest.raises(FormatError, match="dtype"):
        PhasePlan(Rope(8)).rotate_int16(np.zeros(8), 0)


def test_amplitude_is_one_over_full_scale():
    for plan in (PhasePlan(Rope(8)), TablePlan(Rope(8), 4, 8)):
        m, n = plan.amplitude()
        assert 2**30 <= m < 2**31
        assert m * 2.0**-n * plan.full_scale == pytest.approx(1, abs=2**-30)


def test_requantize_cases(shared):
    case = next(c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == "requantize_round_half_up")
    for x, multiplier, shift, result in case["rows"]:
        assert fixedpoint.requant(x, multiplier, shift) == result


def test_errors_are_edgepos_errors():
    with pytest.raises(EdgePosError):
        PhasePlan(Rope(8), 2**40)
