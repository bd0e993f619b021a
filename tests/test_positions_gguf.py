"""Position encodings from GGUF metadata, and float32's drift beside the plans' bounds."""

import numpy as np
import pytest

from edgepos.errors import EdgePosError
from edgepos.positions import Alibi, Hybrid, Learned, MRope, NoPosition, PhasePlan, Rope, T5Bias, float32_error, from_config, from_gguf

SMOLLM2 = {
    "general.architecture": "llama",
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.rope.dimension_count": 64,
    "llama.rope.freq_base": 100000.0,
    "llama.context_length": 8192,
}
QWEN = {"general.architecture": "qwen2", "qwen2.attention.key_length": 128, "qwen2.rope.freq_base": 1e6, "qwen2.context_length": 4096}


def test_rotary_architectures():
    assert from_gguf(SMOLLM2) == Rope(64, theta=100000.0, layout="interleaved")
    assert from_gguf(QWEN) == Rope(128, theta=1e6)
    assert from_gguf(QWEN | {"qwen2.rope.scaling.type": "none"}) == Rope(128, theta=1e6)
    partial = {"general.architecture": "gptneox", "gptneox.embedding_length": 512, "gptneox.attention.head_count": 8}
    assert from_gguf(partial | {"gptneox.rope.dimension_count": 16}) == Rope(64, 16)


def test_scalings():
    linear = {"rope_type": "linear", "factor": 4.0}
    assert from_gguf(QWEN | {"qwen2.rope.scaling.type": "linear", "qwen2.rope.scaling.factor": 4.0}) == Rope(128, theta=1e6, scaling=linear)
    assert from_gguf(QWEN | {"qwen2.rope.scale_linear": 4.0}) == Rope(128, theta=1e6, scaling=linear)
    yarn = QWEN | {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 8.0, "qwen2.rope.scaling.original_context_length": 512}
    expected = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}
    assert from_gguf(yarn) == Rope(128, theta=1e6, scaling=expected)


def test_llama3_factors_give_llama3():
    """GGUF stores float32 divisors; the frequencies agree with the formula to that precision."""
    fields = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    exact = Rope(64, theta=500000.0, layout="interleaved", scaling={"rope_type": "llama3", **fields})
    divisors = (Rope(64, theta=500000.0).inv_freq() / exact.inv_freq()).astype(np.float32)
    spec = from_gguf(SMOLLM2 | {"llama.rope.freq_base": 500000.0}, divisors)
    np.testing.assert_allclose(spec.inv_freq(), exact.inv_freq(), rtol=1e-7)


def test_other_architectures():
    assert from_gguf({"general.architecture": "bloom", "bloom.attention.head_count": 16}) == Alibi(16, 8.0)
    mpt = {"general.architecture": "mpt", "mpt.attention.head_count": 12, "mpt.attention.max_alibi_bias": 16.0}
    assert from_gguf(mpt) == Alibi(12, 16.0)
    assert from_gguf({"general.architecture": "gpt2", "gpt2.context_length": 1024}) == Learned(1024)


def described(architecture: str, **keys) -> dict:
    """Metadata with 512 components in 8 heads; the underscores of keys are points."""
    sizes = {"embedding_length": 512, "attention.head_count": 8, "block_count": 8, "context_length": 2048}
    return {"general.architecture": architecture} | {f"{architecture}.{k.replace('__', '.')}": v for k, v in (sizes | keys).items()}


