"""Every family that `from_config` knows, against the numbers of its own module in transformers."""

from __future__ import annotations

import copy
import importlib
import inspect

import numpy as np
import pytest
from hf_models import torch, transformers

from edgepos import positions
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import (
    Alibi, AngleRope, AxialRope, Hybrid, Learned, MRope, NoPosition, RelativeBias, Rope, Sinusoidal, Sinusoidal2D, T5Bias, from_config,
)  # fmt: skip

SIZES = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 2048, "num_hidden_layers": 4}
LATENT = {"qk_rope_head_dim": 32, "qk_nope_head_dim": 16, "v_head_dim": 16, "kv_lora_rank": 32, "q_lora_rank": 32}
# DeepSeek-V3's own scaling
DEEPSEEK = {
    "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096,
}  # fmt: skip
LINEAR = {"rope_scaling": {"type": "linear", "factor": 2.0}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
ROTARY = [
    *((name, extra) for name in ("mixtral", "qwen2_moe", "starcoder2", "olmo", "olmo2", "olmoe", "granite", "granitemoe") for extra in ({}, LINEAR)),
    *((name, {}) for name in ("ministral", "hunyuan_v1_dense", "qwen3_moe", "vaultgemma", "phimoe", "diffllama", "arcee", "bitnet", "lfm2", "moshi")),
    *((name, {}) for name in ("qwen3_next", "seed_oss", "apertus", "nomic_bert", "eurobert", "jina_embeddings_v3", "gte", "doge")),
    *((name, extra) for name in ("persimmon", "stablelm", "nemotron", "glm", "glm4") for extra in ({}, {"partial_rotary_factor": 0.25}, LINEAR)),
    ("gpt_neox_japanese", {}),
    ("gpt_neox_japanese", {"rotary_pct": 0.5, "rotary_emb_base": 20000}),
    ("gpt_oss", {}),
    ("gpt_oss", {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "truncate": False, "original_max_position_embeddings": 256}, "rope_theta": 1e5}),
    ("cohere", {}),
    ("helium", {}),
    ("ernie4_5", {}),
    ("qwen3_next", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "factor": 4.0}}),
    ("apertus", {"rope_theta": 5e5, "rope_scaling": LLAMA3}),
    ("deepseek_v2", LATENT),
    ("deepseek_v3", LATENT),
    ("deepseek_v3", LATENT | {"rope_scaling": DEEPSEEK}),
    ("deepseek_v3", LATENT | {"rope_scaling": DEEPSEEK | {"mscale": 0.707}}),
    ("minicpm3", LATENT),
    ("llama4_text", {}),
    ("llama4_text", {"no_rope_layers": [1, 0, 0, 1]}),
    ("cohere2", {}),
    ("cohere2", {"layer_types": ["full_attention", *["sliding_attention"] * 3]}),
    ("cohere2", {"sliding_window": None}),
    ("exaone4", {}),
    ("exaone4", {"sliding_window": None, "sliding_window_pattern": 4, "layer_types": ["full_attention"] * 4}),
]


def module_of(family: str):
    name = family.removesuffix("_text") if family.startswith("llama4") else family
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def config_of(family: str, **values):
    return transformers.AutoConfig.for_model(family, **copy.deepcopy(values))


def rotary_of(family: str, config):
    module = module_of(family)
    return next(v for n, v in vars(module).items() if n.endswith("RotaryEmbedding") and v.__module__ == module.__name__)(config)


@pytest.mark.parametrize("family, extra", ROTARY)
def test_rotary_families(family, extra):
    """Frequencies, rotated components and attention factor."""
    rotary = rotary_of(family, config_of(family, **SIZES, **extra, pad_token_id=0))
    spec = from_config({"model_type": family} | SIZES | extra)
    spec = next((layer for layer in spec.layers if layer != NoPosition()), spec.layers[0]) if isinstance(spec, Hybrid) else spec
    if spec == NoPosition():  # Cohere 2 without a window rotates nowhere
        assert extra == {"sliding_window": None}
        return
    np.testing.assert_allclose(spec.inv_freq(), rotary.inv_freq.numpy(), rtol=4e-6)
    assert spec.attention_factor == pytest.approx(getattr(rotary, "attention_scaling", 1.0), rel=1e-12)


LAYOUTS = {
    "half": ("llama", "qwen3", "gemma", "phi", "gpt_neox", "olmo2", "stablelm", "nemotron", "gpt_oss", "minicpm3", "granite", "persimmon", "starcoder2"),
    "interleaved": ("cohere", "cohere2", "glm", "glm4", "helium", "ernie4_5", "llama4_text"),
}


