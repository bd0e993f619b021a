"""GGUF files of the architecture bert, made here from transformers' models: rows beside PyTorch's, ids beside the tokenizers library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from encoder_models import make, random_ids, write_tokenizer  # skips where PyTorch is missing
from hf_models import TEXT

import torch

import edgepos
from edgepos.compiler import compile_model
from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load
from edgepos.golden_session import GoldenSession

NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}  # of transformers -> llama.cpp's
KEYS = {
    "bert.context_length": 64, "bert.embedding_length": 64, "bert.feed_forward_length": 96, "bert.block_count": 2,
    "bert.attention.head_count": 4, "bert.attention.layer_norm_epsilon": 1e-6, "bert.attention.causal": False, "bert.pooling_type": 1,
}  # fmt: skip
Q8_0 = gguf.GGMLQuantizationType.Q8_0


def gguf_name(name: str) -> str:
    block, _, module = name.removeprefix("encoder.layer.").partition(".") if name.startswith("encoder") else ("", "", name)
    module, _, part = module.rpartition(".")
    return (f"blk.{block}." if block else "") + f"{NAMES[module]}.{part}"


def phantom(token: str) -> str:
    """How llama.cpp's converter writes a token of WordPiece."""
    if token.startswith("[") and token.endswith("]"):
        return token
    return token[2:] if token.startswith("##") else "\u2581" + token


