"""The executable specification of integer programs: section 3 of docs/arithmetic.md in NumPy, one short function per operator.

Read it from top to bottom. Values are int64 arrays [tokens, width] that hold int32 numbers. Products of integers run in
float64 matrix products only where every partial sum stays below 2^53, so that they are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import fixedpoint as fx
from .program import A8G32, BIDIRECTIONAL, GROUP, INTERLEAVED, NONE, POOLS, POSITIONS, W4G32, W16G32, Op, Operation, Program


BLOCK = 1 << 21  # weights that are multiplied at a time
KEPT = 1 << 25  # exact weights that a machine remembers: 256 MB


@dataclass
class Batch:
    """Consecutive tokens of one call: ids int64 [T], positions int64 [T], and the cache slot of the first one. pixels: of an image,
    uint8 [height, width, channels], whose tokens have no ids."""

    ids: np.ndarray
    positions: np.ndarray
    slot: int
    pixels: np.ndarray | None = None


def image_batch(pixels: np.ndarray, tokens: int) -> Batch:
    """The call that reads an image."""
    return Batch(np.zeros(tokens, np.int64), np.arange(tokens), 0, pixels)


class Cache:
    """Keys and values of one layer: integers [kv_heads, context, dim] with one scale per token and head [kv_heads, context]."""

    def __init__(self, heads: int, k_dim: int, v_dim: int, context: int):
        self.k = np.zeros((heads, context, k_dim), np.int64)
        self.v = np.zeros((heads, context, v_dim), np.int64)
        self.k_scale = np.zeros((heads, context), np.int64)
        self.v_scale = np.zeros((heads, context), np.int64)


class Machine:
    """Runs the operators of a program. Holds the KV cache and the count of saturations."""

    def __init__(self, program: Program, context: int):
        self.program = program
        self.kv_bits = program.header.kv_bits
        self.caches = [Cache(kv.heads, kv.k_dim, kv.v_dim, context) for kv in program.kv]
        self.positions = np.zeros(context, np.int64)
        self.saturations = 0
        self._exact: dict[tuple[int, int], np.ndarray] = {}

    def run(self, op: Operation, values: dict[int, np.ndarray], batch: Batch) -> np.ndarray | None:
        """The operator's output int64 [tokens, width]; None for KV_WRITE. `values` maps value numbers to their arrays."""
        return OPERATORS[op.code](self, op, [values[i] for i in op.ins if i != NONE], batch)

    # ---- counted steps

    def requant(self, a, m, n) -> np.ndarray:
        y = fx.requant(a, m, n)
        if y.size and (y.max() == fx.INT32_MAX or y.min() == fx.INT32_MIN):
            self.saturations += int(np.count_nonzero(fx.requant_saturates(a, m, n)))
        return y

    def sat32(self, x) -> np.ndarray:
        y = fx.sat32(x)
        self.saturations += int(np.count_nonzero(x != y))
        return y

    # ---- positions

    def turns(self, op: Operation, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
        """(cos, sin int64 [tokens, pairs], the amplitude m·2^−n of their products) of a ROPE."""
        words = self.tensor(op.tensors[0]).view(np.uint32).astype(np.uint64)
        increments = words[:, 0] | words[:, 1] << np.uint64(32)
        cos, sin = fx.sincos_q15(fx.rope_phase(positions[:, None], increments[None, :]))
        return cos, sin, (op.params["amp_m"], op.params["amp_shift"])

    def alibi(self, op: Operation, distance: np.ndarray) -> np.ndarray:
        """What an ATTENTION with slopes subtracts from the scores at distances [tokens, n]: int64 [heads, tokens, n]."""
        slope = self.tensor(op.tensors[0]).view(np.uint32).astype(np.int64)
        return fx.alibi_bias(slope[:, None, None], distance[None], op.params["alibi_shift"])

    # ---- weights

    def tensor(self, index: int) -> np.ndarray | None:
        return None if index == NONE else self.program.arrays[index]

    def weights_times_scales(self, op: Operation, rows: slice) -> np.ndarray:
        """w·g, c·g + u of w4g32, or w·g + w'·g' of w16g32, as float64 [rows, K], exact: at most 2^23. What was used last is kept, up to KEPT numbers."""
        key = (op.tensors[0], rows.start)
        if (w := self._exact.pop(key, None)) is None:
            w, g = self.tensor(op.tensors[0])[rows], self.tensor(op.tensors[1])
            if op.params["form"] == W4G32:
                codes = np.stack([w & 15, w >> 4 & 15], axis=2).reshape(len(w), -1)
                scale, least = (np.repeat(g[rows, i::2].astype(np.float64), GROUP, axis=1) for i in (0, 1))
                w = codes * scale + least
            else:
                w = w.astype(np.float64)
                if g is not None:
                    w *= np.repeat(g[rows].astype(np.float64), GROUP, axis=1)
                if op.params["form"] == W16G32:
                    count = len(self.tensor(op.tensors[2]))
                    fine, scale = (self.tensor(t)[count:][rows].astype(np.float64) for t in op.tensors[:2])
                    w += fine * np.repeat(scale, GROUP, axis=1)
        self._exact[key] = w
        while sum(kept.size for kept in self._exact.values()) > KEPT and len(self._exact) > 1:
            del self._exact[next(iter(self._exact))]
        return w


# ---- operators, in the order in which the data flows


def embed(machine: Machine, op: Operation, _inputs, batch: Batch) -> np.ndarray:
    width, p = machine.program.values[op.out].width, op.params
    rows = batch.ids
    if p["source"] == POSITIONS:
        rows = (batch.positions % p["modulo"] if p["modulo"] else batch.positions) + p["offset"]
    w = machine.tensor(op.tensors[0])[rows].astype(np.int64)
    g = machine.tensor(op.tensors[1])
    if g is not None:
        w *= np.repeat(g[rows].astype(np.int64), GROUP, axis=1)
    if p["form"] == W16G32:
        fine = rows + len(machine.tensor(op.tensors[2]))
        w += machine.tensor(op.tensors[0])[fine].astype(np.int64) * np.repeat(g[fine].astype(np.int64), GROUP, axis=1)
    m, h = machine.tensor(op.tensors[2])[rows].astype(np.int64).T
    return machine.requant(w[:, :width], m[:, None], h[:, None] + p["shift"])


def patches(machine: Machine, op: Operation, _inputs, batch: Batch) -> np.ndarray:
    """Rows of zeros, then the patches of the image."""
    p = op.params
    size, (height, width, channels) = p["patch"], batch.pixels.shape
    x = batch.pixels.astype(np.int64).reshape(height // size, size, width // size, size, channels) - p["zero"]
    rows = x.transpose(0, 2, 1, 3, 4).reshape(-1, size * size * channels)
    return np.concatenate([np.zeros((p["first"], rows.shape[1]), np.int64), rows])


def norm(machine: Machine, op: Operation, inputs, _batch) -> np.ndarray:
    p = op.params
    x = inputs[0].reshape(len(inputs[0]) * p["groups"], -1)  # every part is a row
    width = x.shape[1]
    gamma, beta = machine.tensor(op.tensors[0]).astype(np.int64), machine.tensor(op.tensors[1])
    c = width * x - x.sum(axis=1, keepdims=True) if p["center"] else x
    bits = min(30, (62 - fx.bitlen(width - 1)) >> 1)
    y = np.empty_like(x)
    for t, row in enumerate(c):
        shift = max(0, fx.bitlen(np.abs(row).max()) - bits)
        small = fx.rshift_round(row, shift)
        epsilon = min(int(fx.rshift_round(p["eps_m"], p["eps_shift"] + 2 * shift)), 1 << 62)
        r, e = fx.rsqrt(max(1, int((small * small).sum()) + epsilon))
        y[t] = machine.requant(small * gamma, r, e + p["out_shift"])
    y = y if beta is None else machine.sat32(y + beta.astype(np.int64))
    return y.reshape(inputs[0].shape)


def linear(machine: Machine, op: Operation, inputs, _batch) -> np.ndarray:
    row_scales = machine.tensor(op.tensors[2]).astype(np.int64)
    columns = machine.tensor(op.tensors[0]).shape[1] * (2 if op.params["form"] == W4G32 else 1)
    x = np.pad(inputs[0], ((0, 0), (0, columns - inputs[0].shape[1])))
    if op.params["inputs"] == A8G32:
        q, d, s = fx.quant8g32(x)
        q = q * np.repeat(d, GROUP, axis=1)  # at most 32385: from here on like narrow16
    else:
        q, s = fx.narrow16(x)
    y = np.empty((len(q), len(row_scales)), np.int64)
    step = max(1, BLOCK // columns)
    for start in range(0, len(row_scales), step):  # some rows at a time, so that large matrices need little memory
        rows = slice(start, min(start + step, len(row_scales)))
        acc = _exact_matmul(q, machine.weights_times_scales(op, rows))
        m, h = row_scales[rows].T
        y[:, rows] = machine.requant(acc, m, h + op.params["shift"] - s[:, None])
    bias, cap = machine.tensor(op.tensors[3]), machine.tensor(op.params["softcap"])
    y = y if bias is None else machine.sat32(y + bias.astype(np.int64))
    return y if cap is None else machine.sat32(_softcap(cap, y))


def _exact_matmul(q: np.ndarray, w: np.ndarray) -> np.ndarray:
    """q [T, K] (16 bits) times w [rows, K] (at most 2^23) transposed: at most 2^15 columns at a time stay below 2^53."""
    step = 1 << 15
    acc = np.zeros((q.shape[0], w.shape[0]), np.int64)
    for at in range(0, q.shape[1], step):
        acc += (q[:, at : at + step].astype(np.float64) @ w[:, at : at + step].T).astype(np.int64)
    return acc


def add(machine: Machine, op: Operation, inputs, _batch) -> np.ndarray:
    a, b = inputs
    p = op.params
    return machine.sat32(fx.rshift_round((a << p["la"]) + (b << p["lb"]), p["n"]))


def mul(machine: Machine, op: Operation, inputs, _batch) -> np.ndarray:
    return machine.sat32(fx.rshift_round(inputs[0] * inputs[1], op.params["n"]))


def act(machine: Machine, op: Operation, inputs, _batch) -> np.ndarray:
    x, p = inputs[0], op.params
    table = machine.tensor(op.tensors[0]).astype(np.int64)
    u = fx.sat32(fx.rshift_round(x, p["in_shift"]))
    identity = ((u < -(2**28)) & bool(p["left"])) | ((u >= 2**28) & bool(p["right"]))
    y = np.where(identity, fx.rshift_round(x, p["id_shift"]), _curve(table, u, p["out_shift"]))
    return machine.sat32(y)


def _curve(table: np.ndarray, u: np.ndarray, out_shift: int) -> np.ndarray:
    """The function of a table at u (24 fractional bits): steps of 1/64 over [−16, 16), its ends outside."""
    v = np.clip(u + 2**28, 0, 2**29 - 1)
    i, f = v >> 18, v & (2**18 - 1)
    inside = (table[i] << 18) + (table[i + 1] - table[i]) * f
    return fx.rshift_round(np.where(u < -(2**28), table[0] << 18, np.where(u >= 2**28, table[2048] << 18, inside)), out_shift)


def _softcap(tensor: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A softcap table [in_shift, out_shift, 2049 entries] applied to x, before it is saturated."""
    words = tensor.astype(np.int64)
    return _curve(words[2:], fx.sat32(fx.rshift_round(x, words[0])), words[1])


def rope(machine: Machine, op: Operation, inputs, batch: Batch) -> np.ndarray:
    p = op.params
    x = inputs[0].reshape(len(batch.ids), p["heads"], p["head_dim"])
    cos, sin, amplitude = machine.turns(op, batch.positions)
    pairs = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    if p["layout"] == INTERLEAVED:
        first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        first, second = slice(0, pairs), slice(pairs, 2 * pairs)
    a, b = x[..., first], x[..., second]
    y = x.copy()
    y[..., first] = machine.requant(a * cos - b * sin, *amplitude)
    y[..., second] = machine.requant(a * sin + b * cos, *amplitude)
    return y.reshape(inputs[0].shape)


def kv_write(machine: Machine, op: Operation, inputs, batch: Batch) -> None:
    cache = machine.caches[op.params["layer"]]
    quantize = fx.narrow16 if machine.kv_bits == 16 else fx.quant8
    slots = slice(batch.slot, batch.slot + len(batch.ids))
    machine.positions[slots] = batch.positions
    for x, data, scale in ((inputs[0], cache.k, cache.k_scale), (inputs[1], cache.v, cache.v_scale)):
        heads, _, dim = data.shape
        q, s = quantize(x.reshape(len(batch.ids), heads, dim))
        data[:, slots] = q.transpose(1, 0, 2)
        scale[:, slots] = s.T


def attention(machine: Machine, op: Operation, inputs, batch: Batch) -> np.ndarray:
    p = op.params
    cache = machine.caches[p["layer"]]
    tokens, n = len(batch.ids), batch.slot + len(batch.ids)
    heads, kv16 = p["heads"], machine.kv_bits == 16
    kv_head = np.arange(heads) * cache.k.shape[0] // heads
    k, v = cache.k[kv_head, :n], cache.v[kv_head, :n]  # [heads, n, dim]
    k_scale, v_scale = cache.k_scale[kv_head, :n], cache.v_scale[kv_head, :n]  # [heads, n]
    visible = _visible(machine, op, batch)  # [tokens, n]

    # 1. scores in log2 units, 16 fractional bits: [heads, tokens, n]
    q, sq = fx.narrow16(inputs[0].reshape(tokens, heads, -1).transpose(1, 0, 2))
    dot = (q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1)).astype(np.int64)
    if kv16:
        shift = p["score_shift"] - sq[:, :, None] - k_scale[:, None, :]
    else:
        dot, shift = dot * k_scale[:, None, :], p["score_shift"] - sq[:, :, None]
    shift = np.broadcast_to(shift, dot.shape)
    score = np.zeros_like(dot)
    score[:, visible] = machine.requant(dot[:, visible], p["score_m"], shift[:, visible])
    cap = machine.tensor(op.tensors[2])
    if cap is not None:
        score = fx.sat32(_softcap(cap, score))

    # 2. ALiBi and relative bias
    away = machine.positions[None, :n] - batch.positions[:, None]  # [tokens, n], of the key from the query
    bias = machine.tensor(op.tensors[1])
    if op.tensors[0] != NONE:
        distance = np.abs(away) if p["mask"] == BIDIRECTIONAL else np.maximum(0, -away)
        score = fx.sat32(score - machine.alibi(op, distance))
    if bias is not None:
        last = bias.shape[1] - 1
        column = np.clip(away + last // 2, 0, last) if p["mask"] == BIDIRECTIONAL else np.clip(-away, 0, last)
        score = fx.sat32(score + bias[:, column].astype(np.int64))

    # 3. probabilities, maximum first
    largest = np.where(visible, score, fx.INT64_MIN).max(axis=2, keepdims=True)
    prob = np.where(visible, fx.exp2_neg(largest - score, p["w"]), 0)
    total = prob.sum(axis=2)

    # 4. value scales folded in, relative to the largest visible one
    scale_seen = np.broadcast_to(v_scale[:, None, :], prob.shape)
    top = np.where(visible, scale_seen, 0).max(axis=2)
    if kv16:
        weight = fx.rshift_round(prob, top[:, :, None] - scale_seen)
    else:
        m, e = _pairs(fx.recip, top)
        weight = fx.requant(prob * scale_seen, m[:, :, None], e[:, :, None])
    weight = np.where(visible, weight, 0)

    # 5. mix: two exact products of 15-bit halves
    vf = v.astype(np.float64)
    high, low = (weight >> 15).astype(np.float64) @ vf, (weight & 32767).astype(np.float64) @ vf
    acc = (high.astype(np.int64) << 15) + low.astype(np.int64)

    # 6. one reciprocal per query and head
    if kv16:
        m, e = _pairs(fx.recip, total)
        out = machine.requant(acc, m[:, :, None], (e + p["out_shift"] - top)[:, :, None])
    else:
        m, e = _pairs(fx.recip, 127 * total)
        factor = top * m
        k_bits = np.maximum(0, np.vectorize(fx.bitlen, otypes=[np.int64])(factor) - 31)
        factor = np.minimum(fx.rshift_round(factor, k_bits), fx.INT32_MAX)
        out = machine.requant(acc, factor[:, :, None], (e + p["out_shift"] - k_bits)[:, :, None])
    return out.transpose(1, 0, 2).reshape(tokens, -1)


def pool(_machine: Machine, op: Operation, inputs, batch: Batch) -> np.ndarray:
    """One row of all tokens."""
    x, kind = inputs[0], POOLS[op.params["kind"]]
    if kind == "mean":
        return fx.div_round_half_up(x.sum(axis=0, keepdims=True), np.int64(len(x)))
    if kind == "max":
        return x.max(axis=0, keepdims=True)
    # argmax takes the first of equals, and the first token where nothing is true.
    at = {"first": 0, "last": -1, "token": np.argmax(batch.ids == op.params["id"]), "largest_id": np.argmax(batch.ids)}[kind]
    return x[[at]]


def _visible(machine: Machine, op: Operation, batch: Batch) -> np.ndarray:
    """Which slots each token of the batch sees, bool [tokens, slots]."""
    slots = np.arange(batch.slot + len(batch.ids))[None, :]
    if op.params["mask"] == BIDIRECTIONAL:
        return np.ones((len(batch.ids), slots.size), bool)
    own = (batch.slot + np.arange(len(batch.ids)))[:, None]
    window = machine.program.kv[op.params["layer"]].window
    return (slots <= own) & ((slots > own - window) | (window == 0))


def _pairs(function, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A primitive that returns (m, e) for one whole number, over an array."""
    flat = np.array([function(int(i)) for i in x.ravel()], dtype=np.int64).reshape(-1, 2)
    return flat[:, 0].reshape(x.shape), flat[:, 1].reshape(x.shape)


OPERATORS = {
    Op.PATCHES: patches,
    Op.EMBED: embed,
    Op.NORM: norm,
    Op.LINEAR: linear,
    Op.ADD: add,
    Op.MUL: mul,
    Op.ACT: act,
    Op.ROPE: rope,
    Op.KV_WRITE: kv_write,
    Op.ATTENTION: attention,
    Op.POOL: pool,
}