@pytest.mark.parametrize("layout, family", [(layout, name) for layout, names in LAYOUTS.items() for name in names])
def test_layouts(layout, family):
    """A query and a key turned by the family's own function."""
    extra = {"partial_rotary_factor": 0.5} if family in ("phi", "stablelm", "nemotron", "persimmon", "glm", "glm4") else {}
    extra |= LATENT if family == "minicpm3" else {}
    config = {"model_type": family} | SIZES | extra
    spec = from_config(config)
    spec = spec.layers[0] if isinstance(spec, Hybrid) else spec
    assert spec.layout == layout
    rng, n = np.random.default_rng(1), 7
    x = rng.normal(size=(1, 2, n, spec.rotary_dim)).astype(np.float32)
    module, ids = module_of(family), torch.arange(n)[None]
    rotary = rotary_of(family, config_of(family, **SIZES, **extra, pad_token_id=0))
    if family == "llama4_text":
        turned = module.apply_rotary_emb(*[torch.from_numpy(x).transpose(1, 2)] * 2, rotary(torch.from_numpy(x), ids))[0].transpose(1, 2)
    else:
        turned = module.apply_rotary_pos_emb(*[torch.from_numpy(x)] * 2, *rotary(torch.from_numpy(x), ids))[0]
    whole = np.concatenate([x, rng.normal(size=(1, 2, n, spec.head_dim - spec.rotary_dim))], axis=-1)
    np.testing.assert_allclose(spec.rotate(whole, np.arange(n))[..., : spec.rotary_dim], turned.numpy(), atol=2e-6)


@pytest.mark.parametrize("interleaved", [True, False, None])
def test_deepseek_scores(interleaved):
    """transformers takes the pairs apart in both vectors, which leaves every score as it is."""
    config = {"model_type": "deepseek_v3"} | SIZES | LATENT | ({} if interleaved is None else {"rope_interleave": interleaved})
    spec, module = from_config(config), module_of("deepseek_v3")
    assert spec.head_dim == 32 and spec.layout == ("half" if interleaved is False else "interleaved")
    q, k = np.random.default_rng(2).normal(size=(2, 1, 2, 9, 32)).astype(np.float32)
    turn = module.apply_rotary_pos_emb if interleaved is False else module.apply_rotary_pos_emb_interleave
    rotary = rotary_of("deepseek_v3", config_of("deepseek_v3", **SIZES, **LATENT))
    theirs = turn(torch.from_numpy(q), torch.from_numpy(k), *rotary(torch.from_numpy(q), torch.arange(9)[None]))
    ours = [spec.rotate(x, np.arange(9)) for x in (q, k)]
    np.testing.assert_allclose(ours[0] @ np.swapaxes(ours[1], -1, -2), (theirs[0] @ theirs[1].mT).numpy(), atol=2e-5)


@pytest.mark.parametrize("family", ["gptj", "codegen"])
def test_gptj(family):
    module = module_of(family)
    spec = from_config({"model_type": family, "n_embd": 256, "n_head": 4, "rotary_dim": 32})
    assert spec == Rope(64, 32, layout="interleaved")
    sin, cos = module.create_sinusoidal_positions(9, 32).split(16, dim=-1)
    x = np.random.default_rng(3).normal(size=(1, 9, 4, 64))
    turned = module.apply_rotary_pos_emb(torch.from_numpy(x[..., :32]), sin[None], cos[None]).numpy()
    ours = spec.rotate(np.swapaxes(x, 1, 2), np.arange(9))
    np.testing.assert_allclose(np.swapaxes(ours, 1, 2)[..., :32], turned, atol=1e-6)
    assert from_config({"model_type": family, "n_embd": 4096, "n_head": 16}).rotary_dim == 64


def test_roformer():
    module = module_of("roformer")
    spec = from_config({"model_type": "roformer"} | SIZES)
    table = module.RoFormerSinusoidalPositionalEmbedding(9, 64)
    turned = module.RoFormerSelfAttention.apply_rotary_position_embeddings
    q, k = np.random.default_rng(4).normal(size=(2, 1, 8, 9, 64)).astype(np.float32)
    theirs = turned(table.create_weight()[None, None], torch.from_numpy(q), torch.from_numpy(k))
    for x, y in zip((q, k), theirs):
        np.testing.assert_allclose(spec.rotate(x, np.arange(9)), y.numpy(), atol=2e-6)


NOPE_LAYERS = [
    ("smollm3", {}), ("smollm3", {"no_rope_layers": [0, 1, 1, 0]}), ("llama4_text", {}), ("llama4_text", {"no_rope_layers": [], "no_rope_layer_interval": 2}),
]  # fmt: skip


