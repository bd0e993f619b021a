"""llama2.c version-0 files: seven int32, then float32 tensors, no names.

Layout (github.com/karpathy/llama2.c, export.py legacy_export and run.c memory_map_weights),
L layers, each group stored for all layers before the next:
token embedding, attention norms, wq, wk, wv, wo, MLP norms, w1, w2, w3, final norm,
rotary cos and sin tables (not used), and the classifier when vocab_size is negative.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .canonical import CanonicalModel, read_license, readable, sha256_of
from .config import check_context
from .families import llama
from .mapped_file import map_bytes
from .pickle_files import pickle_error
from .tensor_set import TensorSet
from .tokenizer_llama2c import read_tokenizer_bin

HEADER_BYTES = 28
MAGIC = 0x616B3432  # "ak42": versions 1 and 2

NAMES = llama.LlamaNames(
    embed="tok_embeddings.weight",
    attn_norm="layers.{i}.attention_norm.weight",
    q="layers.{i}.attention.wq.weight",
    k="layers.{i}.attention.wk.weight",
    v="layers.{i}.attention.wv.weight",
    out="layers.{i}.attention.wo.weight",
    mlp_norm="layers.{i}.ffn_norm.weight",
    gate="layers.{i}.feed_forward.w1.weight",
    up="layers.{i}.feed_forward.w3.weight",
    down="layers.{i}.feed_forward.w2.weight",
    final_norm="norm.weight",
    head="output.weight",
)


def load_llama2c(path: Path, *, context: int | None = None, tokenizer: Path | None = None) -> CanonicalModel:
    """The canonical model of a version-0 ``.bin``; its tokenizer is found beside it unless given.

    Raises FormatError (header, size), UnsupportedError (other versions, context).
    """
    shape, groups = read_header(path)
    tensors = map_tensors(path, shape, groups)
    shape = replace(shape, context=check_context(path.name, context, shape.context, "seq_len"))
    tokenizer_path = tokenizer or find_tokenizer(path, shape.vocab_size)
    spec = read_tokenizer_bin(tokenizer_path, shape.vocab_size)
    model = llama.build(shape, tensors, NAMES, readable(path.stem))
    tensors.finish()
    return CanonicalModel(
        model=model,
        tokenizer=spec,
        name=readable(path.stem),
        context=shape.context,
        vocab_size=shape.vocab_size,
        source_sha256=sha256_of([path, tokenizer_path]),
        license=read_license(path.parent),
        eos_ids=spec.eos_ids,
        bos_id=spec.bos_id,
    )


def read_header(path: Path) -> tuple[llama.LlamaShape, list[tuple[str, tuple[int, ...]]]]:
    """(shape, tensor groups in file order), after checking that they fill the file exactly."""
    try:
        size = path.stat().st_size
        with open(path, "rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror}) in {path.parent}") from None
    if len(head) < HEADER_BYTES:
        raise FormatError(f"{path.name}: {size} bytes; a llama2.c file starts with {HEADER_BYTES} bytes of header")
    if head[:4] == b"PK\x03\x04" or head[:1] == b"\x80":
        raise pickle_error(path.name)
    numbers = np.frombuffer(head, "<i4")
    if int(numbers[0]) == MAGIC:
        raise UnsupportedError(
            f"{path.name}: llama2.c version {int(numbers[1])}; supported: version 0 (export.py --version 0)"
        )
    names = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
    fields = dict(zip(names, (int(n) for n in numbers)))
    tied = fields["vocab_size"] > 0
    fields["vocab_size"] = abs(fields["vocab_size"])
    for i, (key, value) in enumerate(fields.items()):
        if value < 1:
            raise FormatError(
                f"{path.name}: header field {key} at byte {4 * i} is {value}; at least 1 is needed; "
                "is this a llama2.c version-0 file?"
            )
    dim, heads, kv_heads = fields["dim"], fields["n_heads"], fields["n_kv_heads"]
    if dim % heads or heads % kv_heads:
        raise FormatError(
            f"{path.name}: dim {dim}, n_heads {heads} and n_kv_heads {kv_heads} at bytes 0, 12 and 16 do not divide; "
            "dim must be a multiple of n_heads, and n_heads of n_kv_heads"
        )
    head_dim = dim // heads
    llama.check_head_dim(path.name, head_dim)
    shape = llama.LlamaShape(
        vocab_size=fields["vocab_size"],
        dim=dim,
        hidden_dim=fields["hidden_dim"],
        layers=fields["n_layers"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        context=fields["seq_len"],
        theta=10000.0,
        epsilon=1e-5,
        layout="interleaved",
        tied=tied,
    )
    groups = _groups(shape)
    expected = HEADER_BYTES + 4 * sum(math.prod(dims) for _, dims in groups)
    if size != expected:
        raise FormatError(
            f"{path.name}: {size} bytes, but its header (dim {dim}, hidden_dim {shape.hidden_dim}, layers "
            f"{shape.layers}, heads {heads}, kv_heads {kv_heads}, vocab {shape.vocab_size}, seq_len {shape.context}) "
            f"asks for {expected}; the file is truncated or not llama2.c version 0"
        )
    return shape, groups


def _groups(s: llama.LlamaShape) -> list[tuple[str, tuple[int, ...]]]:
    """(tensor name with ``{i}`` per layer, shape with the layer count first) in file order."""
    kv_dim = s.kv_heads * s.head_dim
    groups: list[tuple[str, tuple[int, ...]]] = [
        (NAMES.embed, (s.vocab_size, s.dim)),
        (NAMES.attn_norm, (s.layers, s.dim)),
        (NAMES.q, (s.layers, s.dim, s.dim)),
        (NAMES.k, (s.layers, kv_dim, s.dim)),
        (NAMES.v, (s.layers, kv_dim, s.dim)),
        (NAMES.out, (s.layers, s.dim, s.dim)),
        (NAMES.mlp_norm, (s.layers, s.dim)),
        (NAMES.gate, (s.layers, s.hidden_dim, s.dim)),
        (NAMES.down, (s.layers, s.dim, s.hidden_dim)),
        (NAMES.up, (s.layers, s.hidden_dim, s.dim)),
        (NAMES.final_norm, (s.dim,)),
        ("", (2, s.context, s.head_dim // 2)),
    ]
    return groups if s.tied else [*groups, (NAMES.head, (s.vocab_size, s.dim))]


def map_tensors(path: Path, shape: llama.LlamaShape, groups: list[tuple[str, tuple[int, ...]]]) -> TensorSet:
    """The tensors of ``path``, checked by ``read_header``, as float32 views of the mapped file."""
    mapped = map_bytes(path)[HEADER_BYTES:].view("<f4")
    arrays: dict[str, np.ndarray] = {}
    offset = 0
    for name, dims in groups:
        count = math.prod(dims)
        view = mapped[offset : offset + count].reshape(dims)
        offset += count
        if "{i}" in name:
            arrays.update((name.format(i=i), view[i]) for i in range(shape.layers))
        elif name:  # the unnamed group is the rotary tables, which are computed instead
            arrays[name] = view
    return TensorSet(path.name, arrays)


def find_tokenizer(path: Path, vocab_size: int) -> Path:
    """``tok<vocab>.bin``, else ``tokenizer.bin``, else the only ``tok*.bin`` beside ``path``.

    Raises FormatError when there is none or more than one.
    """
    for name in (f"tok{vocab_size}.bin", "tokenizer.bin"):
        if (path.parent / name).is_file():
            return path.parent / name
    found = sorted(p for p in path.parent.glob("tok*.bin") if p.is_file() and p.name != path.name)
    if len(found) == 1:
        return found[0]
    seen = ", ".join(p.name for p in found) or "none"
    raise FormatError(
        f"{path.name}: no tokenizer beside it (tok*.bin found: {seen}); "
        f"put tok{vocab_size}.bin or tokenizer.bin there, or pass tokenizer="
    )
