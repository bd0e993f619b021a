"""Small canonical models with random weights, for the compiler's tests."""

from __future__ import annotations

import numpy as np

from edgepos.export import CanonicalModel
from edgepos.export.graph import GraphBuilder
from edgepos.export.tensor_set import Weight
from edgepos.positions import Rope
from edgepos.export.tokenizers import TokenizerSpec, pairs_array

VOCAB, WIDTH, INNER, HEADS, HEAD_DIM, CONTEXT = 61, 24, 44, 6, 4, 96


class Weights:
    """Random tensors by name; `scale` times normal numbers."""

    def __init__(self, seed: int = 7):
        self.rng = np.random.default_rng(seed)

    def __call__(self, name: str, *shape: int, scale: float = 0.3, mean: float = 0.0) -> Weight:
        array = (mean + scale * self.rng.standard_normal(shape)).astype(np.float32)
        return Weight(name, array, shape)


def tokenizer() -> TokenizerSpec:
    """Lower-case letters, a space, a full stop and one merge; the last ids of the vocabulary have no bytes."""
    tokens = [b"<s>", b"</s>", b" ", b".", *(bytes([97 + i]) for i in range(26)), b"th"]
    byte_ids = np.full(256, -1, np.int32)
    for i, token in enumerate(tokens[2:30], 2):
        byte_ids[token[0]] = i
    types = np.zeros(len(tokens), np.uint8)
    types[:2] = 1
    return TokenizerSpec(
        kind="bpe-bytelevel",
        tokens=tuple(tokens),
        token_types=types,
        pairs=pairs_array([(4 + 19, 4 + 7, 0, 30)]),
        byte_ids=byte_ids,
        characters=np.zeros((0, 2), np.int32),
        added=(),
        add_bos=True,
        bos_id=0,
        eos_ids=(1,),
        add_prefix_space=False,
        pre_tokenizer="none",
        strip_space_after_bos=False,
    )


def wrap(model) -> CanonicalModel:
    return CanonicalModel(
        model=model,
        tokenizer=tokenizer(),
        name="toy",
        context=CONTEXT,
        vocab_size=VOCAB,
        source_sha256={"toy": "0" * 64},
        license={"license": "Apache-2.0", "training_data": "none"},
        eos_ids=(1,),
        bos_id=0,
    )


def llama(seed: int = 7, layers: int = 2, layout: str = "interleaved", kv_heads: int = 2) -> CanonicalModel:
    """RMS norm, rotation, grouped heads, SwiGLU, biases on q, k, v, tied head. 24 and 44 columns need padding."""
    w, g = Weights(seed), GraphBuilder(name="toy", family="llama", context=CONTEXT)
    embed = w("embed.weight", VOCAB, WIDTH, scale=1.0)
    x = g.embed(embed)
    for i in range(layers):
        p = f"layers.{i}."
        h = g.rms_norm(x, p + "attn_norm", w(p + "attn_norm.weight", WIDTH, mean=1.0), 1e-5)
        q, k, v = (
            g.linear(h, f"{p}attn.{n}", w(f"{p}{n}.weight", heads * HEAD_DIM, WIDTH), w(f"{p}{n}.bias", heads * HEAD_DIM))
            for n, heads in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
        )
        q = g.rope(q, p + "attn.q.rope", heads=HEADS, spec=Rope(HEAD_DIM, theta=10000.0, layout=layout))
        k = g.rope(k, p + "attn.k.rope", heads=kv_heads, spec=Rope(HEAD_DIM, theta=10000.0, layout=layout))
        y = g.attention(q, k, v, i, heads=HEADS, kv_heads=kv_heads, head_dim=HEAD_DIM)
        x = g.add(x, g.linear(y, p + "attn.out", w(p + "out.weight", WIDTH, WIDTH)), p + "attn.residual")
        h = g.rms_norm(x, p + "mlp_norm", w(p + "mlp_norm.weight", WIDTH, mean=1.0), 1e-5)
        gate, up = (g.linear(h, f"{p}mlp.{n}", w(f"{p}{n}.weight", INNER, WIDTH)) for n in ("gate", "up"))
        y = g.linear(g.swiglu(gate, up, p + "mlp"), p + "mlp.down", w(p + "down.weight", WIDTH, INNER))
        x = g.add(x, y, p + "mlp.residual")
    x = g.rms_norm(x, "final_norm", w("final_norm.weight", WIDTH, mean=1.0), 1e-5)
    return wrap(g.finish(g.linear(x, "head", embed, output="logits")))


def bloom(seed: int = 7, layers: int = 2) -> CanonicalModel:
    """Layer norm with β, ALiBi with six heads, GELU (tanh), biases, an own head."""
    w, g = Weights(seed), GraphBuilder(name="toy", family="bloom", context=CONTEXT)

    def norm(x, name):
        return g.layer_norm(x, name, w(f"h.{name}.weight", WIDTH, mean=1.0), w(f"h.{name}.bias", WIDTH), 1e-5)

    def linear(x, name, rows, cols):
        return g.linear(x, name, w(f"h.{name}.weight", rows, cols), w(f"h.{name}.bias", rows))

    x = norm(g.embed(w("embed.weight", VOCAB, WIDTH, scale=1.0)), "embed_norm")
    mask = g.alibi(HEADS)
    for i in range(layers):
        p = f"layers.{i}."
        h = norm(x, p + "attn_norm")
        q, k, v = (linear(h, f"{p}attn.{n}", WIDTH, WIDTH) for n in "qkv")
        y = g.attention(q, k, v, i, heads=HEADS, kv_heads=HEADS, head_dim=HEAD_DIM, mask=mask)
        x = g.add(x, linear(y, p + "attn.out", WIDTH, WIDTH), p + "attn.residual")
        y = g.gelu_tanh(linear(norm(x, p + "mlp_norm"), p + "mlp.up", INNER, WIDTH), p + "mlp.gelu")
        x = g.add(x, linear(y, p + "mlp.down", WIDTH, INNER), p + "mlp.residual")
    return wrap(g.finish(g.linear(norm(x, "final_norm"), "head", w("head.weight", VOCAB, WIDTH), output="logits")))


def node(canonical: CanonicalModel, name: str):
    """The node of that name."""
    return next(n for n in canonical.model.graph if n.name == name)