@pytest.mark.parametrize("family, extra", NOPE_LAYERS)
def test_marked_layers(family, extra):
    spec = from_config({"model_type": family} | SIZES | extra)
    turns = [int(isinstance(layer, Rope)) for layer in spec.layers]
    assert turns == config_of(family, **SIZES, **extra, pad_token_id=0).no_rope_layers


@pytest.mark.parametrize("family, extra", [("cohere2", {}), ("cohere2", {"sliding_window_pattern": 2}), ("exaone4", {}), ("exaone4", {"sliding_window_pattern": 2})])
def test_sliding_layers_rotate(family, extra):
    config = config_of(family, **SIZES, **extra)
    spec = from_config({"model_type": family} | SIZES | extra)
    assert [isinstance(layer, Rope) for layer in spec.layers] == [kind == "sliding_attention" for kind in config.layer_types]
    attention = inspect.getsource(next(v for n, v in vars(module_of(family)).items() if n.endswith("Attention")))
    assert "sliding_window is not None" in attention or "sliding_window is None or self.is_sliding" in attention


@pytest.mark.parametrize("extra", [{}, {"rope_theta": 3e5, "rope_parameters": None}, {"rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 512}}])
def test_olmo3(extra):
    """The scaling is for the full layers; rope_theta is for both (transformers 5 reads it for the full ones only)."""
    rotary = rotary_of("olmo3", config_of("olmo3", **SIZES, **extra, pad_token_id=0))
    specs = from_config({"model_type": "olmo3"} | SIZES | extra)
    assert list(specs) == ["full_attention", "sliding_attention"]
    np.testing.assert_allclose(specs["full_attention"].inv_freq(), rotary.full_attention_inv_freq.numpy(), rtol=4e-6)
    if "rope_theta" in extra:
        assert specs["sliding_attention"].theta == specs["full_attention"].theta == 3e5
    else:
        np.testing.assert_allclose(specs["sliding_attention"].inv_freq(), rotary.sliding_attention_inv_freq.numpy(), rtol=4e-6)


def grid(*sizes: int) -> np.ndarray:
    return np.stack(np.meshgrid(*map(np.arange, sizes), indexing="ij"), axis=-1).reshape(-1, len(sizes))


MULTIMODAL = [("qwen2_vl", {}), ("qwen2_5_vl", {"mrope_section": [8, 12, 12]}), ("qwen3_vl", {}), ("qwen3_vl", {"mrope_section": [12, 10, 10]})]


@pytest.mark.parametrize("family, sections", MULTIMODAL)
def test_multimodal_text(family, sections):
    heads = 8 if sections else 4
    sizes = SIZES | {"num_attention_heads": heads, "head_dim": 512 // heads}
    text = sizes | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, **sections}}
    module = module_of(family)
    config = config_of(family, text_config=copy.deepcopy(text)).text_config
    spec = from_config({"model_type": family, "text_config": text})
    assert isinstance(spec, MRope)
    rotary = next(v for n, v in vars(module).items() if n.endswith("VLRotaryEmbedding") or n.endswith("VLTextRotaryEmbedding"))(config)
    p = positions.multimodal_positions([("text", 3), ("grid", 1, 3, 4), ("text", 2)])
    cos, sin = rotary(torch.zeros(1), torch.from_numpy(p.T[:, None].copy()))
    for ours, theirs in zip(spec.cos_sin(p), (cos, sin)):
        np.testing.assert_allclose(ours, theirs[0, :, : spec.pairs].numpy(), atol=2e-6)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_multimodal_vision(family):
    module = module_of(family)
    sizes = {"hidden_size": 64, "num_heads": 4} | ({"embed_dim": 64} if family == "qwen2_vl" else {})
    config = config_of(family, vision_config=dict(sizes)).vision_config
    specs = from_config({"model_type": family, "text_config": SIZES | {"head_dim": 128}, "vision_config": sizes})
    assert list(specs) == ["text", "vision"] and isinstance(specs["vision"], AxialRope)
    rotary = next(v for n, v in vars(module).items() if n.endswith("VisionRotaryEmbedding"))(config)
    p = grid(3, 5)
    cos, sin = rotary(torch.zeros(1), torch.from_numpy(p))
    for ours, theirs in zip(specs["vision"].cos_sin(p), (cos, sin)):
        np.testing.assert_allclose(ours, theirs[:, :8].numpy(), atol=2e-6)


@pytest.mark.parametrize("family, inner", [("qwen2_vl", "qwen2_vl"), ("qwen2_vl", None), ("qwen2_5_vl", "qwen2_5_vl"), ("qwen3_vl", "qwen3_vl")])
def test_older_multimodal_files(family, inner):
    """The text's keys at the top level; the vision part named after the family, or not at all."""
    vision = {"hidden_size": 1536 if family == "qwen2_vl" else 1280, "embed_dim": 1280, "num_heads": 16} | ({"model_type": inner} if inner else {})
    text = {"hidden_size": 3584, "num_attention_heads": 28, "rope_theta": 1e6, "head_dim": 128}
    sections = [24, 20, 20] if family == "qwen3_vl" else [16, 24, 24]
    specs = from_config({"model_type": family, **text, "rope_scaling": {"type": "mrope", "mrope_section": sections}, "vision_config": vision})
    assert specs["text"] == MRope(Rope(128, theta=1e6), sections, family == "qwen3_vl")
    assert specs["vision"] == AxialRope(80, (Rope(40), Rope(40)))


def test_other_pairs():
    vision = {"hidden_size": 64, "num_attention_heads": 4, "image_size": 32, "patch_size": 8}
    for family, text, seen in (("mistral3", Rope(64), AxialRope), ("paligemma", Rope(256), Learned), ("llava_next", Rope(64), Learned)):
        specs = from_config({"model_type": family, "text_config": SIZES, "vision_config": vision})
        assert specs["text"] == text and isinstance(specs["vision"], seen)


def test_pixtral():
    config = config_of("pixtral", hidden_size=128, num_attention_heads=4)
    spec = from_config({"model_type": "pixtral", "hidden_size": 128, "num_attention_heads": 4})
    p = grid(4, 6)
    cos, sin = module_of("pixtral").PixtralVisionRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(p))
    for ours, theirs in zip(spec.cos_sin(p), (cos, sin)):
        np.testing.assert_allclose(ours, theirs[:, :16].numpy(), atol=2e-6)


def test_dinov3():
    """The patches' own coordinates, in a picture that is not square."""
    sizes = {"hidden_size": 96, "num_attention_heads": 6, "image_size": [64, 96], "patch_size": 16}
    spec = from_config({"model_type": "dinov3_vit"} | sizes)
    assert isinstance(spec, AngleRope) and len(spec.angles) == 24
    rotary = module_of("dinov3_vit").DINOv3ViTRopePositionEmbedding(config_of("dinov3_vit", **sizes)).eval()
    cos, sin = rotary(torch.zeros(1, 3, 64, 96))
    for ours, theirs in zip(spec.cos_sin(np.arange(24)), (cos, sin)):
        np.testing.assert_allclose(ours, theirs[:, :8].numpy(), atol=2e-6)
    q = np.random.default_rng(5).normal(size=(1, 6, 24, 16))
    turned = module_of("dinov3_vit").apply_rotary_pos_emb(torch.from_numpy(q), torch.from_numpy(q), cos, sin)[0]
    np.testing.assert_allclose(spec.rotate(q, np.arange(24)), turned.numpy(), atol=5e-6)
    assert positions.from_json(spec.to_json()) == spec


@pytest.mark.parametrize("window", [1, 4, 7])
def test_swin(window):
    """The rows of the learned table that each query and key of a window use."""
    spec = from_config({"model_type": "swin", "window_size": window})
    theirs = module_of("swin").SwinRelativePositionBias(3, (window, window))
    assert isinstance(spec, RelativeBias) and theirs.relative_position_bias_table.shape == (spec.rows, 3)
    table = torch.arange(spec.rows * 3, dtype=torch.float32).reshape(-1, 3)
    theirs.relative_position_bias_table.data = table
    p = grid(window, window)
    np.testing.assert_array_equal(table.numpy()[spec.index(p, p)].transpose(2, 0, 1)[None], theirs().detach().numpy())
    both = from_config({"model_type": "swin", "window_size": window, "use_absolute_embeddings": True, "depths": [1, 2], "image_size": 32})
    assert both == Hybrid(Learned(64), (spec,) * 3)


PATCHES = ["clip_vision_model", "siglip_vision_model", "vit", "deit", "dinov2", "vit_msn"]


@pytest.mark.parametrize("family", PATCHES)
def test_rows_of_patches(family):
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 48, "patch_size": 8}
    model = transformers.AutoModel.from_config(config_of(family, **sizes))
    rows = next(v for n, v in model.named_parameters() if "position_embedding" in n)
    assert from_config({"model_type": family} | sizes) == Learned(rows.numel() // 24)
    config = config_of(family)
    default = from_config({"model_type": family})
    assert default.count - Learned(rows.numel() // 24).count == (config.image_size // config.patch_size) ** 2 - 36


def test_mae_sinusoids():
    spec = from_config({"model_type": "vit_mae", "hidden_size": 32})
    assert spec == Sinusoidal2D(Sinusoidal(16, "concatenated"), row_first=False)
    theirs = module_of("vit_mae").build_2d_sinusoidal_position_embedding(4, 6, 32).numpy()
    # the function of transformers puts the row first, the tables in the published checkpoints are the authors', column first
    halves = spec.table(grid(4, 6))
    np.testing.assert_allclose(np.concatenate([halves[:, 16:], halves[:, :16]], axis=1), theirs, atol=2e-6)


LAYERED = [("gemma3n", "gemma3n_text", {"num_hidden_layers": 20}), ("modernbert_decoder", "modernbert-decoder", {}), ("mllama", "mllama_text_model", {})]


@pytest.mark.parametrize("module, family, extra", LAYERED)
def test_text_models_inside_others(module, family, extra):
    made = importlib.import_module(f"transformers.models.{module}.modeling_{module}")
    pieces = importlib.import_module(f"transformers.models.{module}.configuration_{module}")
    config = next(v for v in vars(pieces).values() if getattr(v, "model_type", None) == family)(**copy.deepcopy(SIZES | extra | {"pad_token_id": 0}))
    rotary = next(v for n, v in vars(made).items() if n.endswith("RotaryEmbedding") and "Audio" not in n)(config)
    size = {"head_dim": config.head_dim} if getattr(config, "head_dim", None) else {}
    spec = from_config({"model_type": family} | SIZES | size | extra)
    for kind, part in (spec.items() if isinstance(spec, dict) else [("", spec)]):
        np.testing.assert_allclose(part.inv_freq(), getattr(rotary, f"{kind}_inv_freq" if kind else "inv_freq").numpy(), rtol=4e-6)


def test_clip_and_its_like():
    text, vision = {"max_position_embeddings": 60}, {"image_size": 64, "patch_size": 16, "hidden_size": 32}
    assert from_config({"model_type": "clip", "text_config": text, "vision_config": vision}) == {"text": Learned(60), "vision": Learned(17)}
    assert from_config({"model_type": "siglip", "text_config": {}, "vision_config": {}}) == {"text": Learned(64), "vision": Learned(196)}
    both = {"model_type": "vision-text-dual-encoder", "text_config": {"model_type": "bert", "max_position_embeddings": 32}}
    assert from_config(both | {"vision_config": {"model_type": "vit_mae", "hidden_size": 32}}) == {
        "text": Learned(32),
        "vision": Sinusoidal2D(Sinusoidal(16, "concatenated"), row_first=False),
    }
    assert from_config({"model_type": "llava", "text_config": SIZES, "vision_config": vision}) == {"text": Rope(64), "vision": Learned(17)}
    layered = {"model_type": "llava", "text_config": SIZES | {"model_type": "gemma3_text"}, "vision_config": vision}
    assert list(from_config(layered)) == ["text full_attention", "text sliding_attention", "vision"]
    for model, config in (("clip_text_model", text), ("clip_vision_model", vision)):
        small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "vocab_size": 50}
        made = transformers.AutoModel.from_config(config_of(model, **small | config))
        rows = next(v for n, v in made.named_parameters() if "position_embedding" in n)
        assert len(rows) == from_config({"model_type": model} | config).count
    siglip = module_of("siglip").SiglipTextEmbeddings(transformers.SiglipTextConfig(hidden_size=8, **text))
    assert siglip.position_embedding.num_embeddings == from_config({"model_type": "siglip_text_model"} | text).count
    for name, config in (("clip_text_model", transformers.CLIPTextConfig()), ("siglip_text_model", transformers.SiglipTextConfig())):
        assert from_config({"model_type": name}) == Learned(config.max_position_embeddings)


def test_whisper():
    specs = from_config({"model_type": "whisper", "d_model": 32, "max_source_positions": 50, "max_target_positions": 20})
    module = module_of("whisper")
    np.testing.assert_allclose(specs["encoder"].table(np.arange(50)), module.sinusoids(50, 32).numpy(), atol=5e-6)
    rows = torch.arange(20.0)[:, None].repeat(1, 32)
    table = module.WhisperPositionalEmbedding(20, 32)
    table.weight.data = rows
    ids = torch.zeros(1, 5, dtype=torch.int64)
    np.testing.assert_array_equal(rows.numpy()[specs["decoder"].positions(np.zeros(5, int), 3)], table(ids, cache_length=3).detach().numpy().reshape(5, 32))
    assert from_config({"model_type": "whisper"}) == {"encoder": Sinusoidal(384, "concatenated", "half_minus_one"), "decoder": Learned(448)}


FAIRSEQ = [("m2m_100", "M2M100", 1), ("m2m_100", "M2M100", 4), ("speech_to_text", "Speech2Text", 1), ("nllb-moe", "NllbMoe", 1)]


@pytest.mark.parametrize("family, name, pad", FAIRSEQ)
def test_fairseq_sinusoids(family, name, pad):
    spec = from_config({"model_type": family, "d_model": 32, "pad_token_id": pad})
    module = module_of(family.replace("-", "_"))
    table = getattr(module, f"{name}SinusoidalPositionalEmbedding")(64, 32, pad)
    ids = torch.tensor([[9, 8, 7, 9, 9, 5, pad, pad]])
    rows = table(ids)[0].numpy()
    np.testing.assert_allclose(spec.table(np.arange(6)), rows[:6], atol=5e-6)
    assert not rows[6:].any()


SINUSOIDS = [
    ("marian", {"d_model": 32}, lambda m: m.MarianSinusoidalPositionalEmbedding(40, 32).create_weight()),
    ("pegasus", {"d_model": 32}, lambda m: m.PegasusSinusoidalPositionalEmbedding(40, 32).create_weight()),
    ("ctrl", {"n_embd": 32}, lambda m: m.positional_encoding(40, 32, torch.float32)),
    ("xglm", {"d_model": 32}, lambda m: m.XGLMSinusoidalPositionalEmbedding(40, 32, 1)(torch.arange(40)[None])[0]),
    ("musicgen_decoder", {"hidden_size": 32}, lambda m: m.MusicgenSinusoidalPositionalEmbedding(40, 32).get_embedding(40, 32)),
    ("distilbert", {"dim": 32, "sinusoidal_pos_embds": True}, lambda m: m.create_sinusoidal_embeddings(40, 32, torch.empty(40, 32))),
    ("xlm", {"emb_dim": 32, "sinusoidal_embeddings": True}, lambda m: m.create_sinusoidal_embeddings(40, 32, torch.empty(40, 32))),
]


@pytest.mark.parametrize("family, config, table", SINUSOIDS)
def test_sinusoids(family, config, table):
    spec = from_config({"model_type": family} | config)
    np.testing.assert_allclose(spec.table(np.arange(40)), table(module_of(family.removesuffix("_decoder"))).numpy(), atol=5e-6)


def small(family: str, **extra):
    sizes = {
        "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50, "pad_token_id": 1,
        "max_position_embeddings": 24,
    }  # fmt: skip
    return transformers.AutoModel.from_config(config_of(family, **sizes | extra)).eval()


LEARNED = [
    *((name, {}) for name in ("bert", "albert", "electra", "mobilebert", "bert-generation", "gpt2", "gpt_neo", "gpt_bigcode")),
    *((name, {}) for name in ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "mpnet")),
    ("longformer", {"attention_window": 8}),
    ("openai-gpt", {"n_positions": 24, "n_embd": 32, "n_layer": 1, "n_head": 2, "max_position_embeddings": 24}),
    ("flaubert", {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "n_words": 50}),
    ("distilbert", {"dim": 32, "n_layers": 1, "n_heads": 2, "hidden_dim": 32}),
    ("xlm", {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "n_words": 50}),
]


