"""EdgePos: transformers in integers, with the same bits on every target.

    bundle = edgepos.export_bundle("model-folder", "model.edgepos")
    session = bundle.session()
    logits = session.eval(bundle.tokenizer.encode("Once upon a time"))

`edgepos.open` opens a bundle, `edgepos.reference` gives the float model to compare with.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from .errors import ContextError, EdgePosError, FormatError, UnsupportedError
from .fixedpoint import ARITH as arith

try:
    __version__ = version("edgepos")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+source"

# Loaded on first use: `import edgepos` stays fast, and the runtime works without the exporter's libraries.
_LAZY = {"open": "bundle", "Bundle": "bundle", "export_bundle": "exporter", "reference": "float_session", "positions": None}

__all__ = ["ContextError", "EdgePosError", "FormatError", "UnsupportedError", "arith", *_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'edgepos' has no attribute {name!r}")
    module = import_module(f".{_LAZY[name] or name}", __name__)
    value = module if _LAZY[name] is None else getattr(module, name)
    globals()[name] = value
    return value
