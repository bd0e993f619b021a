"""Position encodings read from Hugging Face configs, in both spellings."""

import copy
import importlib

import numpy as np
import pytest

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import Alibi, Hybrid, Learned, MRope, NoPosition, Rope, T5Bias, from_config

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

    module = llama.LlamaRotaryEmbedding(LlamaConfig(**copy.deepcopy(LLAMA | extra)))
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


SIZES = {"hidden_size": 512, "num_attention_heads": 8, "max_position_embeddings": 2048, "num_hidden_layers": 4}
ROTARY = [
    ("mistral", {}),
    ("qwen2", {"rope_theta": 1e6}),
    ("qwen3", {}),
    ("gemma", {}),
    ("gemma2", {"head_dim": 64}),
    ("phi", {}),
    ("phi", {"partial_rotary_factor": 0.25, "rope_scaling": {"type": "linear", "factor": 2.0}}),
    ("gpt_neox", {}),
    ("gpt_neox", {"rotary_pct": 0.5, "rotary_emb_base": 20000}),
    ("falcon", {}),
    ("smollm3", {}),
    ("phi3", {}),
]
PHI3 = {
    "original_max_position_embeddings": 512,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0 + j / 8 for j in range(32)], "long_factor": [2.0 + j for j in range(32)]},
}


