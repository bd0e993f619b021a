"""The public names of `edgepos.positions`, with the signatures that documentation and users rely on."""

import inspect
import json
import math

import mpmath
import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import EdgePosError, FormatError

SPECS = ("Rope", "Alibi", "T5Bias", "RelativeBias", "Learned", "Sinusoidal", "Hybrid", "NoPosition")


def parameters(function) -> dict:
    """Name → default of a callable's parameters; inspect's `empty` where there is none."""
    return {name: p.default for name, p in inspect.signature(function).parameters.items() if name != "self"}


REQUIRED = inspect.Parameter.empty
SIGNATURES = {
    "Rope.inv_freq": (positions.Rope.inv_freq, {"seq_len": None}),
    "Alibi": (positions.Alibi, {"heads": REQUIRED, "bias_max": 8, "symmetric": False}),
    "Alibi.slopes": (positions.Alibi.slopes, {}),
    "Alibi.bias": (positions.Alibi.bias, {"query_positions": REQUIRED, "key_positions": REQUIRED}),
    "T5Bias": (positions.T5Bias, {"num_buckets": 32, "max_distance": 128, "bidirectional": True}),
    "T5Bias.bucket": (positions.T5Bias.bucket, {"key_minus_query": REQUIRED}),
    "Rope.cos_sin": (positions.Rope.cos_sin, {"positions": REQUIRED}),
    "Rope.rotate": (positions.Rope.rotate, {"x": REQUIRED, "positions": REQUIRED}),
    "Learned.positions": (positions.Learned.positions, {"ids": REQUIRED}),
    "Sinusoidal": (positions.Sinusoidal, {"dim": REQUIRED, "convention": "interleaved", "denominator": "half"}),
    "Sinusoidal.table": (positions.Sinusoidal.table, {"positions": REQUIRED}),
    "plan": (positions.plan, {"spec": REQUIRED, "bits": 16, "method": "auto", "context": None, "max_error": None, "max_bytes": None}),
    "pareto": (positions.pareto, {"spec": REQUIRED, "context": REQUIRED}),
    "from_config": (positions.from_config, {"config": REQUIRED}),
    "from_gguf": (positions.from_gguf, {"metadata": REQUIRED}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name):
    """These parameters come first and in this order; more may follow, all with defaults."""
    function, wanted = SIGNATURES[name]
    found = list(parameters(function).items())
    assert [default for _, default in found[len(wanted) :] if default is REQUIRED] == []
    assert found[: len(wanted)] == list(wanted.items())


def test_every_name_is_importable():
    for name in (*SPECS, "from_config", "from_gguf", "plan", "pareto"):
        assert name in positions.__all__ and callable(getattr(positions, name))
    assert all(hasattr(positions, name) for name in positions.__all__)


def test_rope():
    spec = positions.Rope(8, 4, theta=100.0)
    np.testing.assert_allclose(spec.inv_freq(), [1.0, 0.1], rtol=0, atol=0)
    assert spec.inv_freq().dtype == np.float64 and spec.inv_freq(seq_len=7).shape == (2,) and spec.attention_factor == 1.0
    yarn = positions.Rope(8, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})
    assert yarn.attention_factor == pytest.approx(0.1 * math.log(4) + 1, rel=1e-15)
    cos, sin = yarn.cos_sin([0, 3, 131071])
    assert cos.shape == sin.shape == (3, 4) and cos.dtype == sin.dtype == np.float64
    assert (np.abs(cos**2 + sin**2 - 1) < 1e-15).all()  # without the attention factor
    x = np.arange(1.0, 9.0)
    angle = 3 * spec.inv_freq()
    expected = [*(x[:2] * np.cos(angle) - x[2:4] * np.sin(angle)), *(x[:2] * np.sin(angle) + x[2:4] * np.cos(angle)), *x[4:]]
    np.testing.assert_allclose(spec.rotate(x, 3), expected, rtol=0, atol=4e-15)


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda v: np.array(v, dtype=np.float32), lambda v: [np.float64(x) for x in v]])
def test_given_inv_freq(kind):
    """Any one-dimensional sequence of numbers gives the same spec: hashable, equal, and the same through JSON."""
    values = [1.0, 0.25, 0.0, 2.0**-20]
    spec = positions.Rope(8, scaling={"rope_type": "custom", "inv_freq": kind(values)})
    assert spec.scaling.inv_freq == tuple(values) and all(type(v) is float for v in spec.scaling.inv_freq)
    assert spec == positions.Rope(8, scaling={"rope_type": "custom", "inv_freq": values}) and len({spec, spec}) == 1
    assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    np.testing.assert_array_equal(spec.inv_freq(), values)
    plan = positions.plan(spec, context=2**31)
    np.testing.assert_array_equal(plan.cos_sin([0])[0], [[32767] * 4])
    slopes = positions.Alibi(4, user_slopes=kind(values))
    assert slopes.user_slopes == tuple(values) and len({slopes}) == 1


