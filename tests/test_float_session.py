"""FloatSession: cache, positions, replaced weights, external data, and calls it refuses."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from llama2c_numpy import write_model

import edgepos.float_session
from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.export import load
from edgepos.float_session import FloatSession, reference


@pytest.fixture
def canonical(tmp_path):
    return load(write_model(tmp_path / "m.bin", layers=2, heads=4, kv=2, dim=16))


IDS = [1, 5, 9, 200, 7, 7]


def test_rewind_and_reset(canonical):
    session = reference(canonical)
    want = session.eval(IDS)
    assert want.shape == (6, 260) and session.position == 6
    session.rewind(2)
    assert session.position == 2
    np.testing.assert_allclose(session.eval(IDS[2:], logits="last"), want[-1:], rtol=0, atol=1e-5)
    session.rewind(0)
    np.testing.assert_allclose(session.eval(IDS), want, rtol=0, atol=1e-5)
    session.reset()
    assert session.position == 0


def test_refused_calls_leave_the_session_as_it_was(canonical):
    session = reference(canonical)
    want = session.eval(IDS)
    session.rewind(3)
    for call, message in [
        (lambda: session.eval([]), "no tokens"),
        (lambda: session.eval([260]), "token id 260 is outside 0 … 259"),
        (lambda: session.eval([-1]), "token id -1"),
        (lambda: session.eval([1.5]), "whole numbers"),
        (lambda: session.eval([True]), "whole numbers"),
        (lambda: session.eval([2**70]), "ids"),
        (lambda: session.eval([[1]]), r"shape \[1, 1\]"),
        (lambda: session.eval([1, 2], [3]), "1 positions for 2 tokens"),
        (lambda: session.eval([1], [16]), "ascend from 3 to at most 15"),
        (lambda: session.eval([1, 2], [5, 4]), "ascend"),
        (lambda: session.eval([1], [-1]), "ascend"),
        (lambda: session.eval([1] * 14), "14 more tokens do not fit: 3 of 16"),
        (lambda: session.eval([1], logits="first"), "logits='first'"),
        (lambda: session.rewind(4), "rewind: .* 4 is outside 0 … 3"),
        (lambda: session.rewind(-1), "rewind"),
        (lambda: session.rewind(1.5), "rewind"),
        (lambda: session.restore(b"PK"), "saved state"),
        (lambda: session.restore(None), "saved state"),
    ]:
        with pytest.raises(EdgePosError, match=message):
            call()
    np.testing.assert_allclose(session.eval(IDS[3:]), want[3:], rtol=0, atol=1e-5)


def test_positions_continue_from_the_last_one(canonical):
    session = reference(canonical)
    session.eval([5, 6], positions=[10, 11])
    assert (session.length, session.position) == (2, 12)
    after = session.eval([7])
    state = session.save()
    session.reset()
    session.restore(state)
    assert session.position == 13
    session.rewind(2)
    np.testing.assert_allclose(session.eval([7], positions=[12]), after, rtol=0, atol=1e-6)


def test_a_shorter_context_and_a_second_thread(canonical):
    session = FloatSession(canonical.model, context=3)
    with pytest.raises(ContextError, match="do not fit"):
        session.eval([1, 2, 3, 4])
    for context in (0, -1, 17, 2**40, "5", 2.5):
        with pytest.raises(ContextError, match="context"):
            FloatSession(canonical.model, context=context)
    with session._alone(), pytest.raises(EdgePosError, match="another thread"):
        session.eval([1])


def test_whole_logits_are_rounded_to_16_bits(canonical):
    session, other = reference(canonical), reference(canonical)
    np.testing.assert_allclose(session.eval_int(IDS) * session.logit_scale, other.eval(IDS), rtol=0, atol=2.0**-16)
    assert session.saturations == 0
    assert session.eval([1], logits="none").shape == (0, session.vocab)


def test_weights_in_a_file_give_the_same_logits(canonical, monkeypatch, tmp_path):
    want = reference(canonical).eval(IDS)
    monkeypatch.setattr(edgepos.float_session, "INLINE_LIMIT", 0)
    np.testing.assert_array_equal(reference(canonical).eval(IDS), want)
    ir.save(canonical.model, tmp_path / "m.onnx", external_data="m.data", size_threshold_bytes=0)
    monkeypatch.undo()
    np.testing.assert_array_equal(FloatSession(tmp_path / "m.onnx").eval(IDS), want)


def test_replaced_weights(canonical):
    before = reference(canonical).eval(IDS)
    name = "norm.weight"
    gamma = canonical.model.graph.initializers[name].const_value.numpy()
    doubled = reference(canonical, {name: gamma * 2}).eval(IDS)
    np.testing.assert_allclose(doubled, before * 2, rtol=0, atol=1e-5)

    class Bundle:
        def dequantized_weights(self):
            return {name: gamma * 2}

    np.testing.assert_array_equal(reference(canonical, Bundle()).eval(IDS), doubled)
    np.testing.assert_array_equal(reference(canonical).eval(IDS), before)  # the model itself is untouched


def test_replacements_that_do_not_fit(canonical):
    with pytest.raises(FormatError, match="weight 'x' is not an initializer"):
        reference(canonical, {"x": np.zeros(3, np.float32)})
    with pytest.raises(FormatError, match=r"weight 'norm.weight' has shape \[3\], the graph needs \[16\]"):
        reference(canonical, {"norm.weight": np.zeros(3, np.float32)})


def test_other_graphs_are_refused():
    x = ir.val("x", ir.DataType.FLOAT, (1,))
    y = ir.val("y", ir.DataType.FLOAT, (1,))
    graph = ir.Graph([x], [y], nodes=[ir.node("Neg", [x], outputs=[y])], opset_imports={"": 23}, name="other")
    with pytest.raises(FormatError, match="graph 'other' is not canonical"):
        FloatSession(ir.Model(graph, ir_version=11))


def test_dequantized_weights_keep_float_activations():
    """ONNX Runtime fuses DequantizeLinear + MatMul and rounds activations to int8 unless told not to."""
    rng = np.random.default_rng(0)
    d, vocab = 64, 96
    q = rng.integers(-8, 8, (d, vocab)).astype(np.int8)
    scale = rng.uniform(0.01, 0.1, (d // 32, vocab)).astype(np.float32)
    table = rng.standard_normal((vocab, d)).astype(np.float32)
    ids = ir.val("input_ids", ir.DataType.INT64, (1, "S"))
    places = ir.val("position_ids", ir.DataType.INT64, (1, "S"))
    consts = {
        "table": ir.Tensor(table, name="table"),
        "q": ir.Tensor(q.astype(ir.DataType.INT4.numpy()), name="q"),
        "scale": ir.Tensor(scale, name="scale"),
    }
    values = {n: ir.val(n, t.dtype, t.shape, const_value=t) for n, t in consts.items()}
    x, w, y = ir.val("x"), ir.val("w"), ir.val("logits", ir.DataType.FLOAT, (1, "S", vocab))
    nodes = [
        ir.node("Gather", [values["table"], ids], outputs=[x]),
        ir.node("DequantizeLinear", [values["q"], values["scale"]], {"axis": 0, "block_size": 32}, outputs=[w]),
        ir.node("MatMul", [x, w], outputs=[y]),
    ]
    graph = ir.Graph(
        [ids, places], [y], nodes=nodes, initializers=list(values.values()), opset_imports={"": 23}, name="int4"
    )
    got = FloatSession(ir.Model(graph, ir_version=11)).eval(range(20))
    want = table[:20].astype(np.float64) @ (q * np.repeat(scale, 32, axis=0)).astype(np.float64)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5)
