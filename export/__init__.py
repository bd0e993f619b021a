"""Front ends: read a model from where people keep it, return the canonical float graph."""

from __future__ import annotations

import os
from pathlib import Path

from edgepos.errors import FormatError, UnsupportedError

from .canonical import CanonicalModel
from .gguf_source import load_gguf
from .hf_folder import load_hf_folder
from .llama2c import load_llama2c
from .pickle_files import pickle_error
from .position_graph import position_graph
from .tokenizers import TokenizerSpec

PICKLES = (".pt", ".pth", ".ckpt", ".pkl")
SUPPORTED = "a Hugging Face folder (config.json + safetensors or pytorch_model.bin), a .gguf file, an .onnx file or a llama2.c version-0 .bin file"


def load(
    source: str | os.PathLike,
    *,
    context: int | None = None,
    tokenizer: str | os.PathLike | None = None,
) -> CanonicalModel:
    """Read ``source`` into the canonical ONNX graph (opset 23, float32).

    source:    a Hugging Face folder, a ``.gguf`` file, an ``.onnx`` file or a llama2.c version-0 ``.bin``
    context:   number of positions to plan for; all the model allows when None
    tokenizer: the tokenizer file of a llama2.c model when it is not beside it; for an ONNX file a tokenizer.json, minbpe's tokenizer.model, or their folder

    Weights stay memory-mapped where they are float32, and quantized until they are read where the source is. Raises UnsupportedError for a valid
    source EdgePos cannot use, FormatError for a malformed one.
    """
    path = Path(source)
    if path.is_dir():
        if tokenizer is not None:
            raise UnsupportedError(f"{path.name}: tokenizer= is for llama2.c and ONNX files; a folder brings tokenizer.json")
        if not (path / "config.json").is_file():
            raise FormatError(f"{path.name}: a folder without config.json; supported: {SUPPORTED}")
        return load_hf_folder(path, context=context)
    if not path.is_file():
        raise FormatError(f"{path}: no such file or folder; supported: {SUPPORTED}")
    if path.suffix == ".gguf":
        if tokenizer is not None:
            raise UnsupportedError(f"{path.name}: tokenizer= is for llama2.c and ONNX files; a GGUF file holds its own")
        return load_gguf(path, context=context)
    if path.suffix == ".onnx":
        from .onnx_in import load_onnx  # ONNX's reference evaluator takes a while to import

        return load_onnx(path, context=context, tokenizer=tokenizer)
    if path.suffix in PICKLES:
        raise pickle_error(path.name)
    if path.suffix != ".bin":
        raise UnsupportedError(f"{path.name}: unknown kind of file; supported: {SUPPORTED}")
    return load_llama2c(path, context=context, tokenizer=Path(tokenizer) if tokenizer is not None else None)


__all__ = ["CanonicalModel", "TokenizerSpec", "load", "position_graph"]