@pytest.mark.parametrize("family, extra", LEARNED)
def test_learned_rows(family, extra):
    """The rows that the module reads, seen in what reaches its table."""
    if family == "gpt_neo":
        extra = {"attention_types": [[["global"], 1]], "num_layers": 1, "num_heads": 2}
    model = small(family, **extra)
    table = next(v for n, v in model.named_modules() if "position_embeddings" in n or n.endswith(("wpe", "positions_embed")))
    spec = from_config({"model_type": family, "max_position_embeddings": 24, "pad_token_id": 1, "num_hidden_layers": 1})
    rows = spec.embedding if isinstance(spec, Hybrid) else spec
    assert rows.count == table.num_embeddings
    seen = []
    table.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numpy().reshape(-1)))
    ids = [5, 6, 1, 7, 8, 1, 1] if rows.pad_id is not None else [5, 6, 7, 8]
    with torch.no_grad():
        model(input_ids=torch.tensor([ids]))
    np.testing.assert_array_equal(seen[0][: len(ids)], rows.positions(np.array(ids)))  # Longformer pads to its window


@pytest.mark.parametrize("family, name", [("bart", "Bart"), ("mbart", "MBart"), ("plbart", "PLBart"), ("blenderbot", "Blenderbot"), ("blenderbot-small", "BlenderbotSmall")])
def test_rows_of_translators(family, name):
    spec = from_config({"model_type": family, "max_position_embeddings": 24})
    table = getattr(module_of(family.replace("-", "_")), f"{name}LearnedPositionalEmbedding")(24, 8)
    table.weight.data = torch.arange(float(table.num_embeddings))[:, None].repeat(1, 8)
    ids = torch.zeros(1, 6, dtype=torch.int64)
    rows = table(ids.shape, cache_length=3) if "blenderbot" in family else table(ids, cache_length=3)
    assert table.num_embeddings == spec.count
    np.testing.assert_array_equal(rows.detach().numpy().reshape(-1, 8)[:, 0], spec.positions(np.zeros(6, int), 3))


