"""The tokenizer that goes with a graph: a tokenizer.json, given beside it."""

from __future__ import annotations

from pathlib import Path

from edgepos.errors import FormatError

from ..config import Config
from ..hf_folder import find_tokenizer
from ..json_files import read_json_object
from ..tokenizer_hf import read_tokenizer_json
from ..tokenizers import TokenizerSpec

CONFIGS = ("generation_config.json", "config.json")

Read = tuple[TokenizerSpec | None, str | None, int | None, tuple[int, ...], list[Path]]


def no_tokenizer() -> Read:
    """What a graph has by itself."""
    return None, "an ONNX graph or module has none; give one with tokenizer= (--tokenizer)", None, (), []


def read_tokenizer(path: Path, vocab_size: int) -> Read:
    """(tokenizer, None, first token or None, tokens that end a text, files read) of a tokenizer.json or the folder that holds one.

    The ids of the first and last tokens are those of generation_config.json or config.json in that folder, where they are.
    Raises FormatError or UnsupportedError naming the file.
    """
    if not path.exists():
        raise FormatError(f"{path}: no such file or folder; give a tokenizer.json or the folder with it")
    folder = path if path.is_dir() else path.parent
    file = find_tokenizer(path) if path.is_dir() else path
    read, ids = [file], {"bos_token_id": (), "eos_token_id": ()}
    for key in ids:
        for name in CONFIGS:
            if (folder / name).is_file():
                config = Config(read_json_object(folder / name), name)
                if key in config.values:
                    ids[key] = config.token_ids(key, (), vocab_size)
                    read.append(folder / name)
                    break
    bos, eos = ids["bos_token_id"], ids["eos_token_id"]
    spec = read_tokenizer_json(file, vocab_size=vocab_size, bos_id=bos[0] if bos else None, eos_ids=eos)
    return spec, None, spec.bos_id, spec.eos_ids or eos, list(dict.fromkeys(read))
