"""The decoder of the choice guide in PyTorch: one backbone, its positions given by a spec of `edgepos.positions`.

The backbone is Llama's (RMSNorm, SwiGLU, tied embeddings) and its tensors carry Llama's names, so the RoPE model is a
LlamaForCausalLM and the ones without positions in some layers are SmolLM3ForCausalLM. This module is also the reference
of the folder format `edgepos_decoder`.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from edgepos import positions

EPSILON = 1e-5
EMBEDDING = 0.05  # standard deviation of fresh embeddings, also the scale of the sinusoids: the ratio of Vaswani et al.


@dataclass(frozen=True)
class Size:
    """What all models of the guide share."""

    vocab: int = 512
    dim: int = 96
    hidden: int = 192
    layers: int = 4
    heads: int = 4
    context: int = 128

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def specs(size: Size) -> dict[str, positions.Spec]:
    """The seven encodings of the guide. The hybrid rotates in every second layer, the layers between have no positions."""
    rope, nope = positions.Rope(size.head_dim), positions.NoPosition()
    return {
        "none": nope,
        "learned": positions.Learned(size.context),
        "sinusoidal": positions.Sinusoidal(size.dim, scale=EMBEDDING),
        "rope": rope,
        "alibi": positions.Alibi(size.heads),
        "t5": positions.T5Bias(num_buckets=32, max_distance=128, bidirectional=False),
        "hybrid": positions.Hybrid(nope, (rope, nope) * (size.layers // 2)),
    }


def layer_specs(spec: positions.Spec, layers: int) -> list[positions.Spec]:
    """What the attention of each layer does."""
    if isinstance(spec, positions.Hybrid):
        return list(spec.layers)
    inside = isinstance(spec, (positions.Rope, positions.Alibi, positions.T5Bias))
    return [spec if inside else positions.NoPosition()] * layers


def embedding_spec(spec: positions.Spec) -> positions.Spec:
    """What is added to the embeddings."""
    return spec.embedding if isinstance(spec, positions.Hybrid) else spec


class Norm(nn.Module):
    """RMS norm with a gain."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight, EPSILON)


def rotate(x, cos, sin):
    """x [batch, heads, n, head_dim] with component j paired with j + pairs, of the first 2·pairs components."""
    pairs = cos.shape[-1]
    a, b, rest = x.split([pairs, pairs, x.shape[-1] - 2 * pairs], dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], dim=-1)


class Attention(nn.Module):
    """Causal attention; `table` is (cos, sin) or None, `bias` [heads, n, n] or None."""

    def __init__(self, size: Size):
        super().__init__()
        self.heads = size.heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(size.dim, size.dim, bias=False))

    def forward(self, x, table, bias):
        q, k, v = (
            f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj)
        )
        if table is not None:
            q, k = rotate(q, *table), rotate(k, *table)
        if bias is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(hidden, -math.inf))
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, size: Size):
        super().__init__()
        self.gate_proj = nn.Linear(size.dim, size.hidden, bias=False)
        self.up_proj = nn.Linear(size.dim, size.hidden, bias=False)
        self.down_proj = nn.Linear(size.hidden, size.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """One pre-norm block."""

    def __init__(self, size: Size):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = Norm(size.dim), Norm(size.dim)
        self.self_attn, self.mlp = Attention(size), Mlp(size)

    def forward(self, x, table, bias):
        x = x + self.self_attn(self.input_layernorm(x), table, bias)
        return x + self.mlp(self.post_attention_layernorm(x))


class Stack(nn.Module):
    """Everything below the head; its attributes give Llama's tensor names."""

    def __init__(self, size: Size, spec: positions.Spec):
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocab, size.dim)
        self.layers = nn.ModuleList(Layer(size) for _ in range(size.layers))
        self.norm = Norm(size.dim)
        added = embedding_spec(spec)
        if isinstance(added, positions.Learned):
            self.embed_positions = nn.Embedding(added.count, size.dim)
        for layer, kind in zip(self.layers, layer_specs(spec, size.layers)):
            if isinstance(kind, positions.T5Bias) and kind.layers is not None:
                layer.relative_attention_bias = nn.Embedding(kind.num_buckets, size.heads)
            elif isinstance(kind, positions.T5Bias) and not hasattr(self, "relative_attention_bias"):
                self.relative_attention_bias = nn.Embedding(kind.num_buckets, size.heads)


class Decoder(nn.Module):
    """Token ids [batch, n] -> logits [batch, n, vocab].

    `spec` may be replaced after training (a stretched RoPE, a longer learned table): `tables` reads it at every call.
    """

    def __init__(self, size: Size, spec: positions.Spec):
        super().__init__()
        self.size, self.spec = size, spec
        self.model = Stack(size, spec)
        self._cached = None

    def tables(self, n: int):
        """(rows to add [n, dim] or None, per layer (cos, sin) or None, per layer a bias [heads, n, n] or None).

        Only fixed values are kept between calls; what is learned is gathered anew.
        """
        if self._cached is None or self._cached[0] != (self.spec, n):
            self._cached = (self.spec, n), self._fixed(n)
        added, turns, biases, buckets = self._cached[1]
        if isinstance(embedding_spec(self.spec), positions.Learned):
            added = self.model.embed_positions(added)
        biases, shared = list(biases), getattr(self.model, "relative_attention_bias", None)
        for i, rows in enumerate(buckets):
            if rows is not None:
                biases[i] = (shared or self.model.layers[i].relative_attention_bias)(rows).permute(2, 0, 1)
        return added, turns, biases

    def _fixed(self, n: int):
        p, added = torch.arange(n).numpy(), None
        spec = embedding_spec(self.spec)
        if isinstance(spec, positions.Learned):
            added = torch.from_numpy(spec.rows(p))
        elif isinstance(spec, positions.Sinusoidal):
            added = torch.from_numpy(spec.table(p)).float()
        turns, biases, buckets = [], [], []
        for layer in layer_specs(self.spec, self.size.layers):
            turn = bias = rows = None
            if isinstance(layer, positions.Rope):
                turn = tuple(torch.from_numpy(layer.attention_factor * t).float() for t in layer.cos_sin(p, self.size.context))
            elif isinstance(layer, positions.Alibi):
                bias = torch.from_numpy(layer.bias(p, p)).float()
            elif isinstance(layer, positions.T5Bias):
                rows = torch.from_numpy(layer.index(p, p))
            turns.append(turn), biases.append(bias), buckets.append(rows)
        return added, turns, biases, buckets

    def forward(self, ids):
        added, turns, biases = self.tables(ids.shape[1])
        x = self.model.embed_tokens(ids)
        if added is not None:
            x = x + added
        for layer, turn, bias in zip(self.model.layers, turns, biases):
            x = layer(x, turn, bias)
        return self.model.norm(x) @ self.model.embed_tokens.weight.T


def fresh(size: Size, spec: positions.Spec, seed: int) -> Decoder:
    """An untrained decoder. The backbone's first weights depend on the seed alone, not on the encoding."""
    torch.manual_seed(seed)
    model = Decoder(size, spec)
    generator = torch.Generator().manual_seed(seed)
    named = sorted(model.named_parameters(), key=lambda item: "position" in item[0] or "relative" in item[0])
    for name, parameter in named:
        if parameter.dim() > 1:
            deviation = EMBEDDING if "embed" in name else 1 / math.sqrt(size.dim)
            if "relative" in name:
                deviation = 0.1
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                # smaller residual writes at the start keep the activations even across depth
                deviation /= math.sqrt(2 * size.layers)
            nn.init.normal_(parameter, std=deviation, generator=generator)
    return model
