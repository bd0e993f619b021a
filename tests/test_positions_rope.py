"""RoPE: the float64 reference against 50-digit arithmetic, and what is refused."""

import json

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos import positions
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.positions import NoPosition, Rope

EXTREMES = [0, 1, 2, 3, 255, 256, 4095, 65535, 65536, 131071, 2**24 + 1, 2**30, 2**31 - 2, 2**31 - 1]


def cases(shared, kind):
    rows = [c for c in json.loads((shared / "cases" / "positions.json").read_text()) if c["kind"] == kind]
    assert rows
    return rows


def exact_angle(theta, rotary_dim, pair, position):
    with mpmath.workdps(60):
        return position * mpmath.power(mpmath.mpf(theta), -mpmath.mpf(2 * pair) / rotary_dim)


def test_rotate_cases(shared):
    for case in cases(shared, "rope_rotate"):
        spec = Rope(case["head_dim"], case["rotary_dim"], case["theta"], case["layout"])
        np.testing.assert_allclose(spec.rotate(case["x"], case["position"]), case["y"], rtol=0, atol=1e-13)


def test_cos_sin_cases(shared):
    for case in cases(shared, "rope_cos_sin"):
        spec = Rope(case["rotary_dim"], theta=case["theta"])
        cos, sin = spec.cos_sin([case["position"]])
        np.testing.assert_allclose(cos[0, case["pairs"]], case["cos"], rtol=0, atol=4e-16)
        np.testing.assert_allclose(sin[0, case["pairs"]], case["sin"], rtol=0, atol=4e-16)


@settings(max_examples=60, deadline=None)
@given(
    theta=st.floats(1.0, 1e8),
    pairs=st.integers(1, 64),
    position=st.one_of(st.sampled_from(EXTREMES), st.integers(0, 2**31 - 1)),
    data=st.data(),
)
def test_cos_sin_against_mpmath(theta, pairs, position, data):
    pair = data.draw(st.integers(0, pairs - 1))
    spec = Rope(2 * pairs, theta=theta)
    cos, sin = spec.cos_sin([position])
    with mpmath.workdps(60):
        angle = exact_angle(theta, 2 * pairs, pair, position)
        assert abs(cos[0, pair] - mpmath.cos(angle)) < 4e-16
        assert abs(sin[0, pair] - mpmath.sin(angle)) < 4e-16


@settings(max_examples=60, deadline=None)
@given(theta=st.floats(1.0, 1e8), pairs=st.integers(1, 64))
def test_increments_are_exact(theta, pairs):
    spec = Rope(2 * pairs, theta=theta)
    for pair, increment in enumerate(spec.increments()):
        with mpmath.workdps(60):
            turns = exact_angle(theta, 2 * pairs, pair, 1) / (2 * mpmath.pi) * 2**64
            assert abs(int(increment) - turns) <= mpmath.mpf("0.5")


def test_increments_are_not_float64():
    exact = Rope(64).increments()
    through_float = np.array([int(f / (2 * np.pi) * 2.0**64) for f in Rope(64).inv_freq()], dtype=np.uint64)
    assert (exact != through_float).any()


def test_inv_freq_is_correctly_rounded():
    spec = Rope(128, 96, theta=500000.0)
    assert spec.inv_freq().shape == (48,)
    for pair, f in enumerate(spec.inv_freq()):
        assert f == float(exact_angle(500000.0, 96, pair, 1))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_is_a_complex_product(layout):
    rng = np.random.default_rng(1)
    spec = Rope(16, 12, layout=layout)
    x, at = rng.normal(size=(3, 5, 16)), np.array([0, 1, 7, 999, 2**31 - 1])
    cos, sin = spec.cos_sin(at)
    first, second = (slice(0, 6), slice(6, 12)) if layout == "half" else (slice(0, 12, 2), slice(1, 12, 2))
    z = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)
    y = spec.rotate(x, at)
    np.testing.assert_allclose(y[..., first] + 1j * y[..., second], z, atol=1e-15)
    np.testing.assert_array_equal(y[..., 12:], x[..., 12:])
    np.testing.assert_array_equal(y[:, 0], x[:, 0])


