"""Hugging Face folders: the canonical graph gives the logits of transformers."""

from __future__ import annotations

import json
import mmap
import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hf_models import edit_json, make_bloom, make_llama, random_ids, torch, torch_logits

from edgepos.export import load
from edgepos.export.mapped_file import map_bytes, release_pages
from edgepos.float_session import reference

LLAMAS = {
    "grouped": {},
    "head_dim": {"head_dim": 10},
    "one_kv_head": {"num_key_value_heads": 1},
    "no_groups": {"num_key_value_heads": 6},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    "epsilon": {"rms_norm_eps": 1e-2},
    "bfloat16": {"dtype": torch.bfloat16},
    "float16": {"dtype": torch.float16},
    "sharded": {"shard": "20KB"},
}
BLOOMS = {
    "12_heads": {},
    "6_heads": {"n_head": 6},
    "8_heads": {"n_head": 8},
    "untied": {"tie_word_embeddings": False},
    "residual_after_norm": {"apply_residual_connection_post_layernorm": True},
    "epsilon": {"layer_norm_epsilon": 1e-2},
    "bfloat16": {"dtype": torch.bfloat16},
    "sharded": {"shard": "20KB"},
}
CASES = [(make_llama, key, LLAMAS[key]) for key in LLAMAS] + [(make_bloom, key, BLOOMS[key]) for key in BLOOMS]


@pytest.mark.parametrize(("make", "key", "changes"), CASES, ids=[f"{m.__name__[5:]}-{k}" for m, k, _ in CASES])
def test_logits_agree_with_transformers(tmp_path, make, key, changes):
    model = make(tmp_path, **changes)
    ids = random_ids(40)
    want = torch_logits(model, ids)
    assert np.abs(want).max() > 1  # small logits would agree by themselves
    session = reference(tmp_path)
    got = session.eval(ids)
    assert got.shape == want.shape and got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
    for cut in (1, 17, 39):
        session.reset()
        split = np.concatenate([session.eval(ids[:cut]), session.eval(ids[cut:])])
        np.testing.assert_allclose(split, want, rtol=0, atol=1e-4)
    session.reset()
    single = np.concatenate([session.eval([i], logits="last") for i in ids])
    np.testing.assert_allclose(single, want, rtol=0, atol=1e-4)


def test_shards_are_really_used(tmp_path):
    make_llama(tmp_path, shard="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    assert "model.safetensors.index.json" in load(tmp_path).source_sha256


def test_llama_positions_are_given_by_the_caller(tmp_path):
    model = make_llama(tmp_path)
    ids, places = random_ids(20), [3, 4, 9, *range(60, 77)]
    session = reference(tmp_path)
    np.testing.assert_allclose(session.eval(ids, places), torch_logits(model, ids, places), rtol=0, atol=1e-4)
    session.reset()
    # Rotary positions are relative: a common shift changes nothing but rounding.
    np.testing.assert_allclose(session.eval(ids, range(100, 120)), torch_logits(model, ids), rtol=0, atol=1e-4)


def test_bloom_depends_on_distances_only(tmp_path):
    model = make_bloom(tmp_path)
    ids = random_ids(20)
    session = reference(tmp_path)
    np.testing.assert_allclose(session.eval(ids, range(1000, 1020)), torch_logits(model, ids), rtol=0, atol=1e-4)
    session.reset()
    stretched = session.eval(ids, range(0, 40, 2))
    assert np.abs(stretched - torch_logits(model, ids)).max() > 1e-2


def test_both_spellings_of_rope_theta_mean_the_same(tmp_path):
    model = make_llama(tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    want = torch_logits(model, random_ids(30))
    edit_json(tmp_path / "config.json", rope_parameters=..., rope_theta=500.0, rope_scaling=None)
    np.testing.assert_allclose(reference(tmp_path).eval(random_ids(30)), want, rtol=0, atol=1e-4)
    edit_json(tmp_path / "config.json", rope_parameters={"type": "default", "rope_theta": 500})
    np.testing.assert_allclose(reference(tmp_path).eval(random_ids(30)), want, rtol=0, atol=1e-4)


def test_original_bloom_names_have_no_prefix(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = make_bloom(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({k.removeprefix("transformer."): v for k, v in load_file(path).items()}, path)
    ids = random_ids(10)
    np.testing.assert_allclose(reference(tmp_path).eval(ids), torch_logits(model, ids), rtol=0, atol=1e-4)


def test_a_stored_copy_of_the_tied_head_is_accepted(tmp_path):
    from safetensors.numpy import load_file, save_file

    model = make_llama(tmp_path, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].copy()}, path)
    ids = random_ids(10)
    np.testing.assert_allclose(reference(tmp_path).eval(ids), torch_logits(model, ids), rtol=0, atol=1e-4)


@pytest.mark.parametrize("make", [make_llama, make_bloom])
def test_the_graph_is_canonical_onnx(tmp_path, make):
    make(tmp_path)
    model = load(tmp_path, context=64).model
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 23)]
    assert {n.domain for n in proto.graph.node} == {""}
    names = [n.name for n in proto.graph.node]
    assert len(set(names)) == len(names) and "layers.1.attn.q" in names
    assert model.metadata_props["edgepos.context"] == "64"
    assert [o.name for o in proto.graph.output] == [
        "logits", "present_key.0", "present_value.0", "present_key.1", "present_value.1",
    ]  # fmt: skip


