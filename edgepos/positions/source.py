"""Where the command line takes a spec from: JSON, a folder of tables, a model folder or a GGUF file."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..bounded_file import read_bounded
from ..errors import FormatError
from ..numpy_files import reading
from .emit import INDEX, check_parts_index, stored_weights
from .families import from_config
from .gguf_config import from_gguf
from .hybrid import parts_of
from .learned import Learned
from .relative import RelativeBias, T5Bias
from .spec import Spec

# Names of tensors end in these; a model has one learned position table, or one bias table per stack.
LEARNED_NAMES = ("wpe.weight", "position_embeddings.weight", "position_embedding.weight", "embeddings.position_embeddings", "embed_positions.weight", "position_embd.weight")
BIAS_NAMES = ("relative_attention_bias.weight",)
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")


@dataclass(frozen=True)
class Source:
    """spec: a spec, or {part: spec}. weights: the learned table of a spec, or {part: table}. context: the model's own, or None."""

    spec: Spec | dict[str, Spec]
    weights: object = None
    context: int | None = None
    name: str = field(default="", compare=False)


def read_source(text: str) -> Source:
    """A spec as JSON text, or the path of a .json file with one, of a folder of tables, a model folder or a GGUF file.

    Raises FormatError or UnsupportedError naming the file and the key.
    """
    from . import from_json

    if text.lstrip().startswith("{"):
        return Source(from_json(_json(text, "the spec")))
    path = Path(text)
    try:
        folder, file = path.is_dir(), path.is_file()
    except OSError as error:  # a name that is too long for the system
        raise FormatError(f"{text[:60]}…: {error.strerror}; give a spec as JSON or a path") from None
    if folder and (path / INDEX).is_file():
        return _from_tables(path)
    if file and path.suffix == ".json":
        return Source(from_json(_json(_read(path), path.name)), name=path.stem)
    return read_model(path)


def read_model(path: Path) -> Source:
    """The encoding of a Hugging Face folder or a GGUF file, with the learned tables in it."""
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise FormatError(f"{path}: is not there; give a model folder, a GGUF file, a folder of tables, or a spec as JSON")
    return _from_gguf(path)


def read_table(text: str) -> np.ndarray:
    """A learned table from FILE.npy, or from FILE.npz:NAME or FILE.safetensors:NAME, float64. Raises FormatError."""
    file, _, name = text.rpartition(":") if ":" in text and not Path(text).exists() else (text, "", "")
    path = Path(file)
    with reading(path.name, "allowed are .npy, .npz:NAME and .safetensors:NAME"):
        if path.suffix == ".npy":
            return _numbers(np.load(path, allow_pickle=False), path.name)
        arrays = _arrays(path)
    if name not in arrays:
        raise FormatError(f"{path.name} holds {', '.join(arrays)}; name one, as {path.name}:NAME")
    return _numbers(arrays[name], name)


def _numbers(array: np.ndarray, name: str) -> np.ndarray:
    if array.dtype.kind in "bcmMOSU":
        raise FormatError(f"{name} holds {array.dtype}; allowed are whole and real numbers")
    return np.asarray(array, dtype=np.float64)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".safetensors":
        from ..export.safetensor_files import map_file

        return map_file(path)
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}


def _read(path: Path) -> str:
    try:
        return read_bounded(path, path.name).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path.name}: {getattr(error, 'strerror', None) or error}") from None


def _json(text: str, what: str) -> dict:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{what} is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise FormatError(f"{what} is no JSON object")
    return value


def _from_tables(path: Path) -> Source:
    from . import from_json

    index = _json(_read(path / INDEX), INDEX)
    if "parts" in index:
        parts = {name: _from_tables(path / name) for name in check_parts_index(index)}
        contexts = [part.context for part in parts.values() if part.context]
        return Source({n: p.spec for n, p in parts.items()}, {n: p.weights for n, p in parts.items()}, max(contexts, default=None), path.name)
    spec = index.get("spec")
    if not isinstance(spec, dict):
        raise FormatError(f"{INDEX}: spec is {spec!r}; allowed is what edgepos wrote")
    return Source(from_json(spec), stored_weights(path), index.get("context"), path.name)


