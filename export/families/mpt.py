"""MPT: ALiBi (or learned positions), layer norms and matrices without biases, q, k and v in one matrix."""

from __future__ import annotations

import onnx_ir as ir

from edgepos.positions import Learned

from ..config import Config, check_context, check_plain
from ..placement import POSITION_ROWS
from ..rope_config import head_dim_of, read_encoding
from ..tensor_set import TensorSet
from .layernorm_decoder import DecoderNames, DecoderShape, build

MODEL_TYPE = "mpt"
DEFAULT_BOS, DEFAULT_EOS = (), ()

BLOCK = "blocks.{i}."
NAMES = DecoderNames(
    embed="wte",
    attn_norm=BLOCK + "norm_1",
    q=BLOCK + "attn.q",
    k=BLOCK + "attn.k",
    v=BLOCK + "attn.v",
    out=BLOCK + "attn.out_proj",
    mlp_norm=BLOCK + "norm_2",
    up=BLOCK + "ffn.up_proj",
    down=BLOCK + "ffn.down_proj",
    final_norm="norm_f",
    head="lm_head",
)
# transformers makes the MLP four times as wide whatever expansion_ratio says.
PLAIN = {"logit_scale": None, "no_bias": True, "expansion_ratio": 4}
PLAIN_ATTENTION = {"clip_qkv": None, "softmax_scale": None, "qk_ln": False, "prefix_lm": False, "attn_uses_sequence_id": False}


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face MptForCausalLM. Raises FormatError or UnsupportedError naming key or tensor."""
    attention = config.values.get("attn_config") or {}
    if not isinstance(attention, dict):
        raise config.wrong("attn_config", attention, "an object")
    check_plain(f"{config.origin}: attn_config.", attention, PLAIN_ATTENTION)
    check_plain(f"{config.origin}: ", config.values, PLAIN)
    dim, heads = config.size_of(("d_model", "hidden_size")), config.size_of(("n_heads", "num_attention_heads"))
    encoding = read_encoding(config, MODEL_TYPE)
    limit = config.size("max_seq_len", default=2048)
    if not isinstance(encoding, Learned) and context is not None:
        limit = max(limit, context)  # ALiBi has no limit of its own
    shape = DecoderShape(
        vocab_size=config.size("vocab_size"),
        dim=dim,
        hidden_dim=4 * dim,
        layers=config.size_of(("n_layers", "num_hidden_layers")),
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim_of(config, dim, heads),
        context=check_context(config.origin, context, limit, "max_seq_len"),
        epsilon=config.epsilon("layer_norm_epsilon", default=1e-5),
        activation="gelu",
        tied=config.flag("tie_word_embeddings", default=True),
        norm_bias=False,
        attention_bias=False,
        mlp_bias=False,
    )
    tensors = tensors.without_prefix("transformer.")
    if isinstance(encoding, Learned):
        tensors.rename("wpe.weight", POSITION_ROWS)
    for i in range(shape.layers if f"blocks.{shape.layers - 1}.attn.Wqkv.weight" in tensors else 0):
        tensors.split(f"blocks.{i}.attn.Wqkv.weight", {f"blocks.{i}.attn.{x}.weight": dim for x in "qkv"})
    model = build(shape, tensors, NAMES, name, family=MODEL_TYPE, encoding=encoding)
    if shape.tied:
        config.check_tied_head(tensors, "lm_head.weight", "wte.weight", (shape.vocab_size, dim))
    tensors.finish()
    return model
