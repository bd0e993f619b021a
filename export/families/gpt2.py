"""GPT-2: learned positions, matrices stored as [in, out], one matrix for q, k and v."""

from __future__ import annotations

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import Learned

from ..config import Config, check_context
from ..placement import POSITION_ROWS
from ..tensor_set import TensorSet
from .layernorm_decoder import DecoderNames, DecoderShape, build, read_activation

MODEL_TYPE = "gpt2"
DEFAULT_BOS, DEFAULT_EOS = (50256,), (50256,)  # of the config class, when the file does not say

NAMES = DecoderNames(
    embed="wte",
    attn_norm="h.{i}.ln_1",
    q="h.{i}.attn.q",
    k="h.{i}.attn.k",
    v="h.{i}.attn.v",
    out="h.{i}.attn.c_proj",
    mlp_norm="h.{i}.ln_2",
    up="h.{i}.mlp.c_fc",
    down="h.{i}.mlp.c_proj",
    final_norm="ln_f",
    head="lm_head",
)


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face GPT2LMHeadModel. Raises FormatError or UnsupportedError naming key or tensor."""
    dim = config.size_of(("n_embd", "hidden_size"), default=768)
    heads = config.size_of(("n_head", "num_attention_heads"), default=12)
    if dim % heads:
        raise FormatError(f"{config.origin}: n_embd {dim} is not a multiple of n_head {heads}; correct one")
    for key, needed in (("scale_attn_weights", True), ("scale_attn_by_inverse_layer_idx", False), ("add_cross_attention", False)):
        if config.flag(key, default=needed) is not needed:
            raise UnsupportedError(f"{config.origin}: {key} is {not needed}; supported: {needed}")
    count = config.size_of(("n_positions", "max_position_embeddings"), default=1024)
    shape = DecoderShape(
        vocab_size=config.size("vocab_size", default=50257),
        dim=dim,
        hidden_dim=config.size("n_inner", default=4 * dim),
        layers=config.size_of(("n_layer", "num_hidden_layers"), default=12),
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        context=check_context(config.origin, context, count, "n_positions"),
        epsilon=config.epsilon("layer_norm_epsilon", default=1e-5),
        activation=read_activation(config.origin, "activation_function", config.text("activation_function", "gelu_new")),
        tied=config.flag("tie_word_embeddings", default=True),
    )
    tensors = tensors.without_prefix("transformer.")
    tensors.rename("wpe.weight", POSITION_ROWS)
    for i in range(shape.layers if f"h.{shape.layers - 1}.attn.c_attn.weight" in tensors else 0):
        for module in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"):
            tensors.transpose(f"h.{i}.{module}.weight")
        for part in ("weight", "bias"):
            tensors.split(f"h.{i}.attn.c_attn.{part}", {f"h.{i}.attn.{x}.{part}": dim for x in "qkv"})
    model = build(shape, tensors, NAMES, name, family=MODEL_TYPE, encoding=Learned(count))
    if shape.tied:
        config.check_tied_head(tensors, "lm_head.weight", "wte.weight", (shape.vocab_size, dim))
    # Old checkpoints store the causal mask; transformers ignores it too.
    tensors.finish(ignore=lambda n: n.endswith((".attn.bias", ".attn.masked_bias")))
    return model
