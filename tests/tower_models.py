"""Tiny random towers of CLIP and ViT, as transformers writes them."""

from __future__ import annotations

import json

from hf_models import TEXT  # noqa: F401  (skips where PyTorch is missing)

import torch
import transformers

SMALL = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.15)
TEXT_CONFIG = SMALL | dict(vocab_size=99, max_position_embeddings=40, projection_dim=33, bos_token_id=97, pad_token_id=98)
END = 98
IMAGE_CONFIG = SMALL | dict(image_size=[24, 32], patch_size=8)
MODELS = {
    "vit": ("ViTModel", transformers.ViTConfig, IMAGE_CONFIG | dict(layer_norm_eps=1e-6)),
    "vit_gray": ("ViTModel", transformers.ViTConfig, IMAGE_CONFIG | dict(image_size=20, patch_size=5, num_channels=1, qkv_bias=False)),
    "vit_classes": ("ViTForImageClassification", transformers.ViTConfig, IMAGE_CONFIG | dict(num_labels=7, hidden_act="gelu_new")),
    "clip_vision": ("CLIPVisionModel", transformers.CLIPVisionConfig, IMAGE_CONFIG | dict(image_size=32)),
    "clip_vision_projected": ("CLIPVisionModelWithProjection", transformers.CLIPVisionConfig, IMAGE_CONFIG | dict(image_size=32, projection_dim=33)),
    "clip": ("CLIPTextModel", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=END)),
    "clip_old": ("CLIPTextModel", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=2, hidden_act="gelu")),
    "clip_projected": ("CLIPTextModelWithProjection", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=END)),
}


PREPROCESSING = dict(do_rescale=True, rescale_factor=1 / 255, do_normalize=True, image_mean=[0.48, 0.45, 0.41], image_std=[0.27, 0.26, 0.28])


def save_image_model(model, folder, **changes) -> None:
    """The model's folder with what its image processor does to a pixel."""
    model.save_pretrained(folder)
    channels = model.config.num_channels
    settings = PREPROCESSING | dict(image_mean=PREPROCESSING["image_mean"][:channels], image_std=PREPROCESSING["image_std"][:channels]) | changes
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def make(key: str, **changes):
    """A random model of MODELS whose biases and norms are not those it starts with, which would hide one that is not read."""
    family, config, settings = MODELS[key]
    torch.manual_seed(5)
    model = getattr(transformers, family)(config(**settings | changes)).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim() == 1 or "embedding" in name or "token" in name:
                value.add_(torch.randn_like(value) * 0.2)
    return model
