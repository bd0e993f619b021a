"""Save and restore of a golden session, in the format of docs/bundle.md ("Session state"): the same bytes as the C runtime's."""

from __future__ import annotations

import struct

import numpy as np

from .errors import FormatError
from .fixedpoint import ARITH
from .program import FORMAT, Program

_HEADER = struct.Struct("<4sIIQIII")
_MAGIC = b"EPST"


def _layout(program: Program, n: int) -> list[tuple[int, int, str, tuple[int, ...], np.dtype]]:
    """(layer, head, area, shape, dtype) of every block after the positions, in file order, one per KV head."""
    data, scale = (np.dtype("<i2"), np.dtype("u1")) if program.header.kv_bits == 16 else (np.dtype("i1"), np.dtype("<i4"))
    blocks = []
    for layer, kv in enumerate(program.kv):
        for head in range(kv.heads):
            blocks += [
                (layer, head, "k", (n, kv.k_dim), data),
                (layer, head, "k_scale", (n,), scale),
                (layer, head, "v", (n, kv.v_dim), data),
                (layer, head, "v_scale", (n,), scale),
            ]
    return blocks


def save(program: Program, machine, n: int, row: np.ndarray | None) -> bytes:
    """The state of n cached tokens; `row` int32 [width] is the last body row, or None."""
    parts = [
        _HEADER.pack(_MAGIC, FORMAT, ARITH, program.header.digest, program.header.kv_bits, n, int(row is not None)),
        machine.positions[:n].astype("<i4").tobytes(),
    ]
    for layer, head, area, _, dtype in _layout(program, n):
        parts.append(getattr(machine.caches[layer], area)[head, :n].astype(dtype).tobytes())
    if row is not None:
        parts.append(np.asarray(row).astype("<i4").tobytes())
    return b"".join(parts)


def load(program: Program, context: int, state: bytes) -> tuple[np.ndarray, list[tuple[int, int, str, np.ndarray]], np.ndarray | None]:
    """(positions [n], blocks (layer, head, area, array), last row or None), fully checked.

    Raises FormatError naming what does not fit.
    """
    if len(state) < _HEADER.size:
        raise FormatError(f"saved state: {len(state)} bytes are too few for its header; save it again")
    magic, fmt, arith, digest, bits, n, has_row = _HEADER.unpack_from(state)
    h = program.header
    if (magic, fmt, arith) != (_MAGIC, FORMAT, ARITH):
        raise FormatError("saved state: unknown magic or version; it was not saved by this version of EdgePos")
    if (digest, bits) != (h.digest, h.kv_bits):
        raise FormatError("saved state: it was saved by another model or KV format; restore it with the bundle that saved it")
    if n > context or has_row > min(n, 1):
        raise FormatError(f"saved state: {n} tokens do not fit a context of {context}; open a longer session")
    blocks = _layout(program, n)
    width = program.values[program.head_input].width
    size = _HEADER.size + 4 * n + sum(int(np.prod(shape)) * dtype.itemsize for *_, shape, dtype in blocks) + 4 * width * has_row
    if len(state) != size:
        raise FormatError(f"saved state: {len(state)} bytes found, {size} expected for {n} tokens")

    at = _HEADER.size

    def take(shape, dtype) -> np.ndarray:
        nonlocal at
        count = int(np.prod(shape))
        array = np.frombuffer(state, dtype, count, at).astype(np.int64).reshape(shape)
        at += count * dtype.itemsize
        return array

    positions = take((n,), np.dtype("<i4"))
    if n and (positions[0] < 0 or (np.diff(positions) <= 0).any()):
        raise FormatError("saved state: positions do not ascend from 0")
    ranges = ((-32639, 32639), (0, 17)) if bits == 16 else ((-127, 127), (0, 2**31 - 1))
    filled = []
    for layer, head, area, shape, dtype in blocks:
        array = take(shape, dtype)
        low, high = ranges[area.endswith("scale")]
        if array.size and (array.min() < low or array.max() > high):
            raise FormatError(f"saved state: {area} of layer {layer} is out of range")
        filled.append((layer, head, area, array))
    return positions, filled, take((width,), np.dtype("<i4")) if has_row else None
