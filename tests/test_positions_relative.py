"""T5 and clipped relative biases: bucket rules in whole numbers, learned tables in integers."""

import json
import math

import mpmath
import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.positions import LearnedBiasPlan, RelativeBias, T5Bias

SPECS = [T5Bias(), T5Bias(bidirectional=False), T5Bias(64, 1000), T5Bias(33, 257, False), T5Bias(5, 20), T5Bias(2, 2, False)]


def exact_buckets(spec, distance):
    """e + floor(n·log(d/e)/log(max/e)) for d ≥ e: float64, and 80 digits where that is next to a whole number."""
    e, n = spec.exact_buckets, spec.side_buckets - spec.exact_buckets
    distance = np.asarray(distance, dtype=np.float64)
    ratio = n * np.log(np.maximum(distance, e) / e) / math.log(spec.max_distance / e)
    floor = np.floor(ratio)
    for i in np.flatnonzero(np.abs(ratio - np.round(ratio)) < 1e-9):
        d = int(distance[i])
        if d >= e:
            with mpmath.workdps(80):
                value = n * mpmath.log(mpmath.mpf(d) / e) / mpmath.log(mpmath.mpf(spec.max_distance) / e)
                floor[i] = int(mpmath.floor(value + mpmath.mpf(10) ** -60))
    return np.where(distance < e, distance, np.minimum(e + floor, e + n - 1)).astype(np.int64)


@pytest.mark.parametrize("spec", SPECS)
def test_bucket_is_the_floor_of_the_exact_logarithm(spec):
    """Every distance to 10^6."""
    distance = np.arange(10**6 + 1)
    np.testing.assert_array_equal(spec.bucket(-distance), exact_buckets(spec, distance))


@pytest.mark.parametrize("spec", SPECS)
def test_keys_after_the_query(spec):
    after = np.arange(1, 5000)
    expected = spec.bucket(-after) + spec.side_buckets if spec.bidirectional else np.zeros_like(after)
    np.testing.assert_array_equal(spec.bucket(after), expected)


def test_known_values_of_the_default():
    """Buckets of T5's encoder at chosen distances, from the formula by hand: 8 and 8·16^(k/8)."""
    got = T5Bias().bucket([0, -1, -7, -8, -11, -12, -15, -16, -22, -23, -127, -128, -10**6, 1, 8, 16, 128])
    assert got.tolist() == [0, 1, 7, 8, 8, 9, 9, 10, 10, 11, 15, 15, 15, 17, 24, 26, 31]
    assert T5Bias().thresholds == (12, 16, 23, 32, 46, 64, 91)


@pytest.mark.parametrize("spec", [T5Bias(), T5Bias(bidirectional=False), T5Bias(64, 1000)])
def test_against_transformers(spec):
    """transformers takes the logarithm in float32. It may come out one lower where the exact logarithm is a whole number (a
    distance that is a threshold exactly); everywhere else the buckets are equal."""
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = np.arange(-3000, 3001)
    theirs = t5.T5Attention._relative_position_bucket(
        torch.tensor(relative), spec.bidirectional, spec.num_buckets, spec.max_distance
    ).numpy()
    differ = relative[theirs != spec.bucket(relative)]
    assert np.isin(np.abs(differ), spec.thresholds).all()


def test_index_and_json():
    spec = T5Bias()
    assert spec.index([3, 9], [0, 3, 12]).tolist() == spec.bucket(np.array([[-3, 0, 9], [-9, -6, 3]])).tolist()
    for s in (*SPECS, RelativeBias((6, 6), False, True)):
        assert positions.from_json(json.loads(json.dumps(s.to_json()))) == s


def test_shaw_clips():
    spec = RelativeBias((2,))
    assert spec.rows == 5
    assert spec.bucket([-9, -2, -1, 0, 1, 2, 9]).tolist() == [0, 0, 1, 2, 3, 4, 4]
    assert spec.index([0, 5], [0, 1, 9]).tolist() == [[2, 3, 4], [0, 0, 4]]


@pytest.mark.parametrize("height, width", [(7, 7), (3, 5), (1, 4)])
def test_swin_window(height, width):
    """Swin's own index: differences shifted to start at 0, row-major."""
    spec = RelativeBias((height - 1, width - 1), clip=False, query_minus_key=True)
    at = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1).reshape(-1, 2)
    difference = at[:, None, :] - at[None, :, :]
    expected = (difference[..., 0] + height - 1) * (2 * width - 1) + difference[..., 1] + width - 1
    np.testing.assert_array_equal(spec.index(at, at), expected)
    assert expected.max() == spec.rows - 1
    with pytest.raises(ContextError, match="extents"):
        spec.index(at, at + height + width)


@pytest.mark.parametrize("spec", [T5Bias(), RelativeBias((3,))])
def test_learned_bias_in_integers(spec):
    values = np.random.default_rng(4).normal(scale=5, size=(spec.rows, 6)).astype(np.float32)
    plan = LearnedBiasPlan(spec, values)
    q, k = np.arange(4), np.arange(9)
    got = plan.bias_fixed(q, k)
    exact = np.moveaxis(values.astype(np.float64)[spec.index(q, k)], -1, 0) / math.log(2)
    assert got.shape == (6, 4, 9) and plan.bytes == spec.rows * 24
    assert np.abs(got * plan.scale - exact).max() <= plan.bound + 1e-12 and plan.bound <= 2.0**-17
    assert plan.bound_weight == pytest.approx(plan.bound * math.log(2), rel=1e-4)
    json.dumps(plan.certificate())


def exactly(value, scale, places=80):
    with mpmath.workdps(places):
        return mpmath.mpf(float(value)) / mpmath.ln(2) / scale


