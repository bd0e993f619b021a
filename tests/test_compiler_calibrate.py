"""The choice of F: headroom, replay, limits; and options refused by name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from compiler_models import CONTEXT, VOCAB, bloom, llama, tokenizer

from edgepos.compiler import compile, compile_model, dequantized_weights
from edgepos.compiler.calibrate import largest_f
from edgepos.compiler.text import TEXT, calibration_ids, encode
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.golden_session import GoldenSession
from edgepos.program import Op
from edgepos.float_session import reference

IDS = [0, 4, 11, 30, 8, 2, 17, 22, 60, 3]


@pytest.mark.parametrize("make", [llama, bloom])
@pytest.mark.parametrize("kv", ["kv16", "kv8"])
def test_two_bits_stay_free(make, kv):
    """The largest value seen takes at most a quarter of int32; one more bit would pass it, or F is at its cap."""
    done = compile_model(make(), kv=kv, calibration=IDS)
    session, largest = GoldenSession(done.program), {}
    session.eval_int(IDS, trace=lambda i, y: largest.update({done.program.ops[i].out: int(np.abs(y).max())}))
    assert session.saturations == 0
    for value, found in largest.items():
        f = done.program.values[value].f
        assert found <= 2**29 and -16 <= f <= 26
        op = next(op for op in done.program.ops if op.out == value)
        if f < 26 and op.tensors[3] == -1 and op.code not in (Op.NORM, Op.EMBED):
            assert 2 * found > 2**29 - 8, op.name
    assert done.program.header.logits_f == done.program.values[-1].f
    assert list(done.choices.values()) == [v.f for v in done.program.values]


def test_the_embedding_has_room_for_every_token():
    canonical = llama()
    value = canonical.model.graph.initializers["embed.weight"]
    table = value.const_value.numpy().copy()
    table[VOCAB - 1] *= 1000
    value.const_value = ir.Tensor(table, name="embed.weight")
    program = compile(canonical, calibration=[0, 5, 9])
    assert np.abs(table).max() * 2.0 ** program.values[0].f * 4 <= 2**31


@pytest.mark.parametrize("factor", [1e-9, 1e-3, 1e3, 1e7])
def test_magnitudes_of_all_kinds(factor):
    """Weights far from 1 still give the logits of the float model with the same weights; F ends at 26, so 2^-25 is the finest."""
    canonical = llama()
    for name in ("layers.0.down.weight", "layers.1.out.weight", "embed.weight"):
        value = canonical.model.graph.initializers[name]
        value.const_value = ir.Tensor((value.const_value.numpy() * factor).astype(np.float32), name=name)
    program = compile(canonical, calibration=IDS)
    want = reference(canonical, weights_of=dequantized_weights(program)).eval(IDS)
    found = GoldenSession(program).eval(IDS)
    assert np.abs(found - want).max() <= 1e-3 * np.abs(want).max() + 2.0**-25


def test_values_too_large_for_any_f_name_the_node():
    canonical = llama()
    value = canonical.model.graph.initializers["layers.0.down.weight"]
    value.const_value = ir.Tensor((value.const_value.numpy() * 1e20).astype(np.float32), name=value.name)
    with pytest.raises(UnsupportedError, match="layers.0.mlp.down.*exceed"):
        compile(canonical, calibration=IDS)


def test_a_bias_too_large_names_its_tensor():
    canonical = bloom()
    value = canonical.model.graph.initializers["h.layers.0.mlp.up.bias"]
    value.const_value = ir.Tensor((value.const_value.numpy() * 1e25).astype(np.float32), name=value.name)
    with pytest.raises(UnsupportedError, match="h.layers.0.mlp.up.bias"):
        compile(canonical, calibration=IDS)


def test_zero_weights_compile():
    canonical = llama()
    for name in ("layers.0.up.weight", "layers.1.q.weight", "layers.1.q.bias", "final_norm.weight"):
        value = canonical.model.graph.initializers[name]
        value.const_value = ir.Tensor(np.zeros_like(value.const_value.numpy()), name=name)
    program = compile(canonical, calibration=IDS)
    assert not GoldenSession(program).eval_int(IDS).any()


def test_choices_replay_to_the_same_program():
    first = compile_model(bloom(), calibration=IDS)
    again = compile_model(bloom(), calibration=IDS, choices=first.choices)
    assert (first.program.words() == again.program.words()).all() and first.choices == again.choices
    lower = compile_model(bloom(), calibration=IDS, choices={name: f - 3 for name, f in first.choices.items()})
    a, b = (GoldenSession(c.program).eval(IDS) for c in (first, lower))
    assert 0 < np.abs(a - b).max() < 1e-3


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda c: c.pop("embed"), "'embed' is None"),
        (lambda c: c.update(embed=31), "'embed' is 31"),
        (lambda c: c.update(embed=True), "'embed' is True"),
        (lambda c: c.update(other=3), "'other' is not in this model"),
    ],
)
def test_bad_choices_are_named(change, text):
    choices = compile_model(llama(), calibration=IDS).choices
    change(choices)
    with pytest.raises(UnsupportedError, match=text):
        compile(llama(), calibration=IDS, choices=choices)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"weights": "w4"}, "weights is 'w4'; allowed: source, w4g32, w8g32, w8, w16g32"),
        ({"activations": "a8"}, "activations is 'a8'; allowed: a16, a8g32"),
        ({"kv": "kv4"}, "kv is 'kv4'; allowed: kv16, kv8"),
        ({"context": 0}, f"context is 0; allowed: 1 to {CONTEXT}"),
        ({"context": -5}, "context is -5"),
        ({"context": CONTEXT + 1}, f"context is {CONTEXT + 1}"),
        ({"context": True}, "context is True"),
        ({"context": 8.0}, "context is 8.0"),
    ],
)
def test_bad_options_are_named(options, text):
    with pytest.raises(UnsupportedError, match=text):
        compile(llama(), **options)


def test_a_shorter_context_is_planned_for():
    program = compile(llama(), context=5, calibration=IDS)
    assert program.header.context == 5 and len(program.arrays[program.header.selftest]) == 5


@pytest.mark.parametrize(
    "given, text",
    [([], "no tokens"), ([0, VOCAB], f"{VOCAB}"), ([0, -1], "-1"), ([0, 1.5], "1.5"), ([True], "True"), (7, "int"), ("", "empty")],
)
def test_bad_calibration_is_refused(given, text):
    with pytest.raises(FormatError, match=text):
        calibration_ids(given, tokenizer(), 0, VOCAB, 8)


def test_calibration_from_text_path_and_default(tmp_path):
    spec = tokenizer()
    file = tmp_path / "text.txt"
    file.write_text("the hen.")
    ids = calibration_ids("the hen.", spec, 0, VOCAB, 96)
    assert ids == [0, 30, 8, 2, 11, 8, 17, 3] and calibration_ids(file, spec, 0, VOCAB, 96) == ids
    assert calibration_ids("the hen.", spec, 0, VOCAB, 3) == ids[:3]
    assert len(calibration_ids(None, spec, 0, VOCAB, 2000)) == 256
    assert 1200 <= TEXT.stat().st_size <= 2000
    with pytest.raises(EdgePosError, match="none.txt"):
        calibration_ids(tmp_path / "none.txt", spec, 0, VOCAB, 8)


def test_merging_takes_the_lowest_rank_and_the_leftmost():
    assert encode("ththh", tokenizer()) == [30, 30, 11]


@pytest.mark.parametrize("magnitude, f", [(1.0, 26), (7.99, 26), (8.0, 26), (8.01, 25), (2.0**29, 0), (2.0**30, -1), (0.0, 26)])
def test_largest_f(magnitude, f):
    assert largest_f(magnitude) == f
    if magnitude:
        assert magnitude * 2.0**f * 4 <= 2**31
