"""Accuracy of compiled stories260K against its float model, computed by golden, on stories of models.md."""

from __future__ import annotations

import numpy as np
import pytest

from edgepos.compiler import compile, dequantized_weights
from edgepos.compiler.text import encode
from edgepos.export import load
from edgepos.golden_session import GoldenSession
from edgepos.program import A16, A8G32, Op
from edgepos.float_session import reference
from edgepos.report.metrics import Comparison
from edgepos.report.windows import stories

STORIES, TOKENS = 3, 160  # the beginnings of three; all 24 are in bench/


@pytest.fixture(scope="module")
def model(shared):
    return load(shared / "models" / "stories260K" / "stories260K.bin")


@pytest.fixture(scope="module")
def texts(shared, model):
    """Token ids of the stories with BOS."""
    found = stories((shared / "text" / "tinystories.txt").read_text("utf-8"), STORIES)
    return [[model.bos_id, *encode(text, model.tokenizer)][:TOKENS] for text in found]


@pytest.fixture(scope="module")
def floats(model, texts):
    return logits(reference(model), texts)


@pytest.fixture(scope="module")
def programs(model):
    made = {kv: compile(model, kv=kv) for kv in ("kv16", "kv8")}
    return made | {"a8g32": compile(model, activations="a8g32")}


@pytest.fixture(scope="module")
def integers(programs, texts):
    return {kv: logits(GoldenSession(program), texts) for kv, program in programs.items()}


def logits(session, texts, shift: int = 0) -> list[np.ndarray]:
    found = []
    for ids in texts:
        session.reset()
        found.append(session.eval(ids, np.arange(len(ids)) + shift))
    assert getattr(session, "saturations", 0) == 0
    return found


def compared(reference_logits, other, texts) -> dict:
    comparison = Comparison()
    for ids, a, b in zip(texts, reference_logits, other):
        comparison.add(a, b, np.array(ids[1:]))
    return comparison.result()


def test_w8g32_a16_kv16(floats, integers, texts):
    result = compared(floats, integers["kv16"], texts)
    assert result["kl_mean"] <= 0.0007
    assert abs(result["perplexity"] / result["perplexity_float"] - 1) <= 0.004


def test_kv8_adds_little(floats, integers, texts):
    base, kv8 = (compared(floats, integers[kv], texts)["kl_mean"] for kv in ("kv16", "kv8"))
    assert kv8 - base <= 0.003


def test_inputs_in_groups_cost_little(model, programs, floats, integers, texts):
    """Half as many bits for the inputs of matrices, but for down projections."""
    linears = {op.name.split(".")[-1]: op.params["inputs"] for op in programs["a8g32"].ops if op.code == Op.LINEAR}
    assert linears == {"q": A8G32, "k": A8G32, "v": A8G32, "out": A8G32, "gate": A8G32, "up": A8G32, "down": A16, "head": A8G32}
    base, groups = (compared(floats, integers[name], texts) for name in ("kv16", "a8g32"))
    assert groups["kl_mean"] - base["kl_mean"] <= 5e-4


def test_the_integer_machinery_alone(model, programs, integers, texts):
    same = logits(reference(model, weights_of=dequantized_weights(programs["kv16"])), texts)
    assert compared(same, integers["kv16"], texts)["kl_mean"] <= 1e-5


def test_shifted_positions_change_nothing(programs, integers, texts):
    """Against each other; against the float model the difference of two KLs is mostly chance on a text this short."""
    shifted = logits(GoldenSession(programs["kv16"]), texts[:1], 1000)
    assert (shifted[0] != integers["kv16"][0]).any(), "the shift must reach the arithmetic"
    assert compared(integers["kv16"][:1], shifted, texts[:1])["kl_mean"] <= 1e-6
