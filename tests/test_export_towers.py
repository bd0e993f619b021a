"""CLIP's text model: float embeddings beside transformers', integers the same in all engines, from a folder and from a module."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tower_models import END, MODELS, make  # skips where PyTorch is missing

import torch

import edgepos
from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load

TEXTS = [key for key in MODELS if key.startswith("clip")]


def text(n: int, end: int | None = None) -> list[int]:
    """n random ids below END; END at the place `end` and once more behind it, where there is room."""
    ids = np.random.default_rng(n).integers(3, END, n).tolist()
    if end is not None:
        ids[end] = END
        ids[min(end + 2, n - 1)] = END
    return ids


CASES = [text(1), text(1, 0), text(6, 2), text(17, 16), text(40, 11), text(40)]  # without END: the first row, or that of the largest id


def row(model, ids) -> np.ndarray:
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]))
    return (out.text_embeds if "text_embeds" in out else out.pooler_output)[0].double().numpy()


def cosine(a, b) -> float:
    return float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def check_integers(bundle, model, reference) -> None:
    golden, c, threads, onnx = bundle.session(engine="golden"), bundle.session(), bundle.session(threads=3), bundle.session(engine="onnx")
    for ids in CASES:
        want = golden.embed_int(ids)
        np.testing.assert_array_equal(c.embed_int(ids), want)
        np.testing.assert_array_equal(threads.embed_int(ids), want)
        assert cosine(c.embed(ids), reference.embed(ids)) > 1 - 1e-6  # the same weights
        assert cosine(c.embed(ids), row(model, ids)) > 0.999  # those of PyTorch: w8g32 rounds them
        np.testing.assert_allclose(onnx.embed(ids), reference.embed(ids), rtol=0, atol=1e-4)
    assert golden.saturations == c.saturations == 0
    assert bundle.selftest() == f"{bundle.program.header.digest:016x}"


@pytest.mark.parametrize("key", TEXTS)
def test_folders_are_read(key, tmp_path):
    model = make(key)
    model.save_pretrained(tmp_path / "model")
    floats = edgepos.reference(tmp_path / "model")
    for ids in CASES:
        np.testing.assert_allclose(floats.embed(ids), row(model, ids), rtol=0, atol=1e-5)
    bundle = edgepos.export_bundle(tmp_path / "model", tmp_path / "m.edgepos", tokenizer=None, calibration=text(40, 20))
    check_integers(bundle, model, edgepos.reference(tmp_path / "model", weights_of=bundle))
    # Causal: the row of the token that ends the text does not see what stands behind it.
    np.testing.assert_array_equal(bundle.session().embed_int(text(12, 5)), bundle.session().embed_int(text(12, 5)[:6]))
    pooling = "largest_id" if key == "clip_old" else "token"
    assert bundle.manifest["output"] == {"kind": "embedding", "width": 33 if key == "clip_projected" else 48, "pooling": pooling, "normalized": False}
    assert bundle.program.ops[bundle.program.header.head_start].params["id"] == (END if pooling == "token" else 0)


@pytest.mark.parametrize("key", TEXTS)
def test_modules_are_read(key, tmp_path):
    model = make(key)
    bundle = edgepos.export_bundle(model, tmp_path / "m.edgepos", example_inputs=torch.tensor([text(12, 9)]), calibration=text(40, 20))
    model.save_pretrained(tmp_path / "model")
    of_folder = edgepos.export_bundle(tmp_path / "model", tmp_path / "f.edgepos", tokenizer=None, calibration=text(40, 20))
    for ids in CASES:
        np.testing.assert_array_equal(bundle.session().embed_int(ids), of_folder.session().embed_int(ids))


def test_the_tokenizer_of_clip_is_named_when_it_cannot_be_had(tmp_path):
    make("clip").save_pretrained(tmp_path / "model")
    with pytest.raises(UnsupportedError, match=r"tokenizer: model: tokenizer.json is missing.*--no-tokenizer"):
        edgepos.export_bundle(tmp_path / "model", tmp_path / "m.edgepos")
    assert not (tmp_path / "m.edgepos").exists()


WRONG = {
    "no end": (dict(eos_token_id=None), FormatError, r"eos_token_id is \[\]; one token id is needed"),
    "two ends": (dict(eos_token_id=[1, 2]), FormatError, r"eos_token_id is \[1, 2\]; one token id is needed"),
    "end outside": (dict(eos_token_id=99), FormatError, "eos_token_id is 99; a token id from 0 to 98"),
    "heads": (dict(num_attention_heads=5), FormatError, "hidden_size 48 is not a multiple of num_attention_heads 5"),
    "activation": (dict(hidden_act="mish"), UnsupportedError, "hidden_act 'mish' is not supported; supported: gelu, .*quick_gelu"),
    "layers": (dict(num_hidden_layers=3), FormatError, "encoder.layers.2"),
    "projection": (dict(architectures=["CLIPTextModelWithProjection"]), FormatError, "text_projection.weight"),
}


@pytest.mark.parametrize("case", WRONG)
def test_configs_that_do_not_fit_are_refused(case, tmp_path):
    changes, error, words = WRONG[case]
    make("clip").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(error, match=words):
        load(tmp_path)
