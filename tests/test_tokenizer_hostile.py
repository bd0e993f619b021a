"""Damaged tokenizer tables: refused when the image is opened, or harmless."""

from __future__ import annotations

import numpy as np
import pytest
import trained_tokenizers as trained
from tokenizer_images import image, tokenizer_program
from trained_tokenizers import read

from edgepos.errors import FormatError
from edgepos.runtime.native import Image
from edgepos.runtime.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def hostile_specs(shared, tmp_path_factory):
    specs = {}
    for form in ("gpt2-many", "qwen2", "spm-llama", "bert", "xlmr"):
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        trained.FORMS[form](trained.lines(shared)).save(str(path))
        specs[form] = read(path)
    return specs


@pytest.mark.parametrize(
    ("form", "name", "index", "value"),
    [
        ("bert", "trie", 0, 0),
        ("bert", "trie", 0, 2),
        ("bert", "trie", 2, 1),
        ("bert", "trie", 3, 10_000),
        ("bert", "trie", 3, -2),
        ("bert", "trie", -2, 5),
        ("bert", "normal_map", 0, 8),
        ("bert", "normal_map", 2, 0),
        ("bert", "normal_map", -2, 0x110000 << 3),
        ("bert", "normal_map", -2, 0xF0000 << 3 | 5),
        ("bert", "normal_strings", 0, 127),
        ("qwen2", "normal_classes", 0, 256),
        ("qwen2", "normal_classes", 3, 0),
        ("qwen2", "normal_compose", 0, 1 << 30),
        ("qwen2", "normal_compose", 2, 0x1F600),
        ("qwen2", "normal_compose", 2, -1),
        ("xlmr", "normal_keys", 3, 1 << 28),
        ("xlmr", "normal_classes", 1, 0),
        ("gpt2-many", "pair_starts", 0, 1),
        ("gpt2-many", "pair_starts", 300, 1 << 30),
        ("gpt2-many", "added", 0, 1 << 26),
        ("spm-llama", "trie", 1, 1 << 24),
    ],
)
def test_hostile_tables_are_refused(hostile_specs, form, name, index, value):
    program = tokenizer_program(hostile_specs[form])
    at = program.names.index(f"tokenizer.{name}")
    array = program.arrays[at].copy()
    flat = array.reshape(-1)
    if name == "normal_map" and value == 8:
        value = flat[0] + 8
    if name == "normal_strings":
        flat[:] = value
    flat[index] = value
    program.arrays[at] = array
    with pytest.raises(FormatError, match="byte"):
        Image(image(program))


@pytest.mark.parametrize(
    ("form", "word", "value"),
    [
        ("bert", "unknown", 10_000),
        ("bert", "suffix", -1),
        ("bert", "tokenizer_flags", 0),
        ("bert", "normalizer", 0),
        ("bert", "normalizer", 2),
        ("bert", "pre_tokenizer", 1),
        ("bert", "trie", -1),
        ("bert", "word_chars", -1),
        ("bert", "normal_map", 0),
        ("bert", "normal_strings", 1),
        ("bert", "scores", 1),
        ("xlmr", "scores", 0),
        ("xlmr", "scores", 10**6),
        ("xlmr", "normal_compose", 0),
        ("xlmr", "normal_map", 1),
        ("qwen2", "normalizer", 3),
        ("qwen2", "tokenizer_flags", 1 << 13),
        ("spm-llama", "pre_tokenizer", 2),
        ("spm-llama", "trie", 2),
    ],
)
def test_hostile_words_are_refused(hostile_specs, form, word, value):
    program = tokenizer_program(hostile_specs[form])
    setattr(program.header, word, value)
    with pytest.raises(FormatError, match="byte"):
        Image(image(program))


def test_random_damage_is_refused_or_harmless(hostile_specs):
    """What the check lets through encodes and decodes without a crash; the sanitizer build runs the same."""
    rng = np.random.default_rng(7)
    text = "".join(trained.SCRIPTS).encode() + bytes(range(256))
    for form, spec in hostile_specs.items():
        for _ in range(60):
            program = tokenizer_program(spec)
            named = [i for i, name in enumerate(program.names) if name.startswith("tokenizer.")]
            at = named[rng.integers(len(named))]
            array = program.arrays[at].copy()
            flat = array.reshape(-1)
            for index in rng.integers(0, len(flat), 1 + rng.integers(3)):
                flat[index] = rng.choice([0, 1, -1, 127, int(flat[rng.integers(len(flat))]), int(flat[index]) ^ 1])
            program.arrays[at] = array
            try:
                ours = Tokenizer(Image(image(program)))
            except FormatError:
                continue
            ours.decode_bytes(ours.encode(text, bos=False))
