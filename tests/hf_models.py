"""Tiny random Hugging Face folders for the export tests, written by transformers itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="PyTorch makes the models to compare with; CI has it")
    pytest.importorskip("transformers", reason="transformers makes the models to compare with; CI has it")
import tokenizers
import torch
import transformers

TEXT = "the cat sat on the mat, and the dog didn't; it's 2024 and 10 cats sat. " * 3
VOCAB = 300


def write_tokenizer(folder: Path, vocab: int = VOCAB) -> None:
    """A byte-level BPE tokenizer trained on TEXT with at most ``vocab`` tokens and one special token."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([TEXT], trainer)
    bpe.save(str(folder / "tokenizer.json"))


def make_llama(folder: Path, *, dtype=torch.float32, shard: str = "1GB", **changes):
    """Save a random LlamaForCausalLM with its tokenizer in ``folder``; returns it in float32."""
    settings = dict(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.15,
    )
    config = transformers.LlamaConfig(**{**settings, **changes})
    return _save(transformers.LlamaForCausalLM(config), folder, dtype, shard)


def make_bloom(folder: Path, *, dtype=torch.float32, shard: str = "1GB", **changes):
    """Save a random BloomForCausalLM with its tokenizer in ``folder``; returns it in float32."""
    settings = dict(
        vocab_size=VOCAB,
        hidden_size=48,
        n_layer=2,
        n_head=12,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.15,
    )
    config = transformers.BloomConfig(**{**settings, **changes})
    return _save(transformers.BloomForCausalLM(config), folder, dtype, shard)


def _save(model, folder: Path, dtype, shard: str):
    torch.manual_seed(7)
    with torch.no_grad():
        # Biases and norms start as 0 and 1, which would hide one that is not read.
        for name, value in model.named_parameters():
            if name.endswith("bias") or "norm" in name or "ln_f" in name:
                value.add_(torch.randn_like(value) * 0.2)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    write_tokenizer(folder)
    # Read back: .to(bfloat16) rounds the rotary frequencies of the model in memory too.
    return type(model).from_pretrained(folder, dtype=torch.float32).eval()


def edit_json(path: Path, **changes) -> None:
    """Set keys of a JSON file; ``...`` removes a key."""
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            values.pop(key, None)
        else:
            values[key] = value
    path.write_text(json.dumps(values))


def random_ids(n: int, seed: int = 0) -> np.ndarray:
    """n token ids below VOCAB."""
    return np.random.default_rng(seed).integers(0, VOCAB, n)


def torch_logits(model, ids, positions=None) -> np.ndarray:
    """float32 logits [n, vocab] of transformers."""
    extra = {} if positions is None else {"position_ids": torch.tensor(np.array(positions))[None]}
    with torch.no_grad():
        return model(torch.tensor(np.array(ids))[None], **extra).logits[0].numpy()