def _from_folder(path: Path) -> Source:
    from ..export.weight_files import open_tensors

    config = _json(_read(path / "config.json"), "config.json")
    spec = from_config(config)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    context = next((value for key in CONTEXT_KEYS if isinstance(value := text.get(key), int)), None)
    weights = None
    if any(isinstance(part, (Learned, T5Bias, RelativeBias)) for part in (parts_of(spec) or {"": spec}).values()):
        tensors, _ = open_tensors(path)
        weights = _weights_of(spec, dict(tensors.arrays), path.name)
    return Source(spec, weights, context, path.name)


def _from_gguf(path: Path) -> Source:
    from ..export.gguf_file import open_gguf

    file = open_gguf(path)

    def factors(name: str):
        values = file.tensors.get(name)
        return None if values is None else _floats(values, name).ravel()

    rope = (factors(f"rope_{name}.weight") for name in ("freqs", "factors_long", "factors_short"))
    spec = from_gguf(file.metadata, *rope)
    context = file.metadata.get(f"{file.metadata.get('general.architecture')}.context_length")
    return Source(spec, _weights_of(spec, file.tensors, path.name), context if isinstance(context, int) else None, path.stem)


def _weights_of(spec: Spec | dict[str, Spec], tensors: dict, origin: str):
    """The learned table of a spec, or {part: table} where it has parts; None for what has none."""
    parts = parts_of(spec)
    if parts is None:
        return _weight(spec, tensors, origin, "")
    return {name: _weight(part, tensors, origin, name if isinstance(spec, dict) else "") for name, part in parts.items()}


def _weight(spec: Spec, tensors: dict, origin: str, stack: str) -> np.ndarray | None:
    endings = LEARNED_NAMES if isinstance(spec, Learned) else BIAS_NAMES if isinstance(spec, (T5Bias, RelativeBias)) else ()
    stacks = (f"{stack}.", f"{stack}_model.") if stack else ("",)
    found = [name for name in tensors if name.endswith(endings) and any(part in name for part in stacks)] if endings else []
    if not found and isinstance(spec, (Learned, RelativeBias)):
        raise FormatError(f"{origin}: no tensor ends in {' or '.join(endings)}; the learned table is missing")
    if getattr(spec, "layers", None) is not None and found:
        return _of_layers(spec, {name: tensors[name] for name in found}, origin)
    if len(found) > 1:
        raise FormatError(f"{origin}: {found[0]} and {found[1]} could both be the learned table; emit it with `edgepos tables learned`")
    if not found:
        return None
    table = _floats(tensors[found[0]], found[0])
    return table[0] if table.ndim == 3 and len(table) == 1 else table  # vision models keep the batch of their rows


def _of_layers(spec: T5Bias | RelativeBias, found: dict, origin: str) -> np.ndarray:
    """The tables of a bias per layer, float64 [layers, rows, heads], in the order of the first number in their names."""
    numbers = {name: int(match.group(1)) for name in found if (match := re.search(r"\.(\d+)\.", name))}
    tables = [_floats(found[name], name) for name in sorted(numbers, key=numbers.get)]
    if len(set(numbers.values())) != len(found) or len(found) != spec.layers or len({t.shape for t in tables}) != 1:
        raise FormatError(f"{origin}: {len(found)} bias tables {', '.join(found)[:80]}; allowed is one for each of {spec.layers} layers, all of one shape")
    return np.stack(tables)


def _floats(values, name: str) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        raise FormatError(f"tensor {name} is quantized in blocks; a float tensor is needed for tables")
    return np.asarray(values, dtype=np.float64)
