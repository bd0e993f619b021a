"""SmolLM3: Llama's block; some layers have rotary positions, the others none."""

from __future__ import annotations

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import Hybrid, NoPosition, Rope, Spec

from ..config import Config
from ..shorten import shorten
from ..tensor_set import TensorSet
from . import llama

MODEL_TYPE = "smollm3"
DEFAULT_BOS, DEFAULT_EOS = (128000,), (128001,)  # of the config class, when the file does not say
CLASS_DEFAULTS = {"num_key_value_heads": 4, "max_position_embeddings": 32768, "tie_word_embeddings": True}
DEFAULT_THETA = 2e6
DEFAULT_INTERVAL = 4
MAX_LAYERS = 4096


def layer_encodings(config: Config, rope: Rope, layers: int) -> Spec:
    """Which layers rotate: ``no_rope_layers`` (1: rotates), else all but every ``no_rope_layer_interval``-th.

    Raises FormatError naming the key.
    """
    if layers > MAX_LAYERS:
        raise FormatError(f"{config.origin}: num_hidden_layers is {layers}; at most {MAX_LAYERS} is allowed")
    turned = config.values.get("no_rope_layers")
    if turned is None:
        interval = config.size("no_rope_layer_interval", default=DEFAULT_INTERVAL)
        turned = [int((i + 1) % interval != 0) for i in range(layers)]
    if not isinstance(turned, list) or len(turned) != layers or any(t not in (0, 1) for t in turned):
        raise FormatError(f"{config.origin}: no_rope_layers is {shorten(turned)}; a list of {layers} numbers 0 or 1 is needed")
    if all(turned):
        return rope
    if not any(turned):
        return NoPosition()
    return Hybrid(NoPosition(), tuple(rope if t else NoPosition() for t in turned))


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of a Hugging Face SmolLM3ForCausalLM."""
    values = CLASS_DEFAULTS | {key: value for key, value in config.values.items() if value is not None}
    if not any(isinstance(values.get(key), dict) for key in ("rope_parameters", "rope_scaling")):
        values.setdefault("rope_theta", DEFAULT_THETA)
    config = Config(values, config.origin)
    if config.flag("use_sliding_window", default=False):
        raise UnsupportedError(f"{config.origin}: use_sliding_window is true; windows in some layers only are not supported")
    values.pop("sliding_window", None)
    shape = llama.read_config(config, context)
    rope = Rope(shape.head_dim, theta=shape.theta)
    encoding = layer_encodings(config, rope, shape.layers)
    model = llama.build(shape, tensors, llama.HF_NAMES, name, family=MODEL_TYPE, encoding=encoding)
    if shape.tied:
        config.check_tied_head(tensors, llama.HF_NAMES.head, llama.HF_NAMES.embed, (shape.vocab_size, shape.dim))
    tensors.finish()
    return model
