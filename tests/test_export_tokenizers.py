"""TokenizerSpec against the library it came from, and against run.c's rule."""

from __future__ import annotations

import json
import random
import struct

import numpy as np
import pytest
from hf_models import VOCAB, write_tokenizer
from llama2c_numpy import Tokenizer
from spec_encode import decode, encode

from edgepos.errors import FormatError, UnsupportedError
from edgepos.export.tokenizer_hf import read_tokenizer_json
from edgepos.export.tokenizer_llama2c import read_tokenizer_bin

TEXTS = [
    "",
    " ",
    "Once upon a time, there was a cat.\n\n  It didn't  sit;\tit'll sit 123 times.  ",
    "naïve café — “quotes” 🙂🙂 日本語 \u00a0x\u2028y",
    "<|endoftext|>the<|endoftext|><|endoftext|> cat <|endof",
    "a" * 50 + "  " * 20,
    "\x00\x01\x7f",
]


def read(path, vocab_size=VOCAB, bos_id=0, eos_ids=(0,)):
    return read_tokenizer_json(path, vocab_size=vocab_size, bos_id=bos_id, eos_ids=eos_ids)


def random_texts(count: int) -> list[str]:
    rng = random.Random(5)
    words = ["the", " cat", " sat", "\n", "  ", "'s", "é", "<|endoftext|>", "日", "42", "🙂", ".", "\t", "\u3000"]
    return ["".join(rng.choice(words) for _ in range(rng.randrange(30))) for _ in range(count)]


def check_against_library(spec):
    library = spec.library()
    for text in TEXTS + random_texts(300):
        ids = library.encode(text, add_special_tokens=True).ids
        assert encode(spec, text.encode()) == ids
        # The library replaces broken UTF-8 by U+FFFD, so compare text.
        assert decode(spec, ids).decode("utf-8", "replace") == library.decode(ids, skip_special_tokens=True)


def test_bytelevel_equals_the_library(tmp_path):
    write_tokenizer(tmp_path)
    spec = read(tmp_path / "tokenizer.json")
    assert (spec.kind, spec.pre_tokenizer, spec.add_bos, spec.added) == ("bpe-bytelevel", "gpt2", False, (0,))
    assert spec.token_types.tolist() == [1] + [0] * (len(spec.tokens) - 1)
    assert sorted(spec.tokens[i] for i in spec.byte_ids) == [bytes([b]) for b in range(256)]
    order = spec.pairs[:, :2].tolist()
    assert order == sorted(order) and spec.pairs.dtype == np.int32
    for left, right, _, merged in spec.pairs:
        assert spec.tokens[left] + spec.tokens[right] == spec.tokens[merged]
    check_against_library(spec)


@pytest.mark.parametrize("name", ["tiny-rope", "tiny-alibi"])
def test_tiny_example_tokenizers_equal_the_library(root, name):
    path = root / "examples" / "tiny" / name / "tokenizer.json"
    check_against_library(read(path, vocab_size=json.loads((path.parent / "config.json").read_text())["vocab_size"]))