def test_edges_of_the_spec():
    assert Rope(2).increments().shape == (1,)
    none = Rope(8, 0)
    assert none.inv_freq().shape == (0,) and none.cos_sin([5])[0].shape == (1, 0)
    np.testing.assert_array_equal(none.rotate(np.arange(8), 3), np.arange(8))
    assert Rope(5, 4).pairs == 2


@pytest.mark.parametrize(
    "spec",
    [
        Rope(64),
        Rope(8, 4, 500000.0, "interleaved"),
        Rope(64, scaling={"rope_type": "linear", "factor": 4.0}),
        NoPosition(),
    ],
)
def test_json_round_trip(spec):
    text = json.dumps(spec.to_json())
    assert positions.from_json(json.loads(text)) == spec


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"head_dim": 0}, "head_dim"),
        ({"head_dim": 8.0}, "head_dim"),
        ({"head_dim": 7}, "rotary_dim"),
        ({"head_dim": 8, "rotary_dim": 3}, "rotary_dim"),
        ({"head_dim": 8, "rotary_dim": 10}, "rotary_dim"),
        ({"head_dim": 8, "rotary_dim": -2}, "rotary_dim"),
        ({"head_dim": 8, "theta": 0.0}, "theta"),
        ({"head_dim": 8, "theta": -1.0}, "theta"),
        ({"head_dim": 8, "theta": float("nan")}, "theta"),
        ({"head_dim": 8, "theta": float("inf")}, "theta"),
        ({"head_dim": 8, "theta": "10000"}, "theta"),
        ({"head_dim": 8, "theta": True}, "theta"),
        ({"head_dim": 8, "layout": "neox"}, "layout"),
        ({"head_dim": 8, "scaling": {"rope_type": "linear", "factor": 0}}, "factor"),
        ({"head_dim": 8, "scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor"),
        ({"head_dim": 8, "scaling": {"rope_type": "linear"}}, "factor"),
        ({"head_dim": 8, "scaling": {"rope_type": "linear", "factor": 2, "extra": 1}}, "extra"),
        ({"head_dim": 8, "scaling": {"rope_type": "spiral"}}, "spiral"),
        ({"head_dim": 8, "scaling": 2.0}, "scaling"),
        ({"head_dim": 8, "scaling": {"rope_type": "linear", "type": "yarn", "factor": 2}}, "agree"),
        ({"head_dim": 8, "scaling": {"rope_type": "default", "factor": 2}}, "factor"),
    ],
)
def test_bad_specs_are_refused_by_name(fields, named):
    with pytest.raises(EdgePosError, match=named):
        Rope(**fields)


def test_no_positions_are_fine():
    assert Rope(8).cos_sin([])[0].shape == (0, 4)
    assert Rope(8).rotate(np.zeros((2, 0, 8)), []).shape == (2, 0, 8)


def test_numpy_numbers_become_plain_ones():
    scaling = {"rope_type": "dynamic", "factor": np.float64(2), "max_position_embeddings": np.int64(64)}
    json.dumps(Rope(np.int32(8), np.int64(4), np.float32(1e4), scaling=scaling).to_json())


def test_frequencies_beyond_reason_are_refused():
    with pytest.raises(FormatError, match="inv_freq"):
        Rope(64, theta=1e-300).increments()


@pytest.mark.parametrize("at, error", [([-1], ContextError), ([2**31], ContextError), ([0.5], FormatError), ([True], FormatError)])
def test_bad_positions_are_refused(at, error):
    with pytest.raises(error):
        Rope(8).cos_sin(at)


def test_bad_vectors_and_lengths_are_refused():
    with pytest.raises(FormatError, match="head_dim 8"):
        Rope(8).rotate(np.zeros(6), 0)
    with pytest.raises(FormatError, match="seq_len"):
        Rope(8).inv_freq(0)


@pytest.mark.parametrize(
    "data, error",
    [
        ({}, FormatError),
        ([], FormatError),
        ({"encoding": "lisp"}, UnsupportedError),
        ({"encoding": "rope"}, FormatError),
        ({"encoding": "rope", "head_dim": 8, "depth": 2}, FormatError),
        ({"encoding": "none", "head_dim": 8}, FormatError),
    ],
)
def test_bad_json_is_refused(data, error):
    with pytest.raises(error):
        positions.from_json(data)
