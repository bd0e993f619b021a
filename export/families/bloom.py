"""Bloom: layer norm, ALiBi, fused query_key_value, GELU (tanh)."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError

from ..config import Config, check_context
from ..graph import GraphBuilder
from ..shorten import shorten
from ..tensor_set import TensorSet, Weight

MODEL_TYPE = "bloom"
DEFAULT_BOS, DEFAULT_EOS = (1,), (2,)  # of the config class, when the file does not say
TRAINED_CONTEXT = 2048  # what BLOOM was trained with; used when the config does not say
GELU_NAMES = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "bloom_gelu")  # of the tanh form
LONGEST = 2**31 - 1  # ALiBi itself has no limit; check_context caps what EdgePos plans for


@dataclass(frozen=True)
class BloomShape:
    """The numbers that decide a Bloom graph."""

    vocab_size: int
    dim: int
    layers: int
    heads: int
    head_dim: int
    context: int
    epsilon: float
    residual_after_norm: bool
    tied: bool


def read_config(config: Config, context: int | None) -> BloomShape:
    """The shape from ``config.json``; old spellings of the sizes are understood.

    The context is ``seq_length`` (2048 when absent) unless asked for: ALiBi has no limit of its own.
    Raises FormatError naming the key.
    """
    _refuse_foreign(config)
    dim = config.size_of(("hidden_size", "n_embed"))
    heads = config.size_of(("n_head", "num_attention_heads"))
    if dim % heads:
        raise FormatError(f"{config.origin}: hidden_size {dim} is not a multiple of n_head {heads}; correct one")
    if context is None:
        context = config.size("seq_length", default=TRAINED_CONTEXT)
    return BloomShape(
        vocab_size=config.size("vocab_size"),
        dim=dim,
        layers=config.size_of(("n_layer", "num_hidden_layers")),
        heads=heads,
        head_dim=dim // heads,
        context=check_context(config.origin, context, LONGEST, "context"),
        epsilon=config.epsilon("layer_norm_epsilon", default=1e-5),
        residual_after_norm=config.flag("apply_residual_connection_post_layernorm", default=False),
        tied=config.flag("tie_word_embeddings", default=True),
    )


def _refuse_foreign(config: Config) -> None:
    """Bloom has no key for these; one that says something else describes another model, and ignoring it would be a guess."""
    for key in ("rope_scaling", "rope_parameters", "rope_theta", "sliding_window"):
        if config.values.get(key) is not None:
            raise UnsupportedError(f"{config.origin}: {key} stands in a Bloom config, whose positions are ALiBi without a window; remove it or name the right architecture")
    for key in ("hidden_act", "activation_function"):
        if config.values.get(key) not in (None, *GELU_NAMES):
            raise UnsupportedError(f"{config.origin}: {key} {shorten(config.values[key])} is not Bloom's; allowed: {', '.join(GELU_NAMES)}")


def split_fused(weight: Weight, heads: int, head_dim: int) -> list[Weight]:
    """q, k and v, [heads*head_dim, ...] each, of fused rows ordered [head][q, k, v][head_dim].

    They are strided views of the fused tensor, gathered only when read.
    """
    inner = weight.shape[1:]
    rows = weight.array.reshape(heads, 3, head_dim, *inner)
    return [
        Weight(f"{weight.name}.{part}", rows[:, i], (heads * head_dim, *inner)) for i, part in enumerate("qkv")
    ]


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face BloomForCausalLM."""
    s = read_config(config, context)
    graph = GraphBuilder(name=name, family=MODEL_TYPE, context=s.context)
    # The original BLOOM files leave the prefix out.
    prefix = "" if "word_embeddings.weight" in tensors else "transformer."

    def pair(module: str, *dims: int) -> tuple[Weight, Weight]:
        """weight and bias of ``module``, weight shape ``dims``."""
        return (
            tensors.take(f"{prefix}{module}.weight", dims),
            tensors.take(f"{prefix}{module}.bias", dims[:1]),
        )

    embed = tensors.take(f"{prefix}word_embeddings.weight", (s.vocab_size, s.dim))
    x = graph.embed(embed)
    x = graph.layer_norm(x, "embed_norm", *pair("word_embeddings_layernorm", s.dim), s.epsilon)
    mask = graph.alibi(s.heads)
    for i in range(s.layers):
        block = f"h.{i}."
        h = graph.layer_norm(x, f"layers.{i}.attn_norm", *pair(block + "input_layernorm", s.dim), s.epsilon)
        fused = pair(block + "self_attention.query_key_value", 3 * s.dim, s.dim)
        weights, biases = (split_fused(f, s.heads, s.head_dim) for f in fused)
        q, k, v = (
            graph.linear(h, f"layers.{i}.attn.{part}", weight, bias)
            for part, weight, bias in zip("qkv", weights, biases)
        )
        y = graph.attention(q, k, v, i, heads=s.heads, kv_heads=s.heads, head_dim=s.head_dim, mask=mask)
        y = graph.linear(y, f"layers.{i}.attn.out", *pair(block + "self_attention.dense", s.dim, s.dim))
        x = graph.add(h if s.residual_after_norm else x, y, f"layers.{i}.attn.residual")

        h = graph.layer_norm(
            x, f"layers.{i}.mlp_norm", *pair(block + "post_attention_layernorm", s.dim), s.epsilon
        )
        y = graph.linear(h, f"layers.{i}.mlp.up", *pair(block + "mlp.dense_h_to_4h", 4 * s.dim, s.dim))
        y = graph.gelu_tanh(y, f"layers.{i}.mlp.gelu")
        y = graph.linear(y, f"layers.{i}.mlp.down", *pair(block + "mlp.dense_4h_to_h", s.dim, 4 * s.dim))
        x = graph.add(h if s.residual_after_norm else x, y, f"layers.{i}.mlp.residual")

    x = graph.layer_norm(x, "final_norm", *pair("ln_f", s.dim), s.epsilon)
    if s.tied:
        config.check_tied_head(tensors, "lm_head.weight", embed.name, (s.vocab_size, s.dim))
        head = embed
    else:
        head = tensors.take("lm_head.weight", (s.vocab_size, s.dim))
    tensors.finish()
    return graph.finish(graph.linear(x, "head", head, output="logits"))
