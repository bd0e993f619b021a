"""tokenizer.json (the ``tokenizers`` library): which kind it is, and byte-level BPE, as in GPT-2.

Everything that could change an id is read or refused by name; nothing is guessed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import normalizers, tokenizer_sentencepiece, tokenizer_wordpiece
from .json_files import parse_json_object, read_bytes
from .pre_tokenizers import name_of_steps
from .tokenizer_json import TokenizerJson
from .tokenizers import CONTROL, NORMAL, TokenizerSpec


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character of each byte -> the byte (github.com/openai/gpt-2, encoder.py)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    shifted = [b for b in range(256) if b not in set(printable)]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(shifted)}


ALPHABET = byte_alphabet()


def read_tokenizer_json(path: Path, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...], whole_texts: bool = False) -> TokenizerSpec:
    """The tokenizer of a model whose embedding has ``vocab_size`` rows.

    whole_texts: of an encoder, whose texts are cut by who calls it and never padded; both settings are not read then.

    Raises UnsupportedError for a step or setting that the runtime has not, FormatError for a vocabulary
    or merge list that contradicts itself; both name the setting and the value.
    """
    source = read_bytes(path)
    root = parse_json_object(source, path.name)
    reader = TokenizerJson(path.name, root | {"truncation": None, "padding": None} if whole_texts else root)
    kinds = ("BPE", "WordPiece", "Unigram")
    kind = reader.model.get("type", "BPE")
    reader.only("model type", kind, kinds, ", ".join(kinds))
    common = {"vocab_size": vocab_size, "bos_id": bos_id, "eos_ids": eos_ids, "source": source}
    if kind == "WordPiece":
        return tokenizer_wordpiece.read(reader, **common)
    if kind == "Unigram":
        return tokenizer_sentencepiece.read_unigram(reader, **common)
    if tokenizer_sentencepiece.is_sentence_piece(reader):
        return tokenizer_sentencepiece.read_bpe(reader, **common)
    return read_byte_level(reader, **common)


def read_byte_level(
    reader: TokenizerJson, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...], source: bytes
) -> TokenizerSpec:
    """Byte-level BPE with a pre-tokenizer of pre_tokenizers.py, maybe behind NFC."""
    for key in ("truncation", "padding"):
        reader.only(key, reader.root.get(key), (None,), "null")
    steps = reader.steps("normalizer", "normalizers")
    if steps not in ([], [{"type": "NFC"}]):
        raise reader.unsupported_steps("normalizer", steps, "null, NFC")
    split = reader.steps("pre_tokenizer", "pretokenizers")
    known = name_of_steps(split)
    if known is None:
        raise reader.unsupported_steps(
            "pre_tokenizer", split, "ByteLevel with its expression, Digits (individual) and ByteLevel, or the Split of Llama 3 or Qwen2 and ByteLevel"
        )
    decoder = reader.steps("decoder", "decoders")
    if [step.get("type") for step in decoder] != ["ByteLevel"]:
        raise reader.unsupported_steps("decoder", decoder, "ByteLevel")
    reader.check_model(
        (
            ("dropout", (None, 0.0, 0), "null"),
            ("unk_token", (None,), "null"),
            ("continuing_subword_prefix", (None, ""), "null"),
            ("end_of_word_suffix", (None, ""), "null"),
            ("byte_fallback", (None, False), "false"),
            ("ignore_merges", (None, False, True), "true or false"),
        )
    )
    strings, vocab = reader.vocabulary(vocab_size)
    added = reader.added_tokens(decoded_bytes)
    types = np.full(len(strings), NORMAL, np.uint8)
    types[added.special] = CONTROL
    bos, add_bos, suffix = reader.template(bos_id)
    return TokenizerSpec(
        kind="bpe-bytelevel",
        tokens=tuple(decoded_bytes(s) for s in strings),
        token_types=types,
        pairs=reader.pairs(vocab),
        byte_ids=np.array([vocab.get(c, -1) for c in sorted(ALPHABET, key=ALPHABET.get)], np.int32),
        characters=np.zeros((0, 2), np.int32),
        added=added.ids,
        add_bos=add_bos,
        bos_id=bos,
        eos_ids=eos_ids,
        add_prefix_space=known[1],
        pre_tokenizer=known[0],
        strip_space_after_bos=False,
        source_json=source,
        ignore_merges=bool(reader.model.get("ignore_merges", False)),
        suffix_id=suffix,
        normalizer=normalizers.nfc() if steps else None,
        space_rules=frozenset({"every", "one"} if known[1] else ()),
        added_left=added.left,
        added_right=added.right,
    )


def decoded_bytes(token: str) -> bytes:
    """What the ByteLevel decoder makes of a token; text outside the alphabet stays as it is."""
    if all(c in ALPHABET for c in token):
        return bytes(ALPHABET[c] for c in token)
    return token.encode("utf-8")
