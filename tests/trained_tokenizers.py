"""Small tokenizers of every kind the runtime knows, trained with the `tokenizers` library, and texts to try them on."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import tokenizers
from tokenizer_images import image, tokenizer_program
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from edgepos.export.pre_tokenizers import PATTERNS
from edgepos.export.tokenizer_hf import read_tokenizer_json
from edgepos.runtime.native import Image
from edgepos.runtime.tokenizer import Tokenizer

SPACE = "\u2581"
SCRIPTS = [
    "naïve café Straße Ελληνικά русский язык עברית العربية हिन्दी ไทย 中文字 日本語テキスト 한국어 Tiếng Việt İstanbul",
    "😀👩‍👩‍👧‍👦🇩🇪 👍🏽 text😀text ☃ ﬁ ﷺ ½ Ⅷ ② ١٢٣ １２３ ＡＢＣ ｶﾞ",
    "e\u0301 a\u0323\u0302 \u1100\u1161\u11a8 q\u0307\u0323 \u212b \u0958 \u1e9b\u0323 \u0344 \ufb1d \U0001d15e \u2126",
    "x = 1;\tif (a[10] == b) { return 3.14e-10; }\r\n\r\n  // end  \n\n\tdef f(self):\n        pass\n",
    "I'm YOU'RE we've THEY'LL he'd it's don't 'Tis 'S 're'd ''s 'll' 'ſ",
    "\x00\x01\x1b[0m\x7f\x1c\x1d\x1e\x1fA \u00a0\u2003\u3000x\u200b\u200d\ufeff\u2028y\u0085z\u00ad \ue000\U0010ffff",
    "  two  spaces \u2581low\u2581line \u2581\u2581 and  the   end   ",
]


def sample(shared: Path, size: int, seed: int = 3) -> str:
    """Prose, code, digits, scripts, emoji, control characters and unlikely code points."""
    rng = random.Random(seed)
    prose = (shared / "text/wikitext2_part1.txt").read_text(encoding="utf-8")
    code = Path(json.__file__).read_text(encoding="utf-8")
    parts, n = [], 0
    while n < size:
        kind = rng.randrange(10)
        if kind < 4:
            at = rng.randrange(len(prose) - 400)
            part = prose[at : at + rng.randrange(400)]
        elif kind < 6:
            at = rng.randrange(len(code) - 200)
            part = code[at : at + rng.randrange(200)]
        elif kind < 7:
            part = " ".join(str(rng.randrange(10 ** rng.randrange(1, 12))) for _ in range(8)) + " "
        elif kind < 9:
            part = rng.choice(SCRIPTS)[rng.randrange(10) :]
        else:
            points = (rng.choice([rng.randrange(0x300, 0x370), rng.randrange(0x3000), rng.randrange(0x20000), 0x20, 0x27]) for _ in range(30))
            part = "".join(chr(c) for c in points if not 0xD800 <= c < 0xE000)
        parts.append(part)
        n += len(part.encode())
    return "".join(parts)


def _train(model, trainer, texts, **parts):
    made = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(made, name, part)
    made.train_from_iterator(texts, trainer)
    return made


def byte_level(texts, pre: str, *, nfc=False, ignore_merges=False, vocab=1200, space=False):
    plain = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=pre in ("gpt2", "smollm"))
    steps = {
        "gpt2": plain,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain]),
        **{name: pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated"), plain]) for name, p in PATTERNS.items()},
    }
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False
    )
    parts = {"pre_tokenizer": steps[pre], "decoder": decoders.ByteLevel()} | ({"normalizer": normalizers.NFC()} if nfc else {})
    made = _train(models.BPE(ignore_merges=ignore_merges), trainer, texts, **parts)
    made.add_tokens([AddedToken("<|strip|>", normalized=False, lstrip=True, rstrip=True), AddedToken("<|e", normalized=False)])
    return made


def sentence_piece(texts, form: str, *, vocab=1200):
    """form: llama (Prepend and Replace), gemma (Replace alone), first or always (Metaspace), unk (no byte tokens)."""
    byte_tokens = [] if form == "unk" else [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=["<unk>", "<s>", "</s>", *byte_tokens], limit_alphabet=150, show_progress=False)
    replace = normalizers.Replace(" ", SPACE)
    parts = {
        "llama": {"normalizer": normalizers.Sequence([normalizers.Prepend(SPACE), replace])},
        "unk": {"normalizer": normalizers.Sequence([normalizers.Prepend(SPACE), replace])},
        "gemma": {"normalizer": replace, "pre_tokenizer": pre_tokenizers.Split(" ", "merged_with_previous")},
        "first": {"pre_tokenizer": pre_tokenizers.Metaspace(SPACE, "first", False)},
        "always": {"pre_tokenizer": pre_tokenizers.Metaspace(SPACE, "always", True)},
    }[form]
    fused = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    parts["decoder"] = decoders.Sequence(fused if form == "gemma" else [*fused, decoders.Strip(" ", 1, 0)])
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=form != "unk")
    made = _train(model, trainer, texts, **parts)
    return _rewrite(made, lambda root: _keep_special(root, {"<unk>", "<s>", "</s>"}))


def _keep_special(root, names) -> None:
    """The byte tokens become plain tokens of the vocabulary, as SentencePiece's are."""
    root["added_tokens"] = [t for t in root["added_tokens"] if t["content"] in names]


