"""Pass: where each value lives in the value area, so that values whose lifetimes do not meet share room."""

from __future__ import annotations

from ..program import LOGITS, NONE, Op, Operation, Program


def head_start(ops: list[Operation]) -> int:
    """Index of the first op of the head: the last LINEAR and the chain of one-input operators that only it reads.

    The head runs for the tokens whose logits are asked for; docs/bundle.md says what it may contain. Of an embedding it begins
    with POOL.
    """
    pools = [index for index, op in enumerate(ops) if op.code == Op.POOL]
    if pools:
        return pools[0]
    readers: dict[int, int] = {}
    for op in ops:
        for value in op.ins:
            if value != NONE:
                readers[value] = readers.get(value, 0) + 1
    start = len(ops) - 1
    while start > 1:
        before = ops[start - 1]
        if before.code not in (Op.NORM, Op.LINEAR, Op.ACT) or before.out != ops[start].ins[0] or readers[before.out] != 1:
            break
        start -= 1
    return start


def lifetimes(program: Program) -> dict[int, tuple[int, int]]:
    """Value number → (op that defines it, last op that may read it), both inclusive, for every value but the logits.

    The head may run again for other tokens, so its input lives to the end.
    """
    spans: dict[int, tuple[int, int]] = {}
    for index, op in enumerate(program.ops):
        for value in op.ins:
            if value != NONE:
                spans[value] = (spans[value][0], index)
        if op.out != NONE:
            spans[op.out] = (index, index)
    last = len(program.ops) - 1
    spans[program.head_input] = (spans[program.head_input][0], last)
    if program.header.output == LOGITS:
        del spans[program.ops[last].out]
    return spans


def plan(program: Program) -> int:
    """Set the offset of every value (elements per token; −1 for the logits) and return the plan's width.

    First fit by size: wider values first, each at the lowest offset free during its whole lifetime. The output of an op
    never overlaps its inputs, because lifetimes include both ends.
    """
    spans = lifetimes(program)
    placed: list[int] = []
    width = 0
    for value in sorted(spans, key=lambda v: (-program.values[v].width, v)):
        first, last = spans[value]
        size = program.values[value].width
        others = (program.values[o] for o in placed if spans[o][0] <= last and first <= spans[o][1])
        offset = 0
        for other in sorted(others, key=lambda o: o.offset):
            if offset + size <= other.offset:
                break
            offset = max(offset, other.offset + other.width)
        program.values[value].offset = offset
        placed.append(value)
        width = max(width, offset + size)
    if program.header.output == LOGITS:
        program.values[program.ops[-1].out].offset = NONE
    return width