SAME = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 8, "max_position_embeddings": 2048}
AS_IN_CONFIGS = [
    ("qwen2moe", {"rope__freq_base": 1e6}, {"model_type": "qwen2_moe", "rope_theta": 1e6}),
    ("command-r", {"rope__freq_base": 8e6}, {"model_type": "cohere", "rope_theta": 8e6}),
    ("cohere2", {"rope__freq_base": 5e4}, {"model_type": "cohere2", "rope_theta": 5e4}),
    ("smollm3", {"rope__freq_base": 2e6}, {"model_type": "smollm3"}),
    ("glm4", {"rope__dimension_count": 32}, {"model_type": "glm4", "head_dim": 64}),
    ("stablelm", {"rope__dimension_count": 16}, {"model_type": "stablelm"}),
    ("nomic-bert", {"rope__freq_base": 1000.0}, {"model_type": "nomic_bert"}),
    ("gemma3", {"rope__freq_base": 1e6, "attention__key_length": 64}, {"model_type": "gemma3_text", "head_dim": 64}),
    (
        "gemma3",
        {"rope__freq_base": 1e6, "attention__key_length": 64, "rope__scaling__type": "linear", "rope__scaling__factor": 8.0},
        {"model_type": "gemma3_text", "head_dim": 64, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    ("modern-bert", {"rope__freq_base": 160000.0, "rope__freq_base_swa": 1e4}, {"model_type": "modernbert"}),
    (
        "qwen2vl",
        {"rope__freq_base": 1e6, "rope__dimension_sections": [8, 12, 12, 0]},
        {"model_type": "qwen2_vl", "rope_theta": 1e6, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]}},
    ),
    (
        "qwen3vl",
        {"rope__freq_base": 5e6, "rope__dimension_sections": [24, 20, 20, 0], "attention__key_length": 128},
        {"model_type": "qwen3_vl", "rope_theta": 5e6},
    ),
    (
        "deepseek2",
        {
            "attention__key_length": 192, "rope__dimension_count": 64, "rope__scaling__type": "yarn", "rope__scaling__factor": 40.0,
            "rope__scaling__original_context_length": 4096, "rope__scaling__yarn_log_multiplier": 0.1,
        },
        {
            "model_type": "deepseek_v3",
            "rope_scaling": {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
        },
    ),
    ("bloom", {}, {"model_type": "bloom", "n_head": 8}),
    ("bert", {}, {"model_type": "bert"}),
    ("starcoder", {}, {"model_type": "gpt_bigcode"}),
    ("t5", {"attention__relative_buckets_count": 32}, {"model_type": "t5"}),
    ("mpt", {"attention__max_alibi_bias": 0.0}, {"model_type": "mpt", "max_seq_len": 2048, "attn_config": {"alibi": False}}),
]  # fmt: skip


@pytest.mark.parametrize("architecture, keys, config", AS_IN_CONFIGS)
def test_the_same_model_in_both_formats(architecture, keys, config):
    """What a GGUF file says is what the config.json says that it was made from."""
    found, expected = from_gguf(described(architecture, **keys)), from_config(SAME | config)
    for ours, theirs in zip(*(spec.values() if isinstance(spec, dict) else [spec] for spec in (found, expected)), strict=True):
        assert type(ours) is type(theirs)
        if isinstance(ours, Hybrid):
            assert ours.embedding == theirs.embedding and [s == NoPosition() for s in ours.layers] == [s == NoPosition() for s in theirs.layers]
            ours, theirs = ours.layers[0], theirs.layers[0]
        if isinstance(ours, (Rope, MRope)):
            np.testing.assert_allclose(ours.inv_freq(), theirs.inv_freq(), rtol=1e-15)
            assert (ours.head_dim, ours.rotary_dim, ours.attention_factor) == (theirs.head_dim, theirs.rotary_dim, theirs.attention_factor)
            # the rows of q and k in a file of the architecture smollm3 are reordered, as in llama's
            assert ours.layout == ("interleaved" if architecture == "smollm3" else theirs.layout)
            assert getattr(ours, "sections", None) == getattr(theirs, "sections", None)
        else:
            assert ours == theirs


def test_architectures_of_their_own():
    assert from_gguf(described("t5encoder", attention__relative_buckets_count=32)) == T5Bias()
    assert from_gguf(described("jina-bert-v2")) == Alibi(8, symmetric=True)
    assert from_gguf(described("baichuan")) == Rope(64, layout="interleaved")
    assert from_gguf(described("baichuan", block_count=40)) == Alibi(8)


@pytest.mark.parametrize(
    "metadata, factors, named",
    [
        ({}, None, "general.architecture"),
        ({"general.architecture": "mamba"}, None, "mamba"),
        ({"general.architecture": "llama"}, None, "head_count"),
        (SMOLLM2 | {"llama.embedding_length": 577}, None, "embedding_length"),
        (SMOLLM2 | {"llama.rope.dimension_count": 63}, None, "rotary_dim"),
        (SMOLLM2 | {"llama.rope.freq_base": 0.0}, None, "theta"),
        (SMOLLM2 | {"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, None, "longrope"),
        (QWEN | {"qwen2.rope.scaling.type": "yarn", "qwen2.rope.scaling.factor": 2.0, "qwen2.rope.scaling.attn_factor": 2.0}, None, "attn"),
        (SMOLLM2, [1.0], "factors"),
        (SMOLLM2, [0.0] * 32, r"factors\[0\]"),
        (SMOLLM2 | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}, [1.0] * 32, "rope_freqs"),
        ({"general.architecture": "gpt2", "gpt2.context_length": 8}, [1.0], "rope_freqs"),
        ({"general.architecture": "bloom"}, None, "head_count"),
        ({"general.architecture": "t5"}, None, "relative_buckets_count"),
        (described("qwen2vl"), None, "dimension_sections"),
        (described("qwen2vl", rope__dimension_sections=[1, 2]), None, "list of 4"),
        (described("qwen2vl", rope__dimension_sections=[8, 12, 11, 0]), None, "sum to 31"),
        (described("deepseek2", attention__key_length=192), None, "rope.dimension_count"),
        (described("smollm3", block_count=0), None, "block_count"),
    ],
)
def test_bad_metadata_is_refused_by_name(metadata, factors, named):
    with pytest.raises(EdgePosError, match=named):
        from_gguf(metadata, factors)


def test_float32_drifts_and_phases_do_not():
    """numerics.md, section 6: float32 is off by some 19 units at 8192 and 300 at 131072."""
    spec = Rope(128)
    errors = [float32_error(spec, context) for context in (512, 8192, 131072)]
    assert errors == sorted(errors) and 5 < errors[1] < 40 and 100 < errors[2] < 400
    assert PhasePlan(spec, 131072).bound < 0.58
    assert float32_error(spec, 1) < 1e-2


def test_float32_error_is_that_of_transformers():
    torch = pytest.importorskip("torch")
    llama = pytest.importorskip("transformers.models.llama.modeling_llama")
    from transformers import LlamaConfig

    module = llama.LlamaRotaryEmbedding(LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=64))
    at = np.arange(131072 - 2000, 131072)
    theirs = module(torch.zeros(1), torch.tensor(at)[None])[0][0, :, :32].numpy()
    found = np.abs(theirs - Rope(64).cos_sin(at)[0]).max() * 32767
    assert found == pytest.approx(float32_error(Rope(64), 131072), rel=0.5)


PHI3 = {
    "general.architecture": "phi3",
    "phi3.embedding_length": 512,
    "phi3.attention.head_count": 8,
    "phi3.context_length": 2048,
    "phi3.rope.scaling.original_context_length": 512,
    "phi3.rope.scaling.attn_factor": 1.25,
}


def test_longrope_factors():
    short, long = [1.0 + j / 8 for j in range(32)], [2.0 + j for j in range(32)]
    spec = from_gguf(PHI3, long_factors=np.array(long, np.float32), short_factors=np.array(short, np.float32))
    fields = {"short_factor": short, "long_factor": long, "original_max_position_embeddings": 512, "factor": 4.0, "attention_factor": 1.25}
    assert spec == Rope(64, scaling={"rope_type": "longrope", **fields})
    np.testing.assert_allclose(spec.inv_freq(513) * long, Rope(64).inv_freq(), rtol=1e-15)


def test_incomplete_longrope_is_refused():
    row = [1.0] * 32
    with pytest.raises(EdgePosError, match="both"):
        from_gguf(PHI3, long_factors=row)
    with pytest.raises(EdgePosError, match="original_context_length"):
        from_gguf({k: v for k, v in PHI3.items() if "original" not in k}, long_factors=row, short_factors=row)
    with pytest.raises(EdgePosError, match="rope_factors_long"):
        from_gguf({"general.architecture": "bloom", "bloom.attention.head_count": 8}, long_factors=row, short_factors=row)
    with pytest.raises(EdgePosError, match="another scaling"):
        from_gguf(PHI3 | {"phi3.rope.scaling.type": "linear", "phi3.rope.scaling.factor": 2.0}, long_factors=row, short_factors=row)
