"""Rotary settings of a Hugging Face config, in both spellings.

Old: ``rope_theta`` and ``rope_scaling`` at the top level. New: a nested
``rope_parameters`` with ``rope_type`` and ``rope_theta``.
"""

from __future__ import annotations

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import Spec, from_config

from .config import Config
from .shorten import shorten

DEFAULT_THETA = 10000.0
NEUTRAL_KEYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_rope_theta(config: Config) -> float:
    """theta of plain rotary positions over the whole head.

    Raises UnsupportedError for a rope type other than default and for partial rotary;
    FormatError when the spellings disagree or a value is out of range.
    """
    thetas: dict[str, float] = {}
    types: dict[str, str] = {}
    if config.values.get("rope_theta") is not None:
        thetas["rope_theta"] = config.number("rope_theta")
    _check_partial(config, "partial_rotary_factor")
    for group in ("rope_scaling", "rope_parameters"):
        nested = config.values.get(group)
        if nested is None:
            continue
        if not isinstance(nested, dict):
            raise config.wrong(group, nested, "an object or null")
        inner = Config(nested, f"{config.origin}: {group}")
        for key in ("rope_type", "type"):
            if nested.get(key) is not None:
                types[f"{group}.{key}"] = inner.text(key, "default")
        if nested.get("rope_theta") is not None:
            thetas[f"{group}.rope_theta"] = inner.number("rope_theta")
        _check_partial(inner, "partial_rotary_factor")

    _check_equal(config, types)
    rope_type = next(iter(types.values()), "default")
    if rope_type not in ("default", "none"):
        raise UnsupportedError(
            f"{config.origin}: rope type {shorten(rope_type)} ({next(iter(types))}) is not supported; "
            "supported: 'default'"
        )
    for group in ("rope_scaling", "rope_parameters"):
        extra = sorted(set(config.values.get(group) or {}) - NEUTRAL_KEYS)
        if extra:
            raise FormatError(
                f"{config.origin}: {group} key {shorten(extra[0])} has no meaning for rope type '{rope_type}'; "
                f"allowed keys: {', '.join(sorted(NEUTRAL_KEYS))}"
            )
    _check_equal(config, thetas)
    name, theta = next(iter(thetas.items()), ("rope_theta", DEFAULT_THETA))
    if not 1.0 <= theta <= 1e12:
        raise config.wrong(name, theta, "a number from 1 to 1e12")
    return theta


def _check_partial(config: Config, key: str) -> None:
    factor = config.number(key, default=1.0)
    if factor != 1.0:
        raise UnsupportedError(
            f"{config.origin}: {key} {factor} is not supported; supported: 1 (every dimension of the head rotates)"
        )


def _check_equal(config: Config, found: dict[str, float] | dict[str, str]) -> None:
    names = list(found)
    for name in names[1:]:
        if found[name] != found[names[0]]:
            raise FormatError(
                f"{config.origin}: {names[0]} is {shorten(found[names[0]])} but {name} is {shorten(found[name])}; "
                "they mean the same, so they must be equal; remove one"
            )


def read_encoding(config: Config, model_type: str) -> Spec:
    """The position encoding that `edgepos.positions` finds in a config of ``model_type``; errors name the file and the key."""
    try:
        return from_config(config.values | {"model_type": model_type})
    except EdgePosError as error:
        raise type(error)(f"{config.origin}: {error}") from None


def head_dim_of(config: Config, dim: int, heads: int) -> int:
    """Components of a head; raises FormatError when the heads do not divide the width."""
    if dim % heads:
        raise FormatError(f"{config.origin}: width {dim} is not a multiple of {heads} heads; correct one")
    return dim // heads