def edit(path, change):
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_bos_from_a_template_and_steps_in_a_sequence(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"

    def change(t):
        t["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [t["pre_tokenizer"]]}
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
        }
        t["post_processor"] = {"type": "Sequence", "processors": [template]}

    edit(path, change)
    spec = read(path, bos_id=None)
    assert spec.add_bos and spec.bos_id == 0
    check_against_library(spec)
    with pytest.raises(FormatError, match="starts texts with token 0, the config's bos_token_id is 3"):
        read(path, bos_id=3)


def test_bytes_without_a_token_are_left_out(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"

    def change(t):
        vocab = t["model"]["vocab"]
        t["model"]["merges"] = [m for m in t["model"]["merges"] if "m" not in "".join(m)]
        names = [n for n in sorted(vocab, key=vocab.get) if "m" not in n]
        t["model"]["vocab"] = {n: i for i, n in enumerate(names)}

    edit(path, change)
    spec = read(path)
    assert spec.byte_ids[ord("m")] == -1
    check_against_library(spec)


def test_added_tokens_match_longest_first(tmp_path):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"

    def change(t):
        n = len(t["model"]["vocab"])
        for i, content in enumerate(["<|e", "<|endoftext|>the", "日 x"]):
            t["added_tokens"].append({**t["added_tokens"][0], "id": n + i, "content": content, "special": i > 0})

    edit(path, change)
    spec = read(path, vocab_size=VOCAB + 10)
    assert len(spec.added) == 4
    check_against_library(spec)


def nested(*keys, value):
    def change(t):
        for key in keys[:-1]:
            t = t[key]
        t[keys[-1]] = value

    return change


BAD, NO = FormatError, UnsupportedError
CHANGES = [
    (nested("normalizer", value={"type": "NFKC"}), NO, "normalizer NFKC is not supported; supported: null, NFC"),
    (nested("pre_tokenizer", value={"type": "Whitespace"}), NO, "pre_tokenizer Whitespace is not supported"),
    (nested("pre_tokenizer", value=None), NO, "pre_tokenizer null is not supported"),
    (nested("pre_tokenizer", "use_regex", value=False), NO, "use_regex=False.* is not supported; supported: ByteLevel"),
    (
        nested("pre_tokenizer", value={"type": "Sequence", "pretokenizers": [{"type": "Digits"}, {"type": "ByteLevel"}]}),
        NO,
        "pre_tokenizer Digits, ByteLevel is not supported",
    ),
    (
        nested(
            "pre_tokenizer",
            value={
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": r"\p{L}+"}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
                ],
            },
        ),
        NO,
        "pre_tokenizer Split.*, ByteLevel.* is not supported; supported: .*Llama 3 or Qwen2",
    ),
    (nested("decoder", value={"type": "WordPiece"}), NO, "decoder WordPiece is not supported; supported: ByteLevel"),
    (nested("truncation", value={"max_length": 5}), NO, "truncation"),
    (nested("padding", value={"pad_id": 5}), NO, "padding"),
    (nested("model", "type", value="WordLevel"), NO, "model type 'WordLevel' is not supported; supported: BPE, WordPiece, Unigram"),
    (nested("model", "dropout", value=0.1), NO, "model dropout 0.1"),
    (nested("model", "unk_token", value="<unk>"), NO, "model unk_token '<unk>'"),
    (nested("model", "continuing_subword_prefix", value="##"), NO, "continuing_subword_prefix '##'"),
    (nested("model", "byte_fallback", value=True), NO, "byte_fallback True"),
    (nested("model", "ignore_merges", value=1), NO, "ignore_merges 1 is not supported; supported: true or false"),
    (lambda t: t["model"]["merges"].insert(0, t["model"]["merges"][0]), BAD, "merge 1 .* repeats merge 0"),
    (nested("model", "merges", value=[["t", "zzz"]]), BAD, "needs 'zzz', which is not in the vocabulary"),
    (nested("model", "merges", value=[["t", "t"]]), BAD, "needs 'tt'"),
    (nested("model", "merges", value=[["", "t"]]), BAD, "merge 0 is"),
    (nested("model", "merges", value=["t h e"]), BAD, "merge 0 is 't h e'; two tokens are needed"),
    (nested("model", "merges", value=None), BAD, "model.merges is None"),
    (nested("model", "vocab", value=[]), BAD, "model.vocab is"),
    (nested("model", "vocab", "new", value=VOCAB), BAD, "gives 'new' the id 300; the model has ids 0 to 299"),
    (nested("model", "vocab", "new", value=5), BAD, "id 5 is both"),
    (nested("model", "vocab", "new", value=-1), BAD, "the id -1"),
    (nested("model", "vocab", "new", value=True), BAD, "the id True"),
    (nested("model", "vocab", "t", value=VOCAB - 1), BAD, "no token has id|id 299 is both"),
    (nested("model", "vocab", "\ud800", value=5), BAD, "a text, not empty, is needed"),
    (nested("added_tokens", 0, "lstrip", value=1), NO, "lstrip 1 is not supported"),
    (nested("added_tokens", 0, "single_word", value=True), NO, "single_word True"),
    (nested("added_tokens", 0, "content", value="é"), BAD, "id 0 is both"),
    (nested("added_tokens", value={}), BAD, "added_tokens is {}"),
    (nested("post_processor", value={"type": "Other"}), NO, "post_processor type 'Other'"),
    (nested("post_processor", value={"type": "BertProcessing", "cls": ["x", 999], "sep": ["y", 0]}), BAD, r"post_processor cls is \['x', 999\]"),
    (
        nested("post_processor", value={"type": "TemplateProcessing", "single": [{"Sequence": {}}, {"Sequence": {}}]}),
        NO,
        "supported: text, or one token and text",
    ),
]


@pytest.mark.parametrize(("change", "error", "message"), CHANGES, ids=[c[2][:40] for c in CHANGES])
def test_other_tokenizers_are_refused(tmp_path, change, error, message):
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    edit(path, change)
    with pytest.raises(error, match=message) as caught:
        read(path)
    assert "\n" not in str(caught.value)


def test_added_token_refusals(tmp_path):
    write_tokenizer(tmp_path, vocab=290)
    path = tmp_path / "tokenizer.json"
    base = path.read_text()
    n = len(json.loads(base)["model"]["vocab"])

    def add(**changes):
        path.write_text(base)
        edit(path, lambda t: t["added_tokens"].append({**t["added_tokens"][0], "id": n, "content": "<x>", **changes}))

    add(content="éé")
    with pytest.raises(UnsupportedError, match="would be decoded to other bytes"):
        read(path)
    add(normalized=True)
    with pytest.raises(UnsupportedError, match="are mixed"):
        read(path)
    add(id=0, content="<|endoftext|>")
    with pytest.raises(FormatError, match="listed twice"):
        read(path)


def test_llama2c_rule(shared):
    folder = shared / "models" / "stories260K"
    spec, truth = read_tokenizer_bin(folder / "tok512.bin", 512), Tokenizer(folder / "tok512.bin", 512)
    text = (shared / "text" / "tinystories.txt").read_text(encoding="utf-8")
    samples = [text[i : i + 400].encode() for i in range(0, 40_000, 400)] + [t.encode() for t in TEXTS[:-1]]
    rng = random.Random(1)
    samples += [bytes(rng.choice([rng.randrange(1, 256), 0x80, 0xE3, 0x20, 0x61]) for _ in range(30)) for _ in range(300)]
    for sample in samples:
        ids = truth.encode(sample)
        assert encode(spec, sample) == ids
        assert decode(spec, ids) == truth.decode(ids).replace(b"\n<s>\n", b"")
    assert spec.token_types[[1, 2, 3, 258, 259]].tolist() == [1, 1, 2, 2, 0]
    assert spec.tokens[3 + 0x41] == b"A" and spec.byte_ids[0x41] == 3 + 0x41
    with pytest.raises(UnsupportedError, match="no tokenizer.json"):
        spec.library()


def write_bin(path, strings, scores=None, longest=None, tail=b""):
    scores = scores or [0.0] * len(strings)
    rows = b"".join(struct.pack("<fi", s, len(t)) + t for t, s in zip(strings, scores))
    path.write_bytes(struct.pack("<i", longest or max(map(len, strings))) + rows + tail)
    return path


BASE = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256)), b" "]


