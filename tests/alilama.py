"""The shared ALiBi model "alilama" as a PyTorch module, and its tokenizer; both written from its description in models.md."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

if os.environ.get("CI") != "true":
    pytest.importorskip("torch", reason="the model is a PyTorch module; CI has PyTorch")
    pytest.importorskip("regex", reason="its tokenizer splits by an expression only this package knows; CI has it")
import regex
import torch
from safetensors.torch import load_file
from torch import nn

HEADS = 8
WINDOW = 128


class Attention(nn.Module):
    """Causal attention with ALiBi; heads side by side, no output projection."""

    def __init__(self, dim: int):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x):
        batch, tokens, dim = x.shape
        q, k, v = (f(x).view(batch, tokens, HEADS, dim // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        slopes = 2.0 ** -torch.arange(1, HEADS + 1, dtype=torch.float32)
        position = torch.arange(tokens)
        distance = position[None, :] - position[:, None]
        scores = q @ k.transpose(-1, -2) / math.sqrt(dim // HEADS) + slopes[:, None, None] * distance
        scores = scores.masked_fill(distance > 0, -torch.inf)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, dim)


class Block(nn.Module):
    """The residual goes from the normed input."""

    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-5), nn.LayerNorm(dim, eps=1e-5)
        self.MHSA = Attention(dim)
        self.MLP = nn.ModuleDict({"p1": nn.Linear(dim, hidden, bias=False), "p2": nn.Linear(hidden, dim, bias=False)})

    def forward(self, x):
        x = self.norm1(x)
        a = x + self.MHSA(x)
        return a + self.MLP["p2"](nn.functional.silu(self.MLP["p1"](self.norm2(a))))


class Alilama(nn.Module):
    """Token ids [1, n] → logits [1, n, 4000]; no final norm, the embedding transposed is the head."""

    def __init__(self, vocab: int = 4000, dim: int = 64, layers: int = 4, hidden: int = 256):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList(Block(dim, hidden) for _ in range(layers))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return x @ self.embed.weight.T


def load(shared: Path) -> Alilama:
    """The model with its weights; the tensors preadditive.weight belong to nothing."""
    model = Alilama()
    tensors = load_file(shared / "models/alilama/alilama.safetensors")
    model.load_state_dict({name: t for name, t in tensors.items() if "preadditive" not in name})
    return model.eval()


def windows(shared: Path, count: int = 40) -> list[list[int]]:
    """The first `count` windows of 128 tokens of the stories, newlines as spaces."""
    lines = (shared / "models/alilama/tokenizer.model").read_text().splitlines()
    merges = {tuple(map(int, line.split())): 256 + i for i, line in enumerate(lines[3:])}
    text = (shared / "text/tinystories.txt").read_text().replace("\n", " ")[: count * WINDOW * 8]
    ids: list[int] = []
    known: dict[str, list[int]] = {}
    for word in regex.findall(_expression(lines[1]), text):
        if word not in known:
            known[word] = _merged(list(word.encode()), merges)
        ids += known[word]
    assert len(ids) >= count * WINDOW
    return [ids[i * WINDOW : (i + 1) * WINDOW] for i in range(count)]


def _expression(line: str) -> str:
    return line if line.startswith("'(?i") or not line.startswith("'") else line[1:-1]


def _merged(ids: list[int], merges: dict[tuple[int, int], int]) -> list[int]:
    while len(ids) > 1:
        pair = min(zip(ids, ids[1:]), key=lambda p: merges.get(p, 1 << 30))
        if pair not in merges:
            break
        out, i = [], 0
        while i < len(ids):
            if tuple(ids[i : i + 2]) == pair:
                out.append(merges[pair])
                i += 2
            else:
                out.append(ids[i])
                i += 1
        ids = out
    return ids
