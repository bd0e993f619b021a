"""The families of Hugging Face models EdgePos understands.

To add one: write a module (or a row of ``llama_like``) with ``MODEL_TYPE``, ``DEFAULT_BOS``, ``DEFAULT_EOS`` and
``build_hf(config, tensors, context, name) -> onnx_ir.Model`` (encoders: ``build_encoder``, which is told the folder as well), and
name it here. docs/families.md says how.
"""

from . import bert, bloom, clip_text, edgepos_decoder, gemma, gpt2, gpt_neox, llama_like, mpt, phi, smollm3, vit

ARCHITECTURES = {
    "LlamaForCausalLM": llama_like.LLAMA,
    "MistralForCausalLM": llama_like.MISTRAL,
    "Qwen2ForCausalLM": llama_like.QWEN2,
    "Qwen3ForCausalLM": llama_like.QWEN3,
    "Phi3ForCausalLM": llama_like.PHI3,
    "Gemma2ForCausalLM": gemma.GEMMA2,
    "Gemma3ForCausalLM": gemma.GEMMA3,
    "BloomForCausalLM": bloom,
    "GPT2LMHeadModel": gpt2,
    "GPTNeoXForCausalLM": gpt_neox,
    "PhiForCausalLM": phi,
    "MptForCausalLM": mpt,
    "SmolLM3ForCausalLM": smollm3,
    "EdgePosDecoderForCausalLM": edgepos_decoder,
    "BertModel": bert.BERT,
    "RobertaModel": bert.ROBERTA,
    "XLMRobertaModel": bert.XLM_ROBERTA,
    "MPNetModel": bert.MPNET,
    "ViTModel": vit.VIT,
    "ViTForImageClassification": vit.VIT_CLASSES,
    "CLIPVisionModel": vit.VISION,
    "CLIPVisionModelWithProjection": vit.VISION_WITH_PROJECTION,
    "CLIPTextModel": clip_text.TEXT,
    "CLIPTextModelWithProjection": clip_text.TEXT_WITH_PROJECTION,
}
