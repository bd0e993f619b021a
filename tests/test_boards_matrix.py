"""The same bits on every processor, from two compilers, with one and two threads; and a wrong kernel is found by name."""

from __future__ import annotations

import shutil
from dataclasses import replace

import pytest
import smollm2_cut
from boards import require
from real_models import smollm2_gguf

import edgepos
from edgepos import EdgePosError, UnsupportedError, targets
from edgepos.targets import BOARDS
from edgepos.targets.difference import operator_digests
from edgepos.targets.linux import LinuxBoard
from edgepos.targets.processors import ZIG
from edgepos.targets.wasm import WasmBoard

DIGESTS = {"stories260K": 0x8A29F2A92DD37261, "tiny-rope": 0xB1196B86DF2074B0, "tiny-alibi": 0x9AD7A3EC069C06A6}
PLACES = ["qemu:cortex-a53", "qemu:cortex-a76", "qemu:max", "qemu:armv7", "qemu:riscv64", "qemu:cortex-m3", "qemu:cortex-m4", "qemu:cortex-m33", "qemu:cortex-m55"]


def built(name: str, compiler: str):
    """A board with GCC, or with clang: on boards without an operating system zig's."""
    board = BOARDS[name]
    if compiler == "gcc":
        return replace(board, compiler="gcc") if name == "host" else board
    return board.built_by("clang" if isinstance(board, LinuxBoard) else ZIG)


def all_boards():
    for name in ["host", *PLACES]:
        for compiler in ("gcc", "clang"):
            board = built(name, compiler)
            yield pytest.param(board, id=f"{name}-{compiler}")
            if isinstance(board, LinuxBoard):
                yield pytest.param(replace(board, threads=2), id=f"{name}-{compiler}-2-threads")
    yield pytest.param(replace(BOARDS["host"], compiler="gcc", flags=("-DEDGEPOS_GENERIC_ONLY",)), id="host-generic")
    yield pytest.param(replace(BOARDS["host"], compiler="clang", flags=("-DEDGEPOS_GENERIC_ONLY",)), id="host-generic-clang")
    yield pytest.param(BOARDS["wasm"], id="wasm-zig")
    yield pytest.param(BOARDS["qemu:cortex-m0plus"], id="qemu:cortex-m0plus-gcc")
    yield pytest.param(BOARDS["qemu:cortex-m7"], id="qemu:cortex-m7-gcc")


@pytest.fixture(scope="module")
def cut(tmp_path_factory):
    return smollm2_cut.export_cut(smollm2_gguf(), tmp_path_factory.mktemp("cut"))


@pytest.mark.parametrize("board", list(all_boards()))
def test_every_board_gives_the_digests(bundle, cut, board):
    require(*board.needs())
    for name, digest in DIGESTS.items():
        assert f"digest {digest:016x}" in targets.verify(bundle(name), board), name
    assert f"digest {smollm2_cut.DIGEST:016x}" in targets.verify(cut, board)


@pytest.mark.parametrize("name", ["host", "qemu:cortex-a53", "qemu:cortex-a76", "qemu:max", "qemu:armv7", "qemu:cortex-m3", "qemu:cortex-m4", "qemu:cortex-m55"])
def test_inputs_in_groups_give_their_digest(bundle, name):
    require(*BOARDS[name].needs())
    assert "digest ed1bb6958a3b3d3c" in targets.verify(bundle("stories260K", activations="a8g32"), BOARDS[name])


@pytest.mark.parametrize(
    ("name", "emulator", "said"),
    [
        ("qemu:cortex-a53", (), "processor has neon, neon kernels"),
        ("qemu:cortex-a76", (), "processor has neon dotprod, dotprod kernels"),
        ("qemu:max", (), "processor has neon dotprod i8mm, i8mm kernels"),
        ("qemu:armv7", (), "processor has neon, neon kernels"),
        ("qemu:armv7", ("qemu-arm", "-cpu", "cortex-a7,neon=off"), "processor has plain C only, generic kernels"),
    ],
)
def test_a_processor_without_an_instruction_falls_back(bundle, name, emulator, said):
    """One binary for a word size: each processor runs the best kernels that it has the instructions for."""
    board = BOARDS[name]
    require(*board.needs())
    assert said in targets.verify(bundle("stories260K"), replace(board, emulator=emulator or board.emulator))


@pytest.mark.parametrize(("name", "operator", "call"), [("host", "ACT", "act"), ("host", "ROPE", "rope"), ("qemu:cortex-m3", "NORM", "norm")])
def test_a_wrong_kernel_is_named(bundle, tmp_path, name, operator, call):
    """One number of the last token of each batch is changed where the operator is called."""
    require(*BOARDS[name].needs())
    broken = tmp_path / "broken.edgepos"
    shutil.copytree(bundle("stories260K").path, broken)
    file = broken / "runtime" / "src" / "exec.c"
    right = f"ep_each_token(s, op, {call}_tokens, n, width);"
    source = file.read_text("utf-8")
    assert source.count(right) == 1
    file.write_text(source.replace(right, f"{right} ep_value(s, op[EP_O_OUT], n - 1)[0] ^= 1 << 20;"), "utf-8")
    opened = edgepos.open(broken)
    index = next(i for i, op in enumerate(opened.program.ops) if op.code.name == operator)
    specified = operator_digests(opened.program)[index]
    with pytest.raises(EdgePosError, match=rf"the first operator that differs is {index}, {operator}\b.* computed, {specified:016x} specified"):
        targets.verify(opened, name)


@pytest.mark.parametrize("name", ["host", "qemu:cortex-a76", "qemu:cortex-m3"])
def test_operators_give_the_specified_digests(bundle, name):
    board = BOARDS[name]
    require(*board.needs())
    opened = bundle("stories260K")
    found = board.operators(targets.runtime_of(opened), opened.model_path)
    assert len(found) > 10 and found == operator_digests(opened.program)


def test_boards_that_are_not_there(bundle):
    with pytest.raises(UnsupportedError, match="qemu:z80.*ssh://"):
        targets.board("qemu:z80")
    with pytest.raises(EdgePosError, match="threads"):
        targets.board("host", threads=0)
    with pytest.raises(EdgePosError, match="100000 threads"):
        targets.board("host", threads=100000)
    with pytest.raises(EdgePosError, match="this board has one"):
        targets.board("qemu:cortex-m3", threads=2)
    with pytest.raises(EdgePosError, match="no-such-cc was not found"):
        targets.verify(bundle("stories260K"), targets.board("host", cc="no-such-cc"))


def test_wasm_runs_in_node_and_in_wasmtime(bundle, monkeypatch):
    assert isinstance(BOARDS["wasm"], WasmBoard)
    require(ZIG)
    pytest.importorskip("wasmtime")
    monkeypatch.setattr(shutil, "which", lambda program: None)
    assert f"digest {DIGESTS['stories260K']:016x}" in targets.verify(bundle("stories260K"), "wasm")