@pytest.mark.parametrize("family", ["opt", "biogpt"])
def test_rows_behind_a_mask(family):
    """OPT does not count masked tokens, BioGPT does."""
    extra = {"word_embed_proj_dim": 32, "ffn_dim": 32} if family == "opt" else {}
    model = small(family, **extra)
    table = next(v for n, v in model.named_modules() if n.endswith("embed_positions"))
    spec = from_config({"model_type": family, "max_position_embeddings": 24, "pad_token_id": 1})
    assert spec.count == table.num_embeddings
    ids = np.array([1, 1, 5, 6, 7])
    seen = []
    looked_up = torch.nn.functional.embedding

    def spy(rows, weight, *args, **kwargs):
        if weight is table.weight:
            seen.append(rows.numpy().reshape(-1))
        return looked_up(rows, weight, *args, **kwargs)

    torch.nn.functional.embedding = spy
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor(ids)[None], attention_mask=torch.tensor((ids != 1).astype(int))[None])
    finally:
        torch.nn.functional.embedding = looked_up
    np.testing.assert_array_equal(seen[0][2:], spec.positions(ids)[2:])


def test_mpnet_bias():
    spec = from_config({"model_type": "mpnet", "num_hidden_layers": 2})
    assert spec.embedding == Learned.roberta(512) and spec.layers == (T5Bias(32, 128, True),) * 2
    away = np.arange(-400, 401)
    theirs = module_of("mpnet").MPNetEncoder.relative_position_bucket(torch.from_numpy(away))
    np.testing.assert_array_equal(spec.layers[0].bucket(away), theirs.numpy())