@pytest.mark.parametrize("per", ["head", "tensor"])
@pytest.mark.parametrize("bits, full", [(16, 32767), (8, 127)])
@pytest.mark.parametrize("spec", [T5Bias(), RelativeBias((2, 3)), T5Bias(8, 20, False, layers=2)])
def test_learned_bias_in_16_and_8_bits(spec, bits, full, per):
    """Every entry is the nearest integer, against mpmath, and nothing passes full scale."""
    shape = (spec.rows, 4) if spec.layers is None else (spec.layers, spec.rows, 4)
    values = np.random.default_rng(4).normal(size=shape) * [20, 1, 0, 1e-6]
    plan = LearnedBiasPlan(spec, values, bits, per)
    assert plan.table.dtype == (np.int16 if bits == 16 else np.int8) and np.abs(plan.table.astype(int)).max() == full
    for layer in range(spec.layers or 1):
        table, factors = plan.layer(None if spec.layers is None else layer)
        given = values if spec.layers is None else values[layer]
        assert len(factors) == (4 if per == "head" else 1)
        for head in range(4):
            m, h = factors[head if per == "head" else 0].tolist()
            with mpmath.workdps(80):
                unit = mpmath.mpf(m) / mpmath.mpf(2) ** h
            for row in range(spec.rows):
                wanted = exactly(given[row, head], unit) if m else 0
                assert abs(int(table[row, head]) - wanted) <= 0.5
                assert abs(int(table[row, head]) * unit - exactly(given[row, head], 1)) <= plan.entry_bound
    q, k = (np.arange(3), np.arange(7)) if len(getattr(spec, "extents", (1,))) == 1 else (np.array([[0, 0], [1, 2]]), np.array([[2, 3], [0, 1]]))
    for layer in [None] if spec.layers is None else range(spec.layers):
        given = values if layer is None else values[layer]
        exact = np.moveaxis(given[spec.index(q, k)], -1, 0) / math.log(2)
        assert np.abs(plan.bias_fixed(q, k, layer) * 2.0**-16 - exact).max() <= plan.bound + 1e-12
    assert sum(plan.terms().values()) <= plan.bound and plan.bytes == plan.table.nbytes + plan.factors.nbytes
    assert plan.bound_weight == pytest.approx(2**plan.bound - 1, rel=1e-6)
    if per == "head":
        assert plan.mean_error < LearnedBiasPlan(spec, values, bits, "tensor").mean_error
    json.dumps(plan.certificate())


def test_a_table_per_layer():
    spec = T5Bias(8, 20, False, layers=3)
    values = np.random.default_rng(7).normal(size=(3, 8, 2))
    whole = LearnedBiasPlan(spec, values, 8)
    at = np.arange(12)
    for layer in range(3):
        alone = LearnedBiasPlan(T5Bias(8, 20, False), values[layer], 8)
        np.testing.assert_array_equal(whole.bias_fixed(at, at, layer), alone.bias_fixed(at, at))
    for bad in (3, -1, None, True):
        with pytest.raises(FormatError, match="layer"):
            whole.bias_fixed(at, at, bad)
    with pytest.raises(FormatError, match="layer is 0"):
        LearnedBiasPlan(T5Bias(8, 20, False), values[0]).bias_fixed(at, at, 0)
    with pytest.raises(FormatError, match=r"allowed is \[3, 8, heads\]"):
        LearnedBiasPlan(spec, values[0])
    none = positions.NoPosition()
    mixed = positions.Hybrid(none, (spec, none, spec, spec))
    assert mixed.kinds()[spec] == (0, 2, 3) and positions.from_json(json.loads(json.dumps(mixed.to_json()))) == mixed
    with pytest.raises(FormatError, match="layers has 2 of t5 with 3 tables"):
        positions.Hybrid(none, (spec, none, spec))


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: T5Bias(3), "num_buckets"),
        (lambda: T5Bias(1, 8, False), "num_buckets"),
        (lambda: T5Bias(32, 8), "max_distance"),
        (lambda: T5Bias(32, 128.0), "max_distance"),
        (lambda: T5Bias(32, 128, 1), "bidirectional"),
        (lambda: T5Bias().bucket([0.5]), "key_minus_query"),
        (lambda: T5Bias().bucket([2**31]), "key_minus_query"),
        (lambda: RelativeBias(()), "extents"),
        (lambda: RelativeBias((-1,)), "extents"),
        (lambda: RelativeBias((2, 2)).bucket([1, 2, 3]), "coordinates"),
        (lambda: LearnedBiasPlan(T5Bias(), np.zeros((31, 4))), "bias table"),
        (lambda: LearnedBiasPlan(T5Bias(), np.full((32, 4), np.nan)), "NaN"),
        (lambda: LearnedBiasPlan(T5Bias(), np.full((32, 4), 1e6)), "22713"),
        (lambda: LearnedBiasPlan(T5Bias(), np.full((32, 4), 1e6), 8), "22713"),
        (lambda: LearnedBiasPlan(T5Bias(), np.full((32, 4), np.inf), 16), "NaN"),
        (lambda: LearnedBiasPlan(T5Bias(), np.zeros((32, 4)), 4), "bits is 4"),
        (lambda: LearnedBiasPlan(T5Bias(), np.zeros((32, 4)), 8, "row"), "per is 'row'"),
        (lambda: LearnedBiasPlan(T5Bias(), np.zeros((32, 0))), "heads"),
        (lambda: T5Bias(layers=0), "layers"),
        (lambda: RelativeBias((3,), layers=1.0), "layers"),
    ],
)
def test_bad_input_is_refused_by_name(make, named):
    with pytest.raises(EdgePosError, match=named):
        make()
    assert issubclass(FormatError, EdgePosError)