def word_piece(texts, *, lowercase=True, accents=None, vocab=1200):
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], limit_alphabet=200, show_progress=False
    )
    made = _train(
        models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100),
        trainer,
        texts,
        normalizer=normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents),
        pre_tokenizer=pre_tokenizers.BertPreTokenizer(),
        decoder=decoders.WordPiece(),
    )
    cls, sep = ("[CLS]", made.token_to_id("[CLS]")), ("[SEP]", made.token_to_id("[SEP]"))
    made.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[cls, sep])
    return made


def unigram(texts, form: str, *, vocab=1200, fallback=False):
    """form: xlmr (Precompiled, WhitespaceSplit, Metaspace) or t5 (Precompiled, Strip, Replace, Metaspace) or plain (Metaspace alone)."""
    meta = pre_tokenizers.Metaspace(SPACE, "always", True)
    parts = {
        "xlmr": {
            "normalizer": normalizers.Precompiled(charsmap()),
            "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), meta]),
        },
        "t5": {
            "normalizer": normalizers.Sequence(
                [normalizers.Precompiled(charsmap()), normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), SPACE)]
            ),
            "pre_tokenizer": meta,
        },
        "plain": {"pre_tokenizer": meta},
    }[form]
    byte_tokens = [f"<0x{b:02X}>" for b in range(256)] if fallback else []
    fused = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    decoder = decoders.Sequence(fused) if fallback else decoders.Metaspace(SPACE, "always", True)
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab, special_tokens=["<s>", "<pad>", "</s>", "<unk>", *byte_tokens], unk_token="<unk>", show_progress=False
    )
    made = _train(models.Unigram(), trainer, texts, **parts, decoder=decoder)
    made.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", made.token_to_id("</s>"))]
    )

    def change(root) -> None:
        _keep_special(root, {"<s>", "<pad>", "</s>", "<unk>"})
        root["model"]["byte_fallback"] = fallback
        # SentencePiece's scores are float32.
        root["model"]["vocab"] = [[token, float(np.float32(score))] for token, score in root["model"]["vocab"]]

    return _rewrite(made, change)


def _rewrite(made, change):
    root = json.loads(made.to_str())
    change(root)
    return tokenizers.Tokenizer.from_str(json.dumps(root))