@pytest.mark.parametrize("family", ["t5", "mt5", "umt5", "switch_transformers"])
def test_t5_buckets(family):
    specs = from_config({"model_type": family, "relative_attention_num_buckets": 16, "relative_attention_max_distance": 90})
    assert [spec.layers for spec in specs.values()] == ([8, 8] if family == "umt5" else [None, None])
    module = module_of(family)
    attention = next(v for n, v in vars(module).items() if n.endswith("Attention") and hasattr(v, "_relative_position_bucket"))
    away = np.arange(-300, 301)
    for part, bidirectional in (("encoder", True), ("decoder", False)):
        if family == "umt5":
            fake = type("A", (), {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 90, "is_decoder": not bidirectional})()
            theirs = attention._relative_position_bucket(fake, torch.from_numpy(away))
        else:
            theirs = attention._relative_position_bucket(torch.from_numpy(away), bidirectional, 16, 90)
        ours = specs[part].bucket(away)
        # float32 logarithms put some distances at a bucket's edge one bucket off
        assert (np.abs(ours - theirs.numpy()) <= 1).all() and (ours != theirs.numpy()).mean() < 0.01


def test_esm():
    assert from_config({"model_type": "esm", "position_embedding_type": "rotary"} | SIZES) == Rope(64)
    assert from_config({"model_type": "esm", "pad_token_id": 1} | SIZES) == Learned.roberta(2048)


