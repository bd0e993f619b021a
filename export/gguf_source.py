"""GGUF models: one file with weights, metadata and tokenizer.

Each architecture with Llama's block is a row of ``ARCHITECTURES``; GPT-2 and BERT have builders of their own (None there).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.positions import Learned, Rope, from_gguf

from .canonical import CanonicalModel, readable, sha256_of
from .chat_template import gguf_template
from .config import Config, check_context
from .families import layernorm_decoder, llama
from .families.layernorm_decoder import DecoderNames, DecoderShape
from .gguf_bert import BERT, build_bert, read_word_piece
from .gguf_file import GgufFile, block_sizes, open_gguf
from .placement import POSITION_ROWS
from .quantized_rows import LazyRows, QuantizedRows, ReorderedRows
from .shorten import shorten
from .tensor_set import TensorSet
from .tokenizer_gguf import read_tokenizer

ROPE_FACTORS = "rope_freqs.weight"
SPLIT_KEY = "split.count"

LLAMA_NAMES = llama.LlamaNames(
    embed="token_embd.weight",
    attn_norm="blk.{i}.attn_norm.weight",
    q="blk.{i}.attn_q.weight",
    k="blk.{i}.attn_k.weight",
    v="blk.{i}.attn_v.weight",
    out="blk.{i}.attn_output.weight",
    mlp_norm="blk.{i}.ffn_norm.weight",
    gate="blk.{i}.ffn_gate.weight",
    up="blk.{i}.ffn_up.weight",
    down="blk.{i}.ffn_down.weight",
    final_norm="output_norm.weight",
    head="output.weight",
    q_norm="blk.{i}.attn_q_norm.weight",
    k_norm="blk.{i}.attn_k_norm.weight",
)


GPT2_NAMES = DecoderNames(
    embed="token_embd",
    attn_norm="blk.{i}.attn_norm",
    q="blk.{i}.attn_q",
    k="blk.{i}.attn_k",
    v="blk.{i}.attn_v",
    out="blk.{i}.attn_output",
    mlp_norm="blk.{i}.ffn_norm",
    up="blk.{i}.ffn_up",
    down="blk.{i}.ffn_down",
    final_norm="output_norm",
    head="output",
)


@dataclass(frozen=True)
class Architecture:
    """Of Llama's block. permuted: rows of q and k are stored so that RoPE pairs neighbours. qkv_bias, head_norm: as in LlamaShape."""

    permuted: bool = False
    qkv_bias: bool = False
    head_norm: bool = False


GPT2 = "gpt2"
ARCHITECTURES = {
    "llama": Architecture(permuted=True),
    "qwen2": Architecture(qkv_bias=True),
    "qwen3": Architecture(head_norm=True),
    GPT2: None,
    BERT: None,
}


