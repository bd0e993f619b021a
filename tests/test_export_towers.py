"""CLIP's two models and ViT: float rows beside transformers', integers the same in all engines, from a folder and from a module."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tower_models import END, MODELS, PREPROCESSING, make, save_image_model  # skips where PyTorch is missing

import onnx_ir as ir
import torch

import edgepos
from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load
from edgepos.export.onnx_in import load_module
from edgepos.export.onnx_in.module import to_onnx

IMAGES = [key for key in MODELS if "vi" in key]
TEXTS = [key for key in MODELS if key not in IMAGES]


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


# ---- images


def pictures(shape) -> list[np.ndarray]:
    """uint8 images: noise, black, white, a slope."""
    slope = np.broadcast_to(np.linspace(0, 255, shape[1])[None, :, None], shape)
    return [np.random.default_rng(3).integers(0, 256, shape).astype(np.uint8), np.zeros(shape, np.uint8), np.full(shape, 255, np.uint8), slope.astype(np.uint8)]


def image_row(model, pixels, settings=PREPROCESSING) -> np.ndarray:
    """What PyTorch makes of an image by the processor's settings."""
    channels = pixels.shape[2]
    x = (pixels * settings["rescale_factor"] - settings["image_mean"][:channels]) / settings["image_std"][:channels]
    with torch.no_grad():
        out = model(pixel_values=torch.tensor(x.transpose(2, 0, 1)[None], dtype=torch.float32))
    if "logits" in out:
        return out.logits[0].double().numpy()
    row = out.image_embeds if "image_embeds" in out else out.pooler_output if "CLIP" in type(model).__name__ else out.last_hidden_state[:, 0]
    return row[0].double().numpy()


@pytest.mark.parametrize("key", IMAGES)
def test_image_models_are_read(key, tmp_path):
    model = make(key)
    save_image_model(model, tmp_path / "model")
    bundle = edgepos.export_bundle(tmp_path / "model", tmp_path / "m.edgepos", weights="w8" if key == "vit" else None, kv="kv8" if key == "vit" else "kv16")
    plain, floats = edgepos.reference(tmp_path / "model"), edgepos.reference(tmp_path / "model", weights_of=bundle)
    golden, c, threads, onnx = bundle.session(engine="golden"), bundle.session(), bundle.session(threads=3), bundle.session(engine="onnx")
    assert golden.image == c.image == onnx.image == plain.image
    for pixels in pictures(c.image):
        want = image_row(model, pixels)
        np.testing.assert_allclose(plain.embed_image(pixels), want, rtol=0, atol=2e-5)
        row = golden.embed_image_int(pixels)
        np.testing.assert_array_equal(c.embed_image_int(pixels), row)
        np.testing.assert_array_equal(threads.embed_image_int(pixels), row)
        np.testing.assert_allclose(onnx.embed_image(pixels), floats.embed_image(pixels), rtol=0, atol=1e-4)
        assert cosine(c.embed_image(pixels), floats.embed_image(pixels)) > (1 - 1e-3 if key == "vit" else 1 - 1e-6)
        assert cosine(c.embed_image(pixels), want) > 0.998
    assert golden.saturations == c.saturations == 0
    assert bundle.selftest() == f"{bundle.program.header.digest:016x}"
    kinds = {"vit_classes": ("classes", 7), "clip_vision_projected": ("embedding", 33)}
    assert (bundle.manifest["output"]["kind"], bundle.manifest["output"]["width"]) == kinds.get(key, ("embedding", 48))
    assert bundle.image.info.classes == (key == "vit_classes") and bundle.manifest["calibration"]["images"] == 6