@pytest.mark.parametrize(
    "values, named",
    [
        (np.array([1.0, np.nan]), r"inv_freq\[1\] is nan"),
        (np.array([np.inf, 1.0]), r"inv_freq\[0\] is inf"),
        ([1.0, -1.0], r"inv_freq\[1\] is -1.0"),
        ([1.0, True], r"inv_freq\[1\] is True"),
        ([1.0, 10**400], r"inv_freq\[1\] is 1000"),
        (np.ones((2, 1)), r"inv_freq is an array of shape \(2, 1\)"),
        (np.array(1.0), r"inv_freq is an array of shape \(\)"),
        (np.ones(3), "inv_freq has 3 entries"),
        ("12", "inv_freq is '12'"),
        ({1.0, 2.0}, "inv_freq is {"),
        (["1", "2"], r"inv_freq\[0\] is '1'"),
        (np.array(["1", "2"]), r"inv_freq\[0\] is '1'"),
        (np.array([1j, 1]), r"inv_freq\[0\] is 1j"),
        (None, "inv_freq is None"),
    ],
)
def test_bad_inv_freq_is_refused_by_name(values, named):
    with pytest.raises(FormatError, match=named):
        positions.Rope(4, scaling={"rope_type": "custom", "inv_freq": values})


def test_alibi():
    spec = positions.Alibi(8)
    np.testing.assert_array_equal(spec.slopes(), [2.0 ** -(h + 1) for h in range(8)])
    bias = spec.bias([4, 5], [0, 4, 5])
    assert bias.shape == (8, 2, 3) and bias[0].tolist() == [[-2.0, 0.0, 0.0], [-2.5, -0.5, 0.0]]
    assert positions.Alibi(2, bias_max=8, symmetric=True).bias([0], [3])[0, 0, 0] == -3 * 2.0**-4


def test_t5_bias():
    assert positions.T5Bias(32, 128, True).bucket(np.array([-200, -1, 0, 1, 200])).tolist() == [15, 1, 0, 17, 31]
    assert positions.T5Bias(32, 128, False).bucket([-200, -1, 0, 1]).tolist() == [31, 1, 0, 0]
    assert positions.T5Bias().bucket(np.array([[1, 2]])).dtype.kind == "i"


def test_learned():
    assert positions.Learned(10).positions([5, 6, 7]).tolist() == [0, 1, 2]
    assert positions.Learned.roberta(10).positions(np.array([[5, 1, 7]])).tolist() == [[2, 1, 3]]


@pytest.mark.parametrize("convention", ["interleaved", "concatenated"])
@pytest.mark.parametrize("denominator", ["half", "half_minus_one"])
def test_sinusoidal(convention, denominator):
    row = positions.Sinusoidal(6, convention=convention, denominator=denominator).table([5])[0]
    below = 3 if denominator == "half" else 2
    with mpmath.workdps(30):
        angles = [5 * mpmath.power(10000, -mpmath.mpf(i) / below) for i in range(3)]
        sines, cosines = [mpmath.sin(a) for a in angles], [mpmath.cos(a) for a in angles]
    expected = [*sines, *cosines] if convention == "concatenated" else [v for pair in zip(sines, cosines) for v in pair]
    np.testing.assert_allclose(row, [float(v) for v in expected], rtol=0, atol=4e-16)


def test_plan_attributes():
    spec = positions.Rope(16, 8)
    plan = positions.plan(spec, context=4096)
    cos, sin = plan.cos_sin([0, 4095])
    assert cos.shape == sin.shape == (2, 4) and cos.dtype == sin.dtype == np.int16
    for integers, exact in zip((cos, sin), spec.cos_sin([0, 4095])):
        assert np.abs(integers - exact / plan.scale).max() <= plan.bound
    assert 0 < plan.bound <= 0.58 and isinstance(plan.bytes, int) and plan.bytes > 0
    x = np.random.default_rng(0).integers(-20000, 20001, size=(3, 16)).astype(np.int16)
    turned = plan.rotate_int16(x, [0, 7, 4095])
    assert turned.dtype == np.int16 and np.abs(turned - spec.rotate(x, [0, 7, 4095])).max() <= plan.rotation_bound(20000)
    rows = positions.pareto(spec, 4096)
    assert rows and all({"bytes", "bound", "operations"} <= set(row) for row in rows)


def test_hybrid_and_none():
    rope, none = positions.Rope(8), positions.NoPosition()
    spec = positions.Hybrid(positions.Learned(16, modulo=16), (rope, none))
    assert positions.from_json(spec.to_json()) == spec and positions.from_json(none.to_json()) == none
    assert positions.from_config({"model_type": "gpt2", "n_positions": 16}) == positions.Learned(16)
    with pytest.raises(EdgePosError, match="model_type"):
        positions.from_config({"model_type": "no-such-model"})
