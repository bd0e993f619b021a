"""Position encodings from GGUF metadata: key → value, as a GGUF file carries them.

Which layout an architecture uses is llama.cpp's table (`llama_model_rope_type`): NORM is interleaved, NEOX is half.
"""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .learned import Learned
from .rope import Rope
from .rope_scaling import Factors, Linear, LongRope, Scaling, Yarn
from .spec import Spec, check_count

INTERLEAVED = ("llama", "smollm3")
HALF = ("qwen2", "qwen3", "gemma", "gemma2", "phi2", "phi3", "gptneox", "stablelm", "starcoder2", "falcon")
DEFAULT_THETA = 10000.0


def from_gguf(metadata: dict, rope_factors=None, long_factors=None, short_factors=None) -> Spec:
    """The position encoding of a GGUF model.

    metadata: the file's keys and values. rope_factors: the values of its tensor `rope_freqs.weight` [rotary_dim/2], by which
    Llama 3 files divide their frequencies, or None. long_factors, short_factors: those of `rope_factors_long.weight` and
    `rope_factors_short.weight` (LongRoPE: Phi-3), or None. Raises UnsupportedError for an architecture or scaling that is not
    known, FormatError naming a key that is missing or out of range.
    """
    architecture = metadata.get("general.architecture")
    if architecture in INTERLEAVED or architecture in HALF:
        return _rope(metadata, architecture, rope_factors, (long_factors, short_factors))
    tensors = {"rope_freqs.weight": rope_factors, "rope_factors_long.weight": long_factors, "rope_factors_short.weight": short_factors}
    for name, values in tensors.items():
        if values is not None:
            raise FormatError(f"{name} is there, but {architecture!r} has no rotation")
    if architecture in ("bloom", "mpt"):
        heads = check_count(f"{architecture}.attention.head_count", _required(metadata, architecture, "attention.head_count"), 1, 2**16)
        return Alibi(heads, metadata.get(f"{architecture}.attention.max_alibi_bias", 8.0))
    if architecture in ("gpt2", "bert"):
        return Learned(check_count(f"{architecture}.context_length", _required(metadata, architecture, "context_length"), 1, 2**24))
    known = ", ".join((*INTERLEAVED, *HALF, "bloom", "mpt", "gpt2", "bert"))
    raise UnsupportedError(f"general.architecture is {architecture!r}; position encodings are known for {known}")


def _required(metadata: dict, architecture: str, key: str):
    name = f"{architecture}.{key}"
    if metadata.get(name) is None:
        raise FormatError(f"{name} is missing from the GGUF metadata")
    return metadata[name]


def _rope(metadata: dict, architecture: str, rope_factors, long_and_short: tuple) -> Rope:
    def get(key: str, default=None):
        return metadata.get(f"{architecture}.{key}", default)

    head_dim = get("attention.key_length")
    if head_dim is None:
        heads = check_count(f"{architecture}.attention.head_count", _required(metadata, architecture, "attention.head_count"), 1, 2**16)
        width = check_count(f"{architecture}.embedding_length", _required(metadata, architecture, "embedding_length"), 1, 2**24)
        if width % heads:
            raise FormatError(f"{architecture}.embedding_length is {width}; it must be a multiple of head_count {heads}")
        head_dim = width // heads
    layout = "interleaved" if architecture in INTERLEAVED else "half"
    scaling = _scaling(get, architecture)
    if rope_factors is not None:
        if scaling is not None:
            kind = scaling.rope_type
            raise UnsupportedError(f"{architecture} has rope_freqs.weight and rope.scaling.type {kind!r}; known is one of them")
        scaling = Factors([float(f) for f in rope_factors])
    if any(factors is not None for factors in long_and_short):
        if scaling is not None:
            raise UnsupportedError(f"{architecture} has rope_factors_long.weight beside another scaling, {scaling.rope_type!r}; known is one")
        scaling = _longrope(get, architecture, *long_and_short)
    return Rope(head_dim, get("rope.dimension_count"), get("rope.freq_base", DEFAULT_THETA), layout, scaling)


def _longrope(get, architecture: str, long_factors, short_factors) -> LongRope:
    """llama.cpp takes the long factors in a context above the original length; attn_factor is the factor on cos and sin."""
    if long_factors is None or short_factors is None:
        raise FormatError("rope_factors_long.weight and rope_factors_short.weight must both be there")
    length, original = get("context_length"), get("rope.scaling.original_context_length")
    for key, value in {"context_length": length, "rope.scaling.original_context_length": original}.items():
        check_count(f"{architecture}.{key}", value, 2, 2**31)
    short, long = ([float(f) for f in factors] for factors in (short_factors, long_factors))
    return LongRope(short, long, original, length / original, get("rope.scaling.attn_factor", 1.0))


def _scaling(get, architecture: str) -> Scaling | None:
    kind = get("rope.scaling.type", "none")
    factor = get("rope.scaling.factor", get("rope.scale_linear", 0.0))
    if kind == "none" and not factor:
        return None
    if kind in ("none", "linear"):
        return Linear(factor) if factor else None
    if kind == "yarn":
        original = get("rope.scaling.original_context_length", get("context_length"))
        if original is None:
            raise FormatError(f"{architecture}.rope.scaling.original_context_length is missing from the GGUF metadata")
        given = get("rope.scaling.attn_factor", 1.0)
        if given != 1.0:
            raise UnsupportedError(f"{architecture}.rope.scaling.attn_factor is {given}; known is 1")
        return Yarn(factor, original, get("rope.scaling.yarn_beta_fast", 32.0), get("rope.scaling.yarn_beta_slow", 1.0))
    raise UnsupportedError(f"{architecture}.rope.scaling.type is {kind!r}; known are none, linear, yarn")
