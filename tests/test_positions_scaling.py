"""RoPE's scalings: recorded cases, transformers' own functions, and the papers' formulas."""

import json
import math

import mpmath
import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import EdgePosError, FormatError
from edgepos.positions import PhasePlan, Rope, TablePlan
from edgepos.positions.rope_scaling import DynamicNtk, Scaling, plain_inv_freq, scaling_from_dict

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.25 * j for j in range(16)],
    "long_factor": [1.5 + 2.5 * j for j in range(16)],
    "original_max_position_embeddings": 4096,
    "factor": 32.0,
}
# (scaling in Hugging Face's keys, rotary_dim, theta, sequence lengths)
SCALINGS = [
    ({"rope_type": "linear", "factor": 4.0}, 64, 10000.0, [None]),
    ({"rope_type": "dynamic", "factor": 2.0}, 64, 10000.0, [None, 100, 4096, 4097, 10000, 65536]),
    (YARN, 64, 10000.0, [None]),
    (YARN | {"truncate": False}, 64, 10000.0, [None]),
    (YARN | {"attention_factor": 1.25}, 128, 500000.0, [None]),
    (YARN | {"beta_fast": 16.0, "beta_slow": 2.0}, 64, 1e6, [None]),
    (YARN | {"mscale": 1.0, "mscale_all_dim": 0.707}, 64, 10000.0, [None]),
    (YARN | {"mscale": 0.0, "mscale_all_dim": 0.707}, 64, 10000.0, [None]),
    (YARN | {"factor": 40.0, "original_max_position_embeddings": 64}, 16, 10000.0, [None]),
    (YARN | {"original_max_position_embeddings": 4}, 16, 10000.0, [None]),
    (LLAMA3, 128, 500000.0, [None]),
    (LLAMA3 | {"factor": 32.0, "high_freq_factor": 1.5}, 64, 10000.0, [None]),
    (LONG, 32, 10000.0, [None, 4096, 4097]),
    (LONG | {"attention_factor": 1.19}, 32, 10000.0, [None]),
    ({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0}, 64, 10000.0, [None]),
    ({"rope_type": "proportional", "partial_rotary_factor": 1.0}, 64, 10000.0, [None]),
]
LENGTH = 4096  # max_position_embeddings of the configs below


def cases(shared, kind):
    rows = [c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == kind]
    assert rows
    return rows


def spec_of(scaling, rotary_dim, theta):
    extra = {"max_position_embeddings": LENGTH} if scaling["rope_type"] == "dynamic" else {}
    return Rope(rotary_dim, theta=theta, scaling=scaling | extra)


def test_inv_freq_cases(shared):
    for case in cases(shared, "rope_scaled_inv_freq"):
        spec = Rope(case["rotary_dim"], theta=case["theta"], scaling=case["scaling"])
        np.testing.assert_allclose(spec.inv_freq(), case["inv_freq"], rtol=1e-15)


def test_dynamic_base_cases(shared):
    for case in cases(shared, "rope_dynamic_base"):
        base = DynamicNtk(case["factor"], case["max_position_embeddings"]).base(case["theta"], case["rotary_dim"], case["seq_len"])
        assert float(base) == pytest.approx(case["base"], rel=1e-14)


@pytest.mark.parametrize("scaling, rotary_dim, theta, lengths", SCALINGS, ids=lambda v: v["rope_type"] if isinstance(v, dict) else None)
def test_against_transformers(scaling, rotary_dim, theta, lengths):
    """Their float32 against our 256 bits: powers of theta in float32 are good to about 10^-6."""
    pytest.importorskip("torch")
    utils = pytest.importorskip("transformers.modeling_rope_utils")
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4 * rotary_dim,
        num_attention_heads=4,
        head_dim=rotary_dim,
        max_position_embeddings=LENGTH,
        rope_parameters=scaling | {"rope_theta": theta},
    )
    spec = spec_of(scaling, rotary_dim, theta)
    for length in lengths:
        theirs, factor = utils.ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, seq_len=length)
        np.testing.assert_allclose(spec.inv_freq(length), theirs.numpy(), rtol=4e-6, atol=0)
        assert spec.attention_factor == pytest.approx(factor, rel=1e-12)


