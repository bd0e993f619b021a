"""Every scaling of RoPE at random parameters against its paper's formula, computed here again with mpmath: frequencies, 64-bit increments,
attention factors, and the phases and angles at positions from 0 to 2^31 − 1."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from edgepos.errors import FormatError
from edgepos.fixedpoint import rope_phase
from edgepos.positions import PhasePlan, Rope

DIGITS = 70
POSITIONS = [0, 1, 2, 131071, 2**31 - 1, *(2**k for k in range(2, 31))]
thetas, dims = st.floats(1.5, 1e8), st.integers(1, 64).map(lambda pairs: 2 * pairs)
factors, lengths = st.floats(0.25, 64.0), st.integers(2, 2**20)


def power(theta, d):
    """RoFormer, section 3.2.2: theta^(−2j/d)."""
    return [mpmath.exp(-2 * mpmath.mpf(j) / d * mpmath.log(mpmath.mpf(theta))) for j in range(d // 2)]


def check(spec, expected, seq_len=None, attention=1):
    """The spec's numbers against frequencies and an attention factor of DIGITS digits."""
    assert len(expected) == spec.pairs and spec.attention_factor == pytest.approx(float(attention), rel=4e-16)
    for found, exact in zip(spec.inv_freq(seq_len), expected):
        assert abs(mpmath.mpf(float(found)) - exact) <= exact * mpmath.mpf(2) ** -53 * (1 + mpmath.mpf(10) ** -20)
    increments = spec.increments(seq_len)
    turns = [f / (2 * mpmath.pi) * mpmath.mpf(2) ** 64 for f in expected]
    for found, exact in zip(increments.tolist(), turns):
        away = (found - exact) % mpmath.mpf(2) ** 64
        assert min(away, mpmath.mpf(2) ** 64 - away) <= mpmath.mpf("0.5") + mpmath.mpf(10) ** -20
    at = np.array(POSITIONS)
    cos, sin = spec.cos_sin(at, seq_len)
    phases = rope_phase(at[:, None], increments)
    for n, position in enumerate(POSITIONS):
        for pair in {0, spec.pairs // 2, spec.pairs - 1}:
            angle = position * expected[pair]
            assert max(abs(cos[n, pair] - mpmath.cos(angle)), abs(sin[n, pair] - mpmath.sin(angle))) < 4e-16
            away = (int(phases[n, pair]) - position * turns[pair]) % mpmath.mpf(2) ** 64
            assert min(away, mpmath.mpf(2) ** 64 - away) <= position / 2 + 1e-9


def within_plan(spec, expected, position):
    """The runtime's integers of the last pair at a position, in the plan's bound of exact mathematics."""
    plan = PhasePlan(spec, position + 1)
    for found, exact in zip(plan.cos_sin([position]), (mpmath.cos, mpmath.sin)):
        assert abs(int(found[0, -1]) - 32767 * exact(position * expected[-1])) <= plan.bound


def digits(test):
    """Run a test at DIGITS decimal digits."""

    def wrapped(**arguments):
        with mpmath.workdps(DIGITS):
            test(**arguments)

    wrapped.__name__ = test.__name__
    wrapped.__doc__ = test.__doc__
    return wrapped


property_test = settings(max_examples=60, deadline=None)


@property_test
@example(theta=10000.0, d=2, factor=4.0, position=2**31 - 1)
@given(theta=thetas, d=dims, factor=factors, position=st.sampled_from(POSITIONS))
@digits
def test_none_and_linear(theta, d, factor, position):
    """Chen et al.: positions are divided by the factor, which divides the frequencies."""
    plain = power(theta, d)
    check(Rope(d, theta=theta), plain)
    divided = [f / mpmath.mpf(factor) for f in plain]
    spec = Rope(d, theta=theta, scaling={"rope_type": "linear", "factor": factor})
    check(spec, divided)
    within_plan(spec, divided, position)


@property_test
@given(theta=thetas, d=dims, factor=factors, position=st.sampled_from(POSITIONS))
@digits
def test_ntk(theta, d, factor, position):
    """b' = b · s^(d/(d−2)), so that pair j has the frequency b^(−2j/d) · s^(−2j/(d−2))."""
    scaling = {"rope_type": "ntk", "factor": factor}
    if d == 2:
        with pytest.raises(FormatError, match="rotary_dim"):
            Rope(d, theta=theta, scaling=scaling)
        return
    expected = [f * mpmath.mpf(factor) ** (-2 * mpmath.mpf(j) / (d - 2)) for j, f in enumerate(power(theta, d))]
    spec = Rope(d, theta=theta, scaling=scaling)
    check(spec, expected)
    within_plan(spec, expected, position)


@property_test
@example(theta=10000.0, d=64, factor=2.0, trained=2048, length=2049)
@given(theta=thetas, d=dims.filter(lambda d: d > 2), factor=st.floats(1.0, 64.0), trained=lengths, length=st.one_of(st.none(), st.integers(1, 2**31)))
@digits
def test_dynamic_ntk(theta, d, factor, trained, length):
    """The factor of NTK is s·L/M − (s − 1) for L > M tokens and 1 up to there."""
    longest = max(trained, length or trained)
    s = mpmath.mpf(factor)
    stretch = s * longest / trained - (s - 1)
    expected = [f * stretch ** (-2 * mpmath.mpf(j) / (d - 2)) for j, f in enumerate(power(theta, d))]
    spec = Rope(d, theta=theta, scaling={"rope_type": "dynamic", "factor": factor, "max_position_embeddings": trained})
    check(spec, expected, length)


@property_test
@example(theta=10000.0, d=64, factor=8.0, trained=4096, fast=32.0, slow=1.0, truncate=True, given=None, mscales=None)
@example(theta=10000.0, d=16, factor=40.0, trained=64, fast=32.0, slow=1.0, truncate=True, given=None, mscales=(1.0, 0.707))
@example(theta=10000.0, d=2, factor=0.5, trained=2, fast=1.0, slow=1.0, truncate=False, given=1.25, mscales=None)
@given(
    theta=thetas,
    d=dims,
    factor=factors,
    trained=lengths,
    fast=st.floats(1.0, 64.0),
    slow=st.floats(0.01, 64.0),
    truncate=st.booleans(),
    given=st.one_of(st.none(), st.floats(0.1, 4.0)),
    mscales=st.one_of(st.none(), st.tuples(st.floats(0.1, 2.0), st.floats(0.1, 2.0))),
)
@digits
def test_yarn(theta, d, factor, trained, fast, slow, truncate, given, mscales):
    """Peng et al., section 3.2 and 3.4. Pair j makes r_j = L·f_j/2π turns in training; it keeps its frequency above beta_fast turns, is
    divided below beta_slow, and between the pairs where a wave makes those turns the share kept falls in equal steps."""
    assume(slow <= fast)
    plain, s = power(theta, d), mpmath.mpf(factor)

    def pair_of(turns):  # the (broken) pair number at which trained · theta^(−2x/d) = 2π · turns
        return d * (mpmath.log(trained) - mpmath.log(2 * mpmath.pi * mpmath.mpf(turns))) / (2 * mpmath.log(mpmath.mpf(theta)))

    first, last = pair_of(fast), pair_of(slow)
    if truncate:
        first, last = mpmath.floor(first), mpmath.ceil(last)
    first, last = max(first, mpmath.mpf(0)), min(last, mpmath.mpf(d - 1))
    width = last - first if last != first else mpmath.mpf("0.001")
    expected = []
    for j, f in enumerate(plain):
        divided = min(max((j - first) / width, 0), 1)
        expected.append(f * ((1 - divided) + divided / s))
    grows = s > 1
    attention = (mpmath.log(s) / 10 if grows else 0) + 1
    if mscales:
        over, under = (mpmath.mpf(m) * mpmath.log(s) / 10 + 1 if grows else mpmath.mpf(1) for m in mscales)
        attention = over / under
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained, "beta_fast": fast, "beta_slow": slow}
    scaling |= {"truncate": truncate} | ({"attention_factor": given} if given else {})
    scaling |= {"mscale": mscales[0], "mscale_all_dim": mscales[1]} if mscales else {}
    check(Rope(d, theta=theta, scaling=scaling), expected, attention=given or attention)


