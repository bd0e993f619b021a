"""GGUF files: floats beside transformers, the tokenizer beside the library, hostile files refused."""

from __future__ import annotations

import struct
import tracemalloc

import gguf
import numpy as np
import pytest
from gguf_models import write_gguf, write_tokenizer
from hf_models import VOCAB, make_llama, random_ids, torch_logits

import torch
import transformers
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.export import load
from edgepos.float_session import reference

KIND = gguf.GGMLQuantizationType
SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=2, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_llama(tmp_path_factory.mktemp("llama"), **SIZES)


def qwen(family: str, **changes):
    config = getattr(transformers, f"{family}Config")(
        **SIZES, num_hidden_layers=2, max_position_embeddings=128, initializer_range=0.15, tie_word_embeddings=True, **changes
    )
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                value.add_(torch.randn_like(value) * 0.2)
    return model


def with_weights(model, held):
    """The model with the weights that a file holds; restores the old ones when called."""
    old = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict({name: torch.tensor(value) for name, value in held.items()}, strict=False)
    return lambda: model.load_state_dict(old)


def kind_of(name):
    return lambda _: KIND[name]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_llama_logits_are_those_of_transformers(tmp_path, llama, kind):
    held = write_gguf(tmp_path / "m.gguf", llama, "llama", kind_of(kind))
    restore = with_weights(llama, held)
    try:
        want = torch_logits(llama, random_ids(40))
    finally:
        restore()
    canonical = load(tmp_path / "m.gguf")
    np.testing.assert_allclose(reference(canonical).eval(random_ids(40)), want, rtol=0, atol=1e-3)
    assert (len(canonical.grids) > 0) == (kind in ("Q8_0", "Q4_0", "Q4_1"))


@pytest.mark.parametrize("kind, block, size", [("Q4_K", 256, 144), ("Q5_K", 256, 176), ("Q6_K", 256, 210)])
def test_k_quants_are_read_as_gguf_reads_them(kind, block, size):
    from edgepos.export.quantized_rows import BLOCKS, QuantizedRows

    assert (BLOCKS[KIND[kind]].columns, BLOCKS[KIND[kind]].bytes) == (block, size) == gguf.GGML_QUANT_SIZES[KIND[kind]]
    raw = np.random.default_rng(0).integers(0, 120, (5, 2 * size), np.uint8)
    rows = QuantizedRows.of(raw.ravel(), (5, 2 * block), KIND[kind])
    np.testing.assert_array_equal(np.asarray(rows), gguf.quants.dequantize(raw, KIND[kind]))


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1"])
def test_a_grid_means_the_floats_of_the_file(kind):
    from edgepos.export.quantized_rows import QuantizedRows

    weight = np.random.default_rng(1).normal(size=(6, 96)).astype(np.float32)
    raw = gguf.quants.quantize(weight, KIND[kind])
    rows = QuantizedRows.of(raw.ravel(), weight.shape, KIND[kind])
    grid = rows.grid(slice(0, 6))
    values = grid.codes.reshape(6, 3, 32) * grid.scales[..., None] + (0 if grid.minima is None else grid.minima[..., None])
    np.testing.assert_allclose(values.reshape(6, 96), gguf.quants.dequantize(raw, KIND[kind]), rtol=0, atol=1e-6)


