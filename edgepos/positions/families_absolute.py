"""Families with positions in the embeddings, ALiBi or a learned bias."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .config import agree, required, rope_from_config
from .hybrid import Hybrid
from .learned import Learned
from .none import NoPosition
from .relative import T5Bias
from .rope import Rope
from .sinusoidal import Sinusoidal
from .spec import Spec, check_count, check_flag


def heads_of(config: dict, *names: str) -> int:
    """The head count under any of its names, which must agree."""
    value = None
    for name in names:
        value = agree("heads", value, config.get(name), "another key", name)
    return check_count(names[0], value, 1, 2**16)


def _count(config: dict, *names: str, default: int | None = None) -> int:
    """A number of positions under any of its names, which must agree."""
    value = None
    for name in names:
        value = agree("positions", value, config.get(name), names[0], name)
    return check_count(names[0], default if value is None else value, 1, 2**23)


def _pad(config: dict, default: int) -> int:
    pad_id = config.get("pad_token_id")
    return check_count("pad_token_id", default if pad_id is None else pad_id, 0, 2**20)


def _absolute(config: dict, *others: str) -> str:
    """position_embedding_type: absolute, or one of the others."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind not in ("absolute", *others):
        raise UnsupportedError(f"position_embedding_type is {kind!r}; known is {', '.join(('absolute', *others))}")
    return kind


def _bert(config: dict) -> Learned:
    _absolute(config)
    return Learned(_count(config, "max_position_embeddings"))


def _roberta(config: dict) -> Learned:
    _absolute(config)
    return Learned.roberta(_count(config, "max_position_embeddings"), _pad(config, 1))


def _esm(config: dict) -> Learned | Rope:
    return rope_from_config(config) if _absolute(config, "rotary") == "rotary" else _roberta(config)


def _gpt2(config: dict) -> Learned:
    return Learned(_count(config, "n_positions", "max_position_embeddings"))


def _opt(config: dict) -> Learned:
    """Two rows before the first; a padding mask takes tokens out of the count."""
    return Learned.opt(_count(config, "max_position_embeddings") + 2, _pad(config, 1))


def _bart(config: dict) -> Learned:
    """Two rows before the first; every token counts."""
    return Learned(_count(config, "max_position_embeddings", default=1024) + 2, 2)


def _blenderbot(config: dict) -> Learned:
    return Learned(_count(config, "max_position_embeddings", default=128))


def _mpnet(config: dict) -> Hybrid:
    """RoBERTa's rows with padding id 1, and T5's bidirectional bias, one table for all layers."""
    buckets = check_count("relative_attention_num_buckets", config.get("relative_attention_num_buckets", 32), 4, 512)
    layers = check_count("num_hidden_layers", required(config, "num_hidden_layers"), 1, 4096)
    rows = Learned.roberta(_count(config, "max_position_embeddings", default=512), 1)
    return Hybrid(rows, (T5Bias(buckets, 128, True),) * layers)


def _t5(config: dict) -> dict[str, Spec]:
    buckets = config.get("relative_attention_num_buckets", 32)
    longest = config.get("relative_attention_max_distance", 128)
    return {"encoder": T5Bias(buckets, longest, True), "decoder": T5Bias(buckets, longest, False)}


def _umt5(config: dict) -> dict[str, Spec]:
    """T5's rule with a table per layer."""
    encoder = config.get("num_layers", 8)
    decoder = config.get("num_decoder_layers")
    counts = {"encoder": encoder, "decoder": encoder if decoder is None else decoder}
    return {part: replace(spec, layers=counts[part]) for part, spec in _t5(config).items()}


def _sinusoidal_if(flag: str, width: str, default: int):
    """Sinusoids of the config's width where `flag` is true, else learned rows."""

    def read(config: dict) -> Learned | Sinusoidal:
        if check_flag(flag, config.get(flag, False)):
            return Sinusoidal(check_count(width, config.get(width, default), 2, 2**17))
        return Learned(_count(config, "max_position_embeddings", default=512))

    return read


def _whisper(config: dict) -> dict[str, Spec]:
    """Sinusoids over the frames of the audio, learned rows in the decoder."""
    dim = check_count("d_model", config.get("d_model", 384), 4, 2**17)
    tokens = _count(config, "max_target_positions", default=448)
    return {"encoder": Sinusoidal(dim, "concatenated", "half_minus_one"), "decoder": Learned(tokens)}


def _fairseq(config: dict) -> Sinusoidal:
    """fairseq's table: the first position is row padding id + 1; padding tokens are not counted and get no row."""
    return Sinusoidal(required(config, "d_model"), "concatenated", "half_minus_one", start=_pad(config, 1) + 1)


def _concatenated(width: str, denominator: str = "half", **rest):
    """All sines, then all cosines (or as `rest` says), of the config's width."""
    return lambda config: Sinusoidal(required(config, width), "concatenated", denominator, **rest)


def _bloom(config: dict) -> Alibi:
    return Alibi(heads_of(config, "n_head", "num_attention_heads"))


def _falcon(config: dict) -> Rope | Alibi:
    """Falcon with ALiBi rounds the slopes to bfloat16 and scales scores and bias together by 1/sqrt(head_dim)."""
    if not check_flag("alibi", config.get("alibi") or False):
        return rope_from_config(config)
    heads = heads_of(config, "num_attention_heads", "n_head")
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
        return Alibi(heads_of(config, "n_heads", "num_attention_heads"), attention.get("alibi_bias_max", 8))
    if check_flag("learned_pos_emb", config.get("learned_pos_emb", True)):
        return Learned(required(config, "max_seq_len"))
    return NoPosition()


ABSOLUTE = {
    **dict.fromkeys(("bert", "albert", "electra", "mobilebert", "bert-generation", "gpt_neo"), _bert),
    **dict.fromkeys(("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "roberta-prelayernorm", "longformer"), _roberta),
    **dict.fromkeys(("gpt2", "gpt_bigcode", "openai-gpt"), _gpt2),
    **dict.fromkeys(("bart", "mbart", "plbart", "biogpt"), _bart),
    "opt": _opt,
    **dict.fromkeys(("blenderbot", "blenderbot-small"), _blenderbot),
    **dict.fromkeys(("t5", "mt5", "switch_transformers"), _t5),
    **dict.fromkeys(("m2m_100", "nllb-moe", "speech_to_text"), _fairseq),
    **dict.fromkeys(("marian", "pegasus"), _concatenated("d_model")),
    **dict.fromkeys(("xlm", "flaubert"), _sinusoidal_if("sinusoidal_embeddings", "emb_dim", 2048)),
    "umt5": _umt5,
    "esm": _esm,
    "mpnet": _mpnet,
    "distilbert": _sinusoidal_if("sinusoidal_pos_embds", "dim", 768),
    "whisper": _whisper,
    "xglm": _concatenated("d_model", "half_minus_one", start=2),
    "ctrl": _concatenated("n_embd"),
    "musicgen_decoder": _concatenated("hidden_size", "half_minus_one", first="cos"),
    "bloom": _bloom,
    "falcon": _falcon,
    "mpt": _mpt,
}
