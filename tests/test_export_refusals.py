"""Hugging Face folders EdgePos must refuse, each by the name of what is wrong."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hf_models import edit_json, make_bloom, make_llama

from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load


@pytest.fixture(scope="module")
def llama_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    make_llama(folder)
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.fixture(scope="module")
def bloom_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bloom")
    make_bloom(folder)
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def unpack(files, folder):
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def refused(folder, error, message, **load_options):
    with pytest.raises(error, match=message) as caught:
        load(folder, **load_options)
    assert "\n" not in str(caught.value)


BAD, NO = FormatError, UnsupportedError
LINEAR = {"rope_type": "linear", "factor": 2.0}
LLAMA_CONFIGS = [
    ({"architectures": ["MambaForCausalLM"]}, NO, "'MambaForCausalLM' is not supported; supported: LlamaForCausalLM"),
    ({"architectures": ...}, BAD, "architectures is None"),
    ({"architectures": ["LlamaForCausalLM"] * 2}, BAD, "architectures is"),
    ({"model_type": "bloom"}, BAD, "model_type is 'bloom'"),
    ({"quantization_config": {"bits": 4}}, NO, "quantization_config"),
    ({"num_attention_heads": 0}, BAD, "num_attention_heads is 0"),
    ({"num_key_value_heads": 0}, BAD, "num_key_value_heads is 0"),
    ({"num_key_value_heads": 4}, BAD, "num_attention_heads 6 is not a multiple of num_key_value_heads 4"),
    ({"num_attention_heads": 7, "num_key_value_heads": 7, "head_dim": None}, BAD, "not a multiple of num_att"),
    ({"num_attention_heads": True}, BAD, "num_attention_heads is True"),
    ({"hidden_size": "48"}, BAD, "hidden_size is '48'"),
    ({"hidden_size": ...}, BAD, "'hidden_size' is missing"),
    ({"hidden_size": -48}, BAD, "hidden_size is -48"),
    ({"hidden_size": 54}, BAD, r"has shape \[300, 48\], the config asks for \[300, 54\]"),
    ({"num_hidden_layers": 10**9}, BAD, "tensor 'model.layers.2.input_layernorm.weight' is missing"),
    ({"num_hidden_layers": 1}, BAD, "unexpected tensor"),
    ({"head_dim": 9}, BAD, "head_dim 9 is odd"),
    ({"head_dim": 0}, BAD, "head_dim is 0"),
    ({"head_dim": 10}, BAD, "has shape"),
    ({"attention_bias": True}, BAD, "q_proj.bias' is missing"),
    ({"mlp_bias": "yes"}, BAD, "mlp_bias is 'yes'"),
    ({"hidden_act": "gelu"}, NO, "hidden_act 'gelu' is not supported"),
    ({"rms_norm_eps": 0}, BAD, "rms_norm_eps is 0"),
    ({"tie_word_embeddings": True}, BAD, "tie_word_embeddings is true but 'lm_head.weight' differs"),
    ({"max_position_embeddings": 2**24}, NO, "pass a smaller context="),
    ({"rope_parameters": LINEAR | {"factor": 0}}, BAD, "factor is 0"),
    ({"rope_parameters": None, "rope_scaling": {"type": "spiral", "factor": 2.0}}, NO, "'spiral'"),
    ({"rope_scaling": LINEAR}, BAD, "rope_type is 'default' in rope_parameters and 'linear' in rope_scaling"),
    ({"rope_theta": 500.0}, BAD, "rope_theta is 10000.0 in rope_parameters and 500.0 in the config"),
    ({"rope_parameters": {"rope_type": "default", "type": "linear"}}, BAD, "they must agree"),
    ({"rope_parameters": {"rope_type": "default", "factor": 2}}, BAD, "has the key 'factor'"),
    ({"rope_parameters": {"full_attention": {}}}, NO, "one rotation per layer kind"),
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, NO, "partial_rotary_factor rotates 4 of 8"),
    ({"partial_rotary_factor": 0.25}, NO, "partial_rotary_factor rotates 2 of 8"),
    ({"rope_parameters": {"rope_theta": 0}}, BAD, "theta is 0"),
    ({"rope_parameters": 7}, BAD, "rope_parameters is 7"),
    ({"vocab_size": 301}, BAD, "has shape"),
]


@pytest.mark.parametrize(("changes", "error", "message"), LLAMA_CONFIGS, ids=[c[2][:40] for c in LLAMA_CONFIGS])
def test_llama_configs(tmp_path, llama_files, changes, error, message):
    edit_json(unpack(llama_files, tmp_path) / "config.json", **changes)
    refused(tmp_path, error, message)


BLOOM_CONFIGS = [
    ({"n_head": 0}, BAD, "n_head is 0"),
    ({"n_head": 7}, BAD, "hidden_size 48 is not a multiple of n_head 7"),
    ({"n_embed": 64}, BAD, "hidden_size is 48 but n_embed is 64"),
    ({"num_attention_heads": 6}, BAD, "n_head is 12 but num_attention_heads is 6"),
    ({"n_layer": 1}, BAD, "unexpected tensor"),
    ({"seq_length": 0}, BAD, "seq_length is 0"),
    ({"tie_word_embeddings": False}, BAD, "'lm_head.weight' is missing"),
    ({"hidden_act": "relu"}, UnsupportedError, "hidden_act 'relu'"),
    ({"activation_function": "silu"}, UnsupportedError, "activation_function 'silu'"),
    ({"rope_scaling": {"type": "linear"}}, UnsupportedError, "rope_scaling"),
    ({"sliding_window": 64}, UnsupportedError, "sliding_window"),
]


@pytest.mark.parametrize(("changes", "error", "message"), BLOOM_CONFIGS, ids=[c[2][:40] for c in BLOOM_CONFIGS])
def test_bloom_configs(tmp_path, bloom_files, changes, error, message):
    edit_json(unpack(bloom_files, tmp_path) / "config.json", **changes)
    refused(tmp_path, error, message)


def test_embeddings_of_a_decoder(tmp_path, llama_files):
    (unpack(llama_files, tmp_path) / "modules.json").write_text("[]")
    refused(tmp_path, UnsupportedError, "modules.json: an embedding of a causal LlamaForCausalLM; supported: embeddings of BertModel, RobertaModel")


def test_contexts(tmp_path, llama_files):
    unpack(llama_files, tmp_path)
    refused(tmp_path, NO, "max_position_embeddings allows 1 to 128", context=129)
    edit_json(tmp_path / "config.json", sliding_window=64)
    assert load(tmp_path, context=64).context == 64
    edit_json(tmp_path / "config.json", sliding_window=None, rope_parameters={"rope_type": "none"})
    assert load(tmp_path).context == 128


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "config.json: not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "the top level is list"),
        (b"[" * 100_000, "nested too deeply|not valid JSON"),
        (b'{"a": 1, "a": 2}', "key 'a' appears twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": 1e999}', "hidden_size is inf"),
        (b'{"architectures": ["LlamaForCausalLM"], "hidden_size": %s}' % (b"9" * 4000), "hidden_size is 9999"),
    ],
)
def test_config_files(tmp_path, llama_files, text, message):
    unpack(llama_files, tmp_path)
    (tmp_path / "config.json").write_bytes(text)
    refused(tmp_path, BAD, message)


def test_generation_config_ids(tmp_path, llama_files):
    unpack(llama_files, tmp_path)
    edit_json(tmp_path / "generation_config.json", eos_token_id=300)
    refused(tmp_path, BAD, "generation_config.json: eos_token_id is 300; a token id from 0 to 299")
    edit_json(tmp_path / "generation_config.json", eos_token_id=None, bos_token_id=[1, 2])
    refused(tmp_path, BAD, "bos_token_id is")


def test_a_folder_without_weights(tmp_path, llama_files):
    unpack(llama_files, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    refused(tmp_path, BAD, "neither model.safetensors nor .* nor pytorch_model.bin.index.json is there")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d[:-4], "data_offsets|tensors end"),
        (lambda d: d + b"\0" * 4, "tensors end at data byte"),
        (lambda d: d[:5], "header length"),
        (lambda d: b"", "header length"),
        (lambda d: struct.pack("<Q", 2**63) + d[8:], "header length 9223372036854775808 at byte 0"),
    ],
)
def test_damaged_safetensors(tmp_path, llama_files, change, message):
    unpack(llama_files, tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(change(path.read_bytes()))
    refused(tmp_path, BAD, message)


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "error", "message"),
    [
        ({"a": entry("I64", (1,))}, NO, "tensor 'a' has dtype 'I64'; supported: F32, F16, BF16"),
        ({"a": entry(["F32"])}, NO, "has dtype"),
        ({"a": entry(shape=(-2,))}, BAD, "has shape"),
        ({"a": entry(shape=(0, 2**61))}, BAD, "has shape"),
        ({"a": entry(shape=(2**40,))}, BAD, "has 8 bytes, but shape .* needs"),
        ({"a": entry(offsets=(8, 0))}, BAD, "data_offsets"),
        ({"a": entry(offsets=(0, 2**40))}, BAD, "data_offsets"),
        ({"a": entry(), "b": entry()}, BAD, "overlaps"),
        ({"a": entry(shape=(1,), offsets=(4, 8))}, BAD, "leaves a hole"),
        ({"a": 5}, BAD, "tensor 'a' is 5"),
        ({"\ud800\n": entry()}, BAD, "is missing"),
    ],
)
def test_hostile_safetensors_headers(tmp_path, llama_files, header, error, message):
    unpack(llama_files, tmp_path)
    raw = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + b"\0" * 8)
    refused(tmp_path, error, message)


def test_weights_that_do_not_belong(tmp_path, llama_files):
    from safetensors.numpy import load_file, save_file

    path = unpack(llama_files, tmp_path) / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "model.layers.0.extra\n": np.zeros(1, np.float32)}, path)
    refused(tmp_path, BAD, r"1 unexpected tensor\(s\): 'model.layers.0.extra\\n'")
    save_file({k: v for k, v in tensors.items() if k != "model.norm.weight"}, path)
    refused(tmp_path, BAD, "tensor 'model.norm.weight' is missing")
    save_file({**tensors, "model.norm.weight": np.zeros(47, np.float32)}, path)
    refused(tmp_path, BAD, r"'model.norm.weight' has shape \[47\], the config asks for \[48\]")
    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)}, path)
    load(tmp_path)


def test_shard_indexes(tmp_path):
    make_llama(tmp_path, shard="20KB")
    index = tmp_path / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    name, shard = next(iter(weight_map.items()))
    other = next(s for s in weight_map.values() if s != shard)
    for value, message in [
        ("../secret.safetensors", "file '../secret.safetensors'; the name of a .safetensors file beside"),
        ("C:x.safetensors", "the name of a .safetensors file"),
        ("pytorch_model.bin", "the name of a .safetensors file"),
        (3, "is in file 3"),
        ("absent.safetensors", "absent.safetensors: cannot be read"),
        (other, "is not in model-"),
    ]:
        edit_json(index, weight_map={**weight_map, name: value})
        refused(tmp_path, BAD, message)
    edit_json(index, weight_map={**weight_map, "more": shard})
    refused(tmp_path, BAD, "tensor 'more' is not in")
    edit_json(index, weight_map={k: v for k, v in weight_map.items() if k != name})
    refused(tmp_path, BAD, "places in None|unexpected|is missing")
    edit_json(index, weight_map=[])
    refused(tmp_path, BAD, r"weight_map is \[\]")


def test_tokenizer_files(tmp_path, llama_files):
    unpack(llama_files, tmp_path)
    refused(tmp_path, NO, "tokenizer= is for llama2.c", tokenizer=tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer.json").rename(tmp_path / "tokenizer.model")
    refused(tmp_path, NO, "tokenizer.model: only tokenizer.json is read")
    (tmp_path / "tokenizer.model").unlink()
    refused(tmp_path, BAD, "tokenizer.json is missing")