@pytest.mark.parametrize("family, extra", [*ROTARY, ("phi3", PHI3)])
def test_rotary_families_against_transformers(family, extra):
    """Frequencies and rotated dimensions of each family's own rotary module."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(family, **copy.deepcopy(SIZES | extra | {"pad_token_id": 0}))
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    rotary = next(v for n, v in vars(module).items() if n.endswith("RotaryEmbedding"))(config)
    spec = from_config({"model_type": family} | SIZES | extra)
    if isinstance(spec, Hybrid):
        assert spec.layers[3] == NoPosition() and [bool(t) for t in config.no_rope_layers] == [isinstance(s, Rope) for s in spec.layers]
        spec = spec.layers[0]
    np.testing.assert_allclose(spec.inv_freq(), rotary.inv_freq.numpy(), rtol=4e-6)
    assert spec.attention_factor == pytest.approx(rotary.attention_scaling, rel=1e-12)


def test_phi3_attention_factor_follows_the_lengths():
    spec = from_config({"model_type": "phi3"} | SIZES | PHI3)
    older = PHI3 | {"rope_scaling": PHI3["rope_scaling"] | {"type": "su"}}
    assert from_config({"model_type": "phi3"} | SIZES | older) == spec
    assert spec.scaling.factor == 4.0 and spec.attention_factor == pytest.approx((1 + np.log(4) / np.log(512)) ** 0.5)


def test_qwen2_vl():
    old = {"model_type": "qwen2_vl", "hidden_size": 1536, "num_attention_heads": 12, "rope_theta": 1e6}
    expected = MRope(Rope(128, theta=1e6), (16, 24, 24))
    assert from_config(old | {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}) == expected
    nested = {k: v for k, v in old.items() if k not in ("model_type", "rope_theta")}
    nested |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}}
    assert from_config({"model_type": "qwen2_vl", "text_config": nested}) == expected


def test_other_families():
    assert from_config({"model_type": "mpt", "n_heads": 12, "attn_config": {"alibi": True, "alibi_bias_max": 16}}) == Alibi(12, 16)
    assert from_config({"model_type": "mpt", "n_heads": 12, "max_seq_len": 64, "attn_config": {"alibi": False}}) == Learned(64)
    assert from_config({"model_type": "gpt2", "n_positions": 1024}) == Learned(1024)
    assert from_config({"model_type": "bert", "max_position_embeddings": 512}) == Learned(512)
    assert from_config({"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}) == Learned.roberta(514)
    assert from_config({"model_type": "opt", "max_position_embeddings": 2048}) == Learned.opt(2050)
    assert from_config({"model_type": "t5"}) == {"encoder": T5Bias(), "decoder": T5Bias(bidirectional=False)}


def test_falcon_scales_its_bias():
    """bfloat16 slopes, and scores and bias divided by sqrt(head_dim) together."""
    torch = pytest.importorskip("torch")
    falcon = pytest.importorskip("transformers.models.falcon.modeling_falcon")
    spec = from_config({"model_type": "falcon", "alibi": True, "num_attention_heads": 71, "hidden_size": 71 * 64})
    theirs = falcon.build_alibi_tensor(torch.ones(1, 2), 71, torch.float32)[:, 0, 1].numpy()
    np.testing.assert_allclose(spec.slopes(), theirs / 8, rtol=1e-7)


@pytest.mark.parametrize("heads", range(1, 33))
def test_mpt_slopes_against_transformers(heads):
    pytest.importorskip("torch")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    theirs = -mpt.build_mpt_alibi_tensor(heads, 2, 16)[:, 0, 0].numpy()
    np.testing.assert_allclose(Alibi(heads, 16).slopes(), theirs, rtol=1e-6)


@pytest.mark.parametrize(
    "config, error, named",
    [
        ({"model_type": "bert", "max_position_embeddings": 8, "position_embedding_type": "relative_key"}, UnsupportedError, "relative_key"),
        ({"model_type": "bert"}, FormatError, "max_position_embeddings"),
        ({"model_type": "falcon", "alibi": 1, "num_attention_heads": 8}, FormatError, "alibi"),
        ({"model_type": "mpt", "attn_config": 3}, FormatError, "attn_config"),
        ({"model_type": "smollm3", "num_hidden_layers": 2, "head_dim": 8, "no_rope_layers": [1]}, FormatError, "no_rope_layers"),
        ({"model_type": "gpt_neox", "head_dim": 8, "rotary_pct": 0.5, "partial_rotary_factor": 0.25}, FormatError, "partial_rotary_factor"),
        ({"model_type": "t5", "relative_attention_num_buckets": 0}, FormatError, "num_buckets"),
        ({"model_type": "qwen2_vl", "head_dim": 8, "rope_scaling": {"type": "mrope", "mrope_section": [1]}}, FormatError, "sections"),
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
        (LLAMA | {"rope_scaling": {"rope_type": ["linear"], "factor": 2.0}}, FormatError, "rope_type is .*the name of a scaling"),
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


GEMMA3 = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6, "head_dim": 64}
YARN_KIND = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 5e5}
LAYERED = [
    ("gemma3_text", {}),
    ("gemma3_text", {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    ("gemma3_text", {"rope_parameters": {"full_attention": YARN_KIND, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    ("modernbert", {}),
    ("modernbert", {"global_rope_theta": 1e5, "local_rope_theta": 2e4}),
]


@pytest.mark.parametrize("family, extra", LAYERED)
def test_layer_kinds_against_transformers(family, extra):
    """One rotation per layer kind, each against the family's own module."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    config = transformers.AutoConfig.for_model(family, **copy.deepcopy(GEMMA3 | {"max_position_embeddings": 2048} | extra | {"pad_token_id": 0}))
    module = importlib.import_module(f"transformers.models.{'gemma3' if family == 'gemma3_text' else family}.modeling_{family.removesuffix('_text')}")
    rotary = next(v for n, v in vars(module).items() if n.endswith("RotaryEmbedding"))(config)
    specs = from_config({"model_type": family} | GEMMA3 | {"max_position_embeddings": 2048} | extra)
    assert list(specs) == ["full_attention", "sliding_attention"]
    for kind, spec in specs.items():
        np.testing.assert_allclose(spec.inv_freq(), getattr(rotary, f"{kind}_inv_freq").numpy(), rtol=4e-6)
        assert spec.attention_factor == pytest.approx(getattr(rotary, f"{kind}_attention_scaling"), rel=1e-12)


