"""Rotary encodings of positions with coordinates: M-RoPE and axial."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from edgepos import positions
from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.positions import AxialRope, MRope, PhasePlan, Rope, TablePlan, multimodal_positions
from edgepos.positions.emit import check, emit

QWEN2 = MRope(Rope(128, theta=1e6), (16, 24, 24))
QWEN3 = MRope(Rope(128, theta=5e6), (24, 20, 20), interleaved=True)
VISION = AxialRope(80, (Rope(40), Rope(40, theta=500.0)))


def some_positions(spec, n=50, limit=2**31):
    return np.random.default_rng(5).integers(0, limit, size=(n, max(spec.axes) + 1))


@pytest.mark.parametrize("spec", [QWEN2, QWEN3, VISION])
def test_each_pair_turns_with_its_own_coordinate(spec):
    at = some_positions(spec)
    cos, sin = spec.cos_sin(at)
    for pair, axis in enumerate(spec.axes):
        rope = spec.rope if isinstance(spec, MRope) else spec.parts[axis]
        own = pair if isinstance(spec, MRope) else pair - sum(p.pairs for p in spec.parts[:axis])
        c, s = rope.cos_sin(at[:, axis])
        np.testing.assert_array_equal(cos[:, pair], c[:, own])
        np.testing.assert_array_equal(sin[:, pair], s[:, own])


def test_text_is_plain_rope():
    at = np.arange(100)
    for spec in (QWEN2, QWEN3):
        for a, b in zip(spec.cos_sin(np.stack([at] * 3, axis=1)), spec.rope.cos_sin(at)):
            np.testing.assert_array_equal(a, b)


def test_axes():
    assert QWEN2.axes == (0,) * 16 + (1,) * 24 + (2,) * 24
    assert QWEN3.axes[:6] == (0, 1, 2, 0, 1, 2) and QWEN3.axes[60:] == (0, 0, 0, 0)
    assert VISION.axes == (0,) * 20 + (1,) * 20


@pytest.mark.parametrize(
    "spec, module, name",
    [
        (QWEN2, "transformers.models.qwen2_vl.modeling_qwen2_vl", "Qwen2VLRotaryEmbedding"),
        (QWEN3, "transformers.models.qwen3_vl.modeling_qwen3_vl", "Qwen3VLTextRotaryEmbedding"),
    ],
)
def test_axes_against_transformers(spec, module, name):
    """Their recomposition of [3, …, pairs] picks, for every pair, the coordinate that `axes` names."""
    torch = pytest.importorskip("torch")
    embedding = getattr(pytest.importorskip(module), name)
    which = torch.arange(3.0)[:, None, None, None].expand(3, 1, 1, 64).clone()
    theirs = embedding.recomposition_frequencies(SimpleNamespace(mrope_section=list(spec.sections)), which)
    assert tuple(int(a) for a in theirs[0, 0, :64]) == spec.axes


@pytest.mark.parametrize("spec", [QWEN2, QWEN3, VISION])
def test_plans_hold(spec):
    at = some_positions(spec, 300, 500)
    for plan in (PhasePlan(spec), TablePlan(spec, 500), TablePlan(spec, 500, 8)):
        for integers, exact in zip(plan.cos_sin(at), spec.cos_sin(at)):
            assert np.abs(integers - plan.full_scale * exact).max() <= plan.bound
        x = np.random.default_rng(1).integers(-20000, 20001, size=(2, 300, spec.head_dim)).astype(np.int16)
        assert np.abs(plan.rotate_int16(x, at) - spec.rotate(x, at)).max() <= plan.rotation_bound(20000)


@pytest.mark.parametrize("spec", [QWEN3, VISION])
def test_emitted_tables_name_the_coordinate(spec, tmp_path):
    results = emit(spec, tmp_path, 20)
    assert [r["kind"] for r in results] == [spec.encoding] * 3 and check(tmp_path) == results
    with np.load(tmp_path / "rope_phase.npz") as archive:
        np.testing.assert_array_equal(archive["axis"], spec.axes)
    for source in tmp_path.glob("*.c"):
        subprocess.run(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-c", str(source), "-o", str(tmp_path / "o")], check=True)


def test_multimodal_positions():
    """Qwen2-VL's example: text, an image of 2 × 3 patches, text again one past the largest number."""
    at = multimodal_positions([("text", 2), ("grid", 1, 2, 3), ("text", 2)])
    assert at.tolist() == [
        [0, 0, 0], [1, 1, 1],
        [2, 2, 2], [2, 2, 3], [2, 2, 4], [2, 3, 2], [2, 3, 3], [2, 3, 4],
        [5, 5, 5], [6, 6, 6],
    ]  # fmt: skip
    assert multimodal_positions([]).shape == (0, 3)


@pytest.mark.parametrize("spec", [QWEN2, QWEN3, VISION])
def test_json_round_trip(spec):
    assert positions.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "make, named",
    [
        (lambda: MRope(Rope(8), (1, 1, 1)), "sections"),
        (lambda: MRope(Rope(8), (5, -1)), "sections"),
        (lambda: MRope(Rope(8), ()), "sections"),
        (lambda: MRope(8, (4,)), "rope"),
        (lambda: MRope({"encoding": "alibi", "head_dim": 8}, (4,)), "alibi"),
        (lambda: MRope(Rope(8), (4,), 1), "interleaved"),
        (lambda: AxialRope(8, (Rope(8), Rope(8))), "rotary_dim"),
        (lambda: AxialRope(8, ()), "parts"),
        (lambda: AxialRope(8, (Rope(4),), "diagonal"), "layout"),
        (lambda: multimodal_positions([("sound", 3)]), "sound"),
        (lambda: multimodal_positions([("grid", 1, 0, 3)]), "grid"),
    ],
)
def test_bad_specs_are_refused_by_name(make, named):
    with pytest.raises(EdgePosError, match=named):
        make()


def test_bad_positions_are_refused():
    with pytest.raises(FormatError, match="3 coordinates"):
        QWEN2.cos_sin([[1, 2]])
    with pytest.raises(ContextError):
        PhasePlan(QWEN2, 10).cos_sin([[1, 2, 10]])
