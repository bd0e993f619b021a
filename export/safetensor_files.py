"""Safetensors files as memory-mapped NumPy views.

Format: 8 bytes little-endian header length, JSON header, data
(github.com/huggingface/safetensors, "Format"). Everything in the header is
checked against the size of the file before a tensor is looked at.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .json_files import parse_json_object
from .mapped_file import map_bytes
from .shorten import shorten

MAX_HEADER = 100_000_000  # the limit of the reference implementation
DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}
COUNTS = ("position_ids", "token_type_ids")  # I64 buffers of old encoders: 0, 1, 2 … and zeros, which transformers ignores too
COUNT_DTYPE = np.dtype("<i8")


def map_file(path: Path) -> dict[str, np.ndarray]:
    """Tensor name -> read-only view [shape] of the mapped file; dtype float32, float16 or bfloat16. COUNTS are left out.

    Raises FormatError or UnsupportedError naming the tensor; nothing is read but the header.
    """
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER):
                raise FormatError(
                    f"{path.name}: header length {length} at byte 0 does not fit the {size} bytes of the file; "
                    "the file is truncated or not safetensors"
                )
            header = parse_json_object(file.read(length), f"{path.name} (header)")
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror}) in {path.parent}") from None
    header.pop("__metadata__", None)
    start = 8 + length
    spans = [(*_check_entry(path.name, name, entry, size - start), name) for name, entry in header.items()]
    _check_contiguous(path.name, sorted(spans, key=lambda s: (s[0], s[1])), size - start)
    if not spans:
        return {}
    mapped = map_bytes(path)
    return {
        name: mapped[start + begin : start + end].view(DTYPES[header[name]["dtype"]]).reshape(header[name]["shape"])
        for begin, end, name in spans
        if not _is_count(name, header[name]["dtype"])
    }


def _is_count(name: str, dtype: str) -> bool:
    return dtype == "I64" and name.rpartition(".")[2] in COUNTS


def _check_entry(file: str, name: str, entry: Any, data_size: int) -> tuple[int, int]:
    """(begin, end) of a tensor in the data, after checking dtype, shape and offsets."""
    where = f"{file}: tensor {shorten(name)}"
    if not isinstance(entry, dict):
        raise FormatError(f"{where} is {shorten(entry)}; an object with dtype, shape and data_offsets is needed")
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or (dtype not in DTYPES and not _is_count(name, dtype)):
        raise UnsupportedError(f"{where} has dtype {shorten(dtype)}; supported: {', '.join(DTYPES)}")
    if not _naturals(shape) or len(shape) > 8 or 0 in shape:
        raise FormatError(f"{where} has shape {shorten(shape)}; a list of at most 8 numbers above 0 is needed")
    if not _naturals(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= data_size:
        raise FormatError(
            f"{where} has data_offsets {shorten(offsets)}; two increasing numbers from 0 to {data_size} are needed"
        )
    needed = math.prod(shape) * DTYPES.get(dtype, COUNT_DTYPE).itemsize
    if needed != offsets[1] - offsets[0]:
        raise FormatError(
            f"{where} has {offsets[1] - offsets[0]} bytes, but shape {shorten(shape)} of {dtype} needs {needed}"
        )
    return offsets[0], offsets[1]


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**62 for v in value)


def _check_contiguous(file: str, spans: list[tuple[int, int, str]], data_size: int) -> None:
    """The format allows neither holes nor overlaps; both hide data or alias it."""
    at = 0
    for begin, end, name in spans:
        if begin != at:
            kind = "overlaps the tensor before it" if begin < at else "leaves a hole before it"
            raise FormatError(f"{file}: tensor {shorten(name)} starts at data byte {begin} and {kind} (at {at})")
        at = end
    if at != data_size:
        raise FormatError(f"{file}: tensors end at data byte {at}, the file at {data_size}; the file is damaged")
