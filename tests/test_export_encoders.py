"""Encoders: float embeddings beside transformers', integers the same in golden and in C, and what is refused."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from encoder_models import MODELS, add_sentence_layout, edit, make, random_ids, write  # skips where PyTorch is missing
from hf_models import TEXT

import tokenizers
import torch
from safetensors.numpy import load_file

import edgepos
from edgepos.bundle import Bundle
from edgepos.compiler import compile_model, export_bundle
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.export import load

def hidden(model, ids) -> np.ndarray:
    """The last hidden states of transformers, float64 [n, d]."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, transformers model) of a key of MODELS, made once."""
    done = {}

    def get(key):
        if key not in done:
            folder = tmp_path_factory.mktemp(key)
            done[key] = folder, make(folder, key)
        return done[key]

    return get


@pytest.mark.parametrize("key", MODELS)
def test_float_embeddings_are_those_of_transformers(key, made):
    folder, model = made(key)
    session = edgepos.reference(folder)
    for n in (1, 2, 60, session.context):
        ids = random_ids(n, n)
        np.testing.assert_allclose(session.embed(ids), hidden(model, ids).mean(axis=0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("key", MODELS)
def test_integers_are_close_and_the_same_in_all_engines(key, made, tmp_path):
    folder, _ = made(key)
    kv = "kv8" if key == "roberta" else "kv16"
    bundle = Bundle(export_bundle(folder, tmp_path / "m.edgepos", kv=kv, calibration=random_ids(64, 1)))
    golden, c, threads = bundle.session(engine="golden"), bundle.session(), bundle.session(threads=3)
    floats = edgepos.reference(folder, weights_of=bundle)
    for n in (1, 9, 60):
        ids = random_ids(n, n)
        want = golden.embed_int(ids)
        np.testing.assert_array_equal(c.embed_int(ids), want)
        np.testing.assert_array_equal(threads.embed_int(ids), want)
        exact = floats.embed(ids)
        # kv8 alone rounds keys and values to 8 bits.
        assert unit(c.embed(ids)) @ unit(exact) > (1 - 1e-3 if kv == "kv8" else 1 - 1e-6)
        np.testing.assert_allclose(bundle.session(engine="onnx").embed(ids), exact, rtol=0, atol=1e-4)
    assert golden.saturations == c.saturations == 0
    assert bundle.selftest() == f"{bundle.program.header.digest:016x}"
    assert bundle.manifest["output"] == {"kind": "embedding", "width": 48, "pooling": "mean", "normalized": False}


POOLED = {
    "mean_tokens": lambda h: h.mean(axis=0),
    "cls_token": lambda h: h[0],
    "lasttoken": lambda h: h[-1],
    "max_tokens": lambda h: h.max(axis=0),
}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("dense", [(), ((40, "Tanh"), (33, "Identity"))], ids=["plain", "dense"])
def test_what_sentence_transformers_adds(pooling, dense, tmp_path):
    model = make(tmp_path / "model", "bert")
    add_sentence_layout(tmp_path / "model", pooling, dense=dense, normalize=pooling != "max_tokens")
    layers = [(load_file(tmp_path / "model" / f"{2 + i}_Dense" / "model.safetensors"), kind) for i, (_, kind) in enumerate(dense)]

    def exact(ids):
        y = POOLED[pooling](hidden(model, ids))
        for tensors, kind in layers:
            y = tensors["linear.weight"] @ y + tensors.get("linear.bias", 0)
            y = np.tanh(y) if kind == "Tanh" else y
        return unit(y) if pooling != "max_tokens" else y

    bundle = Bundle(export_bundle(tmp_path / "model", tmp_path / "m.edgepos", weights="w8", calibration=random_ids(40, 2)))
    reference, floats = edgepos.reference(tmp_path / "model"), edgepos.reference(tmp_path / "model", weights_of=bundle)
    golden, c, onnx = (bundle.session(engine=engine) for engine in ("golden", "c", "onnx"))
    assert bundle.context == reference.context == 50
    for n in (1, 30):
        ids = random_ids(n, n)
        np.testing.assert_allclose(reference.embed(ids), exact(ids), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(golden.embed_int(ids), c.embed_int(ids))
        np.testing.assert_allclose(onnx.embed(ids), floats.embed(ids), rtol=0, atol=1e-4)
        assert unit(c.embed(ids)) @ unit(floats.embed(ids)) > 1 - 1e-6
    if pooling != "max_tokens":
        assert c.logits_f == 30 and abs(np.linalg.norm(c.embed(ids)) - 1) < 1e-6
    state = c.save()
    golden.restore(state)
    assert golden.save() == state


def test_texts_are_cut_as_sentence_transformers_does(tmp_path):
    make(tmp_path / "model", "bert")
    add_sentence_layout(tmp_path / "model", max_seq_length=12)
    bundle = Bundle(export_bundle(tmp_path / "model", tmp_path / "m.edgepos"))
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "model" / "tokenizer.json"))
    library.enable_truncation(12)
    texts = ["the cat", "", "the cat sat on the mat", TEXT, "cat " * 10, "cat " * 11]
    embedder = edgepos.embedding.Embedder(bundle.session(), bundle.tokenizer)
    assert [embedder.ids(text) for text in texts] == [library.encode(text).ids for text in texts]
    assert (embedder.texts, embedder.truncated) == (6, 2)
    rows = bundle.embed(texts)
    assert rows.dtype == np.float32 and rows.shape == (6, 48)
    np.testing.assert_array_equal(rows[3], bundle.session(engine="golden").embed(library.encode(TEXT).ids))
    assert bundle.embed([]).shape == (0, 48)
    with pytest.raises(ContextError, match="text 4 has .* tokens, the model takes 12"):
        bundle.embed(texts, truncate=False)
    with pytest.raises(ContextError, match="13 more tokens do not fit"):
        bundle.session().embed(range(13))
    for wrong in ("a text", [1], [None]):
        with pytest.raises(EdgePosError, match="text"):
            bundle.embed(wrong)


def test_the_tokenizer_of_roberta_with_settings_for_batches(tmp_path):
    """Byte-level BPE between <s> and </s>; the file's own truncation and padding are what its trainer used for batches."""
    make(tmp_path, "roberta", vocab_size=300)
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "<pad>", "</s>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library.train_from_iterator([TEXT], trainer)
    library.post_processor = tokenizers.processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    library.enable_truncation(8)
    library.enable_padding(length=8, pad_id=1, pad_token="<pad>")
    library.save(str(tmp_path / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    bundle = Bundle(export_bundle(tmp_path, tmp_path / "m.edgepos"))
    for text in ("the cat", "", TEXT[:60], "naïve café 日本 🙂"):
        ids = library.encode(text).ids
        assert bundle.tokenizer.encode(text) == ids and (ids[0], ids[-1]) == (0, 2)
    np.testing.assert_array_equal(bundle.embed(["the cat"])[0], bundle.session(engine="golden").embed(library.encode("the cat").ids))


def test_embedding_bundles_refuse_text_and_decoders_refuse_embedding(tmp_path):
    make(tmp_path / "model", "bert")
    bundle = Bundle(export_bundle(tmp_path / "model", tmp_path / "m.edgepos", context=20))
    for engine in ("c", "golden", "onnx"):
        session = bundle.session(engine=engine)
        for call in (lambda: session.generate("a"), lambda: session.eval([1]), lambda: session.eval_int([1])):
            with pytest.raises(EdgePosError, match="gives an embedding of 48 numbers"):
                call()
    decoder = edgepos.reference(edgepos.resources.tiny_model_dir("tiny-rope"))
    with pytest.raises(EdgePosError, match="gives logits"):
        decoder.embed([1])


CONFIG, POOL, ST = "config.json", "1_Pooling/config.json", "sentence_bert_config.json"
REFUSED = {
    "heads": (CONFIG, dict(num_attention_heads=7), FormatError, "hidden_size 48 is not a multiple of num_attention_heads 7"),
    "width": (CONFIG, dict(intermediate_size=81), FormatError, "encoder.layer.0.intermediate.dense.weight' has shape"),
    "vocabulary": (CONFIG, dict(vocab_size=119), FormatError, r"embeddings.word_embeddings.weight' has shape \[120, 48\]"),
    "positions": (CONFIG, dict(max_position_embeddings=65), FormatError, "embeddings.position_embeddings.weight' has shape"),
    "types": (CONFIG, dict(type_vocab_size=1), FormatError, "embeddings.token_type_embeddings.weight' has shape"),
    "layers": (CONFIG, dict(num_hidden_layers=3), FormatError, "encoder.layer.2.attention.self.query.weight' is missing"),
    "fewer layers": (CONFIG, dict(num_hidden_layers=1), FormatError, "16 unexpected tensor"),
    "many layers": (CONFIG, dict(num_hidden_layers=10**9), FormatError, "num_hidden_layers is 1000000000"),
    "decoder": (CONFIG, dict(is_decoder=True), UnsupportedError, "is_decoder is True; supported: False"),
    "relative": (CONFIG, dict(position_embedding_type="relative_key"), UnsupportedError, "position_embedding_type is 'relative_key'"),
    "activation": (CONFIG, dict(hidden_act="silu"), UnsupportedError, "hidden_act 'silu'"),
    "two poolings": (POOL, dict(pooling_mode_cls_token=True), UnsupportedError, "pooling_mode_cls_token, pooling_mode_mean_tokens is true"),
    "no pooling": (POOL, dict(pooling_mode_mean_tokens=False), UnsupportedError, "no pooling_mode is true"),
    "weighted": (POOL, dict(pooling_mode_mean_tokens=False, pooling_mode_weightedmean_tokens=True), UnsupportedError, "weightedmean_tokens is true"),
    "named": (POOL, dict(pooling_mode="sqrt"), UnsupportedError, "pooling_mode is 'sqrt'"),
    "pooled width": (POOL, dict(word_embedding_dimension=47), FormatError, "word_embedding_dimension is 47, but the encoder gives 48"),
    "lower case": (ST, dict(do_lower_case=True), UnsupportedError, "do_lower_case is true"),
    "length": (ST, dict(max_seq_length=65), FormatError, "max_seq_length is 65, but the model has 64 positions"),
    "length of 0": (ST, dict(max_seq_length=0), FormatError, "max_seq_length is 0"),
    "dense in": ("2_Dense/config.json", dict(in_features=47), FormatError, "in_features is 47, but the row before it has 48"),
    "dense out": ("2_Dense/config.json", dict(out_features=41), FormatError, r"linear.weight' has shape \[40, 48\]"),
    "dense bias": ("2_Dense/config.json", dict(bias=False), FormatError, "unexpected tensor.*linear.bias"),
    "dense activation": ("2_Dense/config.json", dict(activation_function="torch.nn.modules.activation.GELU"), UnsupportedError, "'GELU' is not supported"),
    "prompt": ("config_sentence_transformers.json", dict(default_prompt_name="query"), UnsupportedError, "default_prompt_name is 'query'"),
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    make(folder, "bert")
    add_sentence_layout(folder, dense=((40, "Tanh"),))
    write(folder / "config_sentence_transformers.json", {})
    load(folder)
    return folder


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_and_what_is_not_supported_are_named(case, sound, tmp_path):
    file, changes, error, message = REFUSED[case]
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    edit(folder / file, **changes)
    with pytest.raises(error, match=message):
        load(folder)


def module(kind: str, path="1_Pooling") -> dict:
    return {"path": path, "type": f"sentence_transformers.models.{kind}"}


@pytest.mark.parametrize(
    "modules, error, message",
    [
        ({}, FormatError, "the top level is dict, a JSON list is needed"),
        ([], UnsupportedError, "supported: Transformer, Pooling"),
        ([module("Transformer", "0_Transformer"), module("Pooling")], UnsupportedError, "the Transformer is in '0_Transformer'"),
        ([module("Transformer", ""), module("Pooling"), module("CNN")], UnsupportedError, "Transformer, Pooling, CNN; supported"),
        ([module("Transformer", ""), module("Pooling"), module("Normalize"), module("Dense", "2_Dense")], UnsupportedError, "supported: Transformer"),
        ([module("Transformer", ""), module("Pooling", "../other")], FormatError, "the name of a folder beside it"),
        ([module("Transformer", ""), module("Pooling", "..")], FormatError, "the name of a folder beside it"),
        ([module("Transformer", ""), module("Pooling", "none")], FormatError, "cannot be read"),
        ([module("Transformer", ""), 7], FormatError, "entry 1 is 7"),
    ],
)
def test_modules_that_are_not_understood_are_named(modules, error, message, sound, tmp_path):
    shutil.copytree(sound, tmp_path / "m")
    write(tmp_path / "m" / "modules.json", modules)
    with pytest.raises(error, match=message):
        load(tmp_path / "m")


def test_a_context_above_max_seq_length_may_be_asked_for(sound):
    assert load(sound).context == 50 and load(sound, context=64).context == 64
    with pytest.raises(UnsupportedError, match="allows 1 to 64"):
        load(sound, context=65)


def test_choices_must_keep_the_scale_of_the_pooling(sound):
    canonical = load(sound)
    compiled = compile_model(canonical, calibration=[2, 5, 3])
    again = compile_model(canonical, choices=compiled.choices, calibration=[2, 5, 3])
    assert again.program.header.digest == compiled.program.header.digest
    for name in ("pool", "embedding"):
        with pytest.raises(UnsupportedError, match=f"F of value '{name}' must be"):
            compile_model(canonical, choices=compiled.choices | {name: compiled.choices[name] - 1}, calibration=[2, 5, 3])
