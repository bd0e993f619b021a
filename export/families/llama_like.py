"""Families with Llama's block: Mistral, Qwen2, Qwen3, Phi-3. Each is a row of settings."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError

from ..config import Config
from ..rope_config import read_encoding
from ..shorten import shorten
from ..tensor_set import TensorSet
from . import llama


@dataclass(frozen=True)
class LlamaLike:
    """What differs from Llama.

    MODEL_TYPE, DEFAULT_BOS, DEFAULT_EOS: as in every family. defaults: of the config class, for keys that are absent.
    qkv_bias: biases of q, k and v only, whatever the config says. head_norm: RMS norms over the heads of q and k.
    layer_windows: the sliding window is on only with use_sliding_window, and only in some layers. fused: q, k, v in one
    matrix, gate and up in another. partial: part of a head may stay unrotated.
    """

    MODEL_TYPE: str
    DEFAULT_BOS: tuple[int, ...]
    DEFAULT_EOS: tuple[int, ...]
    defaults: dict[str, Any] = field(default_factory=dict)
    qkv_bias: bool = False
    head_norm: bool = False
    layer_windows: bool = False
    fused: bool = False
    partial: bool = False

    def build_hf(self, config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
        """The canonical graph. Raises FormatError or UnsupportedError naming key or tensor."""
        config = Config(self.defaults | config.values, config.origin)
        llama.read_heads(config)
        encoding = read_encoding(config, self.MODEL_TYPE)
        if encoding.rotary_dim != encoding.head_dim and not self.partial:
            raise UnsupportedError(f"{config.origin}: partial_rotary_factor rotates {encoding.rotary_dim} of {encoding.head_dim}; supported: all")
        shape = llama.read_config(config, context, encoding)
        if self.qkv_bias:
            shape = replace(shape, attention_bias=True, output_bias=False)
        shape = replace(shape, head_norm=self.head_norm, window=self._windows(config, shape) if self.layer_windows else shape.window)
        if self.fused:
            _split(tensors, shape)
        model = llama.build(shape, tensors, llama.HF_NAMES, name, family=self.MODEL_TYPE, encoding=encoding)
        if shape.tied:
            config.check_tied_head(tensors, llama.HF_NAMES.head, llama.HF_NAMES.embed, (shape.vocab_size, shape.dim))
        tensors.finish(ignore=lambda n: n.endswith(".rotary_emb.inv_freq"))
        return model

    def _windows(self, config: Config, shape: llama.LlamaShape) -> tuple[int, ...]:
        """The window of every layer, 0 where there is none."""
        kinds = config.values.get("layer_types")
        if kinds is None:
            full = config.values.get("max_window_layers", shape.layers)
            if type(full) is not int or full < 0:
                raise config.wrong("max_window_layers", full, "a whole number of at least 0")
            slides = [config.flag("use_sliding_window", default=False) and i >= full for i in range(shape.layers)]
        else:
            known = ("full_attention", "sliding_attention")
            if not isinstance(kinds, list) or len(kinds) != shape.layers or any(kind not in known for kind in kinds):
                raise FormatError(f"{config.origin}: layer_types is {shorten(kinds)}; a list of {shape.layers} names is needed: {', '.join(known)}")
            slides = [kind == "sliding_attention" for kind in kinds]
        if any(slides) and not shape.window:
            raise FormatError(f"{config.origin}: layers slide, but sliding_window is missing")
        return tuple(shape.window if slide else 0 for slide in slides)


def _split(tensors: TensorSet, shape: llama.LlamaShape) -> None:
    """Phi-3's fused matrices: rows of q, k, v in turn, and of gate, up."""
    kv_dim = shape.kv_heads * shape.head_dim
    names = llama.HF_NAMES
    for i in range(shape.layers):
        block = f"model.layers.{i}."
        if f"{block}self_attn.qkv_proj.weight" not in tensors:
            return  # refused by name when the parts are taken
        parts = {names.q: shape.heads * shape.head_dim, names.k: kv_dim, names.v: kv_dim}
        tensors.split(f"{block}self_attn.qkv_proj.weight", {part.format(i=i): rows for part, rows in parts.items()})
        halves = {names.gate: shape.hidden_dim, names.up: shape.hidden_dim}
        tensors.split(f"{block}mlp.gate_up_proj.weight", {part.format(i=i): rows for part, rows in halves.items()})


LLAMA = LlamaLike("llama", llama.DEFAULT_BOS, llama.DEFAULT_EOS)
MISTRAL = LlamaLike(
    "mistral", (1,), (2,), {"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 4096 * 32}
)
QWEN2 = LlamaLike("qwen2", (), (), {"num_key_value_heads": 32, "max_position_embeddings": 32768}, qkv_bias=True, layer_windows=True)
QWEN3 = LlamaLike(
    "qwen3", (), (), {"num_key_value_heads": 32, "max_position_embeddings": 32768, "head_dim": 128}, head_norm=True, layer_windows=True
)
PHI3 = LlamaLike(
    "phi3", (1,), (32000,), {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
    fused=True, partial=True,
)  # fmt: skip
