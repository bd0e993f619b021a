"""PyTorch modules: exported to ONNX by PyTorch itself, then read like any other graph."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Mapping
from typing import Any

from edgepos.errors import UnsupportedError

from ..canonical import CanonicalModel
from .files import quiet

NEEDED = "example_inputs is {}; give token ids, an int64 tensor [1, n] with n ≥ 2, or an image, a float tensor [1, channels, height, width], or a tuple or dict of the module's inputs with such a tensor"
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
REASON = 400  # characters of PyTorch's explanation that are shown


def load_module(
    module, example_inputs, *, context: int | None = None, tokenizer=None, name: str | None = None, image_processor=None
) -> CanonicalModel:
    """The canonical model of a torch.nn.Module that turns token ids [1, n] into logits [1, n, vocabulary] or an image into one row.

    example_inputs: token ids, an int64 tensor [1, n] with n ≥ 2, or a tuple or dict of the module's inputs with one; n is only an
    example; or an image, float [1, channels, height, width]. context, tokenizer, image_processor: as for an ONNX file; where the context is None and the module has a config, the config's.
    Raises UnsupportedError with PyTorch's reason for a module that cannot be exported, or naming the node that is not understood.
    """
    from . import load_model

    name = name or type(module).__name__
    model = to_onnx(module, example_inputs, name)
    config = getattr(module, "config", None)
    sizes = [getattr(config, key, None) for key in CONTEXT_KEYS]
    usual = next((n for n in sizes if isinstance(n, int) and not isinstance(n, bool) and n > 0), None)
    labels = _labels(config) if "Classification" in type(module).__name__ else None
    return load_model(model, name=name, context=context, usual=usual, tokenizer=tokenizer, image_processor=image_processor, labels=labels)


def _labels(config) -> tuple[str, ...]:
    """Names of the classes of a config of transformers, by number; () where it has none."""
    named = getattr(config, "id2label", None) or {}
    return tuple(str(named[i]) for i in range(len(named))) if all(i in named for i in range(len(named))) else ()


def is_image(example_inputs) -> bool:
    """Whether example inputs are one image, float [1, channels, height, width], alone or in a tuple or dict."""
    import torch

    values = list(example_inputs.values()) if isinstance(example_inputs, Mapping) else list(_as_tuple(example_inputs))
    return len(values) == 1 and isinstance(values[0], torch.Tensor) and values[0].is_floating_point() and values[0].dim() == 4 and values[0].shape[0] == 1


def token_ids(example_inputs) -> Any | None:
    """The tensor of token ids among example inputs, or None."""
    import torch

    values = [example_inputs] if isinstance(example_inputs, torch.Tensor) else example_inputs
    if isinstance(values, Mapping):
        values = [values["input_ids"], *values.values()] if "input_ids" in values else list(values.values())
    if not isinstance(values, (list, tuple)):
        return None
    whole = [x for x in values if isinstance(x, torch.Tensor) and x.dtype in (torch.int64, torch.int32) and x.dim() in (1, 2)]
    return whole[0] if whole else None


def to_onnx(module, example_inputs, name: str):
    """The onnx_ir.Model of a module. Raises UnsupportedError."""
    import torch

    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise UnsupportedError("PyTorch's exporter needs the package onnxscript; install edgepos[torch]") from None
    image = is_image(example_inputs)
    ids = None if image else token_ids(example_inputs)
    if not image and (ids is None or ids.shape[-1] < 2 or (ids.dim() == 2 and ids.shape[0] != 1)):
        found = type(example_inputs).__name__ if ids is None else f"of shape {list(ids.shape)}"
        raise UnsupportedError(NEEDED.format("missing" if example_inputs is None else found))
    args, kwargs = ((), dict(example_inputs)) if isinstance(example_inputs, Mapping) else (_as_tuple(example_inputs), {})
    parameters = inspect.signature(module.forward).parameters
    for key, value in (("use_cache", False),):
        if key in parameters and key not in kwargs:
            kwargs[key] = value
    n = 0 if image else ids.shape[-1]  # no axis of an image varies

    def axes(x) -> dict | None:
        return {i: torch.export.Dim.AUTO for i, d in enumerate(x.shape) if d == n and i == x.dim() - 1} if isinstance(x, torch.Tensor) else None

    names = [p for p in parameters if p not in kwargs][: len(args)]
    shapes = {key: axes(x) for key, x in [*zip(names, args), *kwargs.items()]}
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(module, args, kwargs=kwargs, dynamo=True, dynamic_shapes=shapes, verbose=False)
    except Exception as error:  # whatever PyTorch finds in the way
        raise UnsupportedError(f"module {name}: PyTorch cannot export it to ONNX: {_reason(error)}") from None
    finally:
        for part in training:
            part.training = True
    return program.model


def _as_tuple(example_inputs) -> tuple:
    return tuple(example_inputs) if isinstance(example_inputs, (list, tuple)) else (example_inputs,)


def _reason(error: BaseException) -> str:
    """The innermost cause, in one paragraph."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) or type(error).__name__
    return text if len(text) <= REASON else text[: REASON - 3] + "..."


@contextlib.contextmanager
def _quiet():
    """Without the exporter's progress and warnings, which are not about the user's model."""
    with quiet("torch.onnx", logging.ERROR), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
