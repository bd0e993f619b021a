"""RoPE in Hugging Face configs, both spellings: `rope_theta` with `rope_scaling`, and the newer nested `rope_parameters`.

A value given twice must agree. What is not understood is refused by its name, never ignored.
"""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .rope import Rope
from .spec import check_count, check_positive

DEFAULT_THETA = 10000.0  # transformers: RotaryEmbeddingConfigMixin.default_theta
# rope types whose length of training is a field of the scaling, or max_position_embeddings when it is missing
_ORIGINAL_LENGTH = ("llama3", "yarn", "longrope")


def rope_from_config(
    config: dict, theta: float = DEFAULT_THETA, share: float = 1.0, aliases: dict | None = None, layout: str = "half"
) -> Rope:
    """The rotation of a config in the spelling of Llama: head_dim, rope_theta, rope_scaling or rope_parameters.

    theta, share: the family's rope_theta and partial_rotary_factor where the config has none. aliases: the family's
    older names of scalings. Raises FormatError or UnsupportedError naming the key.
    """
    scaling, given_theta, given_share = _rope_parameters(config)
    theta = theta if given_theta is None else given_theta
    share = share if given_share is None else given_share
    if share != 0 and check_positive("partial_rotary_factor", share) > 1:
        raise FormatError(f"partial_rotary_factor is {share}; allowed is 0 to 1")
    head_dim = head_dim_of(config)
    if not isinstance(scaling["rope_type"], str):
        raise FormatError(f"rope_type is a {type(scaling['rope_type']).__name__}; the name of a scaling is needed")
    scaling["rope_type"] = kind = (aliases or {}).get(scaling["rope_type"], scaling["rope_type"])
    rotary_dim = head_dim
    if kind == "proportional":
        scaling["partial_rotary_factor"] = share
    elif share != 1:
        rotary_dim = int(head_dim * share)
    length = config.get("max_position_embeddings")
    if kind == "dynamic":
        scaling["max_position_embeddings"] = required(config, "max_position_embeddings")
    if kind in _ORIGINAL_LENGTH:
        outer, inner = config.get("original_max_position_embeddings"), scaling.get("original_max_position_embeddings")
        if None not in (outer, inner) and outer != inner:
            raise FormatError(f"original_max_position_embeddings is {outer!r}, and {inner!r} among the rope parameters; make them one")
        original = next((value for value in (outer, inner, length) if value is not None), None)
        if original is None:
            raise FormatError("original_max_position_embeddings is missing, and max_position_embeddings too")
        scaling["original_max_position_embeddings"] = original
        if kind in ("yarn", "longrope") and scaling.get("factor") is None and length is not None:
            scaling["factor"] = check_positive("max_position_embeddings", length) / check_positive(
                "original_max_position_embeddings", original
            )
    scaling = {key: value for key, value in scaling.items() if value is not None}
    return Rope(head_dim, rotary_dim, theta, layout, scaling)


def ropes_by_layer_kind(config: dict, thetas: dict[str, float], older: dict[str, str], scaled: tuple[str, ...]) -> dict[str, Rope]:
    """{layer kind: its rotation} of a config whose layers differ, nested `rope_parameters` or the older flat keys.

    thetas: kind → the family's default; older: kind → the flat key of its theta; scaled: the kinds that an older flat
    `rope_scaling` stretches. Raises as `rope_from_config`.
    """
    nested = {} if config.get("rope_parameters") is None else config["rope_parameters"]
    if not isinstance(nested, dict):
        raise FormatError(f"rope_parameters is {nested!r}; allowed is a dict or null")
    for kind, part in nested.items():
        if kind not in thetas or not (part is None or isinstance(part, dict)):
            raise FormatError(f"rope_parameters has {kind!r}: {part!r}; allowed are dicts for {', '.join(thetas)}")
    flat = ("rope_parameters", "rope_scaling", "rope_theta", *older.values())
    rest = {key: value for key, value in config.items() if key not in flat}
    result = {}
    for kind, theta in thetas.items():
        one = dict(rest)
        if nested.get(kind) is not None:
            one["rope_parameters"] = nested[kind]
        if kind in scaled and config.get("rope_scaling") is not None:
            one["rope_scaling"] = config["rope_scaling"]
        one["rope_theta"] = config.get(older[kind])
        result[kind] = rope_from_config(one, theta)
    return result


def _rope_parameters(config: dict) -> tuple[dict, float | None, float | None]:
    """(scaling with rope_type, theta, partial_rotary_factor) from either spelling; None for what it does not say."""
    found = {}
    for key in ("rope_scaling", "rope_parameters"):
        value = config.get(key)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise FormatError(f"{key} is {value!r}; allowed is a dict or null")
        if any(isinstance(part, dict) for part in value.values()):
            raise UnsupportedError(f"{key} has one rotation per layer kind ({', '.join(value)}); this family has one for all layers")
        value = dict(value)
        kind = value.pop("type", None)
        if kind is not None and value.setdefault("rope_type", kind) != kind:
            raise FormatError(f"{key} says type {kind!r} and rope_type {value['rope_type']!r}; they must agree")
        value.setdefault("rope_type", "default")
        found[key] = value
    scaling = dict(found.get("rope_parameters", found.get("rope_scaling", {"rope_type": "default"})))
    for key, value in found.get("rope_scaling", {}).items():
        scaling[key] = agree(key, scaling.get(key), value, "rope_parameters", "rope_scaling")
    theta = agree("rope_theta", scaling.pop("rope_theta", None), config.get("rope_theta"), "rope_parameters", "the config")
    share = agree(
        "partial_rotary_factor",
        scaling.pop("partial_rotary_factor", None),
        config.get("partial_rotary_factor"),
        "rope_parameters",
        "the config",
    )
    return scaling, theta, share


def agree(key: str, first, second, where_first: str, where_second: str):
    """The one value of a key that may stand in two places. Raises FormatError when they differ."""
    if first is not None and second is not None and first != second:
        raise FormatError(f"{key} is {first!r} in {where_first} and {second!r} in {where_second}; they must agree")
    return second if first is None else first


def required(config: dict, key: str):
    if config.get(key) is None:
        raise FormatError(f"{key} is missing from the config")
    return config[key]


def inner(config: dict, key: str) -> dict:
    """The dict under a key, or the config itself where there is none."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise FormatError(f"{key} is {value!r}; allowed is a dict")
    return config if value is None else value


def check_list(name: str, value, length: int, allowed: tuple) -> list:
    """`value` if it is a list of `length` entries, each one of `allowed`. Raises FormatError."""
    if not isinstance(value, list) or len(value) != length or any(entry not in allowed for entry in value):
        raise FormatError(f"{name} is {value!r}; allowed is a list of {length} entries, each one of {', '.join(map(str, allowed))}")
    return value


def head_dim_of(config: dict) -> int:
    """head_dim, or hidden_size / num_attention_heads."""
    if config.get("head_dim") is not None:
        return check_count("head_dim", config["head_dim"], 1, 2**16)
    heads = check_count("num_attention_heads", required(config, "num_attention_heads"), 1, 2**16)
    hidden = check_count("hidden_size", required(config, "hidden_size"), 1, 2**24)
    if hidden % heads:
        raise FormatError(f"hidden_size is {hidden}; without head_dim it must be a multiple of num_attention_heads {heads}")
    return hidden // heads
