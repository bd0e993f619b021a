"""Rotations by a function of the position."""

import json

import mpmath
import numpy as np
import pytest

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import AngleRope, PhasePlan, PiecewisePlan, Rope, SplitPlan, TablePlan, from_json, pareto, plan
from edgepos.positions.emit import check, emit


def squares(positions):
    return np.sqrt(positions)[:, None] * np.array([1.0, 0.25, 1e-3, 0.0])


def test_frequencies_as_a_function_give_the_same_table():
    inv_freq = Rope(16).inv_freq()
    spec = AngleRope(16, lambda p: p[:, None] * inv_freq)
    same = Rope(16, scaling={"rope_type": "custom", "inv_freq": inv_freq.tolist()})
    for bits in (16, 8):
        for name in ("cos", "sin"):
            np.testing.assert_array_equal(getattr(TablePlan(spec, 300, bits), name), getattr(TablePlan(same, 300, bits), name))


@pytest.mark.parametrize("bits, scale", [(16, 32767), (8, 127)])
def test_entries_are_correctly_rounded(bits, scale):
    table = TablePlan(AngleRope(8, squares), 50, bits)
    with mpmath.workdps(60):
        for p in range(50):
            for j, angle in enumerate(squares(np.array([p]))[0]):
                assert table.cos[p, j] == mpmath.floor(scale * mpmath.cos(mpmath.mpf(float(angle))) + 0.5)
                assert table.sin[p, j] == mpmath.floor(scale * mpmath.sin(mpmath.mpf(float(angle))) + 0.5)


def test_rotation_and_choice():
    spec = AngleRope(10, squares, 8, "interleaved")
    x = np.random.default_rng(0).integers(-20000, 20001, size=(30, 10)).astype(np.int16)
    table = TablePlan(spec, 30)
    assert np.abs(table.rotate_int16(x, np.arange(30)) - spec.rotate(x, np.arange(30))).max() <= table.rotation_bound(20000)
    assert {r["method"].partition("-")[0] for r in pareto(spec, 30)} == {"table", "piecewise"}
    assert plan(spec, context=30).method == "table"
    assert PiecewisePlan(spec, 30).bound > 0.5


def test_tabulated_angles_are_emitted_and_checked(tmp_path):
    spec = AngleRope(10, squares, 8)
    frozen = spec.tabulated(40)
    assert from_json(json.loads(json.dumps(frozen.to_json()))) == frozen
    np.testing.assert_array_equal(TablePlan(frozen, 40).sin, TablePlan(spec, 40).sin)
    results = emit(frozen, tmp_path / "t", 40, formats=("c", "npz", "onnx"))
    assert [(r["method"], r["bits"]) for r in results] == [("table", 16), ("table", 8)] and check(tmp_path / "t") == results
    with pytest.raises(EdgePosError, match="position 40"):
        TablePlan(frozen, 41)


def test_what_a_function_cannot_do_is_said(tmp_path):
    spec = AngleRope(8, squares)
    with pytest.raises(UnsupportedError, match="JSON"):
        spec.to_json()
    with pytest.raises(UnsupportedError, match="JSON"):
        emit(spec, tmp_path / "x", 8)
    assert not (tmp_path / "x").exists()
    for make in (PhasePlan, SplitPlan):
        with pytest.raises(UnsupportedError, match="table method"):
            make(spec, 8).cos_sin([1])


@pytest.mark.parametrize(
    "angles, named",
    [
        (3.0, "angles"),
        (lambda p: np.zeros((len(p), 3)), r"\[8, 3\]"),
        (lambda p: np.full((len(p), 4), np.nan), r"angles\[0, 0\] is nan"),
        (lambda p: np.full((len(p), 4), "a"), "angles are"),
        ([[1.0, 2.0]], r"\[1, 2\]"),
        ([[1.0], [1.0, 2.0]], "different lengths"),
        (np.full((3, 4), np.inf), r"angles\[0, 0\]"),
        (np.zeros((0, 4)), r"\[0, 4\]"),
    ],
)
def test_bad_functions_are_refused(angles, named):
    with pytest.raises(FormatError, match=named):
        TablePlan(AngleRope(8, angles), 8)
    with pytest.raises(EdgePosError, match="rotary_dim"):
        AngleRope(8, squares, 3)
