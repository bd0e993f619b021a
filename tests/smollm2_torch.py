"""SmolLM2-135M-Instruct as a transformers model, its weights from the GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGUFReader
from gguf.quants import dequantize

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEADS = {"attn_q": 9, "attn_k": 3}


def load(path: Path, layers: int = 30) -> transformers.LlamaForCausalLM:
    """The model in float32, with its first `layers` layers."""
    config = transformers.LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9, num_key_value_heads=3,
        max_position_embeddings=8192, rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )  # fmt: skip
    state = {}
    for tensor in GGUFReader(path).tensors:
        layer = tensor.name.split(".")
        if layer[0] == "blk" and int(layer[1]) >= layers:
            continue
        array = dequantize(tensor.data, tensor.tensor_type)
        if layer[0] == "blk":
            if layer[2] in HEADS:
                # GGUF puts the two halves of a head's rotary pairs beside each other.
                array = array.reshape(HEADS[layer[2]], -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            name = f"model.layers.{layer[1]}.{NAMES[layer[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight"}[layer[0]]
        state[name] = torch.from_numpy(np.ascontiguousarray(array, np.float32))
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model = model.to_empty(device="cpu")
    model.load_state_dict(state | {"lm_head.weight": state["model.embed_tokens.weight"]})
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its frequencies are no weights
    return model.eval()
