"""Compare files of tables with what they should hold, and name the first entry that differs."""

from __future__ import annotations

import io
import re

import numpy as np

from ..errors import FormatError
from ..numpy_files import reading
from .table_file import TableFile

_AGAIN = "emit the tables again"
_NUMBER = re.compile(rb"-?(0x)?[0-9a-f]+")


def compare(table: TableFile, read) -> None:
    """Compare every file of `table` with `read(name)`, the bytes found. Raises FormatError naming the file and the entry."""
    for name, expected in table.contents.items():
        found = read(name)
        if found == expected:
            continue
        suffix = name.rpartition(".")[2]
        if suffix == "npz":
            _compare_npz(name, found, table)
        elif suffix == "bin":
            _compare_bin(name, found, table)
        elif suffix == "onnx":
            _compare_onnx(name, found, expected)
        elif suffix == "c":
            _compare_c(name, found, expected, table)
        lines = zip(found.split(b"\n"), expected.split(b"\n"))
        line = next((n for n, (a, b) in enumerate(lines, 1) if a != b), None)
        where = f"line {line}" if line and suffix in ("c", "h", "json") else "its length or its description"
        raise FormatError(f"{name} differs from the derived table at {where}; {_AGAIN}")


def _compare_arrays(name: str, array: str, found: np.ndarray, expected: np.ndarray) -> None:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        kind, allowed = (f"{a.dtype} {list(a.shape)}" for a in (found, expected))
        raise FormatError(f"{name}: {array} is {kind}; allowed is {allowed}")
    wrong = np.argwhere(found != expected)
    if len(wrong):
        at = tuple(wrong[0].tolist())
        raise FormatError(f"{name}: {array}{list(at)} is {found[at]}; the derived value is {expected[at]}")


def _compare_npz(name: str, data: bytes, table: TableFile) -> None:
    with reading(name, _AGAIN), np.load(io.BytesIO(data), allow_pickle=False) as archive:
        found = {key: archive[key] for key in table.npz_arrays()}
    for array, expected in table.npz_arrays().items():
        _compare_arrays(name, array, found[array], expected)


def _compare_bin(name: str, data: bytes, table: TableFile) -> None:
    for array, where in table.binary()[1]["layout"].items():
        expected = table.arrays[array]
        if len(data) < where["offset"] + expected.nbytes:
            raise FormatError(f"{name} has {len(data)} bytes and ends within {array}; {_AGAIN}")
        found = np.frombuffer(data, expected.dtype.newbyteorder("<"), expected.size, where["offset"])
        _compare_arrays(name, array, found.astype(expected.dtype).reshape(expected.shape), expected)


def _compare_onnx(name: str, data: bytes, expected: bytes) -> None:
    import onnx

    def tensors(model: bytes) -> dict[str, np.ndarray]:
        return {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load_model_from_string(model).graph.initializer}

    try:
        found = tensors(data)
    except Exception as error:  # protobuf, NumPy and onnx each raise their own
        raise FormatError(f"{name} is no ONNX file ({type(error).__name__}); {_AGAIN}") from None
    for array, values in tensors(expected).items():
        if array not in found:
            raise FormatError(f"{name}: {array} is missing; {_AGAIN}")
        _compare_arrays(name, array, found[array], values)


def _compare_c(name: str, data: bytes, expected: bytes, table: TableFile) -> None:
    """Name the array and entry of the first number that differs in an initializer; returns when the difference is elsewhere."""
    for array, values in table.arrays.items():
        rows = [_numbers(text, table.declare(array).encode()) for text in (data, expected)]
        if None in rows or len(rows[0]) != values.size or len(rows[1]) != values.size:
            continue
        for flat, (found, derived) in enumerate(zip(*rows)):
            if found != derived:
                at = [int(i) for i in np.unravel_index(flat, values.shape)]
                line = next(n for n, (a, b) in enumerate(zip(data.split(b"\n"), expected.split(b"\n")), 1) if a != b)
                raise FormatError(f"{name}: {array}{at}, line {line}, is {found.decode()}; the derived value is {derived.decode()}")


def _numbers(text: bytes, declaration: bytes) -> list[bytes] | None:
    """The numbers between a declaration's braces."""
    start = text.find(declaration + b" = {")
    end = text.find(b"};", start)
    if start < 0 or end < 0:
        return None
    return [m.group() for m in _NUMBER.finditer(text, start + len(declaration) + 4, end)]
