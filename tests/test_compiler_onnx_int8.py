"""The fast form of model.onnx: standard operators, checked, close to the float model, and in the report."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

import edgepos
from edgepos.cli import app
from edgepos.compiler.onnx_int8 import ZERO, quantized
from edgepos.errors import EdgePosError, UnsupportedError
from edgepos.report.metrics import kl_divergence, log_softmax


@pytest.fixture(scope="module", params=["tiny-rope", "tiny-alibi"])
def made(request, root, tmp_path_factory):
    """(float session, bundle) of a model of examples/."""
    source = root / "examples/tiny" / request.param
    out = tmp_path_factory.mktemp("int8") / "m.edgepos"
    return edgepos.reference(source), edgepos.export_bundle(source, out, onnx="int8"), source


def test_both_forms_pass_the_checker_and_use_standard_operators(made):
    _, bundle, _ = made
    for name in ("model.onnx", "model.int8.onnx"):
        onnx.checker.check_model(str(bundle.path / name), full_check=True)
    nodes = onnx.load(bundle.path / "model.int8.onnx", load_external_data=False).graph.node
    assert {node.domain for node in nodes} == {""}
    linears = sum(op.code.name == "LINEAR" for op in bundle.program.ops)
    assert sum(node.op_type == "MatMulInteger" for node in nodes) == linears
    assert not any(node.op_type == "MatMul" for node in nodes)


def test_the_fast_form_is_close_to_the_float_model(made):
    reference, bundle, _ = made
    ids = bundle.manifest["selftest"]["tokens"]
    ids = ids + [i for i in reversed(ids)]
    want = reference.eval(ids)
    reference.reset()
    got = bundle.session(engine="onnx-int8").eval(ids)
    kl = kl_divergence(log_softmax(want), log_softmax(got)).mean()
    assert 1e-6 < kl < 0.03


def test_the_cache_of_the_fast_form_works(made):
    """One step per token: pieces differ from the whole by rounding only."""
    _, bundle, _ = made
    ids = bundle.manifest["selftest"]["tokens"]
    whole = bundle.session(engine="onnx-int8").eval(ids)
    session = bundle.session(engine="onnx-int8")
    parts = np.concatenate([session.eval(ids[:3]), session.eval(ids[3:])])
    assert kl_divergence(log_softmax(whole), log_softmax(parts)).mean() < 0.05


def test_the_report_has_a_line_for_each_form(made, capsys):
    _, bundle, source = made
    app(["report", str(bundle.path), "--source", str(source), "--max-tokens", "300"], standalone_mode=False)
    assert "model.int8.onnx" in capsys.readouterr().out
    forms = json.loads((bundle.path / "report.json").read_text())["onnx"]
    assert [form["file"] for form in forms] == ["model.onnx", "model.int8.onnx"]
    assert forms[0]["kl_mean"] < forms[1]["kl_mean"] and all(form["tokens_per_second"] > 0 for form in forms)
    assert "| model.int8.onnx | KL " in (bundle.path / "report.md").read_text()
    bundle.check_files()


def test_rows_are_rounded_to_the_nearest_step():
    weight = np.random.default_rng(0).normal(size=(5, 70)).astype(np.float32)
    weight[2] = 0
    integers, scale = quantized(weight)
    assert integers.shape == (70, 5) and np.all(integers[:, 2] == ZERO)
    away = np.abs((integers.astype(np.float64) - ZERO).T * scale[:, None] - weight)
    assert np.all(away <= scale[:, None] * 0.5001)
    assert np.all(np.abs(integers.astype(int) - ZERO).max(axis=0)[[0, 1, 3, 4]] == 127)


def test_a_bundle_without_the_form_says_how_to_get_it(bundle):
    with pytest.raises(EdgePosError, match="has no model.int8.onnx; export it with onnx='int8'"):
        bundle("tiny-rope").session(engine="onnx-int8")


def test_unknown_forms_are_refused(root, tmp_path):
    with pytest.raises(UnsupportedError, match="option onnx is 'int4'; allowed: float, int8"):
        edgepos.export_bundle(root / "examples/tiny/tiny-rope", tmp_path / "m.edgepos", onnx="int4")