def test_the_same_source_and_images_give_the_same_bundle(tmp_path):
    """With images of the caller's, none of which gets into the bundle."""
    save_image_model(make("vit"), tmp_path / "model")
    own = np.random.default_rng(9).integers(0, 256, (3, 24, 32, 3)).astype(np.uint8)
    np.save(tmp_path / "three.npy", own)
    (tmp_path / "one.ppm").write_bytes(b"P6\n# made here\n32 24\n255\n" + own[0].tobytes())
    first = edgepos.export_bundle(tmp_path / "model", tmp_path / "a.edgepos", calibration=own)
    second = edgepos.export_bundle(tmp_path / "model", tmp_path / "b.edgepos", calibration=tmp_path / "three.npy")
    third = edgepos.export_bundle(tmp_path / "model", tmp_path / "c.edgepos", calibration=[str(tmp_path / "one.ppm"), own[1], tmp_path / "three.npy"])
    data = first.model_path.read_bytes()
    assert data == second.model_path.read_bytes() and all(image.tobytes()[:64] not in data for image in own)
    assert first.manifest["calibration"] == second.manifest["calibration"] and third.manifest["calibration"]["images"] == 5
    for wrong in (own[:, :8], [], ["a text", 3], 7, tmp_path / "absent.npy", tmp_path / "model" / "config.json"):
        with pytest.raises(edgepos.EdgePosError, match="calibration|image"):
            edgepos.export_bundle(tmp_path / "model", tmp_path / "d.edgepos", calibration=wrong)
    with pytest.raises(UnsupportedError, match="an image is 13 tokens"):
        edgepos.export_bundle(tmp_path / "model", tmp_path / "d.edgepos", context=12)
    assert not (tmp_path / "d.edgepos").exists()


@pytest.mark.parametrize("key", IMAGES)
def test_image_modules_and_files_are_read(key, tmp_path):
    """A module's first output: of CLIPVisionModel that is the rows of all tokens, in front of the last norm."""
    model = make(key)
    save_image_model(model, tmp_path / "model")
    reference = load(tmp_path / "model")
    height, width, channels = edgepos.reference(reference).image
    example = torch.zeros(1, channels, height, width)
    canonical = load_module(model, {"pixel_values": example}, image_processor=tmp_path / "model")
    floats = edgepos.reference(canonical)
    ir.save(to_onnx(model, (example,), "vision"), tmp_path / "vision.onnx")
    (tmp_path / "preprocessor_config.json").write_bytes((tmp_path / "model" / "preprocessor_config.json").read_bytes())
    of_file = edgepos.reference(tmp_path / "vision.onnx")
    for pixels in pictures((height, width, channels)):
        row = floats.embed_image(pixels)
        np.testing.assert_allclose(of_file.embed_image(pixels), row, rtol=0, atol=1e-5)
        if key != "clip_vision":
            np.testing.assert_allclose(row, image_row(model, pixels), rtol=0, atol=1e-4)
    assert canonical.context == reference.context and set(canonical.source_sha256) == {"preprocessor_config.json"}
    if key == "vit_classes":
        bundle = edgepos.export_bundle(model, tmp_path / "m.edgepos", example_inputs=example, image_processor=tmp_path)
        assert bundle.manifest["output"]["labels"] == [f"LABEL_{i}" for i in range(7)]
        for pixels in pictures((height, width, channels)):
            want = bundle.session(engine="golden").embed_image_int(pixels)
            np.testing.assert_array_equal(bundle.session().embed_image_int(pixels), want)
            assert want.argmax() == image_row(model, pixels).argmax()


class Eyes(torch.nn.Module):
    """A kernel that meets the image in steps of its own, and what follows it."""

    def __init__(self, kernel=8, step=8, then=lambda x: x):
        super().__init__()
        self.cut, self.norm, self.then = torch.nn.Conv2d(3, 16, kernel, step), torch.nn.LayerNorm(16), then

    def forward(self, pixel_values):
        return self.norm(self.then(self.cut(pixel_values).flatten(2).transpose(1, 2)))


REFUSED = {
    "overlap": (Eyes(8, 4), "a convolution with a kernel .* that is no cut into patches"),
    "gaps": (Eyes(4, 8), "a convolution with a kernel .* that is no cut into patches"),
    "order": (Eyes(then=lambda x: x.flip(1)), "mixes or drops tokens"),
    "no attention": (Eyes(), "no Attention node"),
    "twice": (Eyes(then=lambda x: torch.cat([x, x], dim=1)), "patches that are joined with other results"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_graphs_of_images_that_are_not_understood_are_refused(case, tmp_path):
    module, words = REFUSED[case]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PREPROCESSING))
    with pytest.raises(UnsupportedError, match=words):
        edgepos.export_bundle(module, tmp_path / "m.edgepos", example_inputs=torch.zeros(1, 3, 24, 32), image_processor=tmp_path)
    with pytest.raises(UnsupportedError, match="what is subtracted from a pixel is unknown"):
        edgepos.export_bundle(module, tmp_path / "m.edgepos", example_inputs=torch.zeros(1, 3, 24, 32))
    with pytest.raises(UnsupportedError, match="example_inputs is of shape|example_inputs is Tensor"):
        edgepos.export_bundle(module, tmp_path / "m.edgepos", example_inputs=torch.zeros(2, 3, 24, 32), image_processor=tmp_path)