@property_test
@example(theta=500000.0, d=128, factor=8.0, trained=8192, low=1.0, width=3.0)
@given(theta=thetas, d=dims, factor=factors, trained=lengths, low=st.floats(0.1, 16.0), width=st.floats(0.01, 16.0))
@digits
def test_llama3(theta, d, factor, trained, low, width):
    """By wavelength 2π/f: shorter than L/high stay, longer than L/low are divided, between them linear in L/wavelength."""
    high = low + width
    assume(high > low)
    expected = []
    for f in power(theta, d):
        wavelength = 2 * mpmath.pi / f
        if wavelength < mpmath.mpf(trained) / high:
            expected.append(f)
        elif wavelength > mpmath.mpf(trained) / low:
            expected.append(f / mpmath.mpf(factor))
        else:
            kept = (trained / wavelength - low) / (mpmath.mpf(high) - low)
            expected.append(f * (kept + (1 - kept) / mpmath.mpf(factor)))
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": trained}
    check(Rope(d, theta=theta, scaling=scaling), expected)


@property_test
@given(theta=thetas, d=dims, trained=lengths, factor=factors, own=st.one_of(st.none(), st.floats(0.1, 4.0)), data=st.data())
@digits
def test_longrope(theta, d, trained, factor, own, data):
    """Ding et al.: each frequency has its own divisor; attention is scaled by sqrt(1 + ln s / ln L)."""
    rows = st.lists(st.floats(0.5, 100.0), min_size=d // 2, max_size=d // 2)
    short, long = data.draw(rows), data.draw(rows)
    scaling = {"rope_type": "longrope", "short_factor": short, "long_factor": long, "original_max_position_embeddings": trained, "factor": factor}
    spec = Rope(d, theta=theta, scaling=scaling | ({"attention_factor": own} if own else {}))
    attention = own or (mpmath.sqrt(1 + mpmath.log(mpmath.mpf(factor)) / mpmath.log(trained)) if factor > 1 else 1)
    for length, divisors in ((None, short), (trained, short), (trained + 1, long), (2**31, long)):
        check(spec, [f / mpmath.mpf(v) for f, v in zip(power(theta, d), divisors)], length, attention)


@property_test
@given(theta=thetas, head=dims, share=st.floats(0.0, 1.0), factor=factors)
@digits
def test_partial_and_proportional(theta, head, share, factor):
    """Partial rotary: rotary_dim is the denominator; proportional: head_dim is, and the pairs beyond the share stand still."""
    rotary = 2 * math.floor(share * head / 2)
    if rotary:
        check(Rope(head, rotary, theta), power(theta, rotary))
    turning = int(share * head // 2)
    expected = [f / mpmath.mpf(factor) if j < turning else mpmath.mpf(0) for j, f in enumerate(power(theta, head))]
    check(Rope(head, theta=theta, scaling={"rope_type": "proportional", "partial_rotary_factor": share, "factor": factor}), expected)


@pytest.mark.parametrize(
    "scaling", [None, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}]
)
def test_nothing_rotates_with_a_rotary_dim_of_0(scaling):
    spec = Rope(8, 0, scaling=scaling)
    assert spec.inv_freq().shape == spec.increments().shape == (0,) and spec.cos_sin(POSITIONS)[0].shape == (len(POSITIONS), 0)
    x = np.arange(8, dtype=np.int16)
    np.testing.assert_array_equal(PhasePlan(spec).rotate_int16(x, 2**31 - 1), x)
