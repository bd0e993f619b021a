"""tokenizer.json with WordPiece, as in BERT."""

from __future__ import annotations

import numpy as np

from edgepos.errors import FormatError

from . import normalizers
from .shorten import shorten
from .tokenizer_json import TokenizerJson
from .tokenizers import CONTROL, NORMAL, TokenizerSpec, pairs_array

GOES_ON = "##"
MOST_WORD_CHARS = 1000
# What the decoder's cleanup does to one token (tokenizers, decoders/wordpiece.rs)
CLEANUP = ((" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" do not", " don't"),
           (" 's", "'s"), (" 've", "'ve"), (" 're", "'re"))  # fmt: skip


def read(reader: TokenizerJson, *, vocab_size: int, bos_id: int | None, eos_ids: tuple[int, ...], source: bytes) -> TokenizerSpec:
    """BertNormalizer, BertPreTokenizer and WordPiece; truncation and padding are the caller's business and are not read."""
    normalizer = reader.steps("normalizer", "normalizers")
    options = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
    if [s.get("type") for s in normalizer] != ["BertNormalizer"]:
        raise reader.unsupported_steps("normalizer", normalizer, "BertNormalizer")
    for key in options:
        allowed = (True, False, None) if key == "strip_accents" else (True, False)
        reader.only(f"normalizer {key}", normalizer[0].get(key), allowed, "true or false")
    split = reader.steps("pre_tokenizer", "pretokenizers")
    if [s.get("type") for s in split] != ["BertPreTokenizer"]:
        raise reader.unsupported_steps("pre_tokenizer", split, "BertPreTokenizer")
    decoder = reader.steps("decoder", "decoders")
    if [s.get("type") for s in decoder] != ["WordPiece"] or decoder[0].get("prefix") != GOES_ON or type(decoder[0].get("cleanup")) is not bool:
        raise reader.unsupported_steps("decoder", decoder, f"WordPiece with the prefix {GOES_ON}")
    reader.check_model((("continuing_subword_prefix", (GOES_ON,), GOES_ON),))
    most = reader.model.get("max_input_chars_per_word")
    if type(most) is not int or not 1 <= most <= MOST_WORD_CHARS:
        raise FormatError(f"{reader.origin}: model max_input_chars_per_word is {shorten(most)}; 1 to {MOST_WORD_CHARS} is allowed")
    strings, vocab = reader.vocabulary(vocab_size)
    unk = reader.token_id("model unk_token", reader.model.get("unk_token"), vocab)
    if unk is None:
        raise FormatError(f"{reader.origin}: model unk_token is null; WordPiece needs one")
    added = reader.added_tokens(lambda text: text.encode("utf-8"))
    types = np.full(len(strings), NORMAL, np.uint8)
    types[added.special] = CONTROL
    tokens, keys = [], {}
    for i, string in enumerate(strings):
        text = string if string.startswith(GOES_ON) or i in added.ids else _behind_a_word(string, decoder[0]["cleanup"])
        tokens.append(text.encode("utf-8"))
        if string in vocab and string != GOES_ON:
            # What is cleaned up to something else than itself can never be met: it holds a sign, which is a word of its own.
            keys.setdefault(tokens[-1] if i not in added.ids else b" " + tokens[-1], i)
    bos, add_bos, suffix = reader.template(bos_id)
    return TokenizerSpec(
        kind="wordpiece",
        tokens=tuple(tokens),
        token_types=types,
        pairs=pairs_array([]),
        byte_ids=np.full(256, -1, np.int32),
        characters=np.zeros((0, 2), np.int32),
        added=added.ids,
        add_bos=add_bos,
        bos_id=bos,
        eos_ids=eos_ids,
        add_prefix_space=False,
        pre_tokenizer="none",
        strip_space_after_bos=True,
        source_json=source,
        unk_id=unk,
        suffix_id=suffix,
        keys=keys,
        max_word_chars=most,
        normalizer=normalizers.bert({key: normalizer[0].get(key) for key in options}),
        space_rules=frozenset({"strip-first"}),
        added_left=added.left,
        added_right=added.right,
    )


def _behind_a_word(token: str, cleanup: bool) -> str:
    text = " " + token
    for old, new in CLEANUP if cleanup else ():
        text = text.replace(old, new)
    return text
