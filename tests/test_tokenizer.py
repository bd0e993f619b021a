"""The C tokenizer against the `tokenizers` library, and a port of llama2.c."""

from __future__ import annotations

import random
import struct
import time
import unicodedata
from dataclasses import replace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos.errors import EdgePosError, FormatError
from edgepos.export.tokenizer_hf import read_tokenizer_json
from edgepos.export.tokenizer_llama2c import read_tokenizer_bin
from edgepos.export.tokenizers import pairs_array
from edgepos.runtime.native import Image, ffi, lib
from edgepos.runtime.tokenizer import TextStream, Tokenizer
from tokenizer_images import image, tokenizer_program

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    " \n \n\n x",
    "Once upon a time, there was a girl.",
    "I'm you're we've they'll he'd it's don't 'Tis 'S 're'd ''s 'll'",
    "x=1;\tif (a[10]==b) {return 3.14e-10;}\r\n\r\n  // end  ",
    "1234567890 ١٢٣ ½ Ⅷ ② 万",
    "naïve café Straße Ελληνικά русский язык עברית العربية हिन्दी ไทย 中文字 日本語テキスト 한국어",
    "😀👩‍👩‍👧‍👦🇩🇪 👍🏽 text😀text",
    "a\u0300\u0301 e\u0323 \u00a0\u2003\u3000x\u200b\u200d\ufeff\u2028y\u0085z",
    "\x00\x01\x1b[0m\x7f\x1c\x1d\x1e\x1fA",
    "word" * 300,
    " " * 70 + "x" + "\t" * 9,
    "<|endoftext|>Hello<|endoftext|><|endoftext|> there <|endof",
    "\U000e0001\U0010ffff\ue000",
]
ALPHABET = st.text(st.sampled_from("  '\n\tabsdtlremvxAé1٣²中字😀!.-_\u0301\u00a0\u200d<|endoftext|>"), max_size=40)


def tokenizer_of(spec) -> Tokenizer:
    return Tokenizer(Image(image(tokenizer_program(spec))))


@pytest.fixture(scope="module", params=["tiny-rope", "trained"])
def byte_level(request, root, tmp_path_factory):
    """(Tokenizer, library form) of the example model's tokenizer, and of one with merges in many scripts."""
    path = root / "examples/tiny/tiny-rope/tokenizer.json"
    if request.param == "trained":
        model = tokenizers.Tokenizer(tokenizers.models.BPE())
        model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = tokenizers.decoders.ByteLevel()
        alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=700, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
        )
        model.train_from_iterator(TEXTS * 3, trainer)
        # One added token is the start of another: the longest must win.
        model.add_tokens([tokenizers.AddedToken(t, normalized=False) for t in ("<|e", "<|endoftext|>Hello")])
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        model.save(str(path))
    spec = read_tokenizer_json(path, vocab_size=1024, bos_id=None, eos_ids=(0,))
    return tokenizer_of(spec), spec.library()


@pytest.mark.parametrize("text", TEXTS)
def test_byte_level_equals_library(byte_level, text):
    ours, library = byte_level
    ids = ours.encode(text, bos=False)
    assert ids == library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids)


@settings(max_examples=300, deadline=None)
@given(text=ALPHABET | st.text(max_size=30))
def test_byte_level_equals_library_on_any_text(byte_level, text):
    ours, library = byte_level
    assert ours.encode(text, bos=False) == library.encode(text, add_special_tokens=False).ids


def test_classes_of_code_points_equal_the_library(byte_level):
    """Both sides of every boundary between Unicode categories, beside a letter, a digit, a sign and a space."""
    ours, library = byte_level
    groups = [unicodedata.category(chr(c)) for c in range(0x110000)]
    edges = {c + d for c in range(1, 0x110000) if groups[c] != groups[c - 1] for d in (-1, 0)}
    points = [chr(c) for c in sorted(edges) if groups[c] not in ("Cs", "Cn")]
    assert len(points) > 3000
    for at in range(0, len(points), 50):
        text = "".join(f"a{c}1{c}!{c} {c}a{c}  " for c in points[at : at + 50])
        assert ours.encode(text, bos=False) == library.encode(text, add_special_tokens=False).ids, points[at]


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=30))
def test_any_bytes_come_back(byte_level, data):
    ours, _ = byte_level
    assert ours.decode_bytes(ours.encode(b"x" + data, bos=False)) == b"x" + data


@pytest.fixture
def tiny_spec(root):
    return read_tokenizer_json(root / "examples/tiny/tiny-rope/tokenizer.json", vocab_size=1024, bos_id=None, eos_ids=(0,))


