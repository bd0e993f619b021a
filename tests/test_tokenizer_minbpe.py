"""minbpe's tokenizer.model: the same ids as merging by hand, on the shared model's file and on small ones."""

from __future__ import annotations

import numpy as np
import pytest

from edgepos.compiler.tokenizer_image import tokenizer
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.export.hf_folder import read_tokenizer
from edgepos.export.tokenizer_minbpe import GPT4_PATTERN

TEXTS = ["Once upon a time, there was a little girl.", "  two  spaces\n\n\nlines \t end ", "it's I'LL we'Ve don't 'x", "1234567 a1b22", "naïve – café 猫 🙂", ""]


def write(path, merges: list[tuple[int, int]], special: dict[str, int] | None = None, pattern: str = GPT4_PATTERN):
    lines = ["minbpe v1", pattern, str(len(special or {})), *(f"{t} {i}" for t, i in (special or {}).items()), *(f"{a} {b}" for a, b in merges)]
    path.write_text("\n".join(lines) + "\n")
    return path


def by_hand(data: bytes, merges: list[tuple[int, int]]) -> list[int]:
    """minbpe's own loop: while there is any, all pairs of the oldest merge become one token."""
    ids, known = list(data), {pair: 256 + i for i, pair in enumerate(merges)}
    while len(ids) > 1:
        pair = min(zip(ids, ids[1:]), key=lambda p: known.get(p, 1 << 30))
        if pair not in known:
            break
        out, i = [], 0
        while i < len(ids):
            double = tuple(ids[i : i + 2]) == pair
            out.append(known[pair] if double else ids[i])
            i += 2 if double else 1
        ids = out
    return ids


@pytest.fixture
def small(tmp_path):
    rng, merges = np.random.default_rng(3), []
    while len(merges) < 60:  # of letters that texts are made of, chains and repeats among them
        pair = tuple(int(x) for x in rng.choice([*b"abc", *range(256, 256 + len(merges))], 2))
        if pair not in merges:
            merges.append(pair)
    return write(tmp_path / "tokenizer.model", merges), merges


def test_words_are_merged_as_by_hand(small):
    path, merges = small
    made, rng = tokenizer(read_tokenizer(path, 400)[0]), np.random.default_rng(4)
    for n in range(1, 60):
        word = bytes(rng.choice(list(b"abc"), n)).decode()
        assert made.encode(word) == by_hand(word.encode(), merges)
        assert made.decode(made.encode(word)) == word


def test_texts_are_split_by_the_expression_of_the_file(tmp_path):
    """Merges across every border would join whole texts; where the ids keep apart is where the expression splits."""
    regex = pytest.importorskip("regex")
    pairs = [(a, b) for a in range(32, 127) for b in (32, 39, 65, 97, 49, 10)]
    made = tokenizer(read_tokenizer(write(tmp_path / "tokenizer.model", pairs), 2000)[0])
    rng = np.random.default_rng(5)
    drawn = ["".join(rng.choice(list("ab'sSLlvEreTt 1234\n\r\t.,!é猫\u00a0"), 30)) for _ in range(300)]
    for text in [*TEXTS, *drawn]:
        want = [i for word in regex.findall(GPT4_PATTERN, text) for i in by_hand(word.encode(), pairs)]
        assert made.encode(text) == want


def test_the_shared_models_tokenizer(shared):
    regex = pytest.importorskip("regex")
    folder = shared / "models/alilama"
    lines = (folder / "tokenizer.model").read_text().splitlines()
    merges = [tuple(map(int, line.split())) for line in lines[3:]]
    spec, problem, _, _, files = read_tokenizer(folder, 4000)
    assert (problem, len(spec.tokens), files) == (None, 4000, [folder / "tokenizer.model"])
    made = tokenizer(spec)
    for text in [*TEXTS, (shared / "text/tinystories.txt").read_text()[:4000]]:
        assert made.encode(text) == [i for word in regex.findall(lines[1], text) for i in by_hand(word.encode(), merges)]
        assert made.decode(made.encode(text)) == text


def test_special_tokens_are_found_in_texts(tmp_path):
    path = write(tmp_path / "tokenizer.model", [(97, 97)], {"<|end|>": 300, "<|a b|>": 301})
    made = tokenizer(read_tokenizer(path, 400)[0])
    assert made.encode("aa<|end|>a<|a b|>") == [256, 300, 97, 301]


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"pattern": r"\w+"}, UnsupportedError, r"texts are split by '\\\\w\+'; supported: GPT-4's and GPT-2's"),
        ({"pattern": ""}, UnsupportedError, "texts are split by 'nothing'"),
        ({"merges": [(97, 256)]}, FormatError, "line 4 is '97 256'; two ids below 256"),
        ({"merges": [(97, 97), (97, 97)]}, FormatError, "line 5 merges 97 and 97 again"),
        ({"merges": [(97, -1)]}, FormatError, "line 4 is '97 -1'"),
        ({"merges": [(97, 97)] + [(256 + i, 256 + i) for i in range(40)]}, FormatError, "makes a token of more than 65536 bytes"),
        ({"merges": [(a, b) for a in range(20) for b in range(20)]}, FormatError, "656 tokens, but the model has 400"),
        ({"special": {"<|x|>": 97}}, FormatError, "line 4 is '<|x|> 97'; a text and an id from 256"),
        ({"special": {"<|x|>": 5000}}, FormatError, "an id from 256 to 399"),
    ],
)
def test_damaged_files_are_named(change, error, words, tmp_path):
    path = write(tmp_path / "tokenizer.model", **({"merges": []} | change))
    with pytest.raises(error, match=words.replace("|", r"\|")) as info:
        read_tokenizer(path, 400)
    assert "\n" not in str(info.value)


@pytest.mark.parametrize("data", [b"minbpe v1\n", b"minbpe v1\n\xff\n0\n", b"minbpe v1\n\nx\n", b"minbpe v1\n\n99999999999\n"])
def test_files_that_end_early_are_refused(data, tmp_path):
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    with pytest.raises(EdgePosError):
        read_tokenizer(path, 400)
