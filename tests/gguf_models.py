"""Small GGUF files for the tests, written with the gguf package from a transformers model."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

F32, F16, BF16 = (gguf.GGMLQuantizationType[n] for n in ("F32", "F16", "BF16"))
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a transformers tensor."""
    for old, new in NAMES.items():
        name = name.replace(old, new)
    return name.replace("model.layers.", "blk.")


def permute(weight: np.ndarray, heads: int) -> np.ndarray:
    """convert_hf_to_gguf.py, LlamaModel.permute."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def quantized(weight: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """The bytes of a matrix in a GGUF type; Q4_1 and the like by gguf's own quantizer."""
    return gguf.quants.quantize(weight, kind)


def write_gguf(path: Path, model, architecture: str, kinds=None, *, keys=None, leave_out=(), tensors=None, tokenizer=True) -> dict[str, np.ndarray]:
    """Write a transformers Llama or Qwen as GGUF; returns the float32 weights that the file holds, by transformers name.

    kinds(name) is the GGUF type of a matrix (default F32); keys: metadata to set over the usual; tensors: extra ones.
    """
    c = model.config
    writer = gguf.GGUFWriter(path, architecture)
    values = {
        "vocab_size": c.vocab_size,
        "context_length": c.max_position_embeddings,
        "embedding_length": c.hidden_size,
        "block_count": c.num_hidden_layers,
        "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads,
    }
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    if head_dim * c.num_attention_heads != c.hidden_size:
        values |= {"attention.key_length": head_dim, "attention.value_length": head_dim}
    numbers = {f"{architecture}.{key}": value for key, value in values.items()} | (keys or {})
    floats = {f"{architecture}.rope.freq_base": c.rope_parameters["rope_theta"], f"{architecture}.attention.layer_norm_rms_epsilon": c.rms_norm_eps}
    for key, value in (floats | numbers).items():
        if value is None:
            continue
        {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)](key, value)
    if tokenizer:
        write_tokenizer(writer, c.vocab_size)
    held = {}
    for name, value in model.state_dict().items():
        if name in leave_out or c.tie_word_embeddings and name == "lm_head.weight":
            continue
        weight = value.float().numpy()
        stored = weight
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            stored = permute(weight, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        kind = F32 if weight.ndim == 1 or kinds is None else kinds(name)
        data = quantized(stored, kind) if kind != F32 else stored
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        back = gguf.quants.dequantize(data, kind) if kind != F32 else stored
        if stored is not weight:
            heads = c.num_attention_heads if "q_proj" in name else c.num_key_value_heads
            back = back.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
        held[name] = back.astype(np.float32)
    for name, data in (tensors or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def write_tokenizer(writer: gguf.GGUFWriter, vocab: int, pre: str = "gpt-2") -> None:
    """Byte-level BPE of 256 byte tokens, a few merges and a control token at the end."""
    from edgepos.export.tokenizer_hf import ALPHABET

    tokens = sorted(ALPHABET, key=ALPHABET.get)
    merges = ["t h", "th e", "i n", "a t", "Ġ the"]
    tokens += [merge.replace(" ", "") for merge in merges]
    tokens += [f"<unused{i}>" for i in range(vocab - 1 - len(tokens))] + ["<|end|>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (vocab - 1) + [3])
    writer.add_token_merges(merges)
    writer.add_eos_token_id(vocab - 1)
