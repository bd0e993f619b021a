"""Graphs of float16 and bfloat16: the 16-bit numbers are the model's, what rounds in between is not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from foreign_graphs import DIM, HEAD_DIM, decoder, plain_attention, save
from onnx import TensorProto, helper, numpy_helper
from test_export_onnx_spellings import (
    MASKS, MS, ROTATIONS, WIDE, alibi_added, cached_tables, gelu_erf, gelu_tanh, group_query, learned, operator, operator_interleaved,
    partial, rotate_half, sinusoidal, steps_of, stretched, t5, window, _mlp,
)  # fmt: skip

from edgepos.compiler.steps import Act
from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load
from edgepos.export.onnx_in import rope_rules
from edgepos.export.onnx_in.rope_tables import _measured
from edgepos.float_session import reference
from edgepos.positions import Learned, Rope, Sinusoidal

KINDS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
SINGLE = ("ReduceMean", "Sqrt", "Softmax", "Cos", "Sin")  # computed in float32 by exporters, between casts


def halved(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """A float32 graph in 16 bits: weights, tables and results, with casts around what is computed in float32."""
    half = onnx.ModelProto()
    half.CopyFrom(model)
    graph = half.graph
    for weight in graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            numbers = helper.make_tensor(weight.name, kind, weight.dims, numpy_helper.to_array(weight).ravel())
            weight.CopyFrom(numbers)
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = kind
    nodes = []
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = kind
        if node.op_type not in SINGLE:
            nodes.append(node)
            continue
        into, out = f"{node.name}_wide", node.output[0]
        nodes.append(helper.make_node("Cast", [node.input[0]], [into], name=into, to=TensorProto.FLOAT))
        node.input[0], node.output[0] = into, f"{out}_wide"
        nodes += [node, helper.make_node("Cast", [node.output[0]], [out], name=f"{node.name}_narrow", to=kind)]
    del graph.node[:]
    graph.node.extend(nodes)
    return half


def rounded(model: onnx.ModelProto, kind: int) -> onnx.ModelProto:
    """The float32 graph with what 16 bits leave of its weights; its scale and epsilon stay."""
    same = onnx.ModelProto()
    same.CopyFrom(model)
    for weight in same.graph.initializer:
        if weight.data_type == TensorProto.FLOAT and len(weight.dims):
            half = helper.make_tensor(weight.name, kind, weight.dims, numpy_helper.to_array(weight).ravel())
            weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(half).astype(np.float32), weight.name))
    return same


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("turn", [rotate_half, cached_tables, operator, operator_interleaved, partial, stretched], ids=lambda f: f.__name__)
def test_rotations(turn, kind, tmp_path):
    model = halved(decoder(attend=lambda g, x: plain_attention(g, x, turn), opset=23 if "operator" in turn.__name__ else 21), KINDS[kind])
    found = steps_of(model, tmp_path)[0].positions()
    if turn is stretched:  # of no rule
        assert found.scaling.inv_freq == pytest.approx(_frequencies(ROTATIONS[turn]), rel=2.0**-8)
    elif turn in (rotate_half, partial):
        assert np.allclose(_frequencies(found), _frequencies(ROTATIONS[turn]), rtol=2.0**-8, atol=0)
    else:
        assert found == ROTATIONS[turn]


def _frequencies(spec: Rope) -> np.ndarray:
    return np.array([float(f) for f in spec.frequencies(None)])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", [alibi_added, t5, window], ids=lambda f: f.__name__)
def test_masks(mask, kind, tmp_path):
    program, _ = steps_of(halved(decoder(attend=lambda g, x: plain_attention(g, x, None, mask)), KINDS[kind]), tmp_path)
    assert program.positions() == MASKS[mask]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function, name", [(gelu_erf, "gelu"), (gelu_tanh, "gelu_tanh")], ids=["erf", "tanh"])
def test_activations_by_rounded_constants(function, name, kind, tmp_path):
    program, _ = steps_of(halved(decoder(mlp=_mlp(function)), KINDS[kind]), tmp_path)
    assert [s.function for s in program.steps if isinstance(s, Act)] == [name]


@pytest.mark.parametrize("kind", KINDS)
def test_positions_that_are_added(kind, tmp_path):
    assert steps_of(halved(decoder(start=learned), KINDS[kind]), tmp_path)[0].positions() == Learned(96)
    assert steps_of(halved(decoder(start=sinusoidal), KINDS[kind]), tmp_path)[0].positions() == Sinusoidal(DIM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rotation_and_a_cache_inside_the_operator(kind, tmp_path):
    program, _ = steps_of(halved(decoder(attend=group_query, domains=MS), KINDS[kind]), tmp_path)
    assert program.positions() == Rope(WIDE)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_stored_numbers(kind, tmp_path):
    """In float32, of the model that the 16-bit weights are: no rounding on the way, and the exact scale of scores."""
    model = decoder(attend=lambda g, x: plain_attention(g, x, rotate_half))
    ids = np.random.default_rng(5).integers(0, 40, 60).tolist()
    got = reference(load(save(halved(model, KINDS[kind]), tmp_path))).eval(ids)
    want = reference(load(save(rounded(model, KINDS[kind]), tmp_path))).eval(ids)
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


def test_one_changed_row_of_a_rounded_table_is_refused(tmp_path):
    model = halved(decoder(attend=lambda g, x: plain_attention(g, x, cached_tables)), TensorProto.FLOAT16)
    for weight in model.graph.initializer:
        if list(weight.dims) == [96, HEAD_DIM]:
            table = numpy_helper.to_array(weight).copy()
            table[80] += np.float16(0.01)
            weight.CopyFrom(numpy_helper.from_array(table, weight.name))
    with pytest.raises(UnsupportedError, match=r"node 'n\d+_MatMul' \(MatMul\): its cosine at position 80, pair 0 is .*, where theta 10000 \(half\) gives"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("to", [999, -1, 2**40])
def test_a_cast_to_no_type_is_refused(to, tmp_path):
    model = halved(decoder(), TensorProto.FLOAT16)
    last = model.graph.node[-1]
    model.graph.node.append(helper.make_node("Cast", ["uncast"], [last.output[0]], to=to))
    last.output[0] = "uncast"
    with pytest.raises(FormatError, match=rf"\(Cast\): its inputs or attributes do not fit together \({to} is not"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("rounding", [2.0**-12, 2.0**-9])
@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    ],
    ids=lambda s: s and s["rope_type"],
)
def test_rules_are_recovered_from_rounded_tables(scaling, rounding):
    spec = Rope(64, theta=500000.0, scaling=scaling)
    cos, sin = spec.cos_sin(np.arange(32768), None)
    found = [np.round(t / rounding) * rounding for t in (cos, sin)]
    frequencies, precision = _measured(*found, 2 * rounding)
    assert np.all(np.abs(frequencies / _frequencies(spec) - 1) <= precision)
    assert rope_rules.named(frequencies, {"head_dim": 64, "rotary_dim": 64, "layout": "half"}, spec.attention_factor, precision) == spec
