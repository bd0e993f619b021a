"""`edgepos.export_bundle`: from a source model to an opened bundle."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from . import compiler, export
from .bundle import Bundle
from .compiler.options import SOURCE
from .errors import UnsupportedError
from .export import CanonicalModel


def export_bundle(
    source,
    out: str | os.PathLike,
    *,
    weights: str | None = None,
    activations: str = "a16",
    kv: str = "kv16",
    context: int | None = None,
    weights_for: Mapping[str, str] | None = None,
    calibration=None,
    tokenizer: str | os.PathLike | None = SOURCE,
    chat_template: str | None = SOURCE,
    example_inputs=None,
    image_processor: str | os.PathLike | None = None,
    onnx: str = "float",
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Bundle:
    """Compile `source` (a path that `edgepos.export.load` understands, a torch.nn.Module or a CanonicalModel) to the bundle folder `out`.

    weights:     "source" (the integers of a GGUF or ONNX file that has some; its default), "w8g32" (int8, groups of 32; else the default),
                 "w8" (int8 per row), "w4g32" (4 bits, groups of 32; costs accuracy where the source is float), "w16g32" (twice w8g32, the
                 second for what the first leaves: twice its bytes and products)
    activations: "a16", or "a8g32" (int8, groups of 32, for the inputs of matrices but down projections: faster on
                 processors with int8 dot products; docs/accuracy.md says what it costs)
    kv:          "kv16" or "kv8"
    context:     most tokens of a session; default the model's
    weights_for: {name of a matrix with * and ? for others: format}, for those that need another one; the last that matches decides
    calibration: text, path or token ids to choose the fixed points on; default EdgePos's own text
    tokenizer:   "source"; a tokenizer file (tokenizer.json, minbpe's tokenizer.model, or the folder) for an ONNX file, a module or a llama2.c file; None for
                 a bundle that works on token ids only
    chat_template: "source", or None to leave the model's chat template out
    example_inputs: of a module: token ids [1, n], or a tuple or dict of its inputs with them; without a tokenizer they are also what
                 the fixed points are chosen on, unless `calibration` says otherwise
    image_processor: of a module or an ONNX file that reads an image: its preprocessor_config.json, or the folder with it (default for a file:
                 beside it)
    onnx:        "float", or "int8" for a second, faster form of model.onnx, with 8-bit activations (docs/onnx.md)
    force:       replace an existing bundle
    progress:    called with (what, done, total)

    Raises EdgePosError (UnsupportedError, FormatError) with one line; nothing half-written stays.
    """
    source, tokenizer, calibration = _opened(source, example_inputs, context, tokenizer, calibration, image_processor)
    path = compiler.export_bundle(
        source, out, weights=weights, activations=activations, kv=kv, context=context, weights_for=weights_for, calibration=calibration,
        tokenizer=tokenizer, chat_template=chat_template, onnx=onnx, force=force, progress=progress,
    )  # fmt: skip
    return Bundle(path)


def _opened(source, example_inputs, context, tokenizer, calibration, image_processor):
    """(source, tokenizer, calibration) with a module, an ONNX file and a tokenizer of its own read into a CanonicalModel."""
    file = None if tokenizer in (None, SOURCE) else tokenizer
    if "torch" in sys.modules and isinstance(source, sys.modules["torch"].nn.Module):
        from .export.onnx_in import load_module, token_ids

        source = load_module(source, example_inputs, context=context, tokenizer=file, image_processor=image_processor)
        ids = token_ids(example_inputs)
        if calibration is None and file is None and ids is not None:
            calibration = ids.flatten().tolist()
        return source, SOURCE if file is not None else None, calibration
    if example_inputs is not None:
        raise UnsupportedError("example_inputs is for a torch.nn.Module; leave it out")
    if file is not None:
        return export.load(source, context=context, tokenizer=file), SOURCE, calibration
    # An ONNX file has no tokenizer of its own.
    of_onnx = not isinstance(source, CanonicalModel) and os.fspath(source).endswith(".onnx")
    if image_processor is not None:
        if not of_onnx:
            raise UnsupportedError("image_processor is for an ONNX file or a torch.nn.Module; a folder brings preprocessor_config.json")
        from .export.onnx_in import load_onnx

        source = load_onnx(Path(source), context=context, image_processor=image_processor)
    return source, None if of_onnx else tokenizer, calibration
