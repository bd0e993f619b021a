"""The decoders of examples/positions for the tests: the committed ones, and random ones with any encoding."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="PyTorch computes the decoders to compare with; CI has it")
import torch
from tokenizers import Tokenizer

EXAMPLES = Path(__file__).resolve().parent.parent / "examples" / "positions"
sys.path.append(str(EXAMPLES))  # its scripts import each other by their plain names

import folders  # noqa: E402
from decoder import Decoder, Size, fresh  # noqa: E402

NAMES = ("none", "learned", "sinusoidal", "rope", "alibi", "t5", "hybrid")
SMALL = Size(vocab=512, dim=32, hidden=48, layers=2, heads=4, context=64)


def make(folder: Path, spec, size: Size = SMALL, seed: int = 5) -> Decoder:
    """Write a random decoder whose positions matter; returns it as read back."""
    model = fresh(size, spec, seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "norm" in name:
                value.add_(0.2 * torch.randn_like(value))
            elif "embed" not in name:
                value.mul_(4)  # sharp attention, so that a wrong position shows
    tokenizer = Tokenizer.from_file(str(EXAMPLES / "rope" / "tokenizer.json"))
    folders.save(folder, model, tokenizer, 0)
    return folders.load(folder)


def torch_logits(model: Decoder, ids) -> np.ndarray:
    """float32 logits [n, vocab]."""
    with torch.no_grad():
        return model(torch.tensor(np.array(ids))[None])[0].numpy()


def random_ids(n: int, vocab: int = 512, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, n)
