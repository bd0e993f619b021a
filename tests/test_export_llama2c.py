"""llama2.c files: against an independent float64 reading of the format, and the known figure."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from llama2c_numpy import Llama2c, Tokenizer, stories, write_model

from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load
from edgepos.float_session import reference


@pytest.fixture(scope="module")
def folder(shared):
    return shared / "models" / "stories260K"


@pytest.fixture(scope="module")
def texts(shared, folder):
    """Token ids with BOS of the 24 stories."""
    tokenizer = Tokenizer(folder / "tok512.bin", 512)
    text = (shared / "text" / "tinystories.txt").read_text(encoding="utf-8")
    return [tokenizer.encode(story.encode()) for story in stories(text)]


def test_stories260k_figure(folder, texts):
    """1.363 nats per token on 6870 tokens (shared/models/models.md)."""
    assert sum(map(len, texts)) == 6870
    session = reference(folder / "stories260K.bin")
    nats, count = 0.0, 0
    for ids in texts:
        session.reset()
        logits = session.eval(ids).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        nats -= log_p[np.arange(len(ids) - 1), ids[1:]].sum()
        count += len(ids) - 1
    assert abs(nats / count - 1.363) < 0.001


def test_logits_equal_float64(folder, texts):
    session, truth = reference(folder / "stories260K.bin"), Llama2c(folder / "stories260K.bin")
    for ids in texts[:4]:
        session.reset()
        np.testing.assert_allclose(session.eval(ids), truth.logits(ids), rtol=0, atol=1e-4)


def test_split_and_shifted(folder, texts):
    ids = texts[0][:100]
    session, want = reference(folder / "stories260K.bin"), Llama2c(folder / "stories260K.bin").logits(ids)
    parts = [session.eval(ids[:33]), session.eval(ids[33:34]), session.eval(ids[34:])]
    np.testing.assert_allclose(np.concatenate(parts), want, rtol=0, atol=1e-4)
    session.reset()
    np.testing.assert_allclose(session.eval(ids, range(100, 200)), want, rtol=0, atol=1e-4)


def test_facts(folder):
    found = load(folder / "stories260K.bin", context=256)
    assert (found.name, found.context, found.vocab_size) == ("stories260K", 256, 512)
    assert (found.bos_id, found.eos_ids) == (1, (1, 2))
    assert found.license == {"license": "MIT License"}
    assert found.source_sha256["stories260K.bin"].startswith("b0a507e7")
    assert found.tokenizer.strip_space_after_bos and found.tokenizer.add_bos and found.tokenizer.add_prefix_space


def test_untied_classifier(tmp_path):
    path = write_model(tmp_path / "m.bin", tied=False)
    ids = list(range(1, 13))
    np.testing.assert_allclose(reference(path).eval(ids), Llama2c(path).logits(ids), rtol=0, atol=1e-4)
    assert load(path).license is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"change": -4}, r"m.bin: \d+ bytes, but its header .* asks for"),
        ({"change": 4}, "asks for"),
        ({"heads": 0}, "n_heads at byte 12 is 0"),
        ({"kv": 0}, "n_kv_heads at byte 16 is 0"),
        ({"layers": -1}, "n_layers at byte 8 is -1"),
        ({"heads": 3}, "do not divide"),
        ({"heads": 4, "kv": 3}, "do not divide"),
        ({"dim": 6, "heads": 2}, "head_dim 3 is odd"),
    ],
)
def test_malformed_headers(tmp_path, changes, message):
    path = write_model(tmp_path / "m.bin", **changes)
    with pytest.raises(FormatError, match=message):
        load(path)


def test_huge_sizes_take_no_memory(tmp_path):
    path = tmp_path / "m.bin"
    path.write_bytes(struct.pack("<7i", 2**30, 2**30, 2**30, 2**20, 2**20, 2**30, 2**30) + b"\0" * 1000)
    with pytest.raises(FormatError, match="asks for"):
        load(path)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (struct.pack("<7i", 0x616B3432, 1, 0, 0, 0, 0, 0), "llama2.c version 1; supported: version 0"),
        (b"PK\x03\x04" + b"\0" * 60, "pickle"),
        (b"\x80\x02" + b"\0" * 60, "pickle"),
    ],
)
def test_other_files_named_bin(tmp_path, start, message):
    path = tmp_path / "m.bin"
    path.write_bytes(start)
    with pytest.raises(UnsupportedError, match=message):
        load(path)


def test_short_and_missing_files(tmp_path):
    (tmp_path / "m.bin").write_bytes(b"abc")
    with pytest.raises(FormatError, match="3 bytes"):
        load(tmp_path / "m.bin")
    with pytest.raises(FormatError, match="no such file"):
        load(tmp_path / "nothing.bin")
    (tmp_path / "m.xyz").write_bytes(b"abc")
    with pytest.raises(UnsupportedError, match="unknown kind of file"):
        load(tmp_path / "m.xyz")
    with pytest.raises(FormatError, match="without config.json"):
        load(tmp_path)


@pytest.mark.parametrize("context", [0, -1, 17, True, 2.5])
def test_context_outside_the_model(tmp_path, context):
    with pytest.raises(UnsupportedError, match="seq_len allows 1 to 16"):
        load(write_model(tmp_path / "m.bin"), context=context)


def test_tokenizer_is_found_or_asked_for(tmp_path):
    path = write_model(tmp_path / "m.bin")
    right = tmp_path / "tok260.bin"
    assert "tok260.bin" in load(path).source_sha256
    moved = right.rename(tmp_path / "tokx.bin")
    assert "tokx.bin" in load(path).source_sha256
    (tmp_path / "toky.bin").write_bytes(b"")
    with pytest.raises(FormatError, match="tokx.bin, toky.bin"):
        load(path)
    assert "tokx.bin" in load(path, tokenizer=moved).source_sha256
    with pytest.raises(FormatError, match="cannot hold the 260 tokens"):
        load(path, tokenizer=tmp_path / "toky.bin")
