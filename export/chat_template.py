"""Where models keep their chat templates: Hugging Face folders and GGUF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgepos.chat.jinja import ChatTemplate
from edgepos.errors import FormatError, UnsupportedError

from .json_files import read_bytes, read_json_object
from .shorten import shorten
from .tokenizer_json import is_text

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
GGUF_NAMES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "sep_token": "seperator_token_id", "pad_token": "padding_token_id"}
CONFIG, FILE, PROCESSOR = "tokenizer_config.json", "chat_template.jinja", "chat_template.json"
DEFAULT = "default"


def read_hf_template(folder: Path) -> tuple[ChatTemplate | None, list[Path]]:
    """(the chat template of a folder or None, the files read). As in transformers, chat_template.jinja goes before the config's.

    Raises FormatError or UnsupportedError naming file and key.
    """
    read: list[Path] = []

    def values(name: str) -> dict[str, Any]:
        if not (folder / name).is_file():
            return {}
        read.append(folder / name)
        return read_json_object(folder / name)

    config = values(CONFIG)
    variables = {}
    for name in NAMES:
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if value is not None and not is_text(value):
            raise FormatError(f"{CONFIG}: {name} is {shorten(value)}; the text of a token is needed")
        if value is not None:
            variables[name] = value
    if (folder / FILE).is_file():
        read.append(folder / FILE)
        try:
            return ChatTemplate(read_bytes(folder / FILE).decode("utf-8"), variables, FILE), read
        except UnicodeDecodeError as error:
            raise FormatError(f"{FILE}: byte {error.start} is not UTF-8") from None
    for name, keys in ((CONFIG, config), (PROCESSOR, values(PROCESSOR))):
        if keys.get("chat_template") is not None:
            origin = f"{name}: chat_template"
            return ChatTemplate(_default(origin, keys["chat_template"]), variables, origin), read
    return None, read


def _default(origin: str, value: Any) -> str:
    """The template itself, or of a list of named ones the default."""
    if isinstance(value, str):
        if any(0xD800 <= ord(c) < 0xE000 for c in value):
            raise FormatError(f"{origin} holds half a surrogate pair; no UTF-8 can hold it")
        return value
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) and isinstance(row.get("name"), str) and isinstance(row.get("template"), str) for row in rows):
        raise FormatError(f"{origin} is {shorten(value)}; a text, or a list of objects with name and template, is needed")
    found = [row["template"] for row in rows if row["name"] == DEFAULT]
    if len(found) != 1:
        raise UnsupportedError(f"{origin} names {', '.join(shorten(row['name']) for row in rows) or 'none'}; one called '{DEFAULT}' is needed")
    return _default(origin, found[0])


def gguf_template(origin: str, keys: Mapping[str, Any]) -> ChatTemplate | None:
    """The chat template in the metadata of a GGUF file, or None. Raises FormatError for one that is no text."""
    source = keys.get("tokenizer.chat_template")
    if source is None:
        return None
    if not isinstance(source, str):
        raise FormatError(f"{origin}: tokenizer.chat_template is {shorten(source)}; a text is needed")
    tokens = keys.get("tokenizer.ggml.tokens", [])
    ids = {name: keys.get(f"tokenizer.ggml.{key}") for name, key in GGUF_NAMES.items()}
    variables = {name: tokens[i] for name, i in ids.items() if type(i) is int and 0 <= i < len(tokens) and is_text(tokens[i])}
    return ChatTemplate(source, variables, f"{origin}: tokenizer.chat_template")
