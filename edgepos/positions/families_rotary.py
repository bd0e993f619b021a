"""Families with rotary positions: what their config classes assume where a config is silent, and which layers rotate."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import FormatError
from .config import agree, check_list, inner, required, rope_from_config, ropes_by_layer_kind
from .hybrid import Hybrid, in_some
from .multi_rope import MRope
from .rope import Rope
from .spec import Spec, check_count


@dataclass(frozen=True)
class Rotary:
    """theta, share (partial_rotary_factor) and head_dim (None: hidden_size / heads) where a config has none; layout; aliases: older
    names of scalings; scaling: rope_parameters where there are none; renamed: names of our keys in this family.
    """

    theta: float = 10000.0
    share: float = 1.0
    head_dim: int | None = None
    layout: str = "half"
    aliases: dict = field(default_factory=dict)
    scaling: dict | None = None
    renamed: dict = field(default_factory=dict)

    def __call__(self, config: dict) -> Rope:
        config = dict(config)
        for name, theirs in self.renamed.items():
            config[name] = agree(name, config.get(name), config.get(theirs), name, theirs)
        if config.get("head_dim") is None:
            config["head_dim"] = self.head_dim
        if self.scaling is not None and config.get("rope_parameters") is None and config.get("rope_scaling") is None:
            config["rope_parameters"] = self.scaling
        return rope_from_config(config, self.theta, self.share, self.aliases, self.layout)


@dataclass(frozen=True)
class Latent:
    """DeepSeek's attention: q and k have a part that rotates beside one that does not; the spec is of the former alone."""

    layout: str
    head_dim: int

    def __call__(self, config: dict) -> Rope:
        size = config.get("qk_rope_head_dim")
        interleaved = config.get("rope_interleave")
        if interleaved not in (None, True, False):
            raise FormatError(f"rope_interleave is {interleaved!r}; allowed are true and false")
        layout = self.layout if interleaved is None else "interleaved" if interleaved else "half"
        return rope_from_config(config | {"head_dim": self.head_dim if size is None else size}, layout=layout)


