"""Position encodings of Hugging Face models: `config.json` as a dict → spec, one line per family."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .config import agree, required, rope_from_config, ropes_by_layer_kind
from .hybrid import Hybrid
from .learned import Learned
from .multi_rope import MRope
from .none import NoPosition
from .relative import T5Bias
from .rope import Rope
from .spec import Spec, check_count, check_flag


def from_config(config: dict) -> Spec | dict[str, Spec]:
    """The position encoding of a model from its `config.json` as a dict; {"encoder": …, "decoder": …} for T5,
    {"full_attention": …, "sliding_attention": …} where layer kinds rotate differently (Gemma 3, ModernBERT).

    Raises UnsupportedError for a model_type or rope_type that is not known, FormatError naming a key that is missing,
    malformed or contradicts another.
    """
    if not isinstance(config, dict):
        raise FormatError(f"config is a {type(config).__name__}; allowed is the dict of a config.json")
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise UnsupportedError(f"model_type is {family!r}; position encodings are known for {', '.join(_FAMILIES)}")
    return _FAMILIES[family](config)


def _heads(config: dict, *names: str) -> int:
    """The head count under any of its names, which must agree."""
    value = None
    for name in names:
        value = agree("heads", value, config.get(name), "another key", name)
    return check_count(names[0], value, 1, 2**16)


def _head_dim_default(config: dict, head_dim: int) -> dict:
    """The config with the family's default head_dim, which does not follow from the other sizes."""
    return config if config.get("head_dim") is not None else config | {"head_dim": head_dim}


def _gpt_neox(config: dict) -> Rope:
    older = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    renamed = {new: agree(new, config.get(new), config.get(old), new, old) for new, old in older.items()}
    return rope_from_config(config | renamed, share=0.25)


def _falcon(config: dict) -> Rope | Alibi:
    """Falcon with ALiBi rounds the slopes to bfloat16 and scales scores and bias together by 1/sqrt(head_dim)."""
    if not check_flag("alibi", config.get("alibi") or False):
        return rope_from_config(config)
    heads = _heads(config, "num_attention_heads", "n_head")
    head_dim = check_count("hidden_size", required(config, "hidden_size"), heads, 2**24) // heads
    return Alibi(heads, user_slopes=tuple(float(s) / head_dim**0.5 for s in _bfloat16(Alibi(heads).slopes())))


def _bfloat16(values: np.ndarray) -> np.ndarray:
    """float64 numbers rounded to float32, then to bfloat16 (half to even)."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def _mpt(config: dict) -> Alibi | Learned | NoPosition:
    attention = config.get("attn_config") or {}
    if not isinstance(attention, dict):
        raise FormatError(f"attn_config is {attention!r}; allowed is a dict")
    if check_flag("alibi", attention.get("alibi", True)):
        return Alibi(_heads(config, "n_heads", "num_attention_heads"), attention.get("alibi_bias_max", 8))
    if check_flag("learned_pos_emb", config.get("learned_pos_emb", True)):
        return Learned(required(config, "max_seq_len"))
    return NoPosition()


def _bert(config: dict) -> Learned:
    return Learned(required(_absolute(config), "max_position_embeddings"))


def _roberta(config: dict) -> Learned:
    pad_id = config.get("pad_token_id")
    return Learned.roberta(required(_absolute(config), "max_position_embeddings"), 1 if pad_id is None else pad_id)


def _absolute(config: dict) -> dict:
    """The config, if its positions are absolute."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise UnsupportedError(f"position_embedding_type is {kind!r}; known is absolute")
    return config


def _gpt2(config: dict) -> Learned:
    count = agree("positions", config.get("n_positions"), config.get("max_position_embeddings"), "n_positions", "max_position_embeddings")
    return Learned(check_count("n_positions", count, 1, 2**24))


def _opt(config: dict) -> Learned:
    pad_id = config.get("pad_token_id")
    length = check_count("max_position_embeddings", required(config, "max_position_embeddings"), 1, 2**23)
    return Learned.opt(length + 2, 1 if pad_id is None else pad_id)


def _t5(config: dict) -> dict[str, Spec]:
    buckets = config.get("relative_attention_num_buckets", 32)
    longest = config.get("relative_attention_max_distance", 128)
    return {"encoder": T5Bias(buckets, longest, True), "decoder": T5Bias(buckets, longest, False)}


def _gemma3(config: dict) -> dict[str, Spec]:
    """Full layers with the long base and the scaling, sliding ones with the local base."""
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise FormatError(f"text_config is {text!r}; allowed is a dict")
    return ropes_by_layer_kind(
        _head_dim_default(text, 256),
        {"full_attention": 1e6, "sliding_attention": 1e4},
        {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        ("full_attention",),
    )


def _modernbert(config: dict) -> dict[str, Spec]:
    kinds = ("full_attention", "sliding_attention")
    return ropes_by_layer_kind(
        config,
        {"full_attention": 160000.0, "sliding_attention": 1e4},
        {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
        kinds,
    )


def _smollm3(config: dict) -> Hybrid:
    """RoPE in most layers, none in the others: `no_rope_layers` holds 1 where a layer rotates."""
    layers = check_count("num_hidden_layers", required(config, "num_hidden_layers"), 1, 4096)
    every = check_count("no_rope_layer_interval", config.get("no_rope_layer_interval", 4), 1, 4096)
    turns = config.get("no_rope_layers")
    if turns is None:
        turns = [int((i + 1) % every != 0) for i in range(layers)]
    if not isinstance(turns, list) or len(turns) != layers or any(t not in (0, 1) for t in turns):
        raise FormatError(f"no_rope_layers is {turns!r}; allowed is a list of {layers} numbers 0 or 1")
    rope, none = rope_from_config(config, theta=2e6), NoPosition()
    return Hybrid(none, tuple(rope if t else none for t in turns))


def _qwen2_vl(config: dict) -> MRope:
    """Qwen2-VL's text model: M-RoPE, with the section sizes beside the rope parameters."""
    text = config.get("text_config", config)
    if not isinstance(text, dict):
        raise FormatError(f"text_config is {text!r}; allowed is a dict")
    sections = None
    text = dict(text)
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(text.get(key), dict):
            part = dict(text[key])
            sections = agree("mrope_section", sections, part.pop("mrope_section", None), "rope_scaling", "rope_parameters")
            text[key] = part
    rope = rope_from_config(text, theta=1e6, aliases={"mrope": "default"})
    return MRope(rope, [16, 24, 24] if sections is None else sections)


_FAMILIES = {
    "llama": rope_from_config,
    "mistral": rope_from_config,
    "qwen2": rope_from_config,
    "qwen3": lambda config: rope_from_config(_head_dim_default(config, 128)),
    "gemma": lambda config: rope_from_config(_head_dim_default(config, 256)),
    "gemma2": lambda config: rope_from_config(_head_dim_default(config, 256)),
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "modernbert": _modernbert,
    "phi": lambda config: rope_from_config(config, share=0.5),
    "phi3": lambda config: rope_from_config(config, aliases={"su": "longrope", "yarn": "longrope"}),
    "gpt_neox": _gpt_neox,
    "smollm3": _smollm3,
    "qwen2_vl": _qwen2_vl,
    "bloom": lambda config: Alibi(_heads(config, "n_head", "num_attention_heads")),
    "falcon": _falcon,
    "mpt": _mpt,
    "gpt2": _gpt2,
    "bert": _bert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "opt": _opt,
    "t5": _t5,
}
