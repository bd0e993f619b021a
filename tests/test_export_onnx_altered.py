"""Every spelling of positions with one of its constants changed: refused by the node's name, or recovered as what it then is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from foreign_graphs import DIM, HEAD_DIM, HEADS, TABLE, decoder, plain_attention, save
from onnx import numpy_helper
from test_export_onnx_spellings import (
    MS, ROTATIONS, WIDE, alibi_added, alibi_by_key, alibi_table, cached_tables, clipped, complex_product, group_query, learned, operator,
    operator_interleaved, operator_of_ort, partial, rotate_half, sinusoidal, stacked_pairs, steps_of, stretched, t5,
)  # fmt: skip

from edgepos.errors import UnsupportedError
from edgepos.positions import Alibi, Learned, RelativeBias

BY_FREQUENCIES = (rotate_half, complex_product, stacked_pairs, partial, stretched)
BY_TABLES = (cached_tables, operator, operator_interleaved, operator_of_ort)


def altered(model: onnx.ModelProto, shape: tuple[int, ...], place, by: float, *, every: bool = False) -> onnx.ModelProto:
    """The model with `by` added at a place of its first constant of a shape, or of all of them."""
    found = [w for w in model.graph.initializer if tuple(w.dims) == shape]
    assert found
    for weight in found if every else found[:1]:
        array = numpy_helper.to_array(weight).copy()
        array[place] += by
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    return model


def turning(turn, opset: int = 21) -> onnx.ModelProto:
    return decoder(attend=lambda g, x: plain_attention(g, x, turn), opset=23 if "operator" in turn.__name__ else opset, domains=MS)


def masked(mask) -> onnx.ModelProto:
    return decoder(attend=lambda g, x: plain_attention(g, x, None, mask))


def refused(model: onnx.ModelProto, tmp_path, words: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"^node 'n\d+_\w+' \(\w+\): {words}"):
        steps_of(model, tmp_path)


@pytest.mark.parametrize("turn", BY_FREQUENCIES, ids=lambda f: f.__name__)
def test_frequencies(turn, tmp_path):
    """Of q alone: refused. Of both: those frequencies, not the rule that they were."""
    pairs = ROTATIONS[turn].pairs
    refused(altered(turning(turn), (1, pairs), (0, 1), 0.01), tmp_path, "q, k and v that are turned differently by position")
    spec = steps_of(altered(turning(turn), (1, pairs), (0, 1), 0.01, every=True), tmp_path)[0].positions()
    wanted = np.array([float(f) for f in ROTATIONS[turn].frequencies(None)])
    wanted[1] += 0.01
    assert spec != ROTATIONS[turn]
    np.testing.assert_allclose([float(f) for f in spec.frequencies(None)], wanted, rtol=4e-6)


@pytest.mark.parametrize("turn", BY_TABLES, ids=lambda f: f.__name__)
def test_tables_of_cos_and_sin(turn, tmp_path):
    """One entry, of a position far behind the length of reading; of q and k alike."""
    width = HEAD_DIM if turn is cached_tables else HEAD_DIM // 2
    changed = altered(turning(turn), (TABLE, width), (80, 1), 0.001, every=True)
    refused(changed, tmp_path, rf"its cosine at position 80, pair 1 is .*, where theta 10000 \({ROTATIONS[turn].layout}\) gives .*; supported: a rotation that is the same rule")


def test_tables_inside_an_operator_of_attention(tmp_path):
    model = decoder(attend=group_query, domains=MS)
    refused(altered(model, (TABLE, WIDE // 2), (80, 3), 0.001, every=True), tmp_path, "its cosine at position 80, pair 3 is .*, where theta 10000")


@pytest.mark.parametrize("mask", [alibi_added, alibi_by_key], ids=lambda f: f.__name__)
def test_slopes(mask, tmp_path):
    """Another slope is that slope; a negative one is no ALiBi."""
    program, _ = steps_of(altered(masked(mask), (HEADS, 1, 1), (2, 0, 0), 0.01), tmp_path)
    slopes = [2.0 ** -(2 * h + 2) for h in range(HEADS)]
    slopes[2] += 0.01
    assert program.positions() == Alibi(HEADS, user_slopes=tuple(float(np.float32(s)) for s in slopes))
    refused(altered(masked(mask), (HEADS, 1, 1), (2, 0, 0), -1.0), tmp_path, "a bias on the scores that still changes at the largest distance")


@pytest.mark.parametrize("place, by", [((1, 70, 40), 0.01), ((0, 5, 2), -1.0), ((3, 94, 94), 0.5)])
def test_a_mask_with_biases_in_it(place, by, tmp_path):
    refused(altered(masked(alibi_table), (HEADS, TABLE, TABLE), place, by), tmp_path, "a bias on the scores that is no function of head and distance")


def test_a_mask_that_shows_a_later_key(tmp_path):
    def shown(g):
        alibi_table(g)
        g.weights[-1 - [w.name for w in g.weights[::-1]].index("mask")].CopyFrom(numpy_helper.from_array(_with_a_hole(), "mask"))
        return g.nodes[-1].output[0]

    refused(masked(shown), tmp_path, "a mask that shows key 30 to query 20")


def _with_a_hole() -> np.ndarray:
    mask = np.triu(np.full((HEADS, TABLE, TABLE), -np.inf, np.float32), 1)
    mask[:, 20, 30] = 0
    return mask


@pytest.mark.parametrize("mask, rows", [(t5, 32), (clipped, 19)], ids=lambda f: getattr(f, "__name__", ""))
def test_biases_by_distance(mask, rows, tmp_path):
    """A number of a bucket is the model's own."""
    program, _ = steps_of(altered(masked(mask), (rows, HEADS), (3, 1), 0.5), tmp_path)
    assert type(program.positions()) is (type(steps_of(masked(mask), tmp_path)[0].positions()))


def test_a_distance_in_another_bucket(tmp_path):
    """No bucket of T5's holds distances 20 and 30 without 21: it is a function of distance, kept as it is."""
    assert isinstance(steps_of(altered(masked(t5), (400,), 20, 3), tmp_path)[0].positions(), RelativeBias)


def test_tables_that_are_added(tmp_path):
    """A sinusoid with one other number is a table."""
    start = altered(decoder(start=sinusoidal), (TABLE, DIM), (90, 3), 0.01)
    assert steps_of(start, tmp_path)[0].positions() == Learned(TABLE)
    want = steps_of(decoder(start=learned), tmp_path)[1]
    got = steps_of(altered(decoder(start=learned), (TABLE, DIM), (90, 3), 0.25), tmp_path)[1]
    rows = [next(v.const_value.numpy() for v in c.model.graph.initializers.values() if tuple(v.shape) == (TABLE, DIM)) for c in (want, got)]
    difference = np.argwhere(rows[0] != rows[1]).tolist()
    assert difference == [[90, 3]]
