"""BERT, RoBERTa, XLM-RoBERTa and MPNet as Hugging Face folders, also in sentence-transformers' layout."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from edgepos.errors import FormatError
from edgepos.positions import T5Bias

from ..config import Config, check_context, check_plain
from ..sentence_head import read_sentence_head
from ..tensor_set import TensorSet
from .encoder import EncoderNames, EncoderShape, build
from .layernorm_decoder import read_activation

LAYER = "encoder.layer.{i}."
BERT_NAMES = EncoderNames(
    embed="embeddings.word_embeddings",
    positions="embeddings.position_embeddings",
    types="embeddings.token_type_embeddings",
    embed_norm="embeddings.LayerNorm",
    q=LAYER + "attention.self.query",
    k=LAYER + "attention.self.key",
    v=LAYER + "attention.self.value",
    out=LAYER + "attention.output.dense",
    attn_norm=LAYER + "attention.output.LayerNorm",
    up=LAYER + "intermediate.dense",
    down=LAYER + "output.dense",
    mlp_norm=LAYER + "output.LayerNorm",
)
MPNET_NAMES = replace(
    BERT_NAMES,
    types="",
    q=LAYER + "attention.attn.q",
    k=LAYER + "attention.attn.k",
    v=LAYER + "attention.attn.v",
    out=LAYER + "attention.attn.o",
    attn_norm=LAYER + "attention.LayerNorm",
    bias="encoder.relative_attention_bias",
)
BIAS = T5Bias(32, 128)  # what transformers' MPNet computes, whatever the config says of buckets
PLAIN = {"relative_attention_num_buckets": BIAS.num_buckets, "is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"}


@dataclass(frozen=True)
class BertLike:
    """What differs. defaults: of the config class, for keys that are absent. padded: the first position has the row pad_token_id + 1."""

    MODEL_TYPE: str
    DEFAULT_BOS: tuple[int, ...]
    DEFAULT_EOS: tuple[int, ...]
    names: EncoderNames = BERT_NAMES
    prefix: str = ""
    padded: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)

    def build_encoder(self, config: Config, tensors: TensorSet, context: int | None, name: str, folder: Path) -> tuple[ir.Model, tuple[Path, ...]]:
        """(the canonical graph, other files of ``folder`` that decided it). Raises FormatError or UnsupportedError naming key or tensor.

        The pooler of transformers (a dense layer on the first token) is no part of an embedding and is left out.
        """
        config = Config(self.defaults | config.values, config.origin)
        check_plain(f"{config.origin}: ", config.values, PLAIN)
        dim, heads = config.size("hidden_size", default=768), config.size("num_attention_heads", default=12)
        if dim % heads:
            raise FormatError(f"{config.origin}: hidden_size {dim} is not a multiple of num_attention_heads {heads}; correct one")
        positions, offset = config.size("max_position_embeddings", default=512), self._first_row(config)
        if offset >= positions:
            raise FormatError(f"{config.origin}: max_position_embeddings is {positions}, but the first position has row {offset} (pad_token_id + 1)")
        head = read_sentence_head(folder, dim)
        shape = EncoderShape(
            vocab_size=config.size("vocab_size"),
            dim=dim,
            hidden_dim=config.size("intermediate_size", default=3072),
            layers=config.size("num_hidden_layers", default=12),
            heads=heads,
            context=_context(config, context, positions - offset, head.most_tokens),
            positions=positions,
            offset=offset,
            types=config.size("type_vocab_size", default=2) if self.names.types else 0,
            epsilon=config.epsilon("layer_norm_eps", default=1e-12),
            activation=read_activation(config.origin, "hidden_act", config.text("hidden_act", "gelu")),
            bias=BIAS if self.names.bias else None,
        )
        tensors = tensors.without_prefix(self.prefix)
        if shape.layers > len(tensors.arrays):
            raise FormatError(f"{config.origin}: num_hidden_layers is {shape.layers}, but the model has {len(tensors.arrays)} tensors")
        model = build(shape, tensors, self.names, head, name, family=self.MODEL_TYPE)
        tensors.finish(ignore=lambda n: n.startswith("pooler.dense."))
        return model, head.files

    def _first_row(self, config: Config) -> int:
        if not self.padded:
            return 0
        pad = config.values.get("pad_token_id", 1)
        if type(pad) is not int or not 0 <= pad < 2**20:
            raise config.wrong("pad_token_id", pad, "a token id")
        return pad + 1


def _context(config: Config, asked: int | None, limit: int, most_tokens: int | None) -> int:
    """The most tokens of a text: what is asked for, else what sentence-transformers cuts at, else all positions."""
    if asked is None and most_tokens is not None:
        if most_tokens > limit:
            raise FormatError(f"sentence_bert_config.json: max_seq_length is {most_tokens}, but the model has {limit} positions; pass a context of at most {limit}")
        return most_tokens
    return check_context(config.origin, asked, limit, "max_position_embeddings")


BERT = BertLike("bert", (), (), prefix="bert.")
ROBERTA = BertLike("roberta", (0,), (2,), prefix="roberta.", padded=True)
XLM_ROBERTA = BertLike("xlm-roberta", (0,), (2,), prefix="roberta.", padded=True)
MPNET = BertLike("mpnet", (0,), (2,), MPNET_NAMES, prefix="mpnet.", padded=True)
