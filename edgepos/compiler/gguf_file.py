"""model.gguf: the layout docs/bundle.md demands, written by hand because the order, the alignment and the gaps are part of the format."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field

import numpy as np

from ..errors import UnsupportedError
from ..fixedpoint import ARITH
from ..program import ALIGN, FORMAT, GGUF_TYPE, Program

MAGIC, VERSION = b"GGUF", 3
U32, BOOL, STRING = 4, 7, 8
MOST_TENSORS = 65535
PIECE = 1 << 24  # bytes of a tensor written at a time


@dataclass(frozen=True)
class Facts:
    """What the keys say besides the program: texts for people, and the tokenizer's usual scalars."""

    name: str
    license: str
    texts: dict[str, str] = field(default_factory=dict)  # edgepos.* key → text
    tokenizer: str | None = None
    bos: int | None = None
    eos: int | None = None
    add_bos: bool = False


def write(path: str | os.PathLike, program: Program, facts: Facts) -> int:
    """Write the image; returns the offset of the tensor data in the file.

    Tensors go out piece by piece. Raises UnsupportedError when there are more tensors than the format allows.
    """
    if len(program.names) > MOST_TENSORS:
        raise UnsupportedError(f"model.gguf: {len(program.names)} tensors; allowed: at most {MOST_TENSORS}")
    arrays = [program.words() if array is None else array for array in program.arrays]
    offsets = program.offsets()
    keys = _keys(facts)
    head = bytearray(MAGIC + struct.pack("<IQQ", VERSION, len(arrays), len(keys)))
    for key, value in keys.items():
        head += _string(key) + _value(value)
    for name, array, offset in zip(program.names, arrays, offsets):
        dims = array.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, GGUF_TYPE[array.dtype], offset)
    head += bytes(-len(head) % ALIGN)
    with open(path, "wb") as file:
        file.write(head)
        for array in arrays:
            _write_array(file, array)
    return len(head)


def _keys(facts: Facts) -> dict[str, str | int | bool]:
    keys: dict[str, str | int | bool] = {
        "general.architecture": "edgepos",
        "general.alignment": ALIGN,
        "edgepos.format": FORMAT,
        "edgepos.arith": ARITH,
        "general.name": facts.name,
        "general.license": facts.license,
        **facts.texts,
    }
    if facts.tokenizer is not None:
        keys["tokenizer.ggml.model"] = facts.tokenizer
        keys["tokenizer.ggml.add_bos_token"] = facts.add_bos
    for key, i in (("bos", facts.bos), ("eos", facts.eos)):
        if i is not None:
            keys[f"tokenizer.ggml.{key}_token_id"] = i
    return keys


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: str | int | bool) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bool):
        return struct.pack("<I?", BOOL, value)
    return struct.pack("<II", U32, value)


def _write_array(file, array: np.ndarray) -> None:
    flat = array.reshape(-1)
    little = flat.dtype.newbyteorder("<")
    step = PIECE // flat.itemsize
    for start in range(0, len(flat), step):
        file.write(np.ascontiguousarray(flat[start : start + step], dtype=little).tobytes())
    file.write(bytes(-array.nbytes % ALIGN))