OWN = [
    Rope(64, 32), Alibi(8), RelativeBias((3, 3)), Sinusoidal2D(Sinusoidal(16)), AxialRope(16, (Rope(8), Rope(8))), AngleRope(4, ((0.0, 0.5),)),
    Hybrid(Learned(8, modulo=8), (Rope(4),) * 2), MRope(Rope(8), (2, 1, 1)), NoPosition(), T5Bias(),
]  # fmt: skip


@pytest.mark.parametrize("spec", OWN, ids=lambda spec: spec.encoding)
def test_own_folders(spec):
    assert from_config({"model_type": "edgepos_decoder", "position_encoding": spec.to_json()}) == spec


def test_llama4_reads_its_text_part():
    assert from_config({"model_type": "llama4", "text_config": SIZES}) == from_config({"model_type": "llama4_text"} | SIZES)


REFUSED = [
    ({"model_type": "deberta-v2"}, UnsupportedError, "deberta-v2.*whisper"),
    ({"model_type": ["llama"]}, UnsupportedError, "model_type"),
    ({"model_type": "edgepos_decoder"}, FormatError, "position_encoding is None"),
    ({"model_type": "edgepos_decoder", "position_encoding": {"encoding": "spiral"}}, UnsupportedError, "spiral"),
    ({"model_type": "gptj", "n_embd": 100, "n_head": 16}, FormatError, "n_embd"),
    ({"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": None}, FormatError, "rotary_dim"),
    ({"model_type": "gptj", "n_embd": 64, "n_head": 4, "rotary_dim": 17}, FormatError, "rotary_dim"),
    ({"model_type": "deepseek_v3", "qk_rope_head_dim": 7}, FormatError, "rotary_dim"),
    ({"model_type": "deepseek_v3", "rope_interleave": 1.5}, FormatError, "rope_interleave"),
    ({"model_type": "cohere2", "layer_types": ["sliding_attention"]} | SIZES, FormatError, "layer_types"),
    ({"model_type": "cohere2", "layer_types": ["linear_attention"] * 4} | SIZES, FormatError, "layer_types"),
    ({"model_type": "exaone4", "sliding_window_pattern": "LLLG"} | SIZES, FormatError, "sliding_window_pattern"),
    ({"model_type": "llama4_text", "no_rope_layers": [1]} | SIZES, FormatError, "no_rope_layers"),
    ({"model_type": "llama4_text", "num_hidden_layers": 10**9, "head_dim": 8}, FormatError, "num_hidden_layers"),
    ({"model_type": "phimoe", "rope_scaling": {"type": "longrope", "short_mscale": 1.2}} | SIZES, FormatError, "short_mscale"),
    ({"model_type": "hunyuan_v1_dense", "rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}} | SIZES, FormatError, "alpha"),
    ({"model_type": "qwen3_vl", "text_config": SIZES | {"rope_parameters": {"mrope_interleaved": False}}}, FormatError, "mrope_interleaved"),
    ({"model_type": "qwen2_vl", "text_config": 3}, FormatError, "text_config"),
    ({"model_type": "clip", "vision_config": []}, FormatError, "vision_config"),
    ({"model_type": "vision-text-dual-encoder"}, FormatError, "text_config and vision_config"),
    ({"model_type": "vision-text-dual-encoder", "text_config": {}}, UnsupportedError, "model_type is None"),
    ({"model_type": "vit", "image_size": 8}, FormatError, "larger than image_size"),
    ({"model_type": "vit", "image_size": [8, 8, 8]}, FormatError, "image_size"),
    ({"model_type": "vit", "patch_size": 0}, FormatError, "patch_size"),
    ({"model_type": "dinov3_vit", "hidden_size": 36}, FormatError, "multiples of 4"),
    ({"model_type": "dinov3_vit", "image_size": 2**16}, UnsupportedError, "angles"),
    ({"model_type": "dinov3_vit", "rope_theta": 0}, FormatError, "rope_theta"),
    ({"model_type": "pixtral", "head_dim": 6}, FormatError, "multiple of 4"),
    ({"model_type": "qwen2_vl_vision", "embed_dim": 60, "num_heads": 4}, FormatError, "multiple of 4"),
    ({"model_type": "swin", "window_size": 0}, FormatError, "window_size"),
    ({"model_type": "swin", "use_absolute_embeddings": True, "depths": 3}, FormatError, "depths"),
    ({"model_type": "vit_mae", "hidden_size": 30}, FormatError, "multiples of 4"),
    ({"model_type": "whisper", "d_model": 7}, FormatError, "dim"),
    ({"model_type": "whisper", "max_target_positions": 0}, FormatError, "max_target_positions"),
    ({"model_type": "m2m_100"}, FormatError, "d_model"),
    ({"model_type": "m2m_100", "d_model": 8, "pad_token_id": -1}, FormatError, "pad_token_id"),
    ({"model_type": "esm", "position_embedding_type": "relative_key"}, UnsupportedError, "absolute, rotary"),
    ({"model_type": "mpnet"}, FormatError, "num_hidden_layers"),
    ({"model_type": "distilbert", "sinusoidal_pos_embds": 1}, FormatError, "sinusoidal_pos_embds"),
    ({"model_type": "bart", "max_position_embeddings": 0}, FormatError, "max_position_embeddings"),
]


@pytest.mark.parametrize("config, error, named", REFUSED)
def test_refused_by_name(config, error, named):
    with pytest.raises(EdgePosError, match=named) as caught:
        from_config(config)
    assert type(caught.value) is error
