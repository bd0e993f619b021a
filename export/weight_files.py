"""The weights of a model folder: one file or shards named in an index, safetensors before pickles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgepos.errors import FormatError

from .json_files import read_json_object
from .pickle_files import map_pickle
from .safetensor_files import COUNTS, map_file
from .shorten import shorten
from .tensor_set import TensorSet


@dataclass(frozen=True)
class WeightFormat:
    """Names of the files of one format, and the reader of one of them: tensor name -> array."""

    single: str
    suffix: str
    read: Callable[[Path], dict[str, np.ndarray]]

    @property
    def index(self) -> str:
        return f"{self.single}.index.json"


FORMATS = (WeightFormat("model.safetensors", ".safetensors", map_file), WeightFormat("pytorch_model.bin", ".bin", map_pickle))


def open_tensors(folder: Path) -> tuple[TensorSet, list[Path]]:
    """(tensors, files read) of a model folder.

    Raises FormatError when files are missing or malformed, and what the readers of the formats raise.
    """
    for kind in FORMATS:
        path = folder / kind.single
        if path.is_file():
            return TensorSet(path.name, kind.read(path)), [path]
        if (folder / kind.index).is_file():
            return _open_shards(folder, kind)
    names = " nor ".join(name for kind in FORMATS for name in (kind.single, kind.index))
    raise FormatError(f"{folder.name}: neither {names} is there; one of them is needed")


def _open_shards(folder: Path, kind: WeightFormat) -> tuple[TensorSet, list[Path]]:
    index = kind.index
    weight_map = read_json_object(folder / index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{index}: weight_map is {shorten(weight_map)}; an object tensor name -> file is needed")
    for tensor, name in weight_map.items():
        # A plain file name only: a path could lead anywhere on this machine.
        if not isinstance(name, str) or not name.endswith(kind.suffix) or set(name) & set("/\\:\0"):
            raise FormatError(
                f"{index}: tensor {shorten(tensor)} is in file {shorten(name)}; "
                f"the name of a {kind.suffix} file beside the index is needed"
            )
    arrays: dict[str, np.ndarray] = {}
    paths = [folder / name for name in sorted(set(weight_map.values()))]
    for path in paths:
        for tensor, array in kind.read(path).items():
            if weight_map.get(tensor) != path.name:
                raise FormatError(
                    f"{path.name}: holds tensor {shorten(tensor)}, which {index} places in "
                    f"{shorten(weight_map.get(tensor))}; download index and shards again"
                )
            arrays[tensor] = array
    lost = sorted(name for name in set(weight_map) - set(arrays) if name.rpartition(".")[2] not in COUNTS)
    if lost:
        raise FormatError(f"{index}: tensor {shorten(lost[0])} is not in {weight_map[lost[0]]}; download that shard again")
    return TensorSet(index, arrays), [folder / index, *paths]
