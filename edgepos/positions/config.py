"""Position encodings of Hugging Face configs: `config.json` as a dict → spec.

Both spellings are read: `rope_theta` with `rope_scaling`, and the newer nested `rope_parameters`. A value given twice must
agree. What is not understood is refused by its name, never ignored.
"""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .rope import Rope
from .spec import Spec, check_count, check_positive

DEFAULT_THETA = 10000.0  # transformers: RotaryEmbeddingConfigMixin.default_theta
# rope types whose length of training is a field of the scaling, or max_position_embeddings when it is missing
_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


def from_config(config: dict) -> Spec:
    """The position encoding of a model from its `config.json` as a dict.

    Raises UnsupportedError for a model_type or rope_type that is not known, FormatError naming a key that is missing,
    malformed or contradicts another.
    """
    if not isinstance(config, dict):
        raise FormatError(f"config is a {type(config).__name__}; allowed is the dict of a config.json")
    family = config.get("model_type")
    if family not in _FAMILIES:
        raise UnsupportedError(f"model_type is {family!r}; position encodings are known for {', '.join(_FAMILIES)}")
    return _FAMILIES[family](config)


def rope_from_config(config: dict) -> Rope:
    """The rotation of a config in the spelling of Llama: half layout, head_dim, rope_theta, rope_scaling or rope_parameters."""
    scaling, theta, share = _rope_parameters(config)
    head_dim = _head_dim(config)
    kind = scaling.get("rope_type", "default")
    rotary_dim = head_dim
    if kind == "proportional":
        scaling["partial_rotary_factor"] = share
    elif share != 1:
        rotary_dim = int(head_dim * share)
    length = config.get("max_position_embeddings")
    if kind == "dynamic":
        scaling["max_position_embeddings"] = _required(config, "max_position_embeddings")
    if kind in _ORIGINAL_LENGTH:
        original = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings", length))
        if original is None:
            raise FormatError("original_max_position_embeddings is missing, and max_position_embeddings too")
        scaling["original_max_position_embeddings"] = original
        if kind in ("yarn", "longrope") and scaling.get("factor") is None and length is not None:
            scaling["factor"] = check_positive("max_position_embeddings", length) / check_positive(
                "original_max_position_embeddings", original
            )
    scaling = {key: value for key, value in scaling.items() if value is not None}
    return Rope(head_dim, rotary_dim, theta, "half", scaling)


def _rope_parameters(config: dict) -> tuple[dict, float, float]:
    """(scaling with rope_type, theta, partial_rotary_factor) from either spelling."""
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise FormatError(f"{key} is {value!r}; allowed is a dict or null")
        nested = [name for name, part in value.items() if isinstance(part, dict)]
        if nested:
            raise UnsupportedError(f"{key} has one rotation per layer kind ({', '.join(nested)}); known is one for all layers")
        value = dict(value)
        kind = value.pop("type", None)
        if kind is not None and value.setdefault("rope_type", kind) != kind:
            raise FormatError(f"{key} says type {kind!r} and rope_type {value['rope_type']!r}; they must agree")
        value.setdefault("rope_type", "default")
        found[key] = value
    scaling = found.get("rope_parameters", found.get("rope_scaling", {"rope_type": "default"}))
    for key in found.get("rope_scaling", {}):
        _agree(key, scaling.get(key), found["rope_scaling"][key], "rope_parameters", "rope_scaling")
    theta = _agree("rope_theta", scaling.pop("rope_theta", None), config.get("rope_theta"), "rope_parameters", "the config")
    share = _agree(
        "partial_rotary_factor",
        scaling.pop("partial_rotary_factor", None),
        config.get("partial_rotary_factor"),
        "rope_parameters",
        "the config",
    )
    share = 1.0 if share is None else share
    if share != 0 and check_positive("partial_rotary_factor", share) > 1:
        raise FormatError(f"partial_rotary_factor is {share}; allowed is 0 to 1")
    return scaling, DEFAULT_THETA if theta is None else theta, share


def _agree(key: str, first, second, where_first: str, where_second: str):
    """The one value of a key that may stand in two places. Raises FormatError when they differ."""
    if first is not None and second is not None and first != second:
        raise FormatError(f"{key} is {first!r} in {where_first} and {second!r} in {where_second}; they must agree")
    return second if first is None else first


def _required(config: dict, key: str):
    if config.get(key) is None:
        raise FormatError(f"{key} is missing from the config")
    return config[key]


def _head_dim(config: dict) -> int:
    """head_dim, or hidden_size / num_attention_heads."""
    if config.get("head_dim") is not None:
        return check_count("head_dim", config["head_dim"], 1, 2**16)
    heads = check_count("num_attention_heads", _required(config, "num_attention_heads"), 1, 2**16)
    hidden = check_count("hidden_size", _required(config, "hidden_size"), 1, 2**24)
    if hidden % heads:
        raise FormatError(f"hidden_size is {hidden}; without head_dim it must be a multiple of num_attention_heads {heads}")
    return hidden // heads


def _bloom(config: dict) -> Alibi:
    heads = _agree("heads", config.get("n_head"), config.get("num_attention_heads"), "n_head", "num_attention_heads")
    return Alibi(check_count("n_head", heads, 1, 2**16))


_FAMILIES = {"llama": rope_from_config, "bloom": _bloom}