def _gptj(config: dict) -> Rope:
    """The first rotary_dim components of each head, in pairs of neighbours."""
    heads = check_count("n_head", agree("n_head", config.get("n_head"), config.get("num_attention_heads"), "n_head", "num_attention_heads"), 1, 2**16)
    width = agree("n_embd", config.get("n_embd"), config.get("hidden_size"), "n_embd", "hidden_size")
    if check_count("n_embd", width, heads, 2**24) % heads:
        raise FormatError(f"n_embd is {width}; it must be a multiple of n_head {heads}")
    return Rope(width // heads, check_count("rotary_dim", config.get("rotary_dim", 64), 2, 2**16), layout="interleaved")


def _roformer(config: dict) -> Rope:
    return Rope(rope_from_config(config).head_dim, layout="interleaved")


def _gemma3(config: dict) -> dict[str, Spec]:
    """Full layers with the long base and the scaling, sliding ones with the local base."""
    text = inner(config, "text_config")
    return ropes_by_layer_kind(
        text if text.get("head_dim") is not None else text | {"head_dim": 256},
        {"full_attention": 1e6, "sliding_attention": 1e4},
        {"full_attention": "rope_theta", "sliding_attention": "rope_local_base_freq"},
        ("full_attention",),
    )


def _olmo3(config: dict) -> dict[str, Spec]:
    """One base, but only full layers are scaled."""
    kinds = ("full_attention", "sliding_attention")
    return ropes_by_layer_kind(config, dict.fromkeys(kinds, 500000.0), dict.fromkeys(kinds, "rope_theta"), kinds[:1])


def _modernbert(config: dict) -> dict[str, Spec]:
    kinds = ("full_attention", "sliding_attention")
    return ropes_by_layer_kind(
        config,
        {"full_attention": 160000.0, "sliding_attention": 1e4},
        {"full_attention": "global_rope_theta", "sliding_attention": "local_rope_theta"},
        kinds,
    )


def _layers(config: dict) -> int:
    return check_count("num_hidden_layers", required(config, "num_hidden_layers"), 1, 4096)


def _marked(rotary: Rotary):
    """Families whose `no_rope_layers` holds 1 where a layer rotates; else every layer but each no_rope_layer_interval-th one."""

    def read(config: dict) -> Hybrid:
        config = inner(config, "text_config")
        layers = _layers(config)
        every = check_count("no_rope_layer_interval", config.get("no_rope_layer_interval", 4), 1, 4096)
        turns = config.get("no_rope_layers") or [int((i + 1) % every != 0) for i in range(layers)]
        return in_some(rotary(config), check_list("no_rope_layers", turns, layers, (0, 1)))

    return read


def _sliding(rotary: Rotary, without_window: bool):
    """Families that rotate in sliding layers only; without_window: whether all layers rotate in a config without a window."""

    def read(config: dict) -> Hybrid:
        layers = _layers(config)
        every = config.get("sliding_window_pattern", 4)
        kinds = config.get("layer_types")
        if kinds is None:
            check_count("sliding_window_pattern", every, 1, 4096)
            kinds = ["sliding_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
        check_list("layer_types", kinds, layers, ("sliding_attention", "full_attention"))
        if config.get("sliding_window", 4096) is None:
            return in_some(rotary(config), [without_window] * layers)
        return in_some(rotary(config), [kind == "sliding_attention" for kind in kinds])

    return read


@dataclass(frozen=True)
class Multimodal:
    """Text models with M-RoPE: the sections stand among the rope parameters."""

    theta: float
    sections: tuple[int, ...]
    interleaved: bool = False
    head_dim: int | None = None

    def __call__(self, config: dict) -> MRope:
        text = dict(inner(config, "text_config"))
        sections = None
        for key in ("rope_scaling", "rope_parameters"):
            if isinstance(text.get(key), dict):
                part = dict(text[key])
                sections = agree("mrope_section", sections, part.pop("mrope_section", None), "rope_scaling", "rope_parameters")
                turns = part.pop("mrope_interleaved", self.interleaved)
                if turns is not self.interleaved:
                    raise FormatError(f"mrope_interleaved is {turns!r}; {config.get('model_type')} has {self.interleaved}")
                text[key] = part
        if text.get("head_dim") is None:
            text["head_dim"] = self.head_dim
        rope = rope_from_config(text, theta=self.theta, aliases={"mrope": "default"})
        return MRope(rope, self.sections if sections is None else sections, self.interleaved)


_NEOX = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_GPT_OSS = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 4096}

ROTARY = {
    name: Rotary()
    for name in (
        *("llama", "mistral", "ministral", "qwen2", "qwen2_moe", "qwen3_moe", "starcoder2", "olmo", "olmo2", "olmoe", "granite", "granitemoe"),
        *("hunyuan_v1_dense", "doge"),
    )
} | {
    "mixtral": Rotary(1e6),
    "qwen3": Rotary(head_dim=128),
    "qwen3_next": Rotary(share=0.25, head_dim=256),
    "gemma": Rotary(head_dim=256),
    "gemma2": Rotary(head_dim=256),
    "vaultgemma": Rotary(head_dim=256),
    "gemma3": _gemma3,
    "gemma3_text": _gemma3,
    "gemma3n_text": _gemma3,
    "modernbert": _modernbert,
    "modernbert-decoder": _modernbert,
    "olmo3": _olmo3,
    "phi": Rotary(share=0.5),
    "phi3": Rotary(aliases={"su": "longrope", "yarn": "longrope"}),
    "phimoe": Rotary(1e6),
    "persimmon": Rotary(share=0.5),
    "stablelm": Rotary(share=0.25),
    "nemotron": Rotary(share=0.5),
    "gpt_neox": Rotary(share=0.25, renamed=_NEOX),
    "gpt_neox_japanese": Rotary(renamed=_NEOX),
    "gpt_oss": Rotary(150000.0, head_dim=64, scaling=_GPT_OSS),
    "seed_oss": Rotary(head_dim=128),
    "diffllama": Rotary(),
    "arcee": Rotary(),
    "apertus": Rotary(12e6, scaling=_LLAMA3),
    "bitnet": Rotary(500000.0),
    "mllama_text_model": Rotary(500000.0),
    "lfm2": Rotary(1e6),
    "moshi": Rotary(),
    "cohere": Rotary(500000.0, layout="interleaved"),
    "glm": Rotary(share=0.5, head_dim=128, layout="interleaved"),
    "glm4": Rotary(share=0.5, head_dim=128, layout="interleaved"),
    "helium": Rotary(100000.0, head_dim=128, layout="interleaved"),
    "ernie4_5": Rotary(500000.0, head_dim=128, layout="interleaved"),
    "gptj": _gptj,
    "codegen": _gptj,
    "roformer": _roformer,
    "nomic_bert": Rotary(1000.0),
    "eurobert": Rotary(),
    "jina_embeddings_v3": Rotary(20000.0),
    "gte": Rotary(160000.0),
    "deepseek_v2": Latent("interleaved", 64),
    "deepseek_v3": Latent("interleaved", 64),
    "minicpm3": Latent("half", 32),
    "smollm3": _marked(Rotary(2e6)),
    "llama4_text": _marked(Rotary(500000.0, head_dim=128, layout="interleaved")),
    "llama4": _marked(Rotary(500000.0, head_dim=128, layout="interleaved")),
    "cohere2": _sliding(Rotary(layout="interleaved"), without_window=False),
    "exaone4": _sliding(Rotary(), without_window=True),
    "qwen2_vl_text": Multimodal(1e6, (16, 24, 24)),
    "qwen2_5_vl_text": Multimodal(1e6, (16, 24, 24)),
    "qwen3_vl_text": Multimodal(500000.0, (24, 20, 20), True, 128),
}
