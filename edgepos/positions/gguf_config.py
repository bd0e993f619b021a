"""Position encodings from GGUF metadata: key → value, as a GGUF file carries them.

Which layout an architecture uses is llama.cpp's table (`llama_model_rope_type`): NORM is interleaved, NEOX is half. What its loader
fixes in code (Gemma 3's local base, T5's longest distance, which layers of SmolLM3 rotate) is fixed here too.
"""

from __future__ import annotations

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .hybrid import in_some
from .learned import Learned
from .multi_rope import MRope
from .relative import T5Bias
from .rope import Rope
from .rope_scaling import Factors, Linear, LongRope, Scaling, Yarn
from .spec import Spec, check_count

INTERLEAVED = (
    *("llama", "smollm3", "deci", "internlm2", "minicpm", "xverse", "command-r", "cohere2", "olmo", "arctic", "deepseek", "deepseek2", "plm"),
    *("chatglm", "glm4", "granite", "granitemoe", "arcee", "ernie4_5", "baichuan"),
)
HALF = (
    *("qwen", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "phi2", "phi3", "phimoe", "gptneox", "stablelm"),
    *("starcoder2", "falcon", "olmo2", "olmoe", "bitnet", "nomic-bert", "jina-bert-v3", "eurobert", "modern-bert", "openelm", "codeshell"),
    *("orion", "nemotron", "exaone", "minicpm3", "dots1", "hunyuan-dense", "gpt-oss", "lfm2", "seed_oss", "apertus", "grok", "dbrx", "plamo"),
    *("qwen2vl", "qwen3vl"),
)
LATENT = ("deepseek2", "minicpm3")  # the rotated part of q and k stands apart: its size is rope.dimension_count
SECTIONS = {"qwen2vl": False, "qwen3vl": True}  # M-RoPE, interleaved or not
LOCAL = ("gemma3", "modern-bert")  # a base of their own, and no scaling, in sliding layers
SOME_LAYERS = {"smollm3": 4, "cohere2": 4}  # every layer but each n-th one rotates
ALIBI = {"bloom": False, "mpt": False, "jais": False, "refact": False, "jina-bert-v2": True}  # symmetric or not
LEARNED = ("gpt2", "bert", "starcoder")
DEFAULT_THETA = LOCAL_THETA = 10000.0
T5_DISTANCE = 128


def from_gguf(metadata: dict, rope_factors=None, long_factors=None, short_factors=None) -> Spec | dict[str, Spec]:
    """The position encoding of a GGUF model, or {part: spec} as `from_config` gives it.

    metadata: the file's keys and values. rope_factors: the values of its tensor `rope_freqs.weight` [rotary_dim/2], by which
    Llama 3 files divide their frequencies, or None. long_factors, short_factors: those of `rope_factors_long.weight` and
    `rope_factors_short.weight` (LongRoPE: Phi-3), or None. Raises UnsupportedError for an architecture or scaling that is not
    known, FormatError naming a key that is missing or out of range.
    """
    architecture = metadata.get("general.architecture")
    if _rotates(metadata, architecture):
        return _rotation(metadata, architecture, rope_factors, (long_factors, short_factors))
    tensors = {"rope_freqs.weight": rope_factors, "rope_factors_long.weight": long_factors, "rope_factors_short.weight": short_factors}
    for name, values in tensors.items():
        if values is not None:
            raise FormatError(f"{name} is there, but {architecture!r} has no rotation")
    if architecture in ALIBI or architecture == "baichuan":
        most = metadata.get(f"{architecture}.attention.max_alibi_bias", 8.0)
        if architecture == "mpt" and most == 0:
            return Learned(_count(metadata, architecture, "context_length", 2**24))
        return Alibi(_count(metadata, architecture, "attention.head_count", 2**16), most, ALIBI.get(architecture, False))
    if architecture in LEARNED:
        return Learned(_count(metadata, architecture, "context_length", 2**24))
    if architecture in ("t5", "t5encoder"):
        buckets = _required(metadata, architecture, "attention.relative_buckets_count")
        encoder = T5Bias(buckets, T5_DISTANCE, True)
        return encoder if architecture == "t5encoder" else {"encoder": encoder, "decoder": T5Bias(buckets, T5_DISTANCE, False)}
    known = ", ".join(sorted((*INTERLEAVED, *HALF, *ALIBI, *LEARNED, "t5", "t5encoder")))
    raise UnsupportedError(f"general.architecture is {architecture!r}; position encodings are known for {known}")


def _rotates(metadata: dict, architecture) -> bool:
    """Baichuan's 13B model, which has 40 layers, has ALiBi instead."""
    if architecture == "baichuan":
        return _count(metadata, architecture, "block_count", 4096) != 40
    return architecture in INTERLEAVED or architecture in HALF


def _count(metadata: dict, architecture: str, key: str, most: int) -> int:
    return check_count(f"{architecture}.{key}", _required(metadata, architecture, key), 1, most)


def _rotation(metadata: dict, architecture: str, rope_factors, long_and_short: tuple) -> Spec | dict[str, Spec]:
    rope = _rope(metadata, architecture, rope_factors, long_and_short)
    if architecture in SECTIONS:
        sections = _required(metadata, architecture, "rope.dimension_sections")
        if not isinstance(sections, (list, tuple)) or len(sections) != 4:
            raise FormatError(f"{architecture}.rope.dimension_sections is {sections!r}; allowed is a list of 4 pair counts")
        return MRope(rope, tuple(sections) if sections[3] else tuple(sections[:3]), SECTIONS[architecture])
    if architecture in SOME_LAYERS:
        layers = _count(metadata, architecture, "block_count", 4096)
        return in_some(rope, [(i + 1) % SOME_LAYERS[architecture] for i in range(layers)])
    if architecture in LOCAL:
        theta = metadata.get(f"{architecture}.rope.freq_base_swa", LOCAL_THETA)
        return {"full_attention": rope, "sliding_attention": Rope(rope.head_dim, rope.rotary_dim, theta, rope.layout)}
    return rope


def _required(metadata: dict, architecture: str, key: str):
    name = f"{architecture}.{key}"
    if metadata.get(name) is None:
        raise FormatError(f"{name} is missing from the GGUF metadata")
    return metadata[name]


def _rope(metadata: dict, architecture: str, rope_factors, long_and_short: tuple) -> Rope:
    def get(key: str, default=None):
        return metadata.get(f"{architecture}.{key}", default)

    head_dim = _required(metadata, architecture, "rope.dimension_count") if architecture in LATENT else get("attention.key_length")
    if head_dim is None:
        heads, width = _count(metadata, architecture, "attention.head_count", 2**16), _count(metadata, architecture, "embedding_length", 2**24)
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
        # DeepSeek's mscale and mscale_all_dim are equal, so cos and sin have no factor; what is left of them is in the scores' scale
        factor_on_tables = 1.0 if architecture in LATENT and get("rope.scaling.yarn_log_multiplier") is not None else None
        betas = get("rope.scaling.yarn_beta_fast", 32.0), get("rope.scaling.yarn_beta_slow", 1.0)
        return Yarn(factor, original, *betas, attention_factor=factor_on_tables)
    raise UnsupportedError(f"{architecture}.rope.scaling.type is {kind!r}; known are none, linear, yarn")
