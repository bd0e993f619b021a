"""The families of Hugging Face models EdgePos understands.

To add one: write a module with ``MODEL_TYPE`` and
``build_hf(config, tensors, context, name) -> onnx_ir.Model``, and name it here.
"""

from . import bloom, edgepos_decoder, llama, smollm3

ARCHITECTURES = {
    "LlamaForCausalLM": llama,
    "BloomForCausalLM": bloom,
    "SmolLM3ForCausalLM": smollm3,
    "EdgePosDecoderForCausalLM": edgepos_decoder,
}
