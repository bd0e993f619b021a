"""Phi (1, 1.5, 2): part of each head rotates, attention and MLP side by side behind one norm, biases everywhere."""

from __future__ import annotations

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError

from ..config import Config
from ..rope_config import head_dim_of, read_encoding
from ..tensor_set import TensorSet
from .layernorm_decoder import DecoderNames, DecoderShape, build, read_activation

MODEL_TYPE = "phi"
DEFAULT_BOS, DEFAULT_EOS = (1,), (2,)  # of the config class, when the file does not say

LAYER = "model.layers.{i}."
NAMES = DecoderNames(
    embed="model.embed_tokens",
    attn_norm=LAYER + "input_layernorm",
    q=LAYER + "self_attn.q_proj",
    k=LAYER + "self_attn.k_proj",
    v=LAYER + "self_attn.v_proj",
    out=LAYER + "self_attn.dense",
    mlp_norm="",
    up=LAYER + "mlp.fc1",
    down=LAYER + "mlp.fc2",
    final_norm="model.final_layernorm",
    head="lm_head",
)


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face PhiForCausalLM. Raises FormatError or UnsupportedError naming key or tensor."""
    if config.flag("qk_layernorm", default=False):
        raise UnsupportedError(f"{config.origin}: qk_layernorm is true; supported: false")
    dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
    kv_heads = config.size("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise FormatError(f"{config.origin}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    shape = DecoderShape(
        vocab_size=config.size("vocab_size"),
        dim=dim,
        hidden_dim=config.size("intermediate_size"),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim_of(config, dim, heads),
        context=config.context(context, config.size("max_position_embeddings", default=2048)),
        epsilon=config.epsilon("layer_norm_eps", default=1e-5),
        activation=read_activation(config.origin, "hidden_act", config.text("hidden_act", "gelu_new")),
        tied=config.flag("tie_word_embeddings", default=False),
        parallel=True,
        head_bias=True,
    )
    model = build(shape, tensors, NAMES, name, family=MODEL_TYPE, encoding=read_encoding(config, MODEL_TYPE))
    if shape.tied:
        config.check_tied_head(tensors, "lm_head.weight", "model.embed_tokens.weight", (shape.vocab_size, dim))
    tensors.finish()
    return model
