"""GGUF files of the architecture ``bert``: an encoder with llama.cpp's names, and its WordPiece tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from edgepos.errors import FormatError, UnsupportedError

from . import tokenizer_wordpiece
from .config import Config, check_context
from .families.encoder import EncoderNames, EncoderShape, build
from .gguf_file import GgufFile, block_sizes
from .quantized_rows import LazyRows
from .sentence_head import SentenceHead
from .shorten import shorten
from .tensor_set import TensorSet
from .tokenizer_json import TokenizerJson
from .tokenizers import TokenizerSpec

BERT = "bert"
TYPES = "token_types.weight"
POOLINGS = {1: "mean", 2: "first", 3: "last"}  # llama.cpp, enum llama_pooling_type
CONTROL_TYPE = 3  # llama.cpp, llama_token_type
WORD = "\u2581"  # before tokens that begin a word; llama.cpp's converter puts it there and takes "##" away from the others
GOES_ON = "##"
MOST_WORD_CHARS = 100  # of every BERT tokenizer; the file does not say

NAMES = EncoderNames(
    embed="token_embd",
    positions="position_embd",
    types=TYPES.removesuffix(".weight"),
    embed_norm="token_embd_norm",
    q="blk.{i}.attn_q",
    k="blk.{i}.attn_k",
    v="blk.{i}.attn_v",
    out="blk.{i}.attn_output",
    attn_norm="blk.{i}.attn_output_norm",
    up="blk.{i}.ffn_up",
    down="blk.{i}.ffn_down",
    mlp_norm="blk.{i}.layer_output_norm",
)


def build_bert(
    file: GgufFile, keys: Config, context: int | None, title: str, vocab_size: int
) -> tuple[ir.Model, Mapping[str, np.ndarray | LazyRows]]:
    """(graph, tensors). Raises FormatError or UnsupportedError naming key or tensor.

    The embedding is what llama.cpp's programs give: pooled as bert.pooling_type says (without it the mean) and of length 1.
    """
    dim, heads, layers = block_sizes(file, keys, BERT)
    if keys.flag("bert.attention.causal", False):
        raise UnsupportedError(f"{file.name}: bert.attention.causal is true; supported: false")
    pooling = keys.values.get("bert.pooling_type", 1)
    if type(pooling) is not int or pooling not in POOLINGS:
        known = ", ".join(f"{value} ({kind})" for value, kind in POOLINGS.items())
        raise UnsupportedError(f"{file.name}: bert.pooling_type is {shorten(pooling)}; supported: {known}")
    count = keys.size("bert.context_length")
    types = file.tensors.get(TYPES)
    tensors = TensorSet(file.name, file.tensors)
    shape = EncoderShape(
        vocab_size=vocab_size,
        dim=dim,
        hidden_dim=keys.size("bert.feed_forward_length"),
        layers=layers,
        heads=heads,
        context=check_context(file.name, context, count, "bert.context_length"),
        positions=count,
        offset=0,
        types=0 if types is None else types.shape[0],
        epsilon=keys.epsilon("bert.attention.layer_norm_epsilon", default=1e-12),
        activation="gelu",
    )
    model = build(shape, tensors, NAMES, SentenceHead(POOLINGS[pooling], normalize=True), title, family=BERT)
    tensors.finish()
    return model, tensors.arrays


def read_word_piece(keys: Config, vocab_size: int) -> tuple[TokenizerSpec | None, str | None]:
    """(tokenizer, None), or (None, why) where the file's tokenizer is not BERT's. Raises FormatError for a vocabulary that
    contradicts itself or the model.

    llama.cpp makes every text lower case and takes its accents away, whatever the model was trained on; so does this.
    """
    kind = keys.values.get("tokenizer.ggml.model")
    if kind != BERT:
        return None, f"{keys.origin}: tokenizer.ggml.model {shorten(kind)} of an encoder is not supported; supported: bert"
    strings, kinds = keys.values.get("tokenizer.ggml.tokens"), keys.values.get("tokenizer.ggml.token_type")
    if not isinstance(strings, list) or not all(isinstance(s, str) for s in strings) or not 1 <= len(strings) <= vocab_size:
        raise FormatError(f"{keys.origin}: tokenizer.ggml.tokens is {shorten(strings)}; a list of 1 to {vocab_size} strings is needed")
    if not isinstance(kinds, list) or len(kinds) != len(strings):
        raise FormatError(f"{keys.origin}: tokenizer.ggml.token_type is {shorten(kinds)}; a list of {len(strings)} numbers is needed")
    special = {what: _special(keys, strings, key, text) for what, (key, text) in SPECIAL.items()}
    vocab: dict[str, int] = {}
    for i, string in enumerate(strings):
        token = _own_form(string, kinds[i] == CONTROL_TYPE or i in special.values())
        if vocab.setdefault(token, i) != i:
            raise FormatError(f"{keys.origin}: tokens {vocab[token]} and {i} are both {shorten(token)}; keep one")
    source = json.dumps(_tokenizer_json(vocab, strings, kinds, special), ensure_ascii=False).encode("utf-8")
    reader = TokenizerJson(f"{keys.origin} (tokenizer)", json.loads(source))
    return tokenizer_wordpiece.read(reader, vocab_size=vocab_size, bos_id=None, eos_ids=(), source=source), None


SPECIAL = {
    "front": (("cls_token_id", "bos_token_id"), "[CLS]"),
    "behind": (("seperator_token_id", "eos_token_id"), "[SEP]"),  # llama.cpp spells it so
    "unknown": (("unknown_token_id",), "[UNK]"),
}


def _special(keys: Config, strings: list[str], names: tuple[str, ...], text: str) -> int:
    """The id that the file gives, or the id of ``text``."""
    for name in names:
        ids = keys.token_ids(f"tokenizer.ggml.{name}", (), len(strings))
        if ids:
            return ids[0]
    if text not in strings:
        raise FormatError(f"{keys.origin}: neither tokenizer.ggml.{names[0]} nor a token {text} is there; BERT needs one")
    return strings.index(text)


def _own_form(string: str, special: bool) -> str:
    """A token as BERT's vocabulary has it."""
    if special or (string.startswith("[") and string.endswith("]")):
        return string
    return string.removeprefix(WORD) if string.startswith(WORD) else GOES_ON + string


def _tokenizer_json(vocab: dict[str, int], strings: list[str], kinds: list[int], special: dict[str, int]) -> dict:
    """The same tokenizer as the content of a tokenizer.json."""
    controls = sorted({i for i, kind in enumerate(kinds) if kind == CONTROL_TYPE and strings[i]} | set(special.values()))
    added = [{"id": i, "content": strings[i], "special": True, "normalized": False, "single_word": False, "lstrip": False, "rstrip": False} for i in controls]
    front, behind, unknown = (strings[special[what]] for what in ("front", "behind", "unknown"))
    single = [{"SpecialToken": {"id": front, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": behind, "type_id": 0}}]
    named = {text: {"id": text, "ids": [special[what]], "tokens": [text]} for what, text in (("front", front), ("behind", behind))}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": named},
        "decoder": {"type": "WordPiece", "prefix": GOES_ON, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": GOES_ON,
            "max_input_chars_per_word": MOST_WORD_CHARS,
            "vocab": vocab,
        },
    }
