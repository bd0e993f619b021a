"""The memory plan: no two values that live at the same time overlap, and where the head begins."""

from __future__ import annotations

from compiler_models import bloom, llama
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos.compiler import compile_model
from edgepos.compiler.plan import head_start, plan
from edgepos.program import NONE, Header, Op, Operation, Program, Value


def check(program: Program, width: int) -> None:
    """Walk through the program as a machine would: every value that will still be read must be untouched."""
    values, ops = program.values, program.ops
    owner: dict[int, int] = {}  # element of the plan → value written there last
    last = {}
    for index, op in enumerate(ops):
        for value in op.ins:
            last[value] = index
    last[program.head_input] = len(ops)
    for op in ops:
        inputs = [v for v in op.ins if v != NONE]
        for v in inputs:
            cells = range(values[v].offset, values[v].offset + values[v].width)
            assert all(owner[cell] == v for cell in cells), f"value {v} was overwritten"
        if op.out == NONE or values[op.out].offset == NONE:
            continue
        cells = range(values[op.out].offset, values[op.out].offset + values[op.out].width)
        assert 0 <= cells.start and cells.stop <= width
        for v in inputs:
            assert not set(cells) & set(range(values[v].offset, values[v].offset + values[v].width)), "an output overlaps an input"
        owner.update(dict.fromkeys(cells, op.out))
    head = program.head_input
    assert all(owner[c] == head for c in range(values[head].offset, values[head].offset + values[head].width))


@st.composite
def programs(draw) -> Program:
    """A random straight-line program of one- and two-input operators that ends with a LINEAR."""
    n = draw(st.integers(2, 24))
    widths = draw(st.lists(st.integers(1, 40), min_size=n, max_size=n))
    ops = [Operation(Op.EMBED, 0)]
    for i in range(1, n - 1):
        code = draw(st.sampled_from([Op.ADD, Op.NORM, Op.LINEAR, Op.KV_WRITE]))
        ins = [draw(st.integers(0, len([o for o in ops if o.out != NONE]) - 1)) for _ in range(2)]
        if code in (Op.NORM, Op.LINEAR):
            ins[1] = NONE
        out = NONE if code == Op.KV_WRITE else sum(o.out != NONE for o in ops)
        ops.append(Operation(code, out, tuple(ins)))
    defined = sum(o.out != NONE for o in ops)
    ops.append(Operation(Op.LINEAR, defined, (defined - 1, NONE)))
    values = [Value(w, 0) for w in widths[: defined + 1]]
    program = Program(Header(widths[defined], 1, 16, 0, head_start(ops), 0, NONE), values, [], ops, [], [])
    return program


@settings(max_examples=300, deadline=None)
@given(programs())
def test_live_values_never_overlap(program):
    check(program, plan(program))
    assert program.values[-1].offset == NONE


def test_models_share_room():
    for canonical in (llama(layers=3), bloom(layers=3)):
        program = compile_model(canonical, calibration=[0, 5, 9]).program
        check(program, program.header.plan_width)
        assert program.header.plan_width < sum(v.width for v in program.values[:-1]) / 5


def test_the_head_is_the_final_norm_and_the_last_linear():
    program = compile_model(llama(), calibration=[0, 5, 9]).program
    assert [op.name for op in program.ops[program.header.head_start :]] == ["final_norm", "head"]
    assert program.ops[program.header.head_start - 1].out == program.head_input


def test_a_norm_that_others_read_stays_in_the_body():
    ops = [
        Operation(Op.EMBED, 0),
        Operation(Op.NORM, 1, (0, NONE)),
        Operation(Op.KV_WRITE, NONE, (1, 1)),
        Operation(Op.LINEAR, 2, (1, NONE)),
    ]
    assert head_start(ops) == 3
    # The first op is never part of the head, however short the program.
    assert head_start([Operation(Op.EMBED, 0), Operation(Op.NORM, 1, (0, NONE)), Operation(Op.LINEAR, 2, (1, NONE))]) == 1