@pytest.mark.parametrize("settings", [dict(do_normalize=False), dict(do_rescale=False), dict(rescale_factor=1 / 127.5)], ids=["no mean", "bytes", "another scale"])
def test_preprocessing_is_folded_into_weights(settings, tmp_path):
    model = make("vit")
    save_image_model(model, tmp_path, **settings)
    of = PREPROCESSING | settings
    exact = dict(
        rescale_factor=of["rescale_factor"] if of["do_rescale"] else 1.0,
        image_mean=of["image_mean"] if of["do_normalize"] else [0.0] * 3,
        image_std=of["image_std"] if of["do_normalize"] else [1.0] * 3,
    )
    floats = edgepos.reference(tmp_path)
    for pixels in pictures(floats.image):
        np.testing.assert_allclose(floats.embed_image(pixels), image_row(model, pixels, exact), rtol=0, atol=1e-3)


WRONG_IMAGES = {
    "no processor": (None, dict(), FormatError, "preprocessor_config.json is missing"),
    "mean": ("preprocessor_config.json", dict(image_mean=[0.5]), FormatError, r"image_mean is \[0.5\]; a list of 3 numbers"),
    "deviation": ("preprocessor_config.json", dict(image_std=[0.5, 0, 0.5]), FormatError, "image_std is .*; numbers above 0"),
    "scale": ("preprocessor_config.json", dict(rescale_factor=-1), FormatError, "rescale_factor is -1.0; a number above 0"),
    "patch": ("config.json", dict(patch_size=7), UnsupportedError, "image: 24 × 32 pixels in patches of 7; supported: whole patches"),
    "size": ("config.json", dict(image_size=[24, 32, 3]), FormatError, "image_size is .*; a number, or .height, width"),
    "huge": ("config.json", dict(image_size=2**20), UnsupportedError, "image: height is 1048576; supported: 1 to 16384"),
    "channels": ("config.json", dict(num_channels=5), UnsupportedError, "image: channels is 5|image_mean"),
    "other size": ("config.json", dict(image_size=[24, 24]), FormatError, "position_embeddings"),
    "heads": ("config.json", dict(num_attention_heads=5), FormatError, "hidden_size 48 is not a multiple"),
}


@pytest.mark.parametrize("case", WRONG_IMAGES)
def test_image_models_that_do_not_fit_are_refused(case, tmp_path):
    name, changes, error, words = WRONG_IMAGES[case]
    save_image_model(make("vit"), tmp_path)
    if name is None:
        (tmp_path / "preprocessor_config.json").unlink()
    else:
        (tmp_path / name).write_text(json.dumps(json.loads((tmp_path / name).read_text()) | changes))
    with pytest.raises(error, match=words):
        load(tmp_path)


@pytest.mark.parametrize("changes, words", [
    (dict(id2label=None, num_labels=2**31 - 1), "classifier.weight"), (dict(id2label={"1": "cat"}), "id2label"), (dict(id2label=["cat"]), "id2label"),
])  # fmt: skip
def test_classes_that_the_model_has_not_are_refused(changes, words, tmp_path):
    save_image_model(make("vit_classes"), tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(json.loads((tmp_path / "config.json").read_text()) | changes))
    with pytest.raises(FormatError, match=words):
        load(tmp_path)


def test_every_format_takes_an_image(tmp_path):
    """The faster form of model.onnx, 8-bit inputs of matrices, and 4-bit weights, whose warning is measured on an image."""
    save_image_model(make("vit_classes"), tmp_path / "model")
    pixels, reference = pictures((24, 32, 3))[0], edgepos.reference(tmp_path / "model")
    quick = edgepos.export_bundle(tmp_path / "model", tmp_path / "a.edgepos", onnx="int8", activations="a8g32")
    for engine in ("c", "onnx-int8"):
        assert cosine(quick.session(engine=engine).embed_image(pixels), reference.embed_image(pixels)) > 0.998
    np.testing.assert_array_equal(quick.session().embed_image_int(pixels), quick.session(engine="golden").embed_image_int(pixels))
    with pytest.warns(UserWarning, match="cosine 0.9.* to the float row, on one calibration image"):
        edgepos.export_bundle(tmp_path / "model", tmp_path / "b.edgepos", weights="w4g32")
