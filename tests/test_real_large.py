"""A model of 176 million parameters exports without being in memory as floats; bench/large_export.py does 1.5 billion."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
from large_export import SIZES, make_model, measure

FIXED = 520e6  # libraries, the weights that golden remembers, activations of the calibration


def test_memory_stays_far_below_the_float_weights(tmp_path):
    parameters = make_model(tmp_path / "model", SIZES["0.2B"])
    result = measure(tmp_path / "model", tmp_path / "model.edgepos")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) >= 1
    assert result["model_bytes"] > parameters
    assert result["peak_bytes"] < FIXED + 0.55 * 4 * parameters
