"""Small integer programs with random or extreme numbers in every place that a file may hold: no model, all operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgepos import fixedpoint as fx
from edgepos.program import A8G32, A16, EMBEDDING, GROUP, KV, LOGITS, POOLS, POSITIONS, SOFTCAP_WORDS, W4G32, W8, W16G32, Header, Op, Operation, Program, Value


@dataclass
class Shape:
    """What a random program looks like."""

    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 10
    v_dim: int = 10
    pairs: int = 5
    own_increments: bool = False  # of each layer
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
    table: int = 0  # rows of the learned positions, 0 for none
    table_type: type = np.int8
    offset: int = 0  # of the learned positions
    modulo: int = 0  # of the learned positions
    head_norm: bool = False
    bias_columns: int = 0
    window: int = 0
    mask: int = 0
    softcap: bool = False  # of the scores
    logit_softcap: bool = False
    w4: bool = False  # every other LINEAR
    w16: bool = False  # the table of token ids, and every other LINEAR
    a8: bool = False  # two of three LINEARs
    image: int = 0  # 1 + tokens before the first patch: it reads an image of 8 x 12 pixels, 3 channels, patches of 4 (context: 6 more)
    pool: str = ""  # kind of POOL: the program gives an embedding
    dense: bool = False  # of an embedding: LINEAR, ACT and NORM behind POOL


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
        w[:, cols:] = 0  # by the format; a reader does not rely on it
        scale = -1
        if grouped:
            g = self.numbers(np.int16, (rows, padded // GROUP))
            scale = self.tensor(g if self.extreme else np.abs(g // 2) + 1)
        m = self.numbers(np.int32, rows)
        h = np.full(rows, (15 if grouped else 0) + 7 + 15 + fx.bitlen(cols) // 2 + 31 - target)
        h += self.rng.integers(-1, 2, rows)
        return self.tensor(w), scale, self.tensor(np.stack([m, h], axis=1).astype(np.int32))

    def w4_weights(self, rows: int, cols: int, target: int) -> tuple[int, int, int]:
        """The same in w4g32: codes in pairs (padding too holds any), scales and minima in turn."""
        groups = -(-cols // GROUP)
        w, g = self.numbers(np.int8, (rows, groups * GROUP // 2)), self.numbers(np.int16, (rows, 2 * groups))
        if not self.extreme:
            g[:, ::2] = np.abs(g[:, ::2] // 16) + 1
            g[:, 1::2] = -8 * g[:, ::2] + g[:, 1::2] // 64
        h = np.full(rows, 11 + 3 + 15 + fx.bitlen(cols) // 2 + 31 - target) + self.rng.integers(-1, 2, rows)
        return self.tensor(w), self.tensor(g), self.tensor(np.stack([self.numbers(np.int32, rows), h], axis=1).astype(np.int32))

    def w16_weights(self, rows: int, cols: int, target: int) -> tuple[int, int, int]:
        """The same in w16g32: twice the rows of weights and group scales."""
        w, g, m = self.weights(2 * rows, cols, True, target)
        self.arrays[m] = self.arrays[m][:rows]
        return w, g, m

    def embed(self, s: Shape) -> int:
        rows = self.w16_weights(s.vocab, s.width, 31) if s.w16 else self.weights(s.vocab, s.width, s.grouped, 31)
        return self.op(Op.EMBED, self.value(s.width), tensors=rows, shift=-7, form=W16G32 if s.w16 else W8)

    def linear(self, x: int, rows: int, s: Shape, target: int = 24, in_plan: bool = True, softcap: int = -1) -> int:
        cols = self.values[x].width
        form = W8 if len(self.ops) % 2 == 0 else W4G32 if s.w4 else W16G32 if s.w16 else W8
        made = {W4G32: self.w4_weights, W16G32: self.w16_weights}.get(form)
        w, g, m = made(rows, cols, target) if made else self.weights(rows, cols, s.grouped, target)
        bias = self.tensor(self.numbers(np.int32, rows) // (1 if self.extreme else 64)) if s.bias else -1
        # Inputs of about 24 bits are narrowed by about 2^9.
        inputs = A8G32 if s.a8 and len(self.ops) % 3 else A16
        return self.op(Op.LINEAR, self.value(rows, in_plan), [x], [w, g, m, bias], shift=9, form=form, inputs=inputs, softcap=softcap)

    def image(self, s: Shape) -> int:
        """Patches of an image through a linear."""
        x = self.value(48)
        self.values[x].f = 0
        self.op(Op.PATCHES, x, channels=3, height=8, width=12, patch=4, first=s.image - 1, zero=128)
        y = self.linear(x, s.width, s)
        self.ops[-1].params["shift"] = -8  # bytes need no narrowing
        return y

    def norm(self, x: int, s: Shape, groups: int = 1) -> int:
        width = self.values[x].width
        gamma = self.tensor(self.numbers(np.int32, width // groups))
        beta = self.tensor(self.numbers(np.int32, width // groups) // (1 if self.extreme else 2**9)) if s.center else -1
        facts = {"center": int(s.center), "eps_m": 2**30, "eps_shift": 20, "out_shift": 8, "groups": groups}
        return self.op(Op.NORM, self.value(width), [x], [gamma, beta], **facts)

    def softcap(self, bits: int) -> int:
        """A softcap table with results of about `bits` bits."""
        table = self.numbers(np.int32, SOFTCAP_WORDS)
        table[:2] = -8, 31 + 18 - bits
        return self.tensor(table)

    def positions(self, s: Shape) -> int:
        """Rows of learned positions of about 24 bits."""
        w, g, m = self.weights(s.table, s.width, s.grouped and s.table_type == np.int8, 31)
        if s.table_type == np.int16:
            self.arrays[w] = self.numbers(np.int16, self.arrays[w].shape)
            self.arrays[m][:, 1] += 8
        return self.op(Op.EMBED, self.value(s.width), tensors=[w, g, m], shift=-7, source=POSITIONS, offset=s.offset, modulo=s.modulo)


def random_program(rng: np.random.Generator, s: Shape, extreme: bool = False) -> Program:
    """A transformer-shaped program of shape `s`. All its values have 16 fractional bits."""
    b = Builder(rng, extreme)
    x = b.image(s) if s.image else b.embed(s)
    table = b.tensor(b.numbers(np.int32, 2049))
    increments = b.tensor(b.numbers(np.int32, (s.pairs, 2))) if s.pairs else -1
    slopes = b.tensor(b.numbers(np.int32, s.heads)) if s.alibi else -1
    bias = b.tensor(b.numbers(np.int32, (s.heads, s.bias_columns)) // (1 if extreme else 2**11)) if s.bias_columns else -1
    cap = b.softcap(20) if s.softcap else -1
    if s.table:
        rows = b.positions(s)
        x = b.op(Op.ADD, b.value(s.width), [x, rows], la=0, lb=0, n=1)
    w = min(30, max(23, 11 + fx.bitlen(s.context - 1)))
    for layer in range(s.layers):
        y = b.norm(x, s)
        q, k = b.linear(y, s.heads * s.head_dim, s), b.linear(y, s.kv_heads * s.head_dim, s)
        v = b.linear(y, s.kv_heads * s.v_dim, s)
        if s.head_norm:
            q, k = b.norm(q, s, s.heads), b.norm(k, s, s.kv_heads)
        if s.pairs:
            if s.own_increments and layer:
                increments = b.tensor(b.numbers(np.int32, (s.pairs, 2)))
            rope = {"head_dim": s.head_dim, "layout": s.layout, "amp_m": 1073774593, "amp_shift": 45}
            q = b.op(Op.ROPE, b.value(s.heads * s.head_dim), [q], [increments], heads=s.heads, **rope)
            k = b.op(Op.ROPE, b.value(s.kv_heads * s.head_dim), [k], [increments], heads=s.kv_heads, **rope)
        b.op(Op.KV_WRITE, -1, [k, v], layer=layer)
        shift = 31 + 28 - 18 + (0 if s.kv_bits == 16 else 16) + (14 if s.kv_bits == 16 else 0)
        a = b.op(
            Op.ATTENTION, b.value(s.heads * s.v_dim), [q], [slopes, bias, cap], layer=layer, heads=s.heads,
            score_m=1549082005, score_shift=shift, w=w, out_shift=0, alibi_shift=15, mask=s.mask,
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
    if s.pool:
        y = b.op(Op.POOL, b.value(s.width), [x], kind=POOLS.index(s.pool), id=s.vocab // 3 if s.pool == "token" else 0)
        if s.dense:
            y = b.linear(y, s.inner, s, 20)
            y = b.op(Op.ACT, b.value(s.inner), [y], [table], in_shift=-8, out_shift=26, left=0, right=0, id_shift=0)
            b.norm(y, s)
    else:
        b.linear(b.norm(x, s), s.vocab, s, in_plan=False, softcap=b.softcap(24) if s.logit_softcap else -1)
    selftest = b.tensor(rng.integers(-128, 128, (8, 36)).astype(np.int8) if s.image else rng.integers(0, s.vocab, min(12, s.context)).astype(np.int32))
    header = Header(s.vocab, s.context, s.kv_bits, 16, head, b.used, selftest, output=EMBEDDING if s.pool else LOGITS)
    if s.image:
        header.vocab, header.context = 1, s.image - 1 + 6
    return Program(header, b.values, [KV(s.kv_heads, s.head_dim, s.v_dim, s.window)] * s.layers, b.ops, b.names, b.arrays)
