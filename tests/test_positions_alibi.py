"""ALiBi: slopes of every head count, biases, and the integer plans against exact arithmetic."""

import json
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos import fixedpoint, positions
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.positions import Alibi, BiasTablePlan, SlopePlan


def paper_slopes(n):
    """get_slopes of the paper's published code (attention_with_linear_biases), as it stands there."""

    def power_of_2(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + paper_slopes(2 * closest)[0::2][: n - closest]


def cases(shared, kind):
    rows = [c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == kind]
    assert rows
    return rows


def exact_bias(slope, distance):
    """slope · log2(e) · distance as an mpmath number."""
    with mpmath.workdps(50):
        return mpmath.mpf(slope) * distance / mpmath.ln(2)


def test_slope_cases(shared):
    for case in cases(shared, "alibi_slopes"):
        np.testing.assert_allclose(Alibi(case["heads"], case["bias_max"]).slopes(), case["slopes"], rtol=1e-15)


def test_bias_case(shared):
    (case,) = cases(shared, "alibi_bias")
    spec = Alibi(8)
    head = spec.slopes().tolist().index(case["slope"])
    np.testing.assert_array_equal(spec.bias([case["query"]], case["keys"])[head, 0], case["bias"])


@pytest.mark.parametrize("heads", range(1, 129))
def test_every_head_count_follows_the_paper(heads):
    np.testing.assert_allclose(Alibi(heads).slopes(), paper_slopes(heads), rtol=1e-13)


def test_bias_max_scales_the_exponent():
    np.testing.assert_allclose(Alibi(4, 16).slopes(), [2.0**-4, 2.0**-8, 2.0**-12, 2.0**-16])


def test_bias_shapes_and_symmetry():
    causal, both = Alibi(4), Alibi(4, symmetric=True)
    bias = causal.bias([5, 9], [3, 5, 7])
    assert bias.shape == (4, 2, 3)
    np.testing.assert_array_equal(bias[1] / causal.slopes()[1], [[-2, 0, 0], [-6, -4, -2]])
    np.testing.assert_array_equal(both.bias([5], [3, 5, 7])[1, 0] / both.slopes()[1], [-2, 0, -2])
    np.testing.assert_array_equal(causal.bias([1005], [1003]), causal.bias([5], [3]))


@pytest.mark.parametrize("heads", [1, 8, 12, 71, 112])
def test_slopes_are_rounded_from_exact_numbers(heads):
    plan = SlopePlan(Alibi(heads))
    assert plan.slopes.dtype == np.uint32 and plan.shift == 15 and plan.bytes == 4 * heads
    for stored, slope in zip(plan.slopes.tolist(), plan.spec.exact_slopes()):
        with mpmath.workdps(50):
            assert abs(stored - slope / mpmath.ln(2) * 2**31) <= 0.5


@settings(max_examples=100, deadline=None)
@given(heads=st.integers(1, 128), part=st.floats(0, 1), data=st.data())
def test_bias_stays_within_the_bound(heads, part, data):
    plan = SlopePlan(Alibi(heads))
    head = data.draw(st.integers(0, heads - 1))
    distance = int(part * int(plan.zero_distance()[head]))
    got = mpmath.mpf(int(plan.bias_fixed(distance)[head])) / 2**16
    error = abs(got - exact_bias(plan.spec.exact_slopes()[head], distance))
    assert error <= plan.bound_at(distance)
    assert error <= plan.bound


def test_bound_in_weight():
    plan = SlopePlan(Alibi(8))
    assert 2.0**-17 < plan.bound < 2e-5
    assert plan.bound_weight == pytest.approx(2**plan.bound - 1, rel=1e-9)
    json.dumps(plan.certificate())


@pytest.mark.parametrize("spec", [Alibi(8), Alibi(12), Alibi(3, user_slopes=(1e-9, 5.0, 0.0)), Alibi(2, user_slopes=(3e4, 1e30))])
def test_zero_distance_is_the_first_with_weight_zero(spec):
    plan = SlopePlan(spec)
    for head, d in enumerate(plan.zero_distance().tolist()):
        if d < 2**31:
            assert fixedpoint.exp2_neg(plan.bias_fixed(d)[head], 30) == 0
        before = plan.bias_fixed(d - 1)[head]
        assert before < 40 << 16


def test_large_user_slopes_get_fewer_fractional_bits():
    plan = SlopePlan(Alibi(2, user_slopes=(0.5, 1000.0)))
    assert plan.shift == 15 - 10
    for head, slope in enumerate(plan.spec.user_slopes):
        assert plan.bias_fixed(7)[head] == pytest.approx(float(exact_bias(slope, 7)) * 65536, abs=1 + 7 * 2**5)
    apart = SlopePlan(Alibi(3, user_slopes=(1e300, 1e-3, 16384.0)))  # what saturates at distance 1 takes no bits from the others
    assert apart.shift == 1 and apart.bias_fixed([0, 1, 2]).tolist()[0] == apart.bias_fixed([0, 1, 2]).tolist()[2] == [0, 2**30, 2**30]
    assert abs(apart.bias_fixed(4096)[1] / 65536 - float(exact_bias(1e-3, 4096))) <= apart.bound_at(4096) <= 2**-6 + 2**-16
    huge = SlopePlan(Alibi(1, user_slopes=(1e300,)))
    assert huge.bias_fixed([0, 1, 2**31 - 1]).tolist() == [[0, 2**30, 2**30]]
    assert SlopePlan(Alibi(1, user_slopes=(0.0,))).bias_fixed([2**31 - 1]) == 0


@pytest.mark.parametrize("bits, fraction_bits, lowest", [(16, 10, -32768), (8, 3, -128)])
@pytest.mark.parametrize("heads", [8, 12])
def test_bias_table_is_correctly_rounded_and_saturates(bits, fraction_bits, lowest, heads):
    plan = BiasTablePlan(Alibi(heads), 1000, bits)
    assert plan.table.shape == (heads, 1000) and plan.bytes == heads * 1000 * bits // 8
    for head, slope in enumerate(plan.spec.exact_slopes()):
        for d in (0, 1, 2, 10, 43, 44, 45, 200, 999):
            with mpmath.workdps(50):
                value = -mpmath.floor(exact_bias(slope, d) * 2**fraction_bits + mpmath.mpf("0.5"))
                assert plan.table[head, d] == max(value, lowest)
    assert plan.zero_distance()[0] == (45 if bits == 16 else 23) if heads == 8 else True


@pytest.mark.parametrize("bits", [16, 8])
def test_near_ties_are_decided_exactly(bits, monkeypatch):
    """With every entry sent through 256-bit arithmetic the table is the same."""
    from edgepos.positions import alibi_plan

    spec = Alibi(5, user_slopes=(0.0, 1e-9, 0.01, 0.7, 1e9))
    fast = BiasTablePlan(spec, 300, bits)
    monkeypatch.setattr(alibi_plan, "PRODUCT_RADIUS", 1.0)
    np.testing.assert_array_equal(BiasTablePlan(spec, 300, bits).table, fast.table)


def test_int8_table_says_how_much_it_leaks():
    """numerics.md: 131072 saturated keys add up to about twice the weight of the nearest key."""
    eight, sixteen = BiasTablePlan(Alibi(8), 131072, 8), BiasTablePlan(Alibi(8), 131072, 16)
    assert eight.leak() == pytest.approx(2.0, rel=1e-3)
    assert sixteen.leak() < 4e-5
    assert eight.bound_weight == pytest.approx(0.044, abs=1e-3)
    assert sixteen.bound_weight == pytest.approx(0.00034, abs=1e-5)


@pytest.mark.parametrize("spec", [Alibi(12), Alibi(4, 16.5, True), Alibi(2, user_slopes=(0.5, 0.0))])
def test_json_round_trip(spec):
    assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"heads": 0}, "heads"),
        ({"heads": -1}, "heads"),
        ({"heads": 2.0}, "heads"),
        ({"heads": 8, "bias_max": 0}, "bias_max"),
        ({"heads": 8, "bias_max": float("nan")}, "bias_max"),
        ({"heads": 8, "symmetric": 1}, "symmetric"),
        ({"heads": 2, "user_slopes": (0.5,)}, "user_slopes"),
        ({"heads": 2, "user_slopes": (0.5, -1.0)}, r"user_slopes\[1\]"),
        ({"heads": 1, "user_slopes": (float("inf"),)}, r"user_slopes\[0\]"),
    ],
)
def test_bad_specs_are_refused_by_name(fields, named):
    with pytest.raises(EdgePosError, match=named):
        Alibi(**fields)


def test_bad_calls_are_refused():
    with pytest.raises(ContextError):
        Alibi(8).bias([3], [-1])
    with pytest.raises(FormatError, match="context"):
        BiasTablePlan(Alibi(8), 0)
    with pytest.raises(UnsupportedError, match="bits"):
        BiasTablePlan(Alibi(8), 8, 4)
    with pytest.raises(UnsupportedError, match="slope plan"):
        BiasTablePlan(Alibi(8), 2**31)
    with pytest.raises(ContextError):
        BiasTablePlan(Alibi(8), 8).bias_fixed(8)
