"""Weights that keep the integers of their source, and 4-bit weights from floats."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf_models import write_gguf
from hf_models import VOCAB, make_llama, random_ids

from edgepos.bundle import Bundle
from edgepos.compiler import compile_model, export_bundle, loss
from edgepos.compiler.source_grid import from_source, quantize_w4
from edgepos.compiler.weights import dequantize, quantize
from edgepos.errors import UnsupportedError
from edgepos.export import load
from edgepos.export.quantized_rows import BLOCKS, QuantizedRows
from edgepos.float_session import reference
from edgepos.golden_session import GoldenSession
from edgepos.program import W4G32, Op
from edgepos.report.metrics import kl_divergence, log_softmax

KIND = gguf.GGMLQuantizationType
SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=2, vocab_size=VOCAB)


def source(kind: str, rows: int = 40, columns: int = 160, seed: int = 0) -> tuple[QuantizedRows, np.ndarray]:
    """(rows as a GGUF file holds them, their float32)."""
    weight = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    weight[3] = 0
    weight[4, :32] = 0
    weight *= np.random.default_rng(seed + 1).uniform(0.1, 3, (rows, 1)).astype(np.float32)
    raw = gguf.quants.quantize(weight, KIND[kind])
    return QuantizedRows.of(raw.ravel(), weight.shape, KIND[kind]), gguf.quants.dequantize(raw, KIND[kind])


@pytest.mark.parametrize("kind, bits", [("Q4_0", 4), ("Q4_1", 4), ("Q4_0", 8), ("Q8_0", 8)])
def test_codes_stay_and_values_move_by_the_rounding_of_16_bits(kind, bits):
    rows, floats = source(kind)
    q = from_source(rows, bits)
    grid = rows.grid(slice(0, len(rows)))
    if bits == 4:
        assert q.form == W4G32 and q.w.shape == (40, 80) and q.g.shape == (40, 10)
        codes = np.stack([q.w & 15, (q.w.view(np.uint8) >> 4).view(np.int8)], axis=2).reshape(40, 160)
        np.testing.assert_array_equal(codes, grid.codes)
    else:
        np.testing.assert_array_equal(q.w, grid.codes.view(np.int8) - (8 if kind == "Q4_0" else 0))
    values = dequantize(q.w, q.g, q.row, 160, q.form)
    # 16-bit scales and minima of a row's largest: half a unit each, the scale's seen at 7.5 codes from the middle, or at 127.
    largest = np.maximum(np.abs(grid.scales), 0 if bits == 8 else np.abs(grid.minima)).max(axis=1, keepdims=True)
    bound = largest / 32767 * (0.5 * 7.5 + 0.5 if bits == 4 else 0.5 * 127) * 1.01
    assert (np.abs(values - floats) <= bound + 1e-7 * np.abs(floats)).all()


@pytest.mark.parametrize("kind, largest", [("Q4_K", 0.004), ("Q5_K", 0.004), ("Q6_K", 0.005)])
def test_k_types_are_nearest_to_w8g32(kind, largest):
    """docs/accuracy.md states these errors, relative to the dequantized weights."""
    block, rng = next(b for b in BLOCKS.values() if b.name == kind), np.random.default_rng(int(KIND[kind]))
    raw = rng.integers(0, 256, (64, 4, block.bytes), dtype=np.uint8)
    scales = (rng.uniform(0.5, 2, (64, 4, 2)) * 1e-3).astype("<f2")
    if kind == "Q6_K":
        raw[..., -2:] = scales[..., :1].copy().view(np.uint8)
    else:
        raw[..., :4] = scales.view(np.uint8)
    rows = QuantizedRows.of(raw.ravel(), (64, 1024), KIND[kind])
    assert not rows.has_grid
    x = np.asarray(rows)

    def error(q) -> float:
        return float(np.sqrt(((dequantize(q.w, q.g, q.row, 1024, q.form) - x) ** 2).sum() / (x**2).sum()))

    grouped = error(quantize(x, "w8g32"))
    assert grouped < largest
    assert grouped < error(quantize(x, "w8")) < error(quantize_w4(x))


def test_forms_that_cannot_hold_a_source():
    assert from_source(source("Q4_1")[0], 8) is None
    assert from_source(source("Q8_0")[0], 4) is None


def test_4_bits_from_floats_search_their_range():
    weight = np.random.default_rng(0).standard_t(4, size=(64, 100)).astype(np.float32)
    q = quantize_w4(weight)
    assert q.w.shape == (64, 64) and q.g.shape == (64, 8)
    error = ((dequantize(q.w, q.g, q.row, 100, q.form) - weight) ** 2).sum()
    groups = np.pad(weight, ((0, 0), (0, 28)), mode="edge").reshape(64, 4, 32)
    low, high = groups.min(axis=2, keepdims=True), groups.max(axis=2, keepdims=True)
    step = (high - low) / 15
    plain = np.rint((groups - low) / np.where(step == 0, 1, step)) * step + low
    assert error < ((plain - groups) ** 2).reshape(64, 128)[:, :100].sum()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), tie_word_embeddings=True, **SIZES)


@pytest.mark.parametrize("kinds", ["Q4_1", "Q4_0", "Q8_0", "mixed"])
def test_a_bundle_is_close_to_its_file_and_the_same_on_every_engine(tmp_path, llama, kinds):
    choose = (lambda name: KIND.Q8_0 if "embed" in name else KIND.Q4_1) if kinds == "mixed" else lambda name: KIND[kinds]
    write_gguf(tmp_path / "m.gguf", llama, "llama", choose)
    bundle = Bundle(export_bundle(tmp_path / "m.gguf", tmp_path / "m.edgepos", calibration=random_ids(64, 1).tolist()))
    ids = random_ids(60)
    golden = bundle.session(engine="golden").eval_int(ids)
    session = bundle.session()
    np.testing.assert_array_equal(np.concatenate([session.eval_int(ids[:17]), session.eval_int(ids[17:])]), golden)
    forms = [op.params["form"] for op in bundle.program.ops if op.code == Op.LINEAR]
    assert bundle.program.weight_format == ("w8g32" if kinds == "Q8_0" else "w4g32+w8g32")
    assert forms == [0 if kinds == "Q8_0" else 1] * (len(forms) - 1) + [0]  # the head shares the embedding's rows
    floats = reference(tmp_path / "m.gguf").eval(ids)
    kl = kl_divergence(log_softmax(floats), log_softmax(golden * session.logit_scale)).mean()
    assert kl < (1e-3 if kinds == "Q4_1" else 1e-5)  # a Q4_1 embedding is quantized again, to 8 bits
    onnx = bundle.session(engine="onnx").eval(ids)
    np.testing.assert_allclose(onnx, golden * session.logit_scale, rtol=0, atol=2e-2)
    held = bundle.dequantized_weights()
    np.testing.assert_allclose(onnx, reference(tmp_path / "m.gguf", held).eval(ids), rtol=0, atol=2e-3)


def test_the_options(tmp_path, llama):
    write_gguf(tmp_path / "m.gguf", llama, "llama", lambda name: KIND.Q4_1)
    canonical = load(tmp_path / "m.gguf")
    ids = random_ids(16).tolist()
    assert compile_model(canonical, calibration=ids).options.weights == "source"
    eight = compile_model(canonical, calibration=ids, weights="w8g32").program
    assert all(op.params["form"] == 0 for op in eight.ops if op.code == Op.LINEAR)
    name = "blk.0.ffn_up.weight"
    np.testing.assert_array_equal(eight.arrays[eight.names.index(name)], quantize(np.asarray(canonical.grids[name]), "w8g32").w)
    with pytest.raises(UnsupportedError, match="allowed: source, w4g32, w8g32, w8"):
        compile_model(canonical, calibration=ids, weights="w3")


def test_4_bits_from_floats_warn_with_their_measured_loss(tmp_path):
    make_llama(tmp_path, **SIZES)
    canonical, ids = load(tmp_path), random_ids(16).tolist()
    with pytest.warns(UserWarning, match="w4g32 of a float source") as seen:
        program = compile_model(canonical, calibration=ids, weights="w4g32").program
    forms = [op.params["form"] for op in program.ops if op.code == Op.LINEAR]
    assert forms == [W4G32] * len(forms)
    floats, integers = reference(canonical).eval(ids), GoldenSession(program).eval(ids)
    kl = kl_divergence(log_softmax(floats), log_softmax(integers)).mean()
    text = str(seen[0].message)
    assert f"KL {kl:.2g} nats per token" in text and "on 16 calibration tokens" in text and kl > 1e-4


def test_a_large_float_model_is_not_run_for_a_warning(tmp_path, monkeypatch):
    make_llama(tmp_path, **SIZES)
    monkeypatch.setattr(loss, "FLOAT_BYTES", 1000)
    with pytest.warns(UserWarning, match="not measured here .*edgepos report"):
        compile_model(load(tmp_path), calibration=random_ids(16).tolist(), weights="w4g32")
