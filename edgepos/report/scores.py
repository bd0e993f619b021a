"""Error of the attention's scores over the distance of query and key."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .. import fixedpoint as fx
from ..program import BIDIRECTIONAL, Op, Operation, Program
from .layers import float_values

LN2 = float(np.log(2))


def score_errors(program: Program, session, model: ir.Model, ids, threads: int = 0) -> list[dict]:
    """distance (tokens), mean and max of |score of the integers − score of the float graph| over all layers and heads, by distance.

    `session` is one of the C runtime for `program`, `model` the float graph, `ids` a window of token ids, or an image. A score is scale · q·k in natural units,
    before softcap and position bias; the integers' q and k are those that the attention multiplies, so they hold the rounding to 16
    or 8 bits and all errors of the operators before. [] where the float graph lacks q or k.
    """
    producer = {op.out: op for op in program.ops}
    keys = {op.params["layer"]: op.ins[0] for op in program.ops if op.code == Op.KV_WRITE}
    pairs = [(op, op.ins[0], keys[op.params["layer"]]) for op in program.ops if op.code == Op.ATTENTION]
    floats = float_values(model, [producer[value].name for _, *both in pairs for value in both], ids, threads)
    ours = _integers(program, session, ids, {value for _, *both in pairs for value in both})
    errors = _ByDistance()
    for op, *both in pairs:
        exact = [floats.get(producer[value].name) for value in both]
        if all(x is not None for x in exact):
            error, visible = _errors(program, op, [(ours[value], program.values[value].f) for value in both], exact)
            errors.add(error, visible)
    return errors.rows()


def _integers(program: Program, session, ids, values: set[int]) -> dict[int, np.ndarray]:
    """Value number → int32 [tokens, width] of what the session computes for `ids` from an empty cache."""
    tokens = program.header.context if program.image else len(ids)
    found = {value: np.zeros((tokens, program.values[value].width), np.int32) for value in values}

    def see(event) -> None:
        if event.value in found:
            found[event.value][event.token : event.token + len(event.data)] = event.data

    session.reset()
    session.set_trace(see)
    try:
        if program.image:
            session.embed_image_int(ids)
        elif program.embedding:
            session.embed_int(ids)
        else:
            session.eval_int(ids, logits="none")
    finally:
        session.set_trace(None)
        session.reset()
    return found


def _errors(program: Program, op: Operation, integers: list[tuple[np.ndarray, int]], exact: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(error [heads, tokens, tokens] of query and key, whether the query sees the key [tokens, tokens]) of an ATTENTION."""
    p, shape = op.params, program.kv[op.params["layer"]]
    heads, tokens = (p["heads"], shape.heads), len(exact[0])
    split = [x.reshape(tokens, n, -1).transpose(1, 0, 2) for (x, _), n in zip(integers, heads)]
    wide = program.header.kv_bits == 16
    q, sq = fx.narrow16(split[0])
    k, sk = (fx.narrow16 if wide else fx.quant8)(split[1])
    unit = np.ldexp(float(p["score_m"]), -(p["score_shift"] + 16)) * LN2
    shared = np.arange(heads[0]) * heads[1] // heads[0]
    ours = (q * np.exp2(sq)[..., None]) @ (k * (np.exp2(sk) if wide else sk)[..., None])[shared].transpose(0, 2, 1) * unit
    scale = np.ldexp(unit if wide else 127 * unit, sum(f for _, f in integers))
    exact_q, exact_k = (np.float64(x).reshape(tokens, n, -1).transpose(1, 0, 2) for x, n in zip(exact, heads))
    error = np.abs(ours - exact_q @ exact_k[shared].transpose(0, 2, 1) * scale)
    away = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    seen = (away >= 0) & (away < (shape.window or tokens))
    return error, np.full(away.shape, True) if p["mask"] == BIDIRECTIONAL else seen


class _ByDistance:
    """Count, sum and largest error by distance."""

    def __init__(self):
        self.count = self.total = self.largest = np.zeros(0)

    def add(self, error: np.ndarray, visible: np.ndarray) -> None:
        """error [heads, tokens, tokens]; visible bool [tokens, tokens]."""
        away = np.abs(np.arange(len(visible))[:, None] - np.arange(len(visible))[None, :])[visible]
        seen = error[:, visible]
        size = max(len(self.count), int(away.max()) + 1)
        self.count, self.total, self.largest = (np.pad(x, (0, size - len(x))) for x in (self.count, self.total, self.largest))
        self.count += np.bincount(away, minlength=size) * len(error)
        self.total += np.bincount(away, seen.sum(axis=0), minlength=size)
        np.maximum.at(self.largest, away, seen.max(axis=0))

    def rows(self) -> list[dict]:
        """One entry per distance."""
        return [{"distance": d, "mean": float(self.total[d] / n), "max": float(self.largest[d])} for d, n in enumerate(self.count.tolist()) if n]