def test_ntk_divides_the_slowest_frequency_by_the_factor():
    plain, stretched = Rope(64).inv_freq(), Rope(64, scaling={"rope_type": "ntk", "factor": 4.0}).inv_freq()
    assert stretched[0] == 1 and stretched[-1] == pytest.approx(plain[-1] / 4, rel=1e-14)


def test_yarn_ends_are_the_plain_and_the_divided_frequencies():
    plain, yarn = Rope(128).inv_freq(), Rope(128, scaling=YARN).inv_freq()
    np.testing.assert_allclose(yarn[:5], plain[:5], rtol=1e-15)
    np.testing.assert_allclose(yarn[-5:], plain[-5:] / 8, rtol=1e-15)
    assert Rope(128, scaling=YARN).attention_factor == pytest.approx(0.1 * math.log(8) + 1, rel=1e-15)


def test_longrope_attention_factor():
    assert Rope(32, scaling=LONG).attention_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)), rel=1e-15)


def test_custom_frequencies_are_taken_as_they_are():
    given = [0.5, 0.0, 3.25, 1e-9]
    spec = Rope(8, scaling={"rope_type": "custom", "inv_freq": given})
    np.testing.assert_array_equal(spec.inv_freq(), given)
    cos, _ = spec.cos_sin([2**31 - 1])
    with mpmath.workdps(50):
        assert abs(cos[0, 2] - mpmath.cos(mpmath.mpf(3.25) * (2**31 - 1))) < 4e-16
    assert cos[0, 1] == 1


@pytest.mark.parametrize("scaling, rotary_dim, theta, lengths", SCALINGS, ids=lambda v: v["rope_type"] if isinstance(v, dict) else None)
def test_plans_hold_for_every_scaling(scaling, rotary_dim, theta, lengths):
    spec = spec_of(scaling, rotary_dim, theta)
    assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    for context in (100, 5000):
        at = np.arange(context)
        for plan in (PhasePlan(spec, context), TablePlan(spec, context)):
            assert plan.seq_len == (context if scaling["rope_type"] in ("dynamic", "longrope") else None)
            for integers, exact in zip(plan.cos_sin(at), spec.cos_sin(at, plan.seq_len)):
                assert np.abs(integers - 32767 * exact).max() <= plan.bound


def test_length_dependent_kinds_use_the_session_length():
    spec = spec_of({"rope_type": "dynamic", "factor": 2.0}, 64, 10000.0)
    assert spec.length_dependent and not Rope(64).length_dependent
    assert (spec.increments() == PhasePlan(spec, LENGTH).increments).all()
    assert (spec.increments() != PhasePlan(spec, LENGTH + 1).increments)[1:].all()


def test_attention_factor_is_on_the_rotated_components_only():
    spec = Rope(16, 8, scaling=YARN | {"attention_factor": 1.5})
    x = np.arange(1, 17, dtype=np.int16) * 1000
    y = spec.rotate(x, 0)
    np.testing.assert_allclose(y[:8], 1.5 * x[:8], rtol=1e-15)
    np.testing.assert_array_equal(y[8:], x[8:])
    plan = PhasePlan(spec)
    turned = plan.rotate_int16(x, 12345)
    assert np.abs(turned - spec.rotate(x, 12345)).max() <= plan.rotation_bound(16000)
    m, n = plan.amplitude()
    assert m * 2.0**-n == pytest.approx(1.5 / 32767, rel=2**-30)


