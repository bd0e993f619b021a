"""Files that travel with the package: the C runtime's sources and the tiny example models."""

from __future__ import annotations

from pathlib import Path

from .errors import EdgePosError, UnsupportedError

_PACKAGE = Path(__file__).resolve().parent
TINY_MODELS = ("tiny-rope", "tiny-alibi")


def _find(packaged: str, source: str, marker: str) -> Path:
    # A wheel carries the folder inside the package; editable installs and source trees have it beside the package.
    for folder in (_PACKAGE / packaged, _PACKAGE.parent / source):
        if (folder / marker).is_file():
            return folder
    raise EdgePosError(
        f"{packaged}/{marker} is missing from the installed package: reinstall edgepos, or run it from a complete checkout"
    )


def c_runtime_dir() -> Path:
    """Folder with the C runtime: ``CMakeLists.txt``, ``include/``, ``src/``, ``cli/``, ``ports/``, ``cmake/``.

    A checkout's folder also holds ``tests/`` and ``tools/``, which a board does not need.
    Raises EdgePosError if the installation is damaged.
    """
    return _find("_data/c_runtime", "c_runtime", "CMakeLists.txt")


def tiny_model_dir(name: str) -> Path:
    """Hugging Face folder of an example model, one of ``TINY_MODELS``.

    Raises UnsupportedError for another name, EdgePosError if the installation is damaged.
    """
    if name not in TINY_MODELS:
        raise UnsupportedError(f"example model {name!r} does not exist: choose one of {', '.join(TINY_MODELS)}")
    return _find(f"_data/tiny/{name}", f"examples/tiny/{name}", "config.json")
