"""Gemma 2 and Gemma 3 (text): norms before and after, 1 added to every γ, scaled embeddings, local and global layers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import Hybrid, NoPosition, Rope

from ..config import Config
from ..rope_config import read_encoding
from ..shorten import shorten
from ..tensor_set import TensorSet
from . import llama

LOCAL, GLOBAL = "sliding_attention", "full_attention"
LAYER = "model.layers.{i}."
NAMES = replace(
    llama.HF_NAMES,
    attn_post_norm=LAYER + "post_attention_layernorm.weight",
    mlp_norm=LAYER + "pre_feedforward_layernorm.weight",
    mlp_post_norm=LAYER + "post_feedforward_layernorm.weight",
)
DEFAULTS = {
    "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "query_pre_attn_scalar": 256, "tie_word_embeddings": True,
}  # fmt: skip


@dataclass(frozen=True)
class Gemma:
    """What differs between the versions.

    defaults: of the config class. head_norm: RMS norms over the heads of q and k. period: every so many layers one is
    global, where the config does not list them. positions: the model_type that `edgepos.positions` knows.
    """

    MODEL_TYPE: str
    positions: str
    defaults: dict[str, Any]
    head_norm: bool
    period: int
    DEFAULT_BOS: tuple[int, ...] = (2,)
    DEFAULT_EOS: tuple[int, ...] = (1,)

    def build_hf(self, config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
        """The canonical graph. Raises FormatError or UnsupportedError naming key or tensor."""
        config = Config(DEFAULTS | self.defaults | config.values, config.origin)
        if config.values.get("use_bidirectional_attention"):
            raise UnsupportedError(f"{config.origin}: use_bidirectional_attention is {shorten(config.values['use_bidirectional_attention'])}; supported: false")
        llama.read_heads(config)
        encoding = read_encoding(config, self.positions)
        ropes = {LOCAL: encoding, GLOBAL: encoding} if isinstance(encoding, Rope) else encoding
        shape = llama.read_config(config, context, ropes[GLOBAL], ("hidden_activation", "gelu_pytorch_tanh"))
        kinds = self._layers(config, shape.layers)
        window = config.size("sliding_window")
        shape = replace(
            shape,
            head_norm=self.head_norm,
            window=tuple(window if kind == LOCAL else 0 for kind in kinds),
            gate="geglu",
            post_norms=True,
            norm_offset=1.0,
            embed_scale=math.sqrt(shape.dim),
            score_scale=config.size("query_pre_attn_scalar") ** -0.5,
            score_softcap=_cap(config, "attn_logit_softcapping"),
            head_softcap=_cap(config, "final_logit_softcapping"),
        )
        layers = tuple(ropes[kind] for kind in kinds)
        same = len(set(layers)) == 1
        model = llama.build(
            shape, tensors, NAMES, name, family=self.MODEL_TYPE, encoding=layers[0] if same else Hybrid(NoPosition(), layers)
        )
        if shape.tied:
            config.check_tied_head(tensors, NAMES.head, NAMES.embed, (shape.vocab_size, shape.dim))
        tensors.finish()
        return model

    def _layers(self, config: Config, layers: int) -> list[str]:
        """The kind of every layer."""
        if layers > 4096:
            raise FormatError(f"{config.origin}: num_hidden_layers is {layers}; at most 4096 is allowed")
        kinds = config.values.get("layer_types")
        if kinds is None:
            return [LOCAL if (i + 1) % config.size("sliding_window_pattern", default=self.period) else GLOBAL for i in range(layers)]
        if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (LOCAL, GLOBAL) for kind in kinds):
            raise FormatError(f"{config.origin}: layer_types is {shorten(kinds)}; a list of {layers} names is needed: {LOCAL}, {GLOBAL}")
        return kinds


def _cap(config: Config, key: str) -> float:
    """A soft cap, 0 where there is none."""
    cap = config.number(key, default=0.0)
    if cap != 0 and not 1e-3 <= cap <= 1e6:
        raise config.wrong(key, cap, "null, or a number from 0.001 to 1e6")
    return cap


GEMMA2 = Gemma(
    "gemma2", "gemma2", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "max_position_embeddings": 8192},
    head_norm=False, period=2,
)  # fmt: skip
GEMMA3 = Gemma("gemma3_text", "gemma3_text", {"max_position_embeddings": 131072}, head_norm=True, period=6)
