"""EdgePos's own folder format: Llama's block with any position encoding that `edgepos.positions` describes.

config.json has Llama's keys and ``position_encoding``, the JSON of a spec; examples/positions/README.md documents the format.
"""

from __future__ import annotations

import onnx_ir as ir

from edgepos import positions
from edgepos.errors import EdgePosError, FormatError

from ..config import Config
from ..tensor_set import TensorSet
from . import llama

MODEL_TYPE = "edgepos_decoder"
DEFAULT_BOS, DEFAULT_EOS = (), ()


def read_encoding(config: Config) -> positions.Spec:
    """The spec under ``position_encoding``. Raises FormatError or UnsupportedError naming the key."""
    value = config.values.get("position_encoding")
    if not isinstance(value, dict):
        raise config.wrong("position_encoding", value, "the JSON of an edgepos.positions spec")
    try:
        return positions.from_json(value)
    except EdgePosError as error:
        raise type(error)(f"{config.origin}: position_encoding: {error}") from None


def build_hf(config: Config, tensors: TensorSet, context: int | None, name: str) -> ir.Model:
    """The canonical graph of an EdgePosDecoderForCausalLM folder."""
    encoding = read_encoding(config)
    shape = llama.read_config(config, context)
    added = encoding.embedding if isinstance(encoding, positions.Hybrid) else encoding
    if isinstance(added, positions.Learned) and added.context < shape.context:
        raise FormatError(
            f"{config.origin}: position_encoding has rows for {added.context} positions, the context is {shape.context}; "
            f"pass context={added.context} or correct max_position_embeddings"
        )
    model = llama.build(shape, tensors, llama.HF_NAMES, name, family=MODEL_TYPE, encoding=encoding)
    if shape.tied:
        config.check_tied_head(tensors, llama.HF_NAMES.head, llama.HF_NAMES.embed, (shape.vocab_size, shape.dim))
    tensors.finish()
    return model
