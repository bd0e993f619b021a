"""SmolLM2's weights through transformers and ONNX: the first layers of the model, so that the export takes seconds."""

from __future__ import annotations

import numpy as np
import pytest
from hf_models import torch_logits  # skips where PyTorch is missing
from real_models import smollm2_gguf

import edgepos
from edgepos.compiler.match import match
from edgepos.export.onnx_in import load_module
from edgepos.float_session import reference
from edgepos.positions import Rope
from edgepos.report.metrics import kl_divergence, log_softmax

LAYERS = 2
TEXT = "The tallest mountain on Earth is Mount Everest, and the deepest place in the sea is the Mariana Trench."


@pytest.fixture(scope="module")
def read():
    """(PyTorch model, canonical model, token ids)."""
    import smollm2_torch

    import torch

    ids = reference(smollm2_gguf()).make_tokenizer().encode(TEXT)
    model = smollm2_torch.load(smollm2_gguf(), LAYERS)
    return model, load_module(model, torch.tensor([ids]), context=512), ids


def test_float_logits_are_those_of_pytorch(read):
    model, canonical, ids = read
    assert match(canonical.model).positions() == Rope(64, theta=1e5)
    assert [step.kv_heads for step in match(canonical.model).layers()] == [3] * LAYERS
    want = torch_logits(model, ids)
    np.testing.assert_allclose(reference(canonical).eval(ids), want, rtol=0, atol=1e-5 * np.abs(want).max())


def test_integers_are_close(read, tmp_path):
    model, canonical, ids = read
    bundle = edgepos.export_bundle(canonical, tmp_path / "s.edgepos", tokenizer=None, calibration=ids)
    got = bundle.session().eval(ids)
    floats = reference(canonical, weights_of=bundle).eval(ids)
    assert kl_divergence(log_softmax(floats), log_softmax(got)).mean() < 1e-4