# ---- SentencePiece BPE


@pytest.fixture(scope="module")
def sentence_piece(shared):
    """(Tokenizer, bytes of tok512.bin)."""
    path = shared / "models/stories260K/tok512.bin"
    return tokenizer_of(read_tokenizer_bin(path, 512)), path.read_bytes()


def llama2c_vocabulary(data: bytes) -> list[tuple[float, bytes]]:
    entries, at = [], 4
    while at < len(data):
        score, size = struct.unpack_from("<fi", data, at)
        entries.append((score, data[at + 8 : at + 8 + size]))
        at += 8 + size
    return entries


def llama2c_encode(data: bytes, text: bytes) -> list[int]:
    """encode() of llama2.c's run.c (MIT, Andrej Karpathy), with BOS."""
    entries = llama2c_vocabulary(data)
    ids = {string: i for i, (_, string) in enumerate(entries)}
    tokens = [1]
    if text:
        tokens.append(ids[b" "])
    character = b""
    for i, byte in enumerate(text):
        if byte & 0xC0 != 0x80:
            character = b""
        character += bytes([byte])
        following = text[i + 1] if i + 1 < len(text) else 0
        if following & 0xC0 == 0x80 and len(character) < 4:
            continue
        tokens += [ids[character]] if character in ids else [b + 3 for b in character]
        character = b""
    while True:
        best_score, best = -1e10, None
        for i in range(len(tokens) - 1):
            merged = ids.get(entries[tokens[i]][1] + entries[tokens[i + 1]][1])
            if merged is not None and entries[merged][0] > best_score:
                best_score, best = entries[merged][0], (i, merged)
        if best is None:
            return tokens
        at, merged = best
        tokens[at : at + 2] = [merged]


@pytest.mark.parametrize("text", [t for t in TEXTS if "\0" not in t])  # a C string ends there
def test_sentence_piece_equals_llama2c(sentence_piece, text):
    ours, data = sentence_piece
    assert ours.encode(text) == llama2c_encode(data, text.encode())


@settings(max_examples=200, deadline=None)
@given(text=ALPHABET.map(str.encode) | st.binary(max_size=30).map(lambda b: b.replace(b"\0", b"")))
def test_sentence_piece_equals_llama2c_on_any_bytes(sentence_piece, text):
    ours, data = sentence_piece
    assert ours.encode(text) == llama2c_encode(data, text)


def test_sentence_piece_equals_llama2c_on_stories(sentence_piece, shared):
    ours, data = sentence_piece
    text = (shared / "text/tinystories.txt").read_bytes()
    for at in range(0, 40000, 1000):
        assert ours.encode(text[at : at + 400]) == llama2c_encode(data, text[at : at + 400])


def test_sentence_piece_decodes_as_llama2c(sentence_piece):
    ours, _ = sentence_piece
    ids = ours.encode("Once upon a time ☃")
    assert ids[0] == ours.bos_id == 1
    assert ours.decode(ids) == "Once upon a time ☃"  # the space after BOS is dropped
    assert ours.decode(ids[1:]) == " Once upon a time ☃"
    assert ours.token_bytes(-1, 1) == b""
    assert ours.token_bytes(-1, 0xE2 + 3) == b"\xe2"
    assert ours.eos_ids == (1, 2)


# ---- cost, limits, hostile tables


