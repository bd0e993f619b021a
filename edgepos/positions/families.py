"""Position encodings of Hugging Face models: `config.json` as a dict → spec, by its model_type."""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .config import inner
from .families_absolute import ABSOLUTE
from .families_rotary import ROTARY
from .families_vision import VISION
from .spec import Spec


def from_config(config: dict) -> Spec | dict[str, Spec]:
    """The position encoding of a model from its `config.json` as a dict.

    Where parts differ, {part: spec}: encoder and decoder (T5, Whisper), layer kinds that rotate differently (Gemma 3, ModernBERT),
    text and vision (CLIP, Qwen2-VL). The layers of one stack that differ are a Hybrid. Vision encodings are those of the config's image_size.

    Raises UnsupportedError for a model_type or rope_type that is not known, FormatError naming a key that is missing,
    malformed or contradicts another.
    """
    if not isinstance(config, dict):
        raise FormatError(f"config is a {type(config).__name__}; allowed is the dict of a config.json")
    family = config.get("model_type")
    if isinstance(family, str) and family in _TWO_TOWERS:
        return _two_towers(config, *_TWO_TOWERS[family])
    if not isinstance(family, str) or family not in _FAMILIES:
        known = ", ".join(sorted((*_FAMILIES, *_TWO_TOWERS)))
        raise UnsupportedError(f"model_type is {family!r}; position encodings are known for {known}")
    return _FAMILIES[family](config)


def _own(config: dict) -> Spec:
    """EdgePos's own folders name their spec."""
    from . import from_json

    value = config.get("position_encoding")
    if not isinstance(value, dict):
        raise FormatError(f"position_encoding is {value!r}; allowed is the JSON of a spec")
    return from_json(value)


def _two_towers(config: dict, text: str | None, vision: str | None) -> Spec | dict[str, Spec]:
    """{"text": …, "vision": …} of a config that holds one for each; text, vision: model_type where theirs is not stated.

    A text model that was saved without its vision part, or with its keys at the top level, is read as text alone.
    """
    family, parts = config["model_type"], {}
    for part, key, assumed in (("text", "text_config", text), ("vision", "vision_config", vision)):
        if config.get(key) is not None:
            own = inner(config, key)
            stated = own.get("model_type")
            parts[part] = from_config(own | {"model_type": assumed if stated in (None, family) else stated})  # older files name the family itself
        elif part == "text" and text is not None:
            parts[part] = from_config({k: v for k, v in config.items() if k != "vision_config"} | {"model_type": text})
    if not parts:
        raise FormatError(f"text_config and vision_config are missing from the config of a {family}")
    if list(parts) == ["text"]:
        return parts["text"]
    named = {}
    for name, spec in parts.items():
        named |= {f"{name} {kind}": s for kind, s in spec.items()} if isinstance(spec, dict) else {name: spec}
    return named


_FAMILIES = {"edgepos_decoder": _own} | ROTARY | ABSOLUTE | VISION
# model_type → model_type of its text and vision parts where they do not say
_TWO_TOWERS = {
    "clip": ("clip_text_model", "clip_vision_model"),
    "siglip": ("siglip_text_model", "siglip_vision_model"),
    "vision-text-dual-encoder": (None, None),
    "llava": ("llama", "clip_vision_model"),
    "llava_next": ("llama", "clip_vision_model"),
    "mistral3": ("mistral", "pixtral"),
    "paligemma": ("gemma", "siglip_vision_model"),
    "qwen2_vl": ("qwen2_vl_text", "qwen2_vl_vision"),
    "qwen2_5_vl": ("qwen2_5_vl_text", "qwen2_5_vl_vision"),
    "qwen3_vl": ("qwen3_vl_text", "qwen3_vl_vision"),
}
