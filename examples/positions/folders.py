"""Folders in Hugging Face's layout: Llama, SmolLM3 or, for the other encodings, `edgepos_decoder`."""

import json
from pathlib import Path

import torch
from decoder import EPSILON, Decoder, Size, embedding_spec, layer_specs
from safetensors.torch import load_file, save_file

from edgepos import positions


def config_of(size: Size, spec: positions.Spec, eot: int) -> dict:
    """The config.json of a decoder: a family of `transformers` where one expresses the encoding."""
    layers = layer_specs(spec, size.layers)
    config = {
        "vocab_size": size.vocab,
        "hidden_size": size.dim,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "hidden_act": "silu",
        "rms_norm_eps": EPSILON,
        "max_position_embeddings": size.context,
        "tie_word_embeddings": True,
        "bos_token_id": eot,
        "eos_token_id": eot,
        "pad_token_id": None,
        "dtype": "bfloat16",
    }
    theta = next((layer.theta for layer in layers if isinstance(layer, positions.Rope)), 10000.0)
    known = (positions.NoPosition(), positions.Rope(size.head_dim, theta=theta))
    if isinstance(embedding_spec(spec), (positions.Learned, positions.Sinusoidal)) or any(layer not in known for layer in layers):
        return {
            "architectures": ["EdgePosDecoderForCausalLM"],
            "model_type": "edgepos_decoder",
            **config,
            "position_encoding": spec.to_json(),
        }
    turned = [int(isinstance(layer, positions.Rope)) for layer in layers]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    if all(turned):
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **config, "head_dim": size.head_dim}
    return {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", **config, "no_rope_layers": turned}


def save(out: Path, model: Decoder, tokenizer, eot: int) -> None:
    """Write config, bfloat16 weights and tokenizer."""
    out.mkdir(parents=True, exist_ok=True)
    config = config_of(model.size, model.spec, eot)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: value.to(torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out / "tokenizer.json"))
    facts = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.id_to_token(eot),
        "eos_token": tokenizer.id_to_token(eot),
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.size.context,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n")


def spec_of(config: dict) -> positions.Spec:
    """The spec of a folder that `save` wrote."""
    if "position_encoding" in config:
        return positions.from_json(config["position_encoding"])
    rope = positions.Rope(config["hidden_size"] // config["num_attention_heads"], theta=config["rope_parameters"]["rope_theta"])
    turned = config.get("no_rope_layers", [1] * config["num_hidden_layers"])
    if all(turned) or not any(turned):
        return rope if turned[0] else positions.NoPosition()
    nope = positions.NoPosition()
    return positions.Hybrid(nope, tuple(rope if t else nope for t in turned))


def load(path: Path) -> Decoder:
    """The decoder of a folder that `save` wrote, in float32."""
    config = json.loads((path / "config.json").read_text())
    size = Size(
        vocab=config["vocab_size"],
        dim=config["hidden_size"],
        hidden=config["intermediate_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        context=config["max_position_embeddings"],
    )
    model = Decoder(size, spec_of(config))
    model.load_state_dict({name: value.float() for name, value in load_file(path / "model.safetensors").items()})
    return model.eval()
