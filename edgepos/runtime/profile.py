"""What each operator of a program takes: time by a clock between the reports of the C runtime, bytes and integer operations by counting."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from ..errors import EdgePosError
from ..program import NONE, Op, Operation, Program
from .session import CSession, _Trace

BLOCK = 1 << 25  # int64 that the bandwidth is measured on: 256 MB, far beyond caches


@dataclass
class Cost:
    """Seconds, bytes read from weights and KV cache, and integer operations: multiply-accumulates of LINEAR and ATTENTION, else one for
    each number written."""

    seconds: float = 0.0
    bytes: int = 0
    operations: int = 0

    def add(self, other: Cost) -> None:
        self.seconds += other.seconds
        self.bytes += other.bytes
        self.operations += other.operations


def bandwidth(threads: int = 1) -> float:
    """Bytes per second that so many threads read from memory: the best of five passes over 256 MB."""
    from concurrent.futures import ThreadPoolExecutor

    parts = np.array_split(np.ones(BLOCK, np.int64), threads)
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(5):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - started)
    return 8 * BLOCK / best


def counted(program: Program, op: Operation, length: int, rows: int) -> Cost:
    """Bytes and operations of an operator for `rows` tokens behind `length` others. Weights are read once for all of them."""
    width = program.values[op.out].width if op.out != NONE else 0
    if op.code == Op.LINEAR:
        read = sum(program.arrays[t].nbytes for t in op.tensors if t != NONE)
        return Cost(bytes=read, operations=width * program.values[op.ins[0]].width * rows)
    if op.code == Op.ATTENTION:
        kv = program.kv[op.params["layer"]]
        ends = [length + rows] * rows if op.params["mask"] else [length + i + 1 for i in range(rows)]
        seen = [min(end, kv.window) if kv.window else end for end in ends]
        per_slot = kv.heads * (kv.k_dim + kv.v_dim) * program.header.kv_bits // 8
        # The cache of a batch is read once; its queries meet it in a processor's cache.
        return Cost(bytes=max(seen) * per_slot, operations=op.params["heads"] * (kv.k_dim + kv.v_dim) * sum(seen))
    return Cost(operations=width * rows)


class _Clock(_Trace):
    """Time between reports belongs to the operator reported; KV_WRITE, which is not reported, counts with its ATTENTION."""

    def __init__(self, session: CSession, program: Program):
        super().__init__(lambda event: None)
        self.session, self.program = session, program
        self.costs: dict[int, Cost] = defaultdict(Cost)
        self.length = 0
        self.last = time.perf_counter()

    def report(self, event) -> None:
        seconds = time.perf_counter() - self.last
        cost = counted(self.program, self.program.ops[event.op], self.length + event.token, event.rows)
        cost.seconds = seconds
        self.costs[event.op].add(cost)
        self.last = time.perf_counter()


def profile(session: CSession, program: Program, prompt: int, tokens: int) -> tuple[dict[int, Cost], dict[int, Cost]]:
    """Costs by index of the operator: of a prompt, and of tokens decoded one by one behind it. The session is emptied before.

    Raises EdgePosError where there is no token, ContextError where they do not fit.
    """
    if prompt < 1 or tokens < 0:
        raise EdgePosError(f"a prompt of {prompt} and {tokens} tokens: at least 1 and 0 are needed")
    session.reset()
    clock = _Clock(session, program)
    session._report_to(clock)
    try:
        clock.last = time.perf_counter()
        session.eval_int([7 * i % session.vocab for i in range(prompt)], logits="none")
        prefill, clock.costs = clock.costs, defaultdict(Cost)
        for i in range(tokens):
            clock.length, clock.last = prompt + i, time.perf_counter()
            session.eval_int([11 * i % session.vocab], logits="last")
    finally:
        session._report_to(None)
    return dict(prefill), dict(clock.costs)