@pytest.mark.parametrize(
    "scaling, named",
    [
        ({"rope_type": "linear", "factor": -1}, "factor"),
        ({"rope_type": "ntk", "factor": 0}, "factor"),
        ({"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings"),
        ({"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 0}, "max_position_embeddings"),
        (YARN | {"beta_fast": 1.0, "beta_slow": 2.0}, "beta_fast"),
        (YARN | {"truncate": 1}, "truncate"),
        (YARN | {"attention_factor": 0}, "attention_factor"),
        (YARN | {"attention_factor": float("nan")}, "attention_factor"),
        (YARN | {"mscale": -1.0}, "mscale"),
        (YARN | {"original_max_position_embeddings": 4096.0}, "original_max_position_embeddings"),
        (LLAMA3 | {"high_freq_factor": 1.0}, "high_freq_factor"),
        (LLAMA3 | {"low_freq_factor": 0}, "low_freq_factor"),
        (LONG | {"short_factor": [1.0]}, "short_factor"),
        (LONG | {"long_factor": [0.0] * 16}, r"long_factor\[0\]"),
        (LONG | {"long_factor": 1.0}, "long_factor"),
        (LONG | {"original_max_position_embeddings": 1}, "original_max_position_embeddings"),
        ({"rope_type": "proportional", "partial_rotary_factor": 1.5}, "partial_rotary_factor"),
        ({"rope_type": "custom", "inv_freq": [1.0]}, "inv_freq"),
        ({"rope_type": "custom", "inv_freq": [float("nan")] * 16}, r"inv_freq\[0\]"),
        ({"rope_type": "custom", "inv_freq": [float("inf")] * 16}, r"inv_freq\[0\]"),
    ],
)
def test_bad_scalings_are_refused_by_name(scaling, named):
    with pytest.raises(EdgePosError, match=named):
        Rope(32, scaling=scaling)


def test_dimensions_a_formula_cannot_take_are_refused():
    for scaling in ({"rope_type": "ntk", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 8}):
        with pytest.raises(FormatError, match="rotary_dim"):
            Rope(2, scaling=scaling)
    with pytest.raises(FormatError, match="theta"):
        Rope(8, theta=1.0, scaling=YARN)


def test_default_means_none():
    assert scaling_from_dict({"rope_type": "default"}) is None
    assert scaling_from_dict({}) is None
    assert scaling_from_dict({"type": "linear", "factor": 2.0}).factor == 2.0


@pytest.mark.parametrize("factor", [1e-300, 2.0, 1e100, 1.7e308])
@pytest.mark.parametrize("length", [4096, 4097, 2**31])
def test_dynamic_ntk_cancels_nothing_at_any_factor(factor, length):
    """Against the formula as it is written, factor · L/M − (factor − 1), with bits enough for it."""
    spec = Rope(64, scaling={"rope_type": "dynamic", "factor": factor, "max_position_embeddings": 4096})
    with mpmath.workprec(4096):
        amount = mpmath.mpf(factor) * length / 4096 - (mpmath.mpf(factor) - 1)
        base = 10000 * mpmath.power(amount, mpmath.mpf(64) / 62)
        for j, f in enumerate(spec.exact_inv_freq(length)):
            exact = mpmath.power(base, -mpmath.mpf(2 * j) / 64)
            assert abs(f - exact) <= mpmath.ldexp(exact, -200)


@pytest.mark.parametrize("bits, refused", [(0, False), (60, False), (90, False), (100, True), (300, True)])
def test_frequencies_are_known_to_200_bits_or_refused(bits, refused):
    class Cancelling(Scaling):
        rope_type = "cancelling"

        def frequencies(self, theta, rotary_dim, seq_len):
            return [mpmath.ldexp(1, bits) + f - mpmath.ldexp(1, bits) for f in plain_inv_freq(theta, rotary_dim)]

    spec = Rope(4, theta=3.0, scaling=Cancelling())
    if refused:
        with pytest.raises(FormatError, match="inv_freq of pair [01] is .* fewer than 160 bits right"):
            spec.increments()
    else:
        with mpmath.workprec(1000):
            exact = mpmath.power(3, mpmath.mpf(-1) / 2)
            assert abs(spec.exact_inv_freq()[1] - exact) <= mpmath.ldexp(exact, -200)