def test_positions_are_described_on_their_nodes(tmp_path):
    make_llama(tmp_path, head_dim=10)
    ropes = [n for n in load(tmp_path).model.graph if n.op_type == "RotaryEmbedding"]
    assert len(ropes) == 4
    for node in ropes:
        facts = json.loads(node.metadata_props["edgepos.rope"])
        assert facts == {"layout": "half", "theta": 10000.0, "head_dim": 10, "rotary_dim": 10}


def test_float32_weights_stay_mapped(tmp_path):
    make_llama(tmp_path)
    values = load(tmp_path).model.graph.initializers
    array = values["model.layers.0.mlp.up_proj.weight"].const_value.numpy()
    while isinstance(array, np.ndarray):
        array = array.base
    assert isinstance(memoryview(array).obj, mmap.mmap)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what is resident")
def test_pages_of_mapped_files_are_given_back(tmp_path):
    size = 64 << 20
    (tmp_path / "f").write_bytes(bytes(range(256)) * (size // 256))
    view = map_bytes(tmp_path / "f")

    def resident() -> int:
        return int(re.search(r"RssFile:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

    total = int(view.sum())
    held = resident()
    release_pages()
    assert held - resident() > 0.9 * size
    assert int(view.sum()) == total == 255 * 128 * (size // 256)


def test_what_else_a_canonical_model_knows(tmp_path):
    make_llama(tmp_path)
    (tmp_path / "model_card.json").write_text('{"license": "MIT", "training_data": "none"}')
    edit_json(tmp_path / "generation_config.json", eos_token_id=[5, 6], bos_token_id=4)
    found = load(tmp_path)
    assert (found.name, found.context, found.vocab_size) == (tmp_path.name, 128, 300)
    assert (found.bos_id, found.eos_ids) == (4, (5, 6))
    assert found.license == {"license": "MIT", "training_data": "none"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(found.source_sha256)


@pytest.mark.parametrize("name", ["tiny-rope", "tiny-alibi"])
def test_tiny_examples_agree_with_transformers(root, name):
    import transformers

    folder = root / "examples" / "tiny" / name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = load(folder)
    ids = found.tokenizer.library().encode("Once upon a time, a little girl went to the park with her dog.").ids * 6
    want = torch_logits(model, ids)
    session = reference(found)
    got = np.concatenate([session.eval(ids[:11]), session.eval(ids[11:12]), session.eval(ids[12:])])
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-4)
