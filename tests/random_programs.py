"""Small integer programs with random or extreme numbers in every place that a file may hold: no model, all operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgepos import fixedpoint as fx
from edgepos.program import GROUP, KV, Header, Op, Operation, Program, Value


@dataclass
class Shape:
    """What a random program looks like."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 10
    v_dim: int = 10
    pairs: int = 5
    layout: int = 1
    alibi: bool = False
    center: bool = False
    grouped: bool = True
    bias: bool = False
    kv_bits: int = 16
    layers: int = 2
    width: int = 44
    inner: int = 70
    vocab: int = 97
    context: int = 40


class Builder:
    """Adds operators one by one; values are numbered in order and share no room."""

    def __init__(self, rng: np.random.Generator, extreme: bool):
        self.rng, self.extreme = rng, extreme
        self.values: list[Value] = []
        self.ops: list[Operation] = []
        self.names, self.arrays = ["edgepos.program"], [None]
        self.used = 0

    def tensor(self, array: np.ndarray) -> int:
        self.arrays.append(np.ascontiguousarray(array))
        self.names.append(f"t{len(self.names)}")
        return len(self.names) - 1

    def value(self, width: int, in_plan: bool = True) -> int:
        self.values.append(Value(width, 16, self.used if in_plan else -1))
        self.used += width if in_plan else 0
        return len(self.values) - 1

    def op(self, code: Op, out: int, ins=(-1, -1), tensors=(), **params) -> int:
        ins, tensors = tuple(ins), tuple(tensors)
        self.ops.append(Operation(code, out, ins + (-1,) * (2 - len(ins)), tensors + (-1,) * (4 - len(tensors)), params, f"op{len(self.ops)}"))
        return out

    def numbers(self, dtype, shape) -> np.ndarray:
        """Random numbers of the type; extreme: only its largest and smallest ones."""
        info = np.iinfo(dtype)
        if self.extreme:
            return self.rng.choice(np.array([info.min, info.max], dtype), shape)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)

    def weights(self, rows: int, cols: int, grouped: bool, target: int) -> tuple[int, int, int]:
        """Weight, group scale and row scale tensors; not extreme: results of about `target` bits."""
        padded = -(-cols // GROUP) * GROUP
        w = self.numbers(np.int8, (rows, padded))
        w[:, cols:] = 0
        scale = -1
        if grouped:
            g = self.numbers(np.int16, (rows, padded // GROUP))
            scale = self.tensor(g if self.extreme else np.abs(g // 2) + 1)
        m = self.numbers(np.int32, rows)
        h = np.full(rows, (15 if grouped else 0) + 7 + 15 + fx.bitlen(cols) // 2 + 31 - target)
        h += self.rng.integers(-1, 2, rows)
        return self.tensor(w), scale, self.tensor(np.stack([m, h], axis=1).astype(np.int32))

    def linear(self, x: int, rows: int, s: Shape, target: int = 24, in_plan: bool = True) -> int:
        cols = self.values[x].width
        w, g, m = self.weights(rows, cols, s.grouped, target)
        bias = self.tensor(self.numbers(np.int32, rows) // (1 if self.extreme else 64)) if s.bias else -1
        # Inputs of about 24 bits are narrowed by about 2^9.
        return self.op(Op.LINEAR, self.value(rows, in_plan), [x], [w, g, m, bias], shift=9)

    def norm(self, x: int, s: Shape) -> int:
        width = self.values[x].width
        gamma = self.tensor(self.numbers(np.int32, width))
        beta = self.tensor(self.numbers(np.int32, width) // (1 if self.extreme else 2**9)) if s.center else -1
        return self.op(Op.NORM, self.value(width), [x], [gamma, beta], center=int(s.center), eps_m=2**30, eps_shift=20, out_shift=8)


def random_program(rng: np.random.Generator, s: Shape, extreme: bool = False) -> Program:
    """A transformer-shaped program of shape `s`. All its values have 16 fractional bits."""
    b = Builder(rng, extreme)
    e = b.weights(s.vocab, s.width, s.grouped, 31)
    x = b.op(Op.EMBED, b.value(s.width), tensors=e, shift=-7)
    table = b.tensor(b.numbers(np.int32, 2049))
    increments = b.tensor(b.numbers(np.int32, (s.pairs, 2))) if s.pairs else -1
    slopes = b.tensor(b.numbers(np.int32, s.heads)) if s.alibi else -1
    w = min(30, max(23, 11 + fx.bitlen(s.context - 1)))
    for layer in range(s.layers):
        y = b.norm(x, s)
        q, k = b.linear(y, s.heads * s.head_dim, s), b.linear(y, s.kv_heads * s.head_dim, s)
        v = b.linear(y, s.kv_heads * s.v_dim, s)
        if s.pairs:
            rope = {"head_dim": s.head_dim, "layout": s.layout, "amp_m": 1073774593, "amp_shift": 45}
            q = b.op(Op.ROPE, b.value(s.heads * s.head_dim), [q], [increments], heads=s.heads, **rope)
            k = b.op(Op.ROPE, b.value(s.kv_heads * s.head_dim), [k], [increments], heads=s.kv_heads, **rope)
        b.op(Op.KV_WRITE, -1, [k, v], layer=layer)
        shift = 31 + 28 - 18 + (0 if s.kv_bits == 16 else 16) + (14 if s.kv_bits == 16 else 0)
        a = b.op(
            Op.ATTENTION, b.value(s.heads * s.v_dim), [q], [slopes], layer=layer, heads=s.heads,
            score_m=1549082005, score_shift=shift, w=w, out_shift=0, alibi_shift=15,
        )  # fmt: skip
        o = b.linear(a, s.width, s)
        x = b.op(Op.ADD, b.value(s.width), [x, o], la=1, lb=0, n=1)
        y = b.norm(x, s)
        gate, up = b.linear(y, s.inner, s, 20), b.linear(y, s.inner, s)
        gate = b.op(Op.ACT, b.value(s.inner), [gate], [table], in_shift=-8, out_shift=26, left=layer & 1, right=1, id_shift=0)
        y = b.op(Op.MUL, b.value(s.inner), [gate, up], n=22)
        o = b.linear(y, s.width, s)
        x = b.op(Op.ADD, b.value(s.width), [x, o], la=0, lb=2, n=1)
    head = len(b.ops)
    b.linear(b.norm(x, s), s.vocab, s, in_plan=False)
    selftest = b.tensor(rng.integers(0, s.vocab, min(12, s.context)).astype(np.int32))
    header = Header(s.vocab, s.context, s.kv_bits, 16, head, b.used, selftest)
    return Program(header, b.values, [KV(s.kv_heads, s.head_dim, s.v_dim)] * s.layers, b.ops, b.names, b.arrays)
