"""The families of Hugging Face models EdgePos understands.

To add one: write a module with ``MODEL_TYPE`` and
``build_hf(config, tensors, context, name) -> onnx_ir.Model``, and name it here.
"""

from . import bloom, llama

ARCHITECTURES = {
    "LlamaForCausalLM": llama,
    "BloomForCausalLM": bloom,
}
