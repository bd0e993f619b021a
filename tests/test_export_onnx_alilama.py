"""The shared ALiBi model, of no known family, as a PyTorch module: its accuracy in integers."""

from __future__ import annotations

import alilama  # skips where PyTorch is missing
import numpy as np
import pytest

import edgepos
import torch
from edgepos.report.metrics import log_softmax


def test_the_shared_alibi_model_keeps_its_accuracy(shared, tmp_path):
    windows = alilama.windows(shared)
    ids = torch.tensor(windows[:1])
    bundle = edgepos.export_bundle(alilama.load(shared), tmp_path / "a.edgepos", example_inputs=ids, context=512, tokenizer=shared / "models/alilama")
    assert bundle.program.header.context == 512
    text = (shared / "text/tinystories.txt").read_text().replace("\n", " ")[:5000]
    encoded = bundle.tokenizer.encode(text)
    flat = [i for window in windows for i in window]
    assert encoded[:1000] == flat[:1000] and bundle.tokenizer.decode(encoded) == text
    loss = []
    for window in windows:
        logits = log_softmax(bundle.session().eval(window)[:-1])
        loss.append(-logits[np.arange(len(window) - 1), window[1:]].mean())
    assert np.mean(loss) == pytest.approx(2.798, rel=3e-3)
