"""EdgePos: transformers in integers, with the same bits on every target.

    bundle = edgepos.export_bundle("model-folder", "model.edgepos")
    session = bundle.session()
    logits = session.eval(bundle.tokenizer.encode("Once upon a time"))

`edgepos.open` opens a bundle, `edgepos.reference` gives the float model to compare with.
"""

from __future__ import annotations

from importlib import import_module

from .errors import ContextError, EdgePosError, FormatError, UnsupportedError

# Name -> (module, its name there), loaded on first use: `import edgepos` and help stay fast.
_LAZY = {
    "arith": ("fixedpoint", "ARITH"), "open": ("bundle", "open"), "Bundle": ("bundle", "Bundle"), "export_bundle": ("exporter", "export_bundle"),
    "reference": ("float_session", "reference"), "positions": ("positions", None),
    "__version__": ("version", "VERSION"),
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
