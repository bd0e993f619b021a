"""Every position encoding in the canonical graph: ONNX Runtime gives the logits of PyTorch and of transformers."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from decoder_models import EXAMPLES, NAMES, SMALL, folders, make, random_ids, torch, torch_logits
from hf_models import edit_json, transformers

from edgepos import positions
from edgepos.compiler.match import match
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.export import load
from edgepos.float_session import reference
from edgepos.positions.distances import distance_rows, learned_rows

ROPE, NOPE = positions.Rope(SMALL.head_dim), positions.NoPosition()
T5 = positions.T5Bias(8, 20, bidirectional=False)
SPECS = {
    "none": NOPE,
    "learned": positions.Learned(SMALL.context),
    "learned_offset": positions.Learned(SMALL.context + 2, offset=2),
    "sinusoidal": positions.Sinusoidal(SMALL.dim),
    "sinusoidal_fairseq": positions.Sinusoidal(SMALL.dim, "concatenated", "half_minus_one", start=2, scale=0.5),
    "rope": positions.Rope(SMALL.head_dim, theta=500.0),
    "rope_partial": positions.Rope(SMALL.head_dim, 4, theta=500.0),
    "rope_yarn_partial": positions.Rope(
        SMALL.head_dim, 6, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    ),
    "alibi": positions.Alibi(SMALL.heads),
    "t5": T5,
    "t5_per_layer": positions.T5Bias(8, 20, bidirectional=False, layers=SMALL.layers),
    "t5_two_buckets": positions.T5Bias(2, 7, bidirectional=False),
    "hybrid_t5": positions.Hybrid(NOPE, (T5, NOPE)),
    "hybrid_t5_own": positions.Hybrid(NOPE, (ROPE, positions.T5Bias(8, 20, bidirectional=False, layers=1))),
    "hybrid_layers": positions.Hybrid(NOPE, (NOPE, ROPE)),
    "hybrid_learned_rope": positions.Hybrid(positions.Learned(SMALL.context), (ROPE, ROPE)),
    "hybrid_repeated_rope": positions.Hybrid(positions.Learned(14, offset=2, modulo=12), (ROPE, ROPE)),
    "hybrid_sinusoidal_alibi": positions.Hybrid(positions.Sinusoidal(SMALL.dim), (positions.Alibi(SMALL.heads),) * 2),
}


def in_pieces(session, ids, cut):
    session.reset()
    return np.concatenate([session.eval(ids[:cut]), session.eval(ids[cut:])])


@pytest.mark.parametrize("name", NAMES)
def test_committed_models(name):
    folder = EXAMPLES / name
    ids = random_ids(100)
    want = torch_logits(folders.load(folder), ids)
    session = reference(folder)
    np.testing.assert_allclose(session.eval(ids), want, rtol=0, atol=1e-4)
    np.testing.assert_allclose(in_pieces(session, ids, 37), want, rtol=0, atol=1e-4)
    assert load(folder).license["license"] == "Apache-2.0"
    assert (folder / "model.safetensors").stat().st_size <= 2**20


@pytest.mark.parametrize("name", ["none", "rope", "hybrid"])
def test_transformers_reads_them_too(name):
    ids = random_ids(100)
    model = transformers.AutoModelForCausalLM.from_pretrained(EXAMPLES / name, dtype=torch.float32).eval()
    with torch.no_grad():
        want = model(torch.tensor(ids)[None]).logits[0].numpy()
    np.testing.assert_allclose(torch_logits(folders.load(EXAMPLES / name), ids), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", SPECS)
def test_logits_agree_with_pytorch(tmp_path, name):
    model = make(tmp_path, SPECS[name])
    ids = random_ids(SMALL.context)
    want = torch_logits(model, ids)
    assert np.abs(want).max() > 1
    session = reference(tmp_path)
    np.testing.assert_allclose(session.eval(ids), want, rtol=0, atol=1e-4)
    for cut in (1, 30, 63):
        np.testing.assert_allclose(in_pieces(session, ids, cut), want, rtol=0, atol=1e-4)


ORDERED = [name for name in SPECS if name not in ("none", "t5_two_buckets")]  # the second tells only distance 0 from the others


@pytest.mark.parametrize("name", ORDERED)
def test_positions_decide_the_logits(tmp_path, name):
    ids = random_ids(40)
    turned = np.append(ids[38::-1], ids[39])  # the same set of tokens before the last one
    make(tmp_path, SPECS[name])
    session = reference(tmp_path)
    first = session.eval(ids, logits="last")
    session.reset()
    assert np.abs(session.eval(turned, logits="last") - first).max() > 1e-2


def test_a_clipped_relative_bias_is_a_table_by_distance(tmp_path):
    """The decoder of the examples has T5's rule only; a RelativeBias with the same numbers must give the same logits."""
    model = make(tmp_path, T5)
    ids = random_ids(50)
    want = torch_logits(model, ids)
    from safetensors.torch import load_file, save_file

    relative = positions.RelativeBias((len(distance_rows(T5)) - 1,))
    tensors = load_file(tmp_path / "model.safetensors")
    by_distance = tensors["model.relative_attention_bias.weight"].float().numpy()[distance_rows(T5)]
    tensors["model.relative_attention_bias.weight"] = torch.from_numpy(learned_rows(relative, by_distance))
    save_file(tensors, tmp_path / "model.safetensors")
    edit_json(tmp_path / "config.json", position_encoding=relative.to_json())
    np.testing.assert_allclose(reference(tmp_path).eval(ids), want, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "t5", "hybrid_learned_rope"])