@pytest.mark.parametrize("unit", ["a", "ab", "the", " ", "\u0301", "é"])
def test_long_texts_cost_little_more_than_their_length(byte_level, sentence_piece, unit):
    text = unit * (200_000 // len(unit.encode()))
    for ours in (byte_level[0], sentence_piece[0]):
        start = time.process_time()
        ids = ours.encode(text)
        assert time.process_time() - start < 5  # quadratic merging would take minutes
        assert ours.decode_bytes(ids).strip() == text.encode().strip()


def plain_encode(spec, data: bytes) -> list[int]:
    """Join the adjacent pair of lowest rank, leftmost among equals, until there is none."""
    rules = {(a, b): (rank, merged) for a, b, rank, merged in spec.pairs.tolist()}
    ids = [i for i in spec.byte_ids[list(data)].tolist() if i >= 0]
    while found := [(rules[pair][0], at) for at, pair in enumerate(zip(ids, ids[1:])) if pair in rules]:
        at = min(found)[1]
        ids[at : at + 2] = [rules[ids[at], ids[at + 1]][1]]
    return ids


def test_random_merges_equal_a_plain_encoder(tiny_spec):
    """Ranks with ties, merges that lead anywhere, bytes without a token: the rule alone, not what real vocabularies hold."""
    rng = random.Random(5)
    for _ in range(30):
        n = 40
        pairs = {(rng.randrange(n), rng.randrange(n)) for _ in range(300)}
        spec = replace(
            tiny_spec,
            tokens=tuple(b"%d" % i for i in range(n)),
            token_types=np.zeros(n, np.uint8),
            pairs=pairs_array([(a, b, rng.randrange(20), rng.randrange(n)) for a, b in sorted(pairs)]),
            byte_ids=np.array([b % 7 if b % 11 else -1 for b in range(256)], np.int32),
            added=(),
            pre_tokenizer="none",
        )
        ours = tokenizer_of(spec)
        for size in (1, 2, 3, 7, 64, 200):
            data = bytes(rng.randrange(256) for _ in range(size))
            assert ours.encode(data) == plain_encode(spec, data)


def test_too_small_buffer_is_reported_and_nothing_is_written_beyond(byte_level):
    ours, _ = byte_level
    text = b"Once upon a time, there was"
    expected = ours.encode(text, bos=False)
    assert len(expected) > 3
    ids, n = ffi.new("int32_t[8]", [-7] * 8), ffi.new("size_t *")
    scratch = ffi.new("int32_t[]", 4 * (len(text) + 2))
    status = lib.ep_encode(ours._image.model, text, len(text), 0, ids, 3, scratch, n)
    assert status == lib.EP_ERR_BUFFER
    assert n[0] == len(expected)
    assert list(ids) == expected[:3] + [-7] * 5


def test_errors_name_the_problem(byte_level):
    ours, _ = byte_level
    with pytest.raises(EdgePosError, match="no BOS"):
        ours.encode("x", bos=True)
    with pytest.raises(EdgePosError, match="surrogate"):
        ours.encode("a\ud800")
    for bad in (-1, 1024, 2**31 - 1, 2**40):
        with pytest.raises(EdgePosError, match="vocabulary"):
            ours.decode([bad])
    assert ours.encode("\udcff", bos=False) == ours.encode(b"\xff", bos=False)


def test_model_without_tokenizer_says_so(tiny_spec):
    program = tokenizer_program(tiny_spec)
    program.header.tokenizer = 0
    with pytest.raises(EdgePosError, match="no tokenizer"):
        Tokenizer(Image(image(program)))


@pytest.mark.parametrize(
    "name, index, value",
    [
        ("tokenizer.offsets", 0, 1),
        ("tokenizer.offsets", 5, 2**30),
        ("tokenizer.offsets", 1024, 7),
        ("tokenizer.types", 3, 3),
        ("tokenizer.byte_ids", 255, 1024),
        ("tokenizer.byte_ids", 0, -2),
        ("tokenizer.pairs", 0, 1023),
        ("tokenizer.pairs", 1, -1),
        ("tokenizer.pairs", 3, 1024),
        ("tokenizer.added", 0, -1),
        ("tokenizer.eos", 0, 1024),
    ],
)
def test_hostile_tables_are_refused(tiny_spec, name, index, value):
    program = tokenizer_program(tiny_spec)
    array = program.arrays[program.names.index(name)].copy()
    array.reshape(-1)[index] = value
    program.arrays[program.names.index(name)] = array
    with pytest.raises(FormatError, match="byte"):
        Image(image(program))


# ---- UTF-8 at the end of a stream


@pytest.fixture(scope="module")
def starts() -> set[bytes]:
    """Every proper beginning of the UTF-8 of a code point."""
    encoded = (chr(c).encode() for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000)
    return {raw[:n] for raw in encoded for n in range(1, len(raw))}


@settings(max_examples=1000, deadline=None)
@given(data=st.binary(max_size=5) | st.text(max_size=4).map(str.encode))
def test_pending_bytes_are_the_start_of_a_code_point(starts, data):
    for size in range(len(data) + 1):
        pending = next((n for n in range(1, 4) if data[:size][-n:] in starts and n <= size), 0)
        assert lib.ep_utf8_pending(data[:size], size) == pending, data[:size]


def test_pending_bytes_of_every_start(starts):
    for start in starts:
        assert lib.ep_utf8_pending(b"\xe2a" + start, 2 + len(start)) == len(start)


def test_streams_never_split_a_code_point(byte_level):
    ours, _ = byte_level
    text = "é中😀 naïve 👩‍👩‍👧‍👦"
    stream = TextStream(ours)
    pieces = [stream.push(i) for i in ours.encode(text, bos=False)]
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
