"""Position encodings read from Hugging Face configs, in both spellings."""

import numpy as np
import pytest

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import Alibi, Rope, from_config

LLAMA = {"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 2048}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def test_plain_llama():
    assert from_config(LLAMA) == Rope(64)
    assert from_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": None}) == Rope(64, theta=500000.0)
    assert from_config(LLAMA | {"head_dim": 32, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}) == Rope(32, theta=1e5)
    assert from_config(LLAMA | {"rope_theta": 10000}) == Rope(64)


def test_both_spellings_mean_the_same():
    old = from_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}})
    older = from_config(LLAMA | {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **LLAMA3}})
    new = from_config(LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}})
    assert old == older == new == Rope(64, theta=500000.0, scaling={"rope_type": "llama3", **LLAMA3})


def test_partial_rotary():
    assert from_config(LLAMA | {"partial_rotary_factor": 0.5}) == Rope(64, 32)
    assert from_config(LLAMA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}) == Rope(64, 16)
    spec = from_config(LLAMA | {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 0.25}})
    assert spec.rotary_dim == 64 and np.count_nonzero(spec.inv_freq()) == 8


def test_lengths_come_from_the_config():
    spec = from_config(LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}})
    assert spec.scaling.max_position_embeddings == 2048
    spec = from_config(LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0}})
    assert spec.scaling.original_max_position_embeddings == 2048
    spec = from_config(LLAMA | {"original_max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": None}})
    assert spec.scaling.original_max_position_embeddings == 512 and spec.scaling.factor == 4.0


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"rope_theta": 500000.0},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "head_dim": 96},
    ],
)
def test_against_transformers(extra):
    pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    module = llama.LlamaRotaryEmbedding(LlamaConfig(**LLAMA | extra))
    spec = from_config(LLAMA | extra)
    np.testing.assert_allclose(spec.inv_freq(), module.inv_freq.numpy(), rtol=4e-6)
    assert spec.attention_factor == pytest.approx(module.attention_scaling)


def test_bloom():
    assert from_config({"model_type": "bloom", "n_head": 12}) == Alibi(12)
    assert from_config({"model_type": "bloom", "num_attention_heads": 8, "n_head": 8}) == Alibi(8)


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 71])
def test_bloom_slopes_against_transformers(heads):
    pytest.importorskip("torch")
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    theirs = bloom._get_alibi_slopes(heads, "cpu").numpy()
    np.testing.assert_allclose(from_config({"model_type": "bloom", "n_head": heads}).slopes(), theirs, rtol=1e-5)


@pytest.mark.parametrize(
    "config, error, named",
    [
        ([], FormatError, "config"),
        ({}, UnsupportedError, "model_type"),
        ({"model_type": "mamba"}, UnsupportedError, "mamba"),
        ({"model_type": "llama"}, FormatError, "num_attention_heads"),
        (LLAMA | {"hidden_size": 500}, FormatError, "hidden_size"),
        (LLAMA | {"head_dim": 0}, FormatError, "head_dim"),
        (LLAMA | {"head_dim": 63}, FormatError, "rotary_dim"),
        (LLAMA | {"rope_theta": -1.0}, FormatError, "theta"),
        (LLAMA | {"rope_scaling": 2.0}, FormatError, "rope_scaling"),
        (LLAMA | {"rope_scaling": {"type": "spiral"}}, UnsupportedError, "spiral"),
        (LLAMA | {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}}, FormatError, "agree"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0, "odd": 1}}, FormatError, "odd"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, FormatError, "factor"),
        (LLAMA | {"rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e5}}, FormatError, "rope_theta"),
        (
            LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}},
            FormatError,
            "factor",
        ),
        (LLAMA | {"partial_rotary_factor": 2.0}, FormatError, "partial_rotary_factor"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, UnsupportedError, "full_attention"),
        ({"model_type": "llama", "head_dim": 8, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, FormatError, "max_position_embeddings"),
        ({"model_type": "llama", "head_dim": 8, "rope_scaling": {"type": "yarn", "factor": 2.0}}, FormatError, "original_max"),
        ({"model_type": "bloom"}, FormatError, "n_head"),
        ({"model_type": "bloom", "n_head": 0}, FormatError, "n_head"),
        ({"model_type": "bloom", "n_head": 8, "num_attention_heads": 4}, FormatError, "agree"),
    ],
)
def test_bad_configs_are_refused_by_name(config, error, named):
    with pytest.raises(error, match=named):
        from_config(config)
    assert issubclass(error, EdgePosError)
