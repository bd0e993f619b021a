"""The compiler: canonical ONNX → integer program → bundle, as a list of small passes.

match → quantize and assemble → calibrate (or replay) → plan → tokenizer → self-test → model.gguf, model.onnx, bundle folder.
"""

from .bundle_writer import export_bundle
from .dequantize import dequantized_weights
from .pipeline import Compiled, compile, compile_model

__all__ = ["Compiled", "compile", "compile_model", "dequantized_weights", "export_bundle"]