def write(path, model, library, *, keys=(), kinds=(), tensors=(), tokens=True) -> dict[str, np.ndarray]:
    """Write a GGUF file; keys and tensors change what is written, None leaves out. Returns the tensors as they are in it."""
    writer = gguf.GGUFWriter(path, "bert")
    for key, value in (KEYS | dict(keys)).items():
        if value is not None:
            {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}[type(value)](key, value)
    if tokens:
        strings = [library.id_to_token(i) for i in range(library.get_vocab_size())]
        writer.add_tokenizer_model("bert")
        writer.add_token_list([phantom(s) for s in strings])
        writer.add_token_types([3 if s.startswith("[") and s.endswith("]") else 1 for s in strings])
        for key, i in (("unknown", 1), ("seperator", 3), ("padding", 0), ("cls", 2)):
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", i)
    stored = {gguf_name(name): value.numpy() for name, value in model.state_dict().items() if not name.startswith("pooler")}
    for name, array in (stored | dict(tensors)).items():
        if array is None:
            continue
        kind = Q8_0 if name in kinds else None
        raw = gguf.quants.quantize(array, kind) if kind else array
        writer.add_tensor(name, raw, raw_dtype=kind)
        stored[name] = gguf.quants.dequantize(raw, kind) if kind else array
    for finish in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        finish()
    return stored


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(transformers model, its tokenizer)."""
    folder = tmp_path_factory.mktemp("bert")
    return make(folder, "bert", hidden_size=64, intermediate_size=96, num_attention_heads=4), write_tokenizer(folder)


def rows(model, ids) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy()


POOLED = {1: lambda h: h.mean(axis=0), 2: lambda h: h[0], 3: lambda h: h[-1], None: lambda h: h.mean(axis=0)}


@pytest.mark.parametrize("pooling", POOLED)
def test_rows_are_those_of_transformers(pooling, made, tmp_path):
    model, library = made
    write(tmp_path / "m.gguf", model, library, keys={"bert.pooling_type": pooling})
    session = edgepos.reference(tmp_path / "m.gguf")
    for n in (1, 30, 64):
        ids = random_ids(n, n)
        want = POOLED[pooling](rows(model, ids))
        np.testing.assert_allclose(session.embed(ids), want / np.linalg.norm(want), rtol=0, atol=1e-5)


def test_the_tokenizer_gives_the_ids_of_the_library(made, tmp_path):
    model, library = made
    write(tmp_path / "m.gguf", model, library)
    bundle = edgepos.export_bundle(tmp_path / "m.gguf", tmp_path / "m.edgepos")
    for text in (TEXT[:120], "", "The Cät, SAT!", "日本 cats [SEP] x", "unfathomable 2024\n\tmats"):
        ids = bundle.tokenizer.encode(text)
        assert ids == library.encode(text).ids and ids[0] == 2 and ids[-1] == 3
    np.testing.assert_array_equal(bundle.embed(["the cat"])[0], bundle.session(engine="golden").embed(library.encode("the cat").ids))


def test_q8_0_keeps_its_integers(made, tmp_path):
    model, library = made
    kinds = {"token_embd.weight", *(f"blk.{i}.{name}.weight" for i in range(2) for name in ("attn_q", "attn_output", "ffn_up", "ffn_down"))}
    stored = write(tmp_path / "m.gguf", model, library, kinds=kinds)
    canonical = load(tmp_path / "m.gguf")
    compiled = compile_model(canonical, calibration=random_ids(50, 1))
    assert set(canonical.grids) == kinds and compiled.options.weights == "source"
    weights = edgepos.compiler.dequantized_weights(compiled.program)
    for name in kinds:  # scales are rounded to 16 bits
        np.testing.assert_allclose(weights[name], stored[name], rtol=0, atol=np.abs(stored[name]).max() * 2**-14)
    ids = random_ids(40, 2)
    exact, ours = edgepos.reference(canonical, weights).embed(ids).astype(np.float64), GoldenSession(compiled.program).embed(ids)
    assert exact @ ours > 1 - 1e-6


REFUSED = {
    "heads": (dict(keys={"bert.attention.head_count": 5}), FormatError, "embedding_length 64 is not a multiple of attention.head_count 5"),
    "hidden": (dict(keys={"bert.feed_forward_length": 95}), FormatError, r"tensor 'blk.0.ffn_up.weight' has shape \[96, 64\]"),
    "positions": (dict(keys={"bert.context_length": 63}), FormatError, r"tensor 'position_embd.weight' has shape \[64, 64\]"),
    "layers": (dict(keys={"bert.block_count": 3}), FormatError, "tensor 'blk.2.attn_q.weight' is missing"),
    "many layers": (dict(keys={"bert.block_count": 2**31}), FormatError, "block_count is 2147483648"),
    "no layers": (dict(keys={"bert.block_count": None}), FormatError, "key 'bert.block_count' is missing"),
    "causal": (dict(keys={"bert.attention.causal": True}), UnsupportedError, "bert.attention.causal is true"),
    "no pooling": (dict(keys={"bert.pooling_type": 0}), UnsupportedError, r"bert.pooling_type is 0; supported: 1 \(mean\)"),
    "rank": (dict(keys={"bert.pooling_type": 4}), UnsupportedError, "bert.pooling_type is 4"),
    "missing": (dict(tensors={"blk.1.layer_output_norm.bias": None}), FormatError, "tensor 'blk.1.layer_output_norm.bias' is missing"),
    "extra": (dict(tensors={"cls.weight": np.zeros((2, 64), np.float32)}), FormatError, "unexpected tensor.*cls.weight"),
    "types": (dict(tensors={"token_types.weight": np.zeros((2, 63), np.float32)}), FormatError, r"tensor 'token_types.weight' has shape \[2, 63\]"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradictions_are_named(case, made, tmp_path):
    changes, error, message = REFUSED[case]
    write(tmp_path / "m.gguf", *made, **changes)
    with pytest.raises(error, match=message):
        load(tmp_path / "m.gguf")


def test_without_a_tokenizer_it_works_on_ids(made, tmp_path):
    write(tmp_path / "m.gguf", *made, tokens=False)
    with pytest.raises(UnsupportedError, match="tokenizer.ggml.model None of an encoder is not supported"):
        edgepos.export_bundle(tmp_path / "m.gguf", tmp_path / "m.edgepos", calibration=[2, 5, 3])
    bundle = edgepos.export_bundle(tmp_path / "m.gguf", tmp_path / "m.edgepos", calibration=[2, 5, 3], tokenizer=None)
    assert bundle.session().embed([2, 5, 3]).shape == (64,)
    with pytest.raises(edgepos.EdgePosError, match="no tokenizer"):
        bundle.embed(["a"])
