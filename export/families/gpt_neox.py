"""GPT-NeoX (Pythia): part of each head rotates, attention and MLP side by side, q, k and v in one matrix head by head."""

from __future__ import annotations

import onnx_ir as ir

from ..config import Config
from ..rope_config import head_dim_of, read_encoding
from ..tensor_set import TensorSet
from .layernorm_decoder import DecoderNames, DecoderShape, build, read_activation

MODEL_TYPE = "gpt_neox"
DEFAULT_BOS, DEFAULT_EOS = (0,), (2,)  # of the config class, when the file does not say

LAYER = "gpt_neox.layers.{i}."
NAMES = DecoderNames(
    embed="gpt_neox.embed_in",
    attn_norm=LAYER + "input_layernorm",
    q=LAYER + "attention.q",
    k=LAYER + "attention.k",
    v=LAYER + "attention.v",
    out=LAYER + "attention.dense",
    mlp_norm=LAYER + "post_attention_layernorm",
    up=LAYER + "mlp.dense_h_to_4h",
    down=LAYER + "mlp.dense_4h_to_h",
    final_norm="gpt_neox.final_layer_norm",
    head="embed_out",
)


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face GPTNeoXForCausalLM. Raises FormatError or UnsupportedError naming key or tensor."""
    dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
    head_dim = head_dim_of(config, dim, heads)
    shape = DecoderShape(
        vocab_size=config.size("vocab_size"),
        dim=dim,
        hidden_dim=config.size("intermediate_size"),
        layers=config.size("num_hidden_layers"),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        context=config.context(context, config.size("max_position_embeddings", default=2048)),
        epsilon=config.epsilon("layer_norm_eps", default=1e-5),
        activation=read_activation(config.origin, "hidden_act", config.text("hidden_act", "gelu")),
        tied=config.flag("tie_word_embeddings", default=False),
        parallel=config.flag("use_parallel_residual", default=True),
        attention_bias=config.flag("attention_bias", default=True),
    )
    for i in range(shape.layers if f"{LAYER.format(i=shape.layers - 1)}attention.query_key_value.weight" in tensors else 0):
        block = LAYER.format(i=i) + "attention."
        for part in ("weight", "bias") if shape.attention_bias else ("weight",):
            tensors.split_heads(f"{block}query_key_value.{part}", [f"{block}{x}.{part}" for x in "qkv"], heads, head_dim)
    model = build(shape, tensors, NAMES, name, family=MODEL_TYPE, encoding=read_encoding(config, MODEL_TYPE))
    if shape.tied:
        config.check_tied_head(tensors, "embed_out.weight", "gpt_neox.embed_in.weight", (shape.vocab_size, dim))
    # Buffers that old checkpoints store.
    tensors.finish(ignore=lambda n: n.endswith((".attention.bias", ".masked_bias", ".rotary_emb.inv_freq")))
    return model
