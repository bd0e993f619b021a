"""SentenceHead: what follows the encoder in a sentence-transformers folder: pooling, dense layers, normalization."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError

from .config import Config
from .encoder_graph import OUTPUT, EncoderGraph
from .json_files import parse_json_list, read_bytes, read_json_object
from .shorten import shorten
from .tensor_set import Weight
from .weight_files import open_tensors

MODULES = "modules.json"
SETTINGS = "sentence_bert_config.json"
PROMPTS = "config_sentence_transformers.json"
POOLING_MODES = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}
OTHER_MODES = ("mean_sqrt_len_tokens", "weightedmean_tokens")
MODE_NAMES = {"cls": "first", "mean": "mean", "max": "max", "lasttoken": "last"}
ACTIVATIONS = {"Tanh": True, "Identity": False}  # of a dense layer -> whether it is tanh


@dataclass(frozen=True)
class Dense:
    """A linear layer on the pooled row; tanh: behind it."""

    weight: Weight
    bias: Weight | None
    tanh: bool


@dataclass(frozen=True)
class SentenceHead:
    """pooling: of encoder_graph.POOLINGS. normalize: to Euclidean norm 1. most_tokens: of a text, special ones included; None: the
    model's positions. files: those that decided it."""

    pooling: str = "mean"
    dense: tuple[Dense, ...] = ()
    normalize: bool = False
    most_tokens: int | None = None
    files: tuple[Path, ...] = field(default=(), repr=False)

    def add(self, graph: EncoderGraph, x: ir.Value) -> ir.Value:
        """The embedding of the encoder's output x [1, S, d]."""
        last = 2 * len(self.dense) + self.normalize
        x = graph.pool(x, self.pooling, output=OUTPUT if not last else None)
        for i, layer in enumerate(self.dense):
            end = OUTPUT if not self.normalize and i + 1 == len(self.dense) else None
            x = graph.linear(x, f"dense.{i}", layer.weight, layer.bias, output=None if layer.tanh else end)
            x = graph.tanh(x, f"dense.{i}.tanh", output=end) if layer.tanh else x
        return graph.unit(x, "normalize", output=OUTPUT) if self.normalize else x


def read_sentence_head(folder: Path, width: int) -> SentenceHead:
    """What modules.json of ``folder`` says about an encoder of ``width``; without that file the mean of all tokens, as
    sentence-transformers makes of a plain folder.

    Raises UnsupportedError or FormatError naming file and key.
    """
    if not (folder / MODULES).is_file():
        return SentenceHead()
    kinds, paths = _modules(folder)
    shown = ", ".join(kinds)
    if kinds[:2] != ["Transformer", "Pooling"] or [k for k in kinds[2:] if k not in ("Dense", "Normalize")] or "Normalize" in kinds[2:-1]:
        raise UnsupportedError(f"{MODULES}: modules {shown}; supported: Transformer, Pooling, then any Dense, then maybe Normalize")
    if paths[0] not in ("", "."):
        raise UnsupportedError(f"{MODULES}: the Transformer is in {shorten(paths[0])}; supported: in the folder itself")
    files = [folder / MODULES, folder / paths[1] / "config.json"]
    pooling = _pooling(Config(read_json_object(files[1]), f"{paths[1]}/config.json"), width)
    dense = []
    for kind, path in zip(kinds[2:], paths[2:]):
        if kind == "Dense":
            layer, read = _dense(folder / path, path, len(dense), width)
            dense.append(layer)
            files += read
            width = layer.weight.shape[0]
    most, settings = _settings(folder)
    return SentenceHead(pooling, tuple(dense), kinds[-1] == "Normalize", most, (*files, *settings))


def _modules(folder: Path) -> tuple[list[str], list[str]]:
    """Kinds and folders of the modules, in order."""
    kinds, paths = [], []
    for i, entry in enumerate(parse_json_list(read_bytes(folder / MODULES), MODULES)):
        kind, path = (entry.get(key) for key in ("type", "path")) if isinstance(entry, dict) else (None, None)
        # A plain folder name only: a path could lead anywhere on this machine.
        if not isinstance(kind, str) or not isinstance(path, str) or set(path) & set("/\\:\0") or path == "..":
            raise FormatError(f"{MODULES}: entry {i} is {shorten(entry)}; a type and the name of a folder beside it are needed")
        kinds.append(kind.rpartition(".")[2])
        paths.append(path)
    return kinds, paths


def _pooling(config: Config, width: int) -> str:
    for key in ("word_embedding_dimension", "embedding_dimension"):
        if config.size(key, default=width) != width:
            raise FormatError(f"{config.origin}: {key} is {config.values[key]}, but the encoder gives {width} numbers; they must be equal")
    named = config.values.get("pooling_mode")
    if named is not None:
        if not isinstance(named, str) or named not in MODE_NAMES:
            raise UnsupportedError(f"{config.origin}: pooling_mode is {shorten(named)}; supported: {', '.join(MODE_NAMES)}")
        return MODE_NAMES[named]
    on = [mode for mode in (*POOLING_MODES, *OTHER_MODES) if config.flag(f"pooling_mode_{mode}", default=False)]
    if len(on) != 1 or on[0] in OTHER_MODES:
        found = ", ".join(f"pooling_mode_{mode}" for mode in on) or "no pooling_mode"
        raise UnsupportedError(f"{config.origin}: {found} is true; supported: one of {', '.join(f'pooling_mode_{mode}' for mode in POOLING_MODES)}")
    return POOLING_MODES[on[0]]


def _dense(folder: Path, path: str, number: int, width: int) -> tuple[Dense, list[Path]]:
    config = Config(read_json_object(folder / "config.json"), f"{path}/config.json")
    if config.size("in_features") != width:
        raise FormatError(f"{config.origin}: in_features is {config.size('in_features')}, but the row before it has {width} numbers; they must be equal")
    kind = config.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    if kind not in ACTIVATIONS:
        raise UnsupportedError(f"{config.origin}: activation_function {shorten(kind)} is not supported; supported: {', '.join(ACTIVATIONS)}")
    tensors, files = open_tensors(folder)
    rows = config.size("out_features")
    weight = tensors.take("linear.weight", (rows, width))
    bias = tensors.take("linear.bias", (rows,)) if config.flag("bias", default=True) else None
    tensors.finish()
    named = (None if w is None else Weight(f"dense.{number}.linear.{part}", w.array, w.shape) for part, w in (("weight", weight), ("bias", bias)))
    return Dense(*named, ACTIVATIONS[kind]), [folder / "config.json", *files]


def _settings(folder: Path) -> tuple[int | None, list[Path]]:
    """(max_seq_length or None, files read)."""
    files, most = [], None
    if (folder / SETTINGS).is_file():
        settings = Config(read_json_object(folder / SETTINGS), SETTINGS)
        files.append(folder / SETTINGS)
        most = settings.size("max_seq_length", default=None)
        if settings.flag("do_lower_case", default=False):
            raise UnsupportedError(f"{SETTINGS}: do_lower_case is true; supported: false, with a tokenizer that does what the model needs")
    if (folder / PROMPTS).is_file():
        prompt = read_json_object(folder / PROMPTS).get("default_prompt_name")
        files.append(folder / PROMPTS)
        if prompt is not None:
            raise UnsupportedError(f"{PROMPTS}: default_prompt_name is {shorten(prompt)}; set it to null and put the prompt in front of the texts yourself")
    return most, files