def test_qwen2_and_qwen3(tmp_path):
    for family, changes in (("Qwen2", {}), ("Qwen3", {"head_dim": 16})):
        model = qwen(family, **changes)
        path = tmp_path / f"{family}.gguf"
        write_gguf(path, model, family.lower())
        np.testing.assert_allclose(reference(path).eval(random_ids(40)), torch_logits(model, random_ids(40)), rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_1"])
def test_gpt2(tmp_path, kind):
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=64, n_layer=2, n_head=4, initializer_range=0.15)
    torch.manual_seed(5)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "ln_" in name:
                value.add_(torch.randn_like(value) * 0.2)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gpt2")
    numbers = {"context_length": 64, "embedding_length": 64, "block_count": 2, "feed_forward_length": 256, "attention.head_count": 4}
    for key, value in numbers.items():
        writer.add_uint32(f"gpt2.{key}", value)
    writer.add_float32("gpt2.attention.layer_norm_epsilon", 1e-5)
    write_tokenizer(writer, VOCAB)
    names = {"transformer.h.": "blk.", "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output"}
    names |= {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down", "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"}
    held = {}
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        data, new = value.numpy(), name
        for old, short in names.items():
            new = new.replace(old, short)
        turned = ".c_" in name and data.ndim == 2
        data = np.ascontiguousarray(data.T if turned else data)
        raw = KIND[kind] if turned else KIND.F32
        stored = gguf.quants.quantize(data, raw) if raw != KIND.F32 else data
        writer.add_tensor(new, stored, raw_dtype=raw)
        back = gguf.quants.dequantize(stored, raw) if raw != KIND.F32 else data
        held[name] = back.T if turned else back
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with_weights(model, {name: value.copy() for name, value in held.items()})
    canonical = load(tmp_path / "m.gguf")
    np.testing.assert_allclose(reference(canonical).eval(random_ids(40)), torch_logits(model, random_ids(40)), rtol=0, atol=1e-3)
    assert len(canonical.grids) == (0 if kind == "F32" else 2 * 6)


def test_rope_factors_divide_the_frequencies(tmp_path, llama):
    factors = np.array([1.0, 2.0, 4.0, 8.0], np.float32)
    write_gguf(tmp_path / "m.gguf", llama, "llama", tensors={"rope_freqs.weight": factors})
    plain = llama.model.rotary_emb.inv_freq.clone()
    llama.model.rotary_emb.inv_freq /= torch.tensor(factors)
    want = torch_logits(llama, random_ids(40))
    llama.model.rotary_emb.inv_freq.copy_(plain)
    np.testing.assert_allclose(reference(tmp_path / "m.gguf").eval(random_ids(40)), want, rtol=0, atol=1e-3)


def test_the_tokenizer_and_the_special_ids(tmp_path, llama):
    write_gguf(tmp_path / "m.gguf", llama, "llama")
    canonical = load(tmp_path / "m.gguf")
    spec = canonical.tokenizer
    assert spec.kind == "bpe-bytelevel" and spec.pre_tokenizer == "gpt2" and canonical.eos_ids == (VOCAB - 1,)
    ids = spec.library().encode("in the hat<|end|>").ids
    assert b"".join(spec.tokens[i] for i in ids) == b"in the hat<|end|>" and ids[-1] == VOCAB - 1
    assert [spec.tokens[i] for i in ids[:2]] == [b"in", b" the"]


def test_an_unknown_pre_tokenizer_needs_the_option(tmp_path, llama):
    from edgepos.compiler import compile_model

    write_gguf(tmp_path / "m.gguf", llama, "llama", tokenizer=False, keys={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "klingon"})
    canonical = load(tmp_path / "m.gguf")
    assert canonical.tokenizer is None and "'klingon'" in canonical.tokenizer_problem
    with pytest.raises(UnsupportedError, match="'klingon'.*--no-tokenizer"):
        compile_model(canonical)
    with pytest.raises(UnsupportedError, match="token ids"):
        compile_model(canonical, tokenizer=None)
    assert compile_model(canonical, tokenizer=None, calibration=random_ids(32).tolist()).program.header.tokenizer == 0


def test_sentence_piece(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "t", "h", "e", "th", "the", "\u2581the"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * 7)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    from edgepos.compiler.text import encode
    from edgepos.export.config import Config
    from edgepos.export.gguf_file import open_gguf
    from edgepos.export.tokenizer_gguf import read_tokenizer

    spec, problem = read_tokenizer(Config(open_gguf(tmp_path / "t.gguf").metadata, "t.gguf"), 300)
    assert problem is None and spec.kind == "bpe-spm" and spec.add_bos and spec.bos_id == 1
    assert encode("the x", spec) == [pieces.index("\u2581the"), pieces.index("\u2581"), 3 + ord("x")]


# ---- refusals

REFUSED = {
    "architecture": ({"general.architecture": "mamba"}, UnsupportedError, "'mamba'"),
    "layers": ({"llama.block_count": 3}, FormatError, "blk.2.attn_norm.weight"),
    "many layers": ({"llama.block_count": 10**9}, FormatError, "block_count"),
    "fewer layers": ({"llama.block_count": 1}, FormatError, "unexpected tensor"),
    "heads": ({"llama.attention.head_count": 6}, FormatError, "head_count"),
    "kv heads": ({"llama.attention.head_count_kv": 4}, FormatError, "blk.0.attn_k.weight"),
    "no heads": ({"llama.attention.head_count": 0}, FormatError, "head_count"),
    "missing": ({"llama.embedding_length": None}, FormatError, "embedding_length"),
    "vocabulary": ({"llama.vocab_size": 299}, FormatError, "vocab_size is 299"),
    "scaling": ({"llama.rope.scaling.type": "spiral"}, UnsupportedError, "spiral"),
    "partial": ({"llama.rope.dimension_count": 4}, UnsupportedError, "dimension_count 4"),
    "experts": ({"llama.expert_count": 8}, UnsupportedError, "expert_count"),
    "split": ({"split.count": 3}, UnsupportedError, "merge"),
}


@pytest.mark.parametrize("key", REFUSED)
def test_contradictions_are_refused_by_name(tmp_path, llama, key):
    keys, error, text = REFUSED[key]
    path = tmp_path / "m.gguf"
    if "general.architecture" in keys:
        write_gguf(path, llama, keys.pop("general.architecture"))
    else:
        write_gguf(path, llama, "llama", keys=keys)
    with pytest.raises(EdgePosError, match=text) as caught:
        load(path)
    assert type(caught.value) is error and "\n" not in str(caught.value)


def test_tensors_that_are_missing_or_too_many(tmp_path, llama):
    write_gguf(tmp_path / "a.gguf", llama, "llama", leave_out=("model.layers.1.mlp.up_proj.weight",))
    with pytest.raises(FormatError, match="blk.1.ffn_up.weight"):
        load(tmp_path / "a.gguf")
    write_gguf(tmp_path / "b.gguf", llama, "llama", tensors={"blk.0.extra.weight": np.zeros(4, np.float32)})
    with pytest.raises(FormatError, match="blk.0.extra.weight"):
        load(tmp_path / "b.gguf")


def word(value: int, width: int = 8) -> bytes:
    return value.to_bytes(width, "little")


def text(value: bytes) -> bytes:
    return word(len(value)) + value


HEAD = b"GGUF" + word(3, 4)
HUGE = 2**63
HOSTILE = {
    "empty": b"",
    "magic": b"GGML" + bytes(40),
    "version": b"GGUF" + word(9, 4) + bytes(16),
    "big-endian": b"GGUF" + struct.pack(">I", 3) + bytes(16),
    "truncated": HEAD + word(0),
    "tensors": HEAD + word(HUGE) + word(0),
    "keys": HEAD + word(0) + word(HUGE) + bytes(64),
    "key length": HEAD + word(0) + word(1) + word(HUGE) + bytes(64),
    "string length": HEAD + word(0) + word(1) + text(b"a") + word(8, 4) + word(HUGE) + bytes(64),
    "array length": HEAD + word(0) + word(1) + text(b"a") + word(9, 4) + word(4, 4) + word(HUGE) + bytes(64),
    "strings": HEAD + word(0) + word(1) + text(b"a") + word(9, 4) + word(8, 4) + word(2**30) + bytes(64),
    "nested": HEAD + word(0) + word(1) + text(b"a") + word(9, 4) + word(9, 4) + word(1) + bytes(64),
    "type": HEAD + word(0) + word(1) + text(b"a") + word(99, 4) + bytes(64),
    "utf-8": HEAD + word(0) + word(1) + text(b"\xff\xfe") + word(4, 4) + bytes(64),
    "twice": HEAD + word(0) + word(2) + (text(b"a") + word(4, 4) + word(1, 4)) * 2,
    "alignment": HEAD + word(0) + word(1) + text(b"general.alignment") + word(4, 4) + word(0, 4),
    "dimensions": HEAD + word(1) + word(0) + text(b"t") + word(2**31, 4) + bytes(64),
    "shape": HEAD + word(1) + word(0) + text(b"t") + word(2, 4) + word(HUGE) * 2 + word(0, 4) + word(0) + bytes(64),
    "no shape": HEAD + word(1) + word(0) + text(b"t") + word(1, 4) + word(0) + word(0, 4) + word(0) + bytes(64),
    "outside": HEAD + word(1) + word(0) + text(b"t") + word(1, 4) + word(8) + word(0, 4) + word(2**40) + bytes(64),
    "too long": HEAD + word(1) + word(0) + text(b"t") + word(1, 4) + word(2**40) + word(0, 4) + word(0) + bytes(64),
    "block": HEAD + word(1) + word(0) + text(b"t") + word(1, 4) + word(33) + word(2, 4) + word(0) + bytes(64),
    "tensor type": HEAD + word(1) + word(0) + text(b"t") + word(1, 4) + word(32) + word(77, 4) + word(0) + bytes(64),
    "overlap": HEAD + word(2) + word(0) + (text(b"t") + word(1, 4) + word(4) + word(0, 4) + word(0)) + (text(b"u") + word(1, 4) + word(4) + word(0, 4) + word(0)) + bytes(96),
}


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_files_are_refused_without_memory(tmp_path, key):
    path = tmp_path / "m.gguf"
    path.write_bytes(HOSTILE[key])
    tracemalloc.start()
    try:
        with pytest.raises((FormatError, UnsupportedError)) as caught:
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "m.gguf" in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_every_truncation_is_refused(tmp_path, llama):
    write_gguf(tmp_path / "m.gguf", llama, "llama", kind_of("Q8_0"))
    data = (tmp_path / "m.gguf").read_bytes()
    for size in np.random.default_rng(0).integers(0, len(data) - 64, 60):
        (tmp_path / "cut.gguf").write_bytes(data[:size])
        with pytest.raises((FormatError, UnsupportedError)):
            load(tmp_path / "cut.gguf")


def test_a_scale_that_is_not_finite_is_refused(tmp_path, llama):
    from edgepos.compiler import compile_model

    write_gguf(tmp_path / "m.gguf", llama, "llama", kind_of("Q8_0"))
    data = bytearray((tmp_path / "m.gguf").read_bytes())
    canonical = load(tmp_path / "m.gguf")
    raw = canonical.grids["blk.0.ffn_up.weight"].raw
    at = bytes(data).index(raw[0, :34].tobytes())
    data[at : at + 2] = np.float16(np.inf).tobytes()
    (tmp_path / "inf.gguf").write_bytes(data)
    with pytest.raises(FormatError, match="not finite"):
        compile_model(load(tmp_path / "inf.gguf"), calibration=[1, 2, 3])


def test_written_tokenizers_that_contradict_themselves(tmp_path):
    from edgepos.export.config import Config
    from edgepos.export.gguf_file import open_gguf
    from edgepos.export.tokenizer_gguf import read_tokenizer

    writer = gguf.GGUFWriter(tmp_path / "t.gguf", "llama")
    write_tokenizer(writer, VOCAB)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    good = open_gguf(tmp_path / "t.gguf").metadata
    p = "tokenizer.ggml."
    for changes, text_ in (
        ({p + "tokens": good[p + "tokens"] + ["x"]}, "301 tokens"),
        ({p + "tokens": ["a"] * VOCAB}, "are both"),
        ({p + "token_type": [1]}, "token_type has 1"),
        ({p + "merges": ["t h", "t h"]}, "repeats merge 0"),
        ({p + "merges": ["t q"]}, "merge 0"),
        ({p + "merges": ["t"]}, "merge 0"),
        ({p + "merges": 5}, "merges is 5"),
        ({p + "eos_token_id": VOCAB}, "eos_token_id"),
    ):
        with pytest.raises(FormatError, match=text_):
            read_tokenizer(Config(good | changes, "t.gguf"), VOCAB)