def charsmap() -> bytes:
    """A precompiled map as SentencePiece's nmt_nfkc: compatibility forms, white space, and base letters with their marks."""
    import unicodedata

    keys = {}
    for c in [*range(0x80, 0x3400), *range(0xF900, 0xFFFE)]:
        to = unicodedata.normalize("NFKC", chr(c))
        if to != chr(c) and unicodedata.category(chr(c)) != "Cn":
            keys[chr(c)] = to
        parts = unicodedata.normalize("NFD", chr(c))
        if len(parts) == 2 and unicodedata.normalize("NFC", parts) == chr(c):
            keys.setdefault(parts, chr(c))
    keys |= dict.fromkeys("\t\n\r\u2028\u2029\u200b\ufeff", " ") | {"\x7f": "", "\u200e": "", "\x01": "", "\u00ad": ""}
    return darts({key.encode(): value.encode() for key, value in keys.items()})


def darts(keys: dict[bytes, bytes]) -> bytes:
    """A double array in the layout of darts-clone (MIT, Susumu Yata), and the strings behind it, each ended by a zero byte."""
    strings, offsets = b"", {}
    for value in dict.fromkeys(keys.values()):
        offsets[value] = len(strings)
        strings += value + b"\0"
    units, used, bases = {0: 0}, {0}, set()
    ordered = sorted(keys)
    start = [1]

    def place(at: int, group: list[bytes], depth: int) -> None:
        labels = sorted({key[depth] if len(key) > depth else 0 for key in group})
        base = start[0]
        while base in bases or any(base ^ label in used for label in labels) or (base ^ at) >= 1 << 21:
            base += 1
        if len(labels) > 3:
            start[0] = max(start[0], base - 256)
        bases.add(base)
        used.update(base ^ label for label in labels)
        units[at] = units.get(at, 0) | (base ^ at) << 10 | (1 << 8 if labels[0] == 0 else 0)
        for label in labels:
            child = base ^ label
            if label == 0:
                units[child] = 1 << 31 | offsets[keys[group[0]]]
                continue
            units[child] = label
            place(child, [key for key in group if len(key) > depth and key[depth] == label], depth + 1)

    place(0, ordered, 0)
    size = (max(units) // 256 + 1) * 256
    array = np.zeros(size, "<u4")
    for at, unit in units.items():
        array[at] = unit
    return (4 * size).to_bytes(4, "little") + array.tobytes() + strings


def read(path, vocab_size=10_000):
    return read_tokenizer_json(path, vocab_size=vocab_size, bos_id=None, eos_ids=())


def tokenizer_of(spec) -> Tokenizer:
    return Tokenizer(Image(image(tokenizer_program(spec))))


def lines(shared: Path) -> list[str]:
    """What the tokenizers are trained on."""
    text = sample(shared, 60_000, 1)
    return [text[at : at + 200] for at in range(0, len(text), 200)]


FORMS = {
    "gpt2": lambda texts: byte_level(texts, "gpt2"),
    "gpt2-space": lambda texts: byte_level(texts, "gpt2", space=True),
    "gpt2-many": lambda texts: byte_level(texts, "gpt2", vocab=5000),
    "llama3": lambda texts: byte_level(texts, "llama3", ignore_merges=True),
    "qwen2": lambda texts: byte_level(texts, "qwen2", nfc=True),
    "smollm": lambda texts: byte_level(texts, "smollm"),
    "spm-llama": lambda texts: sentence_piece(texts, "llama"),
    "spm-gemma": lambda texts: sentence_piece(texts, "gemma"),
    "spm-first": lambda texts: sentence_piece(texts, "first"),
    "spm-always": lambda texts: sentence_piece(texts, "always"),
    "spm-unk": lambda texts: sentence_piece(texts, "unk"),
    "bert": lambda texts: word_piece(texts),
    "bert-cased": lambda texts: word_piece(texts, lowercase=False, accents=False),
    "xlmr": lambda texts: unigram(texts, "xlmr"),
    "t5": lambda texts: unigram(texts, "t5"),
    "unigram": lambda texts: unigram(texts, "plain"),
    "unigram-bytes": lambda texts: unigram(texts, "t5", fallback=True, vocab=1500),
}