@pytest.mark.parametrize(
    "extra, named",
    [
        ({"rope_parameters": {"other": {}}}, "other"),
        ({"rope_parameters": {"full_attention": 3}}, "full_attention"),
        ({"rope_parameters": []}, "rope_parameters"),
        ({"rope_theta": 1e5, "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}}, "rope_theta"),
    ],
)
def test_bad_layer_kinds_are_refused(extra, named):
    with pytest.raises(EdgePosError, match=named):
        from_config({"model_type": "gemma3_text"} | GEMMA3 | extra)


def test_original_lengths_in_two_places_must_agree():
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 64}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
    with pytest.raises(FormatError, match="original_max_position_embeddings is 32, and 16"):
        from_config(config | {"rope_parameters": yarn, "original_max_position_embeddings": 32})
    for outer in ({}, {"original_max_position_embeddings": None}, {"original_max_position_embeddings": 16}):
        spec = from_config(config | {"rope_parameters": yarn} | outer)
        assert spec.scaling.original_max_position_embeddings == 16


LONG = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32, "original_max_position_embeddings": 512}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 16.0, "mscale": 1.0, "mscale_all_dim": 0.8}
KINDS = {"linear": {"factor": 2.0}, "dynamic": {"factor": 2.0}, "llama3": LLAMA3, "yarn": YARN, "longrope": LONG}


def spellings(kind: str, fields: dict) -> dict[str, dict]:
    """One rotation in every way that configs have said it."""
    new = {"rope_type": kind, "rope_theta": 5e5, **fields}
    return {
        "type": {"rope_theta": 5e5, "rope_scaling": {"type": kind, **fields}},
        "rope_type": {"rope_theta": 5e5, "rope_scaling": {"rope_type": kind, **fields}},
        "both types": {"rope_theta": 5e5, "rope_scaling": {"type": kind, "rope_type": kind, **fields}},
        "theta inside": {"rope_scaling": new},
        "parameters": {"rope_parameters": new},
        "parameters with type": {"rope_parameters": {"type": kind, "rope_theta": 5e5, **fields}},
        "theta twice": {"rope_theta": 5e5, "rope_parameters": new},
        "everything twice": {"rope_theta": 5e5, "rope_parameters": new, "rope_scaling": {"type": kind, **fields}},
        "halves": {"rope_theta": 5e5, "rope_parameters": {"rope_type": kind}, "rope_scaling": {"type": kind, **fields}},
    }


@pytest.mark.parametrize("share", [{}, {"partial_rotary_factor": 1.0}])
@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling_is_one_rotation(kind, share):
    specs = {name: from_config(LLAMA | share | config) for name, config in spellings(kind, KINDS[kind]).items()}
    assert len(set(specs.values())) == 1, specs
    spec = specs["type"]
    assert spec.theta == 5e5 and spec.scaling.rope_type == kind
    for key, value in KINDS[kind].items():
        assert getattr(spec.scaling, key) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize("kind, key", [(kind, key) for kind, fields in KINDS.items() for key in fields])
def test_fields_in_two_places_must_agree(kind, key):
    fields = KINDS[kind]
    other = [3.0] * 32 if isinstance(fields[key], list) else fields[key] + 1
    config = {"rope_parameters": {"rope_type": kind, **fields}, "rope_scaling": {"type": kind, **fields, key: other}}
    with pytest.raises(FormatError, match=key):
        from_config(LLAMA | config)


@pytest.mark.parametrize(
    "config, named",
    [
        ({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2.0, "rope_theta": 2e4}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}, "rope_scaling": {"rope_theta": 2e4}}, "rope_theta"),
        ({"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type"),
        ({"rope_parameters": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}}, "agree"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
        ({"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.25}}, "partial_rotary_factor"),
    ],
)
def test_contradictions_are_refused(config, named):
    with pytest.raises(FormatError, match=named):
        from_config(LLAMA | config)


def test_nested_spellings_of_layer_kinds():
    """One dict per kind, the flat keys beside it, and both."""
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    flat = {"rope_theta": 2e6, "rope_local_base_freq": 2e4, "rope_scaling": {"type": "linear", "factor": 8.0}}
    base = {"model_type": "gemma3_text"} | GEMMA3
    want = {
        "full_attention": Rope(64, theta=2e6, scaling={"rope_type": "linear", "factor": 8.0}),
        "sliding_attention": Rope(64, theta=2e4),
    }
    for config in ({"rope_parameters": nested}, flat, {"rope_parameters": nested} | flat):
        assert from_config(base | config) == want
    with pytest.raises(FormatError, match="factor is 8.0 in rope_parameters and 4.0 in rope_scaling"):
        from_config(base | {"rope_parameters": nested, "rope_scaling": {"type": "linear", "factor": 4.0}})
