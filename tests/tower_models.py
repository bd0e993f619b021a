"""Tiny random towers of CLIP and ViT, as transformers writes them."""

from __future__ import annotations

from hf_models import TEXT  # noqa: F401  (skips where PyTorch is missing)

import torch
import transformers

SMALL = dict(hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.15)
TEXT_CONFIG = SMALL | dict(vocab_size=99, max_position_embeddings=40, projection_dim=33, bos_token_id=97, pad_token_id=98)
END = 98
MODELS = {
    "clip": ("CLIPTextModel", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=END)),
    "clip_old": ("CLIPTextModel", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=2, hidden_act="gelu")),
    "clip_projected": ("CLIPTextModelWithProjection", transformers.CLIPTextConfig, TEXT_CONFIG | dict(eos_token_id=END)),
}


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
