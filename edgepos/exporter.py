"""`edgepos.export_bundle`: from a source model to an opened bundle."""

from __future__ import annotations

import os
from collections.abc import Callable

from . import compiler
from .bundle import Bundle


def export_bundle(
    source,
    out: str | os.PathLike,
    *,
    weights: str | None = None,
    activations: str = "a16",
    kv: str = "kv16",
    context: int | None = None,
    calibration=None,
    tokenizer: str | None = "source",
    chat_template: str | None = "source",
    force: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Bundle:
    """Compile `source` (a path that `edgepos.export.load` understands, or a CanonicalModel) to the bundle folder `out`.

    weights:     "source" (the integers of a GGUF file that has some; its default), "w8g32" (int8, groups of 32; else the default),
                 "w8" (int8 per row), "w4g32" (4 bits, groups of 32; costs accuracy where the source is float)
    activations: "a16"
    kv:          "kv16" or "kv8"
    context:     most tokens of a session; default the model's
    calibration: text, path or token ids to choose the fixed points on; default EdgePos's own text
    tokenizer:   "source", or None for a bundle that works on token ids only
    chat_template: "source", or None to leave the model's chat template out
    force:       replace an existing bundle
    progress:    called with (what, done, total)

    Raises EdgePosError (UnsupportedError, FormatError) with one line; nothing half-written stays.
    """
    path = compiler.export_bundle(
        source, out, weights=weights, activations=activations, kv=kv, context=context, calibration=calibration, tokenizer=tokenizer,
        chat_template=chat_template, force=force, progress=progress,
    )  # fmt: skip
    return Bundle(path)