def test_the_graph_is_canonical_onnx_and_says_what_it_is(tmp_path, name):
    make(tmp_path, SPECS[name])
    model = load(tmp_path).model
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    keys = ("edgepos.position", "edgepos.relative_bias")
    found = [json.loads(n.metadata_props[key]) for n in model.graph for key in keys if key in n.metadata_props]
    spec = SPECS[name].embedding if isinstance(SPECS[name], positions.Hybrid) else SPECS[name]
    assert [positions.from_json(data) for data in found] == [spec]


def test_no_positions_leave_no_node(tmp_path):
    make(tmp_path, NOPE)
    model = load(tmp_path).model
    assert "RotaryEmbedding" not in {n.op_type for n in model.graph}
    assert not any(value.name == "key_position_ids" for value in model.graph.inputs)


REFUSED = {
    "absent": (..., FormatError, "position_encoding is None"),
    "unknown": ({"encoding": "spiral"}, UnsupportedError, "position_encoding: encoding is 'spiral'"),
    "key": ({"encoding": "learned", "count": 64, "colour": 1}, FormatError, "'colour'"),
    "rows": ({"encoding": "learned", "count": 65}, FormatError, "model.embed_positions.weight"),
    "short": ({"encoding": "learned", "count": 63}, FormatError, "rows for 63 positions"),
    "padding": ({"encoding": "learned", "count": 64, "offset": 2, "pad_id": 1, "modulo": 62}, UnsupportedError, "without pad_id"),
    "encoder": ({"encoding": "t5"}, UnsupportedError, "causal t5"),
    "tables": ({"encoding": "t5", "bidirectional": False, "layers": 3}, UnsupportedError, "tables for 3 layers, but 2"),
    "axial": ({"encoding": "axial_rope", "head_dim": 8, "parts": [{"encoding": "rope", "head_dim": 8}]}, UnsupportedError, "coordinates of an image"),
    "image": ({"encoding": "sinusoidal_2d", "part": {"encoding": "sinusoidal", "dim": 16}}, UnsupportedError, "coordinates of an image"),
    "window": ({"encoding": "relative", "extents": [3, 3]}, UnsupportedError, "over one coordinate"),
    "heads": ({"encoding": "alibi", "heads": 8}, UnsupportedError, "alibi of 4 heads"),
    "head_dim": ({"encoding": "rope", "head_dim": 4}, UnsupportedError, "whole head of 8"),
    "dim": ({"encoding": "sinusoidal", "dim": 16}, UnsupportedError, "dim 16"),
    "unused": ({"encoding": "none"}, FormatError, "model.embed_positions.weight"),
    "layers": ({"encoding": "hybrid", "embedding": {"encoding": "none"}, "layers": [{"encoding": "none"}] * 3}, UnsupportedError, "3 layers of 2"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_refused_by_name(tmp_path, key):
    value, error, text = REFUSED[key]
    make(tmp_path, SPECS["learned"])
    edit_json(tmp_path / "config.json", position_encoding=value)
    with pytest.raises(EdgePosError) as caught:
        load(tmp_path)
    assert type(caught.value) is error and text in str(caught.value)


SMOLLM = [
    ({"no_rope_layers": [1, 0, 2]}, "no_rope_layers"),
    ({"no_rope_layers": [1, 0]}, "a list of 4"),
    ({"no_rope_layers": None, "num_hidden_layers": 10**9}, "at most 4096"),
    ({"use_sliding_window": True, "sliding_window": 4}, "use_sliding_window"),
]


@pytest.mark.parametrize(("changes", "text"), SMOLLM)
def test_smollm3_refused_by_name(tmp_path, changes, text):
    folder = tmp_path / "m"
    shutil.copytree(EXAMPLES / "hybrid", folder)
    edit_json(folder / "config.json", **changes)
    with pytest.raises(EdgePosError, match=text):
        load(folder)


def test_a_window_that_smollm3_does_not_use_changes_nothing(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(EXAMPLES / "hybrid", folder)
    edit_json(folder / "config.json", sliding_window=4)
    ids = random_ids(30)
    np.testing.assert_array_equal(reference(folder).eval(ids), reference(EXAMPLES / "hybrid").eval(ids))


def test_smollm3_defaults_to_three_rotated_layers_of_four():
    from edgepos.export.config import Config
    from edgepos.export.families.smollm3 import layer_encodings

    spec = layer_encodings(Config({}), ROPE, 8)
    assert spec.layers == (ROPE, ROPE, ROPE, NOPE) * 2
    assert positions.from_config({"model_type": "smollm3", "num_hidden_layers": 8, "head_dim": 8}).kinds().keys() == {
        positions.Rope(8, theta=2e6),
        NOPE,
    }


def test_multimodal_positions_of_a_text_are_its_rope(tmp_path):
    rope = positions.Rope(SMALL.head_dim, theta=500.0)
    make(tmp_path / "a", positions.Rope(SMALL.head_dim, 6, theta=500.0))  # not Llama's, so that the folder names its encoding
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ids = random_ids(30)
    edit_json(tmp_path / "a" / "config.json", position_encoding=rope.to_json())
    edit_json(tmp_path / "b" / "config.json", position_encoding=positions.MRope(rope, (2, 1, 1)).to_json())
    np.testing.assert_array_equal(reference(tmp_path / "a").eval(ids), reference(tmp_path / "b").eval(ids))


def test_angles_by_a_table(tmp_path):
    """The angles of a Rope, as numbers, give its logits; a program of increments cannot hold them."""
    rope = positions.Rope(SMALL.head_dim, 4, theta=500.0)
    model = make(tmp_path, rope)
    ids = random_ids(SMALL.context)
    angles = np.arange(SMALL.context)[:, None] * rope.inv_freq()
    spec = positions.AngleRope(SMALL.head_dim, tuple(map(tuple, angles.tolist())), 4)
    edit_json(tmp_path / "config.json", position_encoding=spec.to_json())
    np.testing.assert_allclose(reference(tmp_path).eval(ids), torch_logits(model, ids), rtol=0, atol=1e-4)
    with pytest.raises(UnsupportedError, match="layers.0.attn.q.rope.*rotation by a table of angles"):
        match(load(tmp_path).model)