def test_equal_scores_join_leftmost_and_hopeless_scores_never(tmp_path):
    strings = [*BASE, b"a", b"b", b"ab", b"ba", b"bb"]
    scores = [0.0] * 260 + [0.0, 0.0, -2.0, -2.0, -3e10]
    path = write_bin(tmp_path / "t.bin", strings, scores)
    spec, truth = read_tokenizer_bin(path, 265), Tokenizer(path, 265)
    assert spec.pairs.tolist() == [[260, 261, 1, 262], [261, 260, 1, 263]]
    for text in (b"aba", b"bab", b"bb", b"abab", b"bbaa"):
        assert encode(spec, text) == truth.encode(text)


@pytest.mark.parametrize(
    ("strings", "options", "message"),
    [
        ([*BASE, b"a", b"a"], {}, "tokens 260 and 261 are both b'a'"),
        (BASE[:-1] + [b"x"], {}, "no token for a space"),
        ([b" ", b"a", b"b"], {}, "at least 259 are needed"),
        ([*BASE, b"a\0b"], {}, "token 260 at byte .* contains a zero byte"),
        ([*BASE, b"abcdefgh"], {"longest": 7}, "length 8; 0 to 7"),
        ([*BASE, b"a"], {"longest": 2**20}, "longest token at byte 0"),
        ([*BASE, b"a"], {"longest": -1}, "longest token at byte 0"),
        ([*BASE, b"a"], {"tail": b"\0"}, "1 bytes left after 261 tokens"),
        ([*BASE, b"a"], {"scores": [float("nan")] * 261}, "score nan"),
    ],
)
def test_malformed_llama2c_tokenizers(tmp_path, strings, options, message):
    path = write_bin(tmp_path / "t.bin", strings, **options)
    with pytest.raises(FormatError, match=message):
        read_tokenizer_bin(path, len(strings))


def test_truncated_llama2c_tokenizer(tmp_path):
    path = write_bin(tmp_path / "t.bin", [*BASE, b"abcdef"])
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FormatError, match="token 260 at byte .* has length 6"):
        read_tokenizer_bin(path, 261)
    with pytest.raises(FormatError, match="inside token 261 of 262|has length"):
        read_tokenizer_bin(path, 262)
