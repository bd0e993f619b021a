"""The float weights that a program's integers stand for, by the names of the canonical graph's initializers."""

from __future__ import annotations

import numpy as np

from ..program import NONE, Op, Operation, Program
from .assemble import ROW_SCALES, UNIT, suffixed
from .constants import bias_floats, gamma_floats
from .weights import dequantize


def dequantized_weights(program: Program) -> dict[str, np.ndarray]:
    """Initializer name → float32: matrices [rows, cols] and vectors [d] of every EMBED, NORM and LINEAR, biases of every ATTENTION.

    Names are those of the tensors, which are the initializers' names up to 63 bytes. Tables of rotations and slopes are left out.
    A bias that several operators share in the source is given once, as its first user has it.
    """
    weights: dict[str, np.ndarray] = {}
    for op in program.ops:
        for index, make in _parts(program, op):
            name = program.names[index]
            if name not in weights:
                weights[name] = make()
    return weights


def _parts(program: Program, op: Operation):
    """(tensor index, function that makes its float32) of each weight of an operator."""
    t, arrays = op.tensors, program.arrays
    if op.code in (Op.EMBED, Op.LINEAR):
        width = program.values[op.out if op.code == Op.EMBED else op.ins[0]].width
        groups = None if t[1] == NONE else arrays[t[1]]
        yield t[0], lambda: dequantize(arrays[t[0]], groups, arrays[own_rows(program, op)], width, op.params["form"])
        if op.code == Op.LINEAR and t[3] != NONE:
            yield t[3], lambda: fixed_floats(arrays[t[3]], program.values[op.out].f)
    elif op.code == Op.NORM and not program.names[t[0]].startswith(UNIT):
        yield t[0], lambda: gamma_floats(arrays[t[0]], op.params["out_shift"] + program.values[op.out].f)
        if t[1] != NONE:
            yield t[1], lambda: fixed_floats(arrays[t[1]], program.values[op.out].f)
    elif op.code == Op.ATTENTION and t[1] != NONE:
        yield t[1], lambda: bias_floats(arrays[t[1]])


def own_rows(program: Program, op: Operation) -> int:
    """The tensor with the row scales of an operator's matrix itself, without the factor of an EMBED that scales its rows."""
    matrix, rows = op.tensors[0], op.tensors[2]
    own = suffixed(program.names[matrix], ROW_SCALES)
    return program.names.index(own) if program.names[rows] != own and own in program.names else rows


def fixed_floats(raw: np.ndarray, f: int) -> np.ndarray:
    """raw·2^−f as float32."""
    return np.ldexp(raw.astype(np.float64), -f).astype(np.float32)
