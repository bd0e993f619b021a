"""Error of the attention's scores over the distance of query and key."""

from __future__ import annotations

import numpy as np

from .. import fixedpoint as fx
from ..golden import Machine
from ..program import BIDIRECTIONAL, Op, Operation, Program

LN2 = float(np.log(2))


class ScoreErrors:
    """Collects |score of the integers − score of the float graph| while a traced session runs from an empty cache.

    A score is scale · q·k in natural units, before softcap and position bias; the integers' q and k are those that the attention
    multiplies, so they hold the rounding to 16 or 8 bits and all errors of the operators before.
    """

    def __init__(self, program: Program, floats: dict[str, np.ndarray]):
        """floats: operator name → values [tokens, width]."""
        self.program, self.floats = program, floats
        self.producer = {op.out: op for op in program.ops}
        self.queries = {op.ins[0] for op in program.ops if op.code == Op.ATTENTION}
        self.keys = {op.params["layer"]: op.ins[0] for op in program.ops if op.code == Op.KV_WRITE}
        self.seen: dict[int, np.ndarray] = {}
        self.count = self.total = self.largest = np.zeros(0)

    def see(self, op: Operation, output: np.ndarray, machine: Machine) -> None:
        """An operator has run."""
        if op.out in self.queries:
            self.seen[op.out] = output
        if op.code == Op.ATTENTION:
            self._measure(op, self.seen.pop(op.ins[0]), machine)

    def _measure(self, op: Operation, query: np.ndarray, machine: Machine) -> None:
        p, tokens = op.params, len(query)
        key = self.keys[p["layer"]]
        names = [self.producer[value].name for value in (op.ins[0], key)]
        if any(name not in self.floats for name in names):
            return
        cache, heads = machine.caches[p["layer"]], p["heads"]
        shared = np.arange(heads) * cache.k.shape[0] // heads
        f_q, f_k = (self.program.values[value].f for value in (op.ins[0], key))
        wide = self.program.header.kv_bits == 16
        q, sq = fx.narrow16(query.reshape(tokens, heads, -1).transpose(1, 0, 2))
        k, sk = cache.k[:, :tokens].astype(np.float64), cache.k_scale[:, :tokens]
        k = k * np.exp2(sk)[..., None] if wide else k * sk[..., None]
        unit = np.ldexp(float(p["score_m"]), -(p["score_shift"] + 16)) * LN2
        ours = (q * np.exp2(sq)[..., None]) @ k[shared].transpose(0, 2, 1) * unit
        scale = np.ldexp(unit if wide else 127 * unit, f_q + f_k)
        exact_q, exact_k = (np.float64(self.floats[name]).reshape(tokens, n, -1).transpose(1, 0, 2) for name, n in zip(names, (heads, cache.k.shape[0])))
        error = np.abs(ours - exact_q @ exact_k[shared].transpose(0, 2, 1) * scale)
        away = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
        visible = np.full(away.shape, True) if p["mask"] == BIDIRECTIONAL else away >= 0
        self._count(np.abs(away)[visible], error[:, visible])

    def _count(self, distance: np.ndarray, error: np.ndarray) -> None:
        """distance int [n], error [heads, n]."""
        size = max(len(self.count), int(distance.max()) + 1)
        self.count, self.total, self.largest = (np.pad(x, (0, size - len(x))) for x in (self.count, self.total, self.largest))
        self.count += np.bincount(distance, minlength=size) * len(error)
        self.total += np.bincount(distance, error.sum(axis=0), minlength=size)
        np.maximum.at(self.largest, distance, error.max(axis=0))

    def rows(self) -> list[dict]:
        """distance (tokens), mean and max error over all layers and heads, by distance; [] where the float graph lacks q or k."""
        return [
            {"distance": d, "mean": float(self.total[d] / n), "max": float(self.largest[d])} for d, n in enumerate(self.count.tolist()) if n
        ]
