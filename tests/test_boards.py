"""Every board computes the same bits: digests, greedy and sampled tokens; and what `verify` says when something is wrong."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from boards import require

import edgepos
from edgepos import EdgePosError, UnsupportedError, sampling, targets
from edgepos.golden_session import GoldenSession
from edgepos.targets import BOARDS, tools
from edgepos.targets.processors import ZIG

MODELS = [(name, kv) for name in ("stories260K", "tiny-rope", "tiny-alibi") for kv in ("kv16", "kv8")]
MODELS += [(name, "kv16") for name in ("none", "learned", "sinusoidal", "rope", "alibi", "t5", "hybrid")]
COMPILED = [replace(BOARDS["host"], compiler=cc, optimize=level) for cc in ("gcc", "clang") for level in ("-O0", "-O1", "-O2", "-O3")]
# Every way to generate tokens on these; test_boards_matrix.py has all boards, with the self-test.
EMULATED = [BOARDS[name] for name in ("qemu:aarch64", "qemu:armv7", "qemu:cortex-m3")]
CHOICES = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "seed": 2**63 + 11},
    "penalized": {"temperature": 1.5, "repetition_penalty": 1.3, "penalty_last": 8, "seed": 3},
}
PROMPT_TOKENS, NEW_TOKENS = 9, 24


def board_id(board) -> str:
    return board.name if board.emulated else f"host-{board.compiler}{board.optimize}"


@pytest.fixture(params=COMPILED + EMULATED, ids=board_id)
def board(request):
    require(*request.param.needs())
    return request.param


@pytest.fixture(scope="module")
def golden_chooses(bundle):
    """golden_chooses(name, kv, choice, ids): do the golden executor, asked once for all, and the NumPy sampler choose these ids?"""

    @cache
    def same(name: str, kv: str, choice: str, ids: tuple[int, ...]) -> bool:
        program, prompt, how = bundle(name, kv).program, prompt_of(bundle(name, kv)), dict(CHOICES[choice])
        rng, session = sampling.Rng(how.pop("seed", 0)), GoldenSession(program)
        eos = [] if program.header.eos < 0 else program.arrays[program.header.eos].tolist()
        logits = session.eval_int([*prompt, *ids])[len(prompt) - 1 :]
        chosen = [sampling.sample(row, session.logits_f, sampling.Sampling.of(**how), rng, [*prompt, *ids[:i]]) for i, row in enumerate(logits)]
        ended = len(ids) == NEW_TOKENS or chosen[-1] in eos
        return ended and tuple(chosen[:-1]) == ids and not set(ids) & set(eos)

    return same


def prompt_of(opened) -> list[int]:
    return opened.program.arrays[opened.program.header.selftest].tolist()[:PROMPT_TOKENS]


@pytest.mark.parametrize(("name", "kv"), MODELS)
def test_every_board_gives_the_same_bits(bundle, golden_chooses, board, name, kv):
    opened = bundle(name, kv)
    said = targets.verify(opened, board)
    assert f"digest {opened.program.header.digest:016x}" in said
    assert ("emulated, meaningless" in said) == board.emulated
    for choice, how in CHOICES.items():
        chosen = targets.generate(opened, board, prompt_of(opened), NEW_TOKENS, **how)
        assert golden_chooses(name, kv, choice, tuple(chosen)), (choice, chosen)


def test_choices_differ(bundle):
    """The comparison above would mean little if all choices were the same."""
    opened = bundle("tiny-rope")
    lists = [tuple(targets.generate(opened, "host", prompt_of(opened), NEW_TOKENS, **how)) for how in CHOICES.values()]
    assert len(set(lists)) == len(CHOICES)


def test_the_report_names_what_ran(bundle):
    require(*BOARDS["qemu:cortex-m3"].needs())
    said = targets.verify(bundle("stories260K"), "qemu:cortex-m3")
    for part in ("gcc ", "cortex-m3", "generic kernels", "arena ", "stack ", "tokens/s"):
        assert part in said


@pytest.fixture
def one_weight_changed(bundle, tmp_path):
    """The model.gguf alone, with another number in one weight: valid, but not what the digest was made of."""
    file = tmp_path / "model.gguf"
    shutil.copy(bundle("stories260K").model_path, file)
    data = bytearray(file.read_bytes())
    data[-len(data) // 3] ^= 1
    file.write_bytes(data)
    return edgepos.open(file)


@pytest.mark.parametrize("name", ["host", "qemu:aarch64", "qemu:cortex-m3"])
def test_a_different_digest_is_an_error_with_both(one_weight_changed, name):
    require(*BOARDS[name].needs())
    with pytest.raises(EdgePosError) as error:
        targets.verify(one_weight_changed, name)
    message = str(error.value)
    assert f"{one_weight_changed.program.header.digest:016x} in the bundle" in message and " computed" in message and "\n" not in message


@pytest.mark.parametrize("name", BOARDS)
def test_a_missing_tool_names_its_package(bundle, monkeypatch, name):
    for tool in BOARDS[name].needs():
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "which", lambda program, absent=tool: None if program == absent else f"/usr/bin/{program}")
            patch.setattr(tools, "has_module", lambda _name: False)
            hint = r"pip install .edgepos\[boards\]" if tool == ZIG else f"{tool} was not found: install it .*{tools.PACKAGES[tool]}"
            with pytest.raises(EdgePosError, match=hint):
                targets.verify(bundle("stories260K"), name)


def test_unknown_board(bundle):
    with pytest.raises(UnsupportedError, match="qemu:z80.*qemu:cortex-m3"):
        targets.verify(bundle("stories260K"), "qemu:z80")


def test_a_model_too_large_for_the_board(bundle):
    small = replace(BOARDS["qemu:cortex-m3"], model_room=4096)
    require(*small.needs())
    with pytest.raises(EdgePosError, match="the board has room for 4096"):
        targets.verify(bundle("stories260K"), small)


@pytest.mark.parametrize("name", ["host", "qemu:cortex-m3"])
def test_generation_stops_when_the_context_is_full(bundle, name):
    require(*BOARDS[name].needs())
    opened = bundle("stories260K")
    assert len(targets.generate(opened, name, [1, 2, 3], 50, context=8)) == 6
    with pytest.raises(EdgePosError, match="context|room"):
        targets.generate(opened, name, list(range(9)), 5, context=8)
    with pytest.raises(EdgePosError):
        targets.generate(opened, name, [opened.program.header.vocab], 5)


@pytest.mark.parametrize("wrong", [{"ids": []}, {"n": 0}, {"seed": -1}, {"seed": 2**64}, {"temperature": -0.5}, {"top_p": 1.5}, {"top_k": -1}])
def test_parameters_out_of_range(bundle, wrong):
    with pytest.raises(EdgePosError):
        targets.generate(bundle("stories260K"), "host", **{"ids": [1], "n": 1, **wrong})


def test_q16_reaches_a_linux_board_exactly(bundle):
    """Temperatures are passed as decimals: every 1/65536 must come back."""
    from edgepos.targets.linux import _decimal

    for q16 in (0, 1, 3, 32767, 52429, 65535, 65536, 98303, 2**32 - 1):
        assert sampling.Sampling.of(temperature=float(_decimal(q16))).temperature == q16


def test_programs_are_stopped(tmp_path):
    with pytest.raises(EdgePosError, match="sleep was stopped after 0.1 s"):
        tools.run(["sleep", "5"], 0.1)
    with pytest.raises(EdgePosError, match="cannot be run"):
        tools.run([tmp_path / "absent"], 1)


def test_sources_that_do_not_compile(bundle, tmp_path):
    broken = tmp_path / "broken.edgepos"
    shutil.copytree(bundle("stories260K").path, broken)
    (broken / "runtime" / "src" / "digest.c").write_text("int x = ;\n")
    with pytest.raises(EdgePosError, match="does not compile digest.c: .*error") as error:
        targets.verify(edgepos.open(broken), "host")
    assert "\n" not in str(error.value)
    shutil.rmtree(broken / "runtime" / "src")
    with pytest.raises(EdgePosError, match="no runtime sources"):
        targets.verify(edgepos.open(broken), "host")


def test_logits_are_the_digest(bundle):
    """The digest in the bundle is that of the golden logits, so that boards are compared with the specification."""
    program = bundle("stories260K").program
    logits = GoldenSession(program).eval_int(program.arrays[program.header.selftest])
    assert edgepos.fixedpoint.fnv1a64(np.ascontiguousarray(logits, "<i4").tobytes()) == program.header.digest
