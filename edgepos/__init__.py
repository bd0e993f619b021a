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

try:
    __version__ = version("edgepos")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+source"

# Name -> (module, its name there), loaded on first use: `import edgepos` stays fast, and the runtime works without the exporter's libraries.
_LAZY = {
    "arith": ("fixedpoint", "ARITH"), "open": ("bundle", "open"), "Bundle": ("bundle", "Bundle"), "export_bundle": ("exporter", "export_bundle"),
    "reference": ("float_session", "reference"), "positions": ("positions", None),
}  # fmt: skip

__all__ = ["ContextError", "EdgePosError", "FormatError", "UnsupportedError", *_LAZY]


def __getattr__(name: str):
    if name not in _LAZY:
        raise AttributeError(f"module 'edgepos' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    value = import_module(f".{module}", __name__)
    value = value if attribute is None else getattr(value, attribute)
    globals()[name] = value
    return value
