"""The pre-tokenizers of byte-level BPE that the runtime has, by their steps in a tokenizer.json and their names in GGUF."""

from __future__ import annotations

from typing import Any

_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {"llama3": _WORDS % "{1,3}", "qwen2": _WORDS % ""}
GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# tokenizer.ggml.pre -> name here (llama.cpp, src/llama-vocab.cpp), as far as the expressions are the same
GGUF_NAMES = {
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo"), "gpt2"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), "llama3"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), "qwen2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), "smollm"),
}


def pre_tokenizer_of_gguf(name: str) -> str | None:
    """The pre-tokenizer that GGUF calls ``name`` (tokenizer.ggml.pre), None if the runtime does not have it."""
    return GGUF_NAMES.get(name)


def byte_level_steps(name: str) -> dict[str, Any]:
    """The pre_tokenizer object of a tokenizer.json for a name of a TokenizerSpec."""
    plain = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    if name == "gpt2":
        return plain
    if name == "smollm":
        return {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, plain]}
    split = {"type": "Split", "pattern": {"Regex": PATTERNS[name]}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, plain | {"use_regex": False}]}


def name_of_steps(steps: list[dict[str, Any]]) -> tuple[str, bool] | None:
    """(name, whether a space goes in front) of the steps of a tokenizer.json, None for any others."""
    kinds = [step.get("type") for step in steps]
    if not kinds or kinds[-1] != "ByteLevel":
        return None
    regex, space = steps[-1].get("use_regex", True), steps[-1].get("add_prefix_space")
    if type(regex) is not bool or type(space) is not bool:
        return None
    if kinds == ["ByteLevel"] and regex:
        return "gpt2", space
    if len(steps) != 2 or space:
        return None
    if kinds[0] == "Digits" and regex and steps[0].get("individual_digits") is True:
        return "smollm", False
    if kinds[0] == "Split" and not regex and steps[0].get("behavior") == "Isolated" and steps[0].get("invert") is False:
        pattern = steps[0].get("pattern")
        pattern = pattern.get("Regex") if isinstance(pattern, dict) else None
        named = {**{p: name for name, p in PATTERNS.items()}, GPT2_PATTERN: "gpt2"}
        return (named[pattern], False) if pattern in named else None
    return None
