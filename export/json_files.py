"""Reading JSON files that may be hostile: no duplicate keys, no NaN, no recursion crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgepos.bounded_file import read_bounded
from edgepos.errors import FormatError


def parse_json_object(data: bytes, origin: str) -> dict[str, Any]:
    """The JSON object in ``data``; raises FormatError naming ``origin`` for anything else."""
    return _parse(data, origin, dict, "object")


def parse_json_list(data: bytes, origin: str) -> list[Any]:
    """The JSON list in ``data``; raises FormatError naming ``origin`` for anything else."""
    return _parse(data, origin, list, "list")


def _parse(data: bytes, origin: str, kind: type, name: str) -> Any:

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise FormatError(f"{origin}: key '{key}' appears twice; keep one")
            found[key] = value
        return found

    def no_constant(text: str) -> None:
        raise FormatError(f"{origin}: {text} is not JSON; use a finite number")

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique, parse_constant=no_constant)
    except RecursionError:
        raise FormatError(f"{origin}: nested too deeply to be a model file") from None
    except ValueError as error:
        raise FormatError(f"{origin}: not valid JSON ({error}); download the file again") from None
    if not isinstance(value, kind):
        raise FormatError(f"{origin}: the top level is {type(value).__name__}, a JSON {name} is needed")
    return value


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in file ``path``; raises FormatError when it is missing or malformed."""
    return parse_json_object(read_bytes(path), path.name)


def read_bytes(path: Path) -> bytes:
    """The bytes of ``path``; raises FormatError when it cannot be read."""
    try:
        return read_bounded(path, path.name)
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror}) in {path.parent}") from None
