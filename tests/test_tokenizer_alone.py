"""A tokenizer file without a model, by `edgepos tokenizer` and in the C runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library

import edgepos
from edgepos.compiler.tokenizer_image import export_tokenizer
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.resources import tiny_model_dir

TEXTS = ("Once upon a time, there was a little girl named Lily.", "  two  spaces\n\n\tand 12345 digits", "naïve 北京 🦙", "")


@pytest.fixture(scope="module")
def model() -> Path:
    return tiny_model_dir("tiny-rope")


def test_file_gives_the_ids_of_the_library(tmp_path, model):
    out = tmp_path / "tokenizer.gguf"
    size = export_tokenizer(model / "tokenizer.json", out)
    library = Library.from_file(str(model / "tokenizer.json"))
    opened = edgepos.open(out)
    assert size == out.stat().st_size
    for text in TEXTS:
        ids = library.encode(text, add_special_tokens=False).ids
        assert opened.tokenizer.encode(text, bos=False) == ids
        assert opened.tokenizer.decode(ids) == library.decode(ids, skip_special_tokens=True)
    assert opened.selftest() == f"{opened.program.header.digest:016x}"
    rows = [array.shape for array in opened.program.arrays[1:] if array.ndim == 2 and array.shape[1] >= 32]
    assert rows == [(1, 32)]  # nothing of a model in it


def test_model_and_its_tokenizer_json_give_one_tokenizer(tmp_path, model):
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for source, file in zip((model, model / "tokenizer.json"), files):
        export_tokenizer(source, file)
    ids = [edgepos.open(file).tokenizer.encode(TEXTS[0]) for file in files]
    assert ids[0] == ids[1] and ids[0]


@pytest.mark.parametrize(
    "source, text, kind, words",
    [
        ("absent.json", None, FormatError, "absent.json: no such file or folder"),
        ("t.json", "{", FormatError, "t.json"),
        ("t.json", '{"model": {"type": "WordLevel"}}', UnsupportedError, "WordLevel"),
    ],
)
def test_bad_sources_are_named_and_leave_nothing(tmp_path, source, text, kind, words):
    path = tmp_path / source
    if text is not None:
        path.write_text(text)
    with pytest.raises(kind, match=words):
        export_tokenizer(path, tmp_path / "out.gguf")
    assert {file.name for file in tmp_path.iterdir()} <= {source}


def test_no_place_to_write_is_one_line(tmp_path, model):
    with pytest.raises(EdgePosError, match="cannot be written"):
        export_tokenizer(model / "tokenizer.json", tmp_path / "none" / "out.gguf")
    command = [sys.executable, "-m", "edgepos", "tokenizer", str(model), "-o", str(tmp_path / "none" / "out.gguf")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1 and result.stderr.startswith("error: ") and result.stderr.count("\n") == 1
    assert not any(tmp_path.iterdir())
