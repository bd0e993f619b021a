"""What an image processor of transformers makes of a byte before the model sees it."""

from __future__ import annotations

from pathlib import Path

from edgepos.errors import FormatError

from .config import Config
from .image_graph import BYTES, Preprocessing
from .json_files import read_json_object

PREPROCESSOR = "preprocessor_config.json"


def read_preprocessing(path: Path, channels: int) -> tuple[Preprocessing, Path]:
    """What a preprocessor_config.json, or that of a folder, says of bytes, and the file. Raises FormatError naming the key."""
    path = path / PREPROCESSOR if path.is_dir() else path
    if not path.is_file():
        raise FormatError(f"{path.name} is missing; it says what to subtract from a pixel: save the image processor into the model's folder")
    config = Config(read_json_object(path), path.name)
    scale = config.number("rescale_factor", 1 / BYTES) if config.flag("do_rescale", default=True) else 1.0
    if not 0 < scale < 1e6:
        raise config.wrong("rescale_factor", scale, "a number above 0")
    if not config.flag("do_normalize", default=True):
        return Preprocessing((0.0,) * channels, (1 / scale,) * channels), path
    mean, deviation = (_by_channel(config, key, channels) for key in ("image_mean", "image_std"))
    if min(deviation) <= 0:
        raise config.wrong("image_std", list(deviation), "numbers above 0")
    return Preprocessing(tuple(m / scale for m in mean), tuple(d / scale for d in deviation)), path


def _by_channel(config: Config, key: str, channels: int) -> tuple[float, ...]:
    values = config.values.get(key)
    if not isinstance(values, list) or len(values) != channels:
        raise config.wrong(key, values, f"a list of {channels} numbers")
    return tuple(Config({key: value}, config.origin).number(key) for value in values)