def load_gguf(path: Path, *, context: int | None = None) -> CanonicalModel:
    """The canonical model of a GGUF file. Q4_0, Q4_1 and Q8_0 matrices keep their integers in ``grids``.

    Raises FormatError or UnsupportedError naming key or tensor.
    """
    file = open_gguf(path)
    keys = Config(file.metadata, file.name)
    name = keys.text("general.architecture", "missing")
    if name not in ARCHITECTURES:
        raise UnsupportedError(f"{file.name}: general.architecture {shorten(name)} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if file.metadata.get(SPLIT_KEY, 1) not in (0, 1):
        raise UnsupportedError(f"{file.name}: one of {shorten(file.metadata[SPLIT_KEY])} parts; merge them with llama-gguf-split --merge first")
    kind = ARCHITECTURES[name]
    if name == BERT:
        vocab_size = _vocabulary(file, keys, name)
        model, arrays = build_bert(file, keys, context, readable(path.stem), vocab_size)
    elif kind is None:
        model, vocab_size, arrays = _build_gpt2(file, keys, context, readable(path.stem))
    else:
        model, vocab_size, arrays = _build_llama(file, keys, name, kind, context, readable(path.stem))
    tokenizer, problem = (read_word_piece if name == BERT else read_tokenizer)(keys, vocab_size)
    eos, bos = (keys.token_ids(f"tokenizer.ggml.{what}_token_id", (), vocab_size) for what in ("eos", "bos"))
    return CanonicalModel(
        model=model,
        tokenizer=tokenizer,
        name=readable(path.stem),
        context=int(model.metadata_props["edgepos.context"]),
        vocab_size=vocab_size,
        source_sha256=sha256_of([path]),
        license={"license": keys.text("general.license", "")} if file.metadata.get("general.license") else None,
        eos_ids=tokenizer.eos_ids if tokenizer else eos,
        bos_id=tokenizer.bos_id if name == BERT and tokenizer else bos[0] if bos else None,
        grids={key: array for key, array in arrays.items() if key in model.graph.initializers and has_grid(array)},
        tokenizer_problem=problem,
        chat=gguf_template(file.name, file.metadata),
    )


def has_grid(array: np.ndarray | LazyRows) -> bool:
    """Whether a tensor's own integers can be kept."""
    return isinstance(array, (QuantizedRows, ReorderedRows)) and array.has_grid


def _build_llama(
    file: GgufFile, keys: Config, name: str, kind: Architecture, context: int | None, title: str
) -> tuple[ir.Model, int, dict[str, np.ndarray | LazyRows]]:
    """(graph, vocabulary, tensors) of Llama's block stack."""

    def size(key: str, **default: Any) -> int:
        return keys.size(f"{name}.{key}", **default)

    tensors = dict(file.tensors)
    vocab_size = _vocabulary(file, keys, name)
    dim, heads = size("embedding_length"), size("attention.head_count")
    kv_heads = size("attention.head_count_kv", default=heads)
    if heads % kv_heads:
        raise FormatError(f"{file.name}: {name}.attention.head_count {heads} is not a multiple of head_count_kv {kv_heads}")
    encoding = _encoding(file, tensors)
    for key in ("key_length", "value_length"):
        if size(f"attention.{key}", default=encoding.head_dim) != encoding.head_dim:
            raise UnsupportedError(f"{file.name}: {name}.attention.{key} is {size(f'attention.{key}')}; heads of {encoding.head_dim} are supported")
    if file.metadata.get(f"{name}.expert_count", 0):
        raise UnsupportedError(f"{file.name}: {name}.expert_count is {shorten(file.metadata[f'{name}.expert_count'])}; mixtures of experts are not supported")
    limit = size("context_length")
    context = check_context(file.name, context, limit, f"{name}.context_length")
    layers = size("block_count")
    if layers > len(tensors):
        raise FormatError(f"{file.name}: {name}.block_count is {layers}, but the file has {len(tensors)} tensors")
    if kind.permuted:
        encoding = _undo_permutation(file, tensors, encoding, layers, heads, kv_heads)
    tied = LLAMA_NAMES.head not in tensors
    shape = llama.LlamaShape(
        vocab_size=vocab_size,
        dim=dim,
        hidden_dim=size("feed_forward_length"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=encoding.head_dim,
        context=context,
        theta=encoding.theta,
        epsilon=keys.epsilon(f"{name}.attention.layer_norm_rms_epsilon", default=1e-5),
        layout=encoding.layout,
        tied=tied,
        attention_bias=kind.qkv_bias,
        output_bias=False,
        head_norm=kind.head_norm,
        window=min(size("attention.sliding_window", default=context), context),
    )
    taken = TensorSet(file.name, tensors)
    model = llama.build(shape, taken, LLAMA_NAMES, title, family=name, encoding=encoding)
    taken.finish()
    return model, vocab_size, tensors


def _vocabulary(file: GgufFile, keys: Config, name: str) -> int:
    """Rows of the embedding; raises FormatError when it is missing or the metadata says otherwise."""
    embed = file.tensors.get(LLAMA_NAMES.embed)
    if embed is None or len(embed.shape) != 2:
        raise FormatError(f"{file.name}: tensor '{LLAMA_NAMES.embed}' [vocabulary, {name}.embedding_length] is missing")
    said = keys.size(f"{name}.vocab_size", default=embed.shape[0])
    if said != embed.shape[0]:
        raise FormatError(f"{file.name}: {name}.vocab_size is {said}, but '{LLAMA_NAMES.embed}' has {embed.shape[0]} rows")
    return embed.shape[0]


def _build_gpt2(file: GgufFile, keys: Config, context: int | None, title: str) -> tuple[ir.Model, int, Mapping[str, np.ndarray | LazyRows]]:
    """(graph, vocabulary, tensors) of GPT-2."""
    dim, heads, layers = block_sizes(file, keys, GPT2)
    count = keys.size("gpt2.context_length")
    tensors = TensorSet(file.name, file.tensors)
    shape = DecoderShape(
        vocab_size=_vocabulary(file, keys, GPT2),
        dim=dim,
        hidden_dim=keys.size("gpt2.feed_forward_length", default=4 * dim),
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        context=check_context(file.name, context, count, "gpt2.context_length"),
        epsilon=keys.epsilon("gpt2.attention.layer_norm_epsilon", default=1e-5),
        activation="gelu_tanh",
        tied="output.weight" not in tensors,
    )
    tensors.rename("position_embd.weight", POSITION_ROWS)
    for i in range(layers):
        for part in ("weight", "bias"):
            tensors.split(f"blk.{i}.attn_qkv.{part}", {f"blk.{i}.attn_{x}.{part}": dim for x in "qkv"})
    model = layernorm_decoder.build(shape, tensors, GPT2_NAMES, title, family=GPT2, encoding=Learned(count))
    tensors.finish()
    return model, shape.vocab_size, tensors.arrays


def _encoding(file: GgufFile, tensors: dict) -> Rope:
    """The rotation of the metadata; takes the factors' tensor out of ``tensors``."""
    factors = tensors.pop(ROPE_FACTORS, None)
    try:
        encoding = from_gguf(file.metadata, None if factors is None else np.asarray(factors, np.float32).ravel())
    except EdgePosError as error:
        raise type(error)(f"{file.name}: {error}") from None
    if encoding.rotary_dim % 2 or not encoding.rotary_dim:
        raise FormatError(f"{file.name}: rope.dimension_count is {encoding.rotary_dim}; an even number above 0 is needed")
    return encoding


def _undo_permutation(file: GgufFile, tensors: dict, encoding: Rope, layers: int, heads: int, kv_heads: int) -> Rope:
    """Put the rows of q and k back into the order of the half layout; the rotation that goes with it.

    llama.cpp's converter stores rows j and j + head_dim/2 of every head side by side (convert_hf_to_gguf.py, permute).
    """
    if encoding.rotary_dim != encoding.head_dim:
        raise UnsupportedError(
            f"{file.name}: rope.dimension_count {encoding.rotary_dim} of heads of {encoding.head_dim}; supported: whole heads in this architecture"
        )
    for template, count in ((LLAMA_NAMES.q, heads), (LLAMA_NAMES.k, kv_heads)):
        order = half_order(count, encoding.head_dim)
        for i in range(layers):
            name = template.format(i=i)
            # A tensor of another height is refused by name when it is taken.
            if name in tensors and tensors[name].shape[0] == len(order):
                tensors[name] = ReorderedRows(tensors[name], order)
    return replace(encoding, layout="half")


def half_order(heads: int, head_dim: int) -> np.ndarray:
    """Which stored row each row of the half layout is: of every head first the even rows, then the odd ones."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).ravel()


__all__ = ["ARCHITECTURES", "Architecture", "load_gguf"]
