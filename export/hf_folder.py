"""Hugging Face folders: config.json, weights, tokenizer.json."""

from __future__ import annotations

from pathlib import Path

from edgepos.errors import EdgePosError, FormatError, UnsupportedError

from .canonical import CanonicalModel, read_license, readable, sha256_of
from .chat_template import read_hf_template
from .config import Config
from .families import ARCHITECTURES
from .json_files import read_json_object
from .shorten import shorten
from .tokenizer_hf import read_tokenizer_json
from .tokenizer_minbpe import is_minbpe, read_minbpe
from .tokenizers import TokenizerSpec
from .weight_files import open_tensors

ID_CONFIGS = ("generation_config.json", "config.json")  # what generation uses goes before what training wrote, as in transformers

TokenizerRead = tuple[TokenizerSpec | None, str | None, int | None, tuple[int, ...], list[Path]]


def load_hf_folder(folder: Path, *, context: int | None = None) -> CanonicalModel:
    """The canonical model of a folder written by ``save_pretrained``.

    Raises UnsupportedError or FormatError naming file and key.
    """
    config = Config(read_json_object(folder / "config.json"))
    family = find_family(config)
    tensors, weight_files = open_tensors(folder)
    name = readable(folder.resolve().name)
    read = [folder / "config.json", *weight_files]
    if hasattr(family, "build_image"):
        return _image_model(folder, context, name, *family.build_image(config, tensors, name, folder), read)
    if hasattr(family, "build_encoder"):
        model, more = family.build_encoder(config, tensors, context, name, folder)
        read += more
    elif (folder / "modules.json").is_file():
        encoders = ", ".join(name for name, module in ARCHITECTURES.items() if hasattr(module, "build_encoder"))
        raise UnsupportedError(
            f"modules.json: an embedding of a causal {config.values['architectures'][0]}; supported: embeddings of {encoders}; "
            "without modules.json the model is exported to generate text"
        )
    else:
        model = family.build_hf(config, tensors, context, name)
    generation = Config({}, "generation_config.json")
    if (folder / generation.origin).is_file():
        generation = Config(read_json_object(folder / generation.origin), generation.origin)
        read.append(folder / generation.origin)
    vocab_size = config.size("vocab_size")

    def token_ids(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        # What generation uses goes before what training wrote, as in transformers.
        return (generation if key in generation.values else config).token_ids(key, default, vocab_size)

    bos = token_ids("bos_token_id", family.DEFAULT_BOS)
    if len(bos) > 1:
        raise config.wrong("bos_token_id", list(bos), "one token id or null")
    eos_ids = token_ids("eos_token_id", family.DEFAULT_EOS)

    tokenizer, problem, tokenizer_files = None, None, []
    try:
        tokenizer_path = find_tokenizer(folder)
        tokenizer = read_tokenizer_json(
            tokenizer_path, vocab_size=vocab_size, bos_id=bos[0] if bos else None, eos_ids=eos_ids, whole_texts=hasattr(family, "build_encoder")
        )
        tokenizer_files = [tokenizer_path]
    except EdgePosError as error:
        if not getattr(family, "tokenizer_optional", False):
            raise
        problem = str(error)
    chat, chat_files = read_hf_template(folder)
    return CanonicalModel(
        model=model,
        tokenizer=tokenizer,
        name=name,
        context=int(model.metadata_props["edgepos.context"]),
        vocab_size=vocab_size,
        source_sha256=sha256_of([*read, *chat_files, *tokenizer_files], folder),
        license=read_license(folder),
        eos_ids=eos_ids,
        bos_id=tokenizer.bos_id if tokenizer else None,
        tokenizer_problem=problem,
        chat=chat,
    )


def _image_model(folder: Path, context: int | None, name: str, model, more: tuple[Path, ...], read: list[Path]) -> CanonicalModel:
    """A model that reads images, which has neither tokens nor a tokenizer."""
    tokens = int(model.metadata_props["edgepos.context"])
    if context not in (None, tokens):
        raise UnsupportedError(f"config.json: context {context} is not possible; an image is {tokens} tokens")
    hashes = sha256_of([*read, *more], folder)
    problem = "the model reads images"
    return CanonicalModel(model, None, name, tokens, 1, hashes, read_license(folder), (), None, tokenizer_problem=problem)


def find_family(config: Config):
    """The module of the architecture named in the config; raises for unknown or contradicting names."""
    supported = ", ".join(ARCHITECTURES)
    if config.values.get("quantization_config") is not None:
        raise UnsupportedError(
            f"{config.origin}: quantization_config is set; EdgePos quantizes itself, give it the float model"
        )
    named = config.values.get("architectures")
    if not isinstance(named, list) or len(named) != 1 or not isinstance(named[0], str):
        raise config.wrong("architectures", named, f"a list with one of {supported}")
    family = ARCHITECTURES.get(named[0])
    if family is None:
        raise UnsupportedError(
            f"{config.origin}: architecture {shorten(named[0])} is not supported; supported: {supported}"
        )
    model_type = config.text("model_type", default=family.MODEL_TYPE)
    if model_type != family.MODEL_TYPE:
        raise FormatError(
            f"{config.origin}: architectures says '{named[0]}' but model_type is {shorten(model_type)}; "
            f"'{family.MODEL_TYPE}' is needed"
        )
    return family


def find_tokenizer(folder: Path) -> Path:
    """tokenizer.json of ``folder``; raises naming what is there instead."""
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    for other in ("tokenizer.model", "vocab.json"):
        if (folder / other).is_file():
            raise UnsupportedError(
                f"{other}: only tokenizer.json is read; write one with transformers: "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
    raise FormatError(f"{folder.name}: tokenizer.json is missing; save the tokenizer into the model's folder")


def read_tokenizer(path: Path, vocab_size: int, *, whole_texts: bool = False) -> TokenizerRead:
    """(tokenizer, None, first token or None, tokens that end a text, files read) of a tokenizer.json, minbpe's tokenizer.model, or the
    folder that holds one; whole_texts as for read_tokenizer_json.

    The ids of the first and last tokens are those of generation_config.json or config.json in that folder, where they are.
    Raises FormatError or UnsupportedError naming the file.
    """
    if not path.exists():
        raise FormatError(f"{path}: no such file or folder; give a tokenizer.json or the folder with it")
    folder = path if path.is_dir() else path.parent
    minbpe = folder / "tokenizer.model" if path.is_dir() and not (path / "tokenizer.json").is_file() else path
    file = minbpe if is_minbpe(minbpe) else find_tokenizer(path) if path.is_dir() else path
    read, ids = [file], {"bos_token_id": (), "eos_token_id": ()}
    for key in ids:
        for name in ID_CONFIGS:
            if (folder / name).is_file():
                config = Config(read_json_object(folder / name), name)
                if key in config.values:
                    ids[key] = config.token_ids(key, (), vocab_size)
                    read.append(folder / name)
                    break
    bos, eos = ids["bos_token_id"], ids["eos_token_id"]
    common = {"vocab_size": vocab_size, "bos_id": bos[0] if bos else None, "eos_ids": eos}
    spec = read_minbpe(file, **common) if is_minbpe(file) else read_tokenizer_json(file, **common, whole_texts=whole_texts)
    return spec, None, spec.bos_id, spec.eos_ids or eos, list(dict.fromkeys(read))
