"""The integer program: its words, as docs/bundle.md lays them out, and its Python form.

`Program` is what the compiler builds, golden.py runs and `model.gguf` stores as its tensor 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from .errors import FormatError

MAGIC = 0x52505045
LAYOUT = 1
FORMAT = 1  # of a bundle: docs/bundle.md
HEADER_WORDS, TENSOR_WORDS, VALUE_WORDS, KV_WORDS, OP_WORDS = 64, 8, 4, 4, 16
CHAT_WORD = 40  # of the header
ALIGN = 64
GROUP = 32
NONE = -1

GGUF_I8, GGUF_I16, GGUF_I32 = 24, 25, 26
GGUF_TYPE = {np.dtype(np.int8): GGUF_I8, np.dtype(np.int16): GGUF_I16, np.dtype(np.int32): GGUF_I32}


class Op(IntEnum):
    EMBED = 1
    NORM = 2
    LINEAR = 3
    ADD = 4
    MUL = 5
    ACT = 6
    ROPE = 7
    KV_WRITE = 8
    ATTENTION = 9
    POOL = 10
    PATCHES = 11


# Names of p0 … p7 of each operator.
PARAMETERS = {
    Op.EMBED: ("shift", "source", "offset", "modulo", "form"),
    Op.NORM: ("center", "eps_m", "eps_shift", "out_shift", "groups"),
    Op.LINEAR: ("shift", "softcap", "form", "inputs"),
    Op.ADD: ("la", "lb", "n"),
    Op.MUL: ("n",),
    Op.ACT: ("in_shift", "out_shift", "left", "right", "id_shift"),
    Op.ROPE: ("heads", "head_dim", "layout", "amp_m", "amp_shift"),
    Op.KV_WRITE: ("layer",),
    Op.ATTENTION: ("layer", "heads", "score_m", "score_shift", "w", "out_shift", "alibi_shift", "mask"),
    Op.POOL: ("kind", "id"),
    Op.PATCHES: ("channels", "height", "width", "patch", "first", "zero"),
}
# Parameters that few programs use, with the value that means nothing: an Operation need not state them.
NEUTRAL = {"source": 0, "offset": 0, "modulo": 0, "groups": 1, "softcap": NONE, "form": 0, "inputs": 0, "mask": 0, "id": 0}

HALF, INTERLEAVED = 0, 1  # layout of ROPE
TOKENS, POSITIONS = 0, 1  # source of EMBED
W8, W4G32, W16G32 = 0, 1, 2  # form of LINEAR and EMBED; W8 with or without group scales
FORMS = {W4G32: "w4g32", W16G32: "w16g32"}
A16, A8G32 = 0, 1  # inputs of LINEAR
CAUSAL, BIDIRECTIONAL = 0, 1  # mask of ATTENTION
POOLS = ("mean", "first", "last", "max", "token", "largest_id")  # kind of POOL
LOGITS, EMBEDDING, CLASSES = 0, 1, 2  # output of a program
UNIT_F = 30  # fractional bits of a row of Euclidean norm 1
SOFTCAP_WORDS = 2 + 2049
MAX_POSITION = 2**31 - 1
CONTEXTS = (128, 512, 2048)  # the usual ones


@dataclass
class Value:
    """A numbered Fixed value: `width` int32 per token, value = raw·2^−f, `offset` in the plan (−1: the logits)."""

    width: int
    f: int
    offset: int = 0


@dataclass
class KV:
    """Shape of one layer's KV cache; window: how many slots a query sees, 0 for all."""

    heads: int
    k_dim: int
    v_dim: int
    window: int = 0


@dataclass
class Operation:
    """One operator. `name` is for people (from the ONNX node) and is not stored in the program tensor."""

    code: Op
    out: int = NONE
    ins: tuple[int, int] = (NONE, NONE)
    tensors: tuple[int, int, int, int] = (NONE, NONE, NONE, NONE)
    params: dict[str, int] = field(default_factory=dict)
    name: str = ""

    def __post_init__(self):
        self.params = {key: NEUTRAL[key] for key in PARAMETERS[self.code] if key in NEUTRAL} | self.params

    @property
    def weight_format(self) -> str:
        """Format of the matrix of a LINEAR or EMBED, for people."""
        return FORMS.get(self.params["form"], "w8" if self.tensors[1] == NONE else "w8g32")

    def words(self) -> list[int]:
        params = [self.params[key] for key in PARAMETERS[self.code]]
        return [int(self.code), self.out, *self.ins, *self.tensors, *params, *[0] * (8 - len(params))]


@dataclass
class Header:
    """The header words of docs/bundle.md from `vocab` on; tensors are indices, NONE where absent."""

    vocab: int
    context: int
    kv_bits: int
    logits_f: int
    head_start: int
    plan_width: int
    selftest: int
    digest: int = 0
    tokenizer: int = 0
    tokenizer_flags: int = 0
    bos: int = NONE
    eos: int = NONE
    token_offsets: int = NONE
    token_bytes: int = NONE
    token_types: int = NONE
    pairs: int = NONE
    byte_ids: int = NONE
    trie: int = NONE
    added: int = NONE
    pre_tokenizer: int = 0
    n_tokens: int = 0
    pair_starts: int = 0
    unknown: int = 0
    suffix: int = 0
    scores: int = 0
    normalizer: int = 0
    normal_map: int = 0
    normal_strings: int = 0
    normal_classes: int = 0
    normal_compose: int = 0
    word_chars: int = 0
    output: int = LOGITS
    chat_texts: int = 0
    chat_joins: int = 0
    chat_flags: int = 0


@dataclass
class Program:
    """A whole integer program. tensors[i] is (name, array); tensor 0, the program itself, is left out of `arrays` until encoded."""

    header: Header
    values: list[Value]
    kv: list[KV]
    ops: list[Operation]
    names: list[str]  # of all tensors, names[0] == "edgepos.program"
    arrays: list[np.ndarray | None]  # arrays[0] is None: it is made by words()

    def n_words(self) -> int:
        return (
            HEADER_WORDS
            + TENSOR_WORDS * len(self.names)
            + VALUE_WORDS * len(self.values)
            + KV_WORDS * len(self.kv)
            + OP_WORDS * len(self.ops)
        )

    def offsets(self) -> list[int]:
        """Byte offset of each tensor from the start of the tensor data."""
        offsets, at = [], 0
        for array in self.arrays:
            size = 4 * self.n_words() if array is None else array.nbytes
            offsets.append(at)
            at += -(-size // ALIGN) * ALIGN
        return offsets

    def words(self) -> np.ndarray:
        """Tensor 0: int32 [n_words]."""
        h = self.header
        header = [
            MAGIC, LAYOUT, len(self.names), len(self.values), len(self.ops), len(self.kv),
            h.head_start, h.plan_width, h.vocab, h.context, h.kv_bits, h.logits_f,
            h.selftest, _signed(h.digest & 0xFFFFFFFF), _signed(h.digest >> 32),
            h.tokenizer, h.tokenizer_flags, h.bos, h.eos, h.token_offsets, h.token_bytes, h.token_types,
            h.pairs, h.byte_ids, h.trie, h.added, h.pre_tokenizer, h.n_tokens, h.pair_starts, h.unknown, h.suffix, h.scores,
            h.normalizer, h.normal_map, h.normal_strings, h.normal_classes, h.normal_compose, h.word_chars, h.output,
        ]  # fmt: skip
        words = header + [0] * (HEADER_WORDS - len(header))
        words[CHAT_WORD : CHAT_WORD + 3] = h.chat_texts, h.chat_joins, h.chat_flags
        for array, offset in zip(self.arrays, self.offsets()):
            rows, cols, kind = 1, self.n_words(), GGUF_I32
            if array is not None:
                rows, cols = array.shape if array.ndim == 2 else (1, array.shape[0])
                kind = GGUF_TYPE[array.dtype]
            words += [_signed(offset & 0xFFFFFFFF), offset >> 32, kind, rows, cols, 0, 0, 0]
        for value in self.values:
            words += [value.width, value.f, value.offset, 0]
        for kv in self.kv:
            words += [kv.heads, kv.k_dim, kv.v_dim, kv.window]
        for op in self.ops:
            words += op.words()
        return np.array(words, dtype=np.int32)

    @property
    def head_input(self) -> int:
        """The value that the head reads: the last row of the body."""
        return self.ops[self.header.head_start].ins[0]

    @property
    def max_position(self) -> int:
        """The largest position that every position table has a row for."""
        tables = (op for op in self.ops if op.code == Op.EMBED and op.params["source"] == POSITIONS and not op.params["modulo"])
        return min([MAX_POSITION, *(len(self.arrays[op.tensors[0]]) - 1 - op.params["offset"] for op in tables)])

    @property
    def weight_format(self) -> str:
        """Formats of the matrices that LINEAR reads, for people: "w4g32+w8g32" where both occur."""
        return "+".join(sorted({op.weight_format for op in self.ops if op.code == Op.LINEAR}))

    @property
    def activation_format(self) -> str:
        """Formats of the inputs of LINEAR, for people: "a8g32" where any has it; the others have "a16" in any case."""
        return "a8g32" if any(op.code == Op.LINEAR and op.params["inputs"] == A8G32 for op in self.ops) else "a16"

    @property
    def embedding(self) -> int:
        """Numbers of the one row that it gives for a text or an image; 0: it gives logits of every token."""
        return self.values[self.ops[-1].out].width if self.header.output != LOGITS else 0

    @property
    def image(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the image that it reads, a byte each; None: it reads tokens."""
        p = self.ops[0].params
        return (p["height"], p["width"], p["channels"]) if self.ops[0].code == Op.PATCHES else None

    @property
    def contexts(self) -> list[int]:
        """The contexts whose arena is stated: the usual ones that fit, and its own; an image has one."""
        usual = () if self.image else (c for c in CONTEXTS if c < self.header.context)
        return [*usual, self.header.context]

    @property
    def one_call(self) -> bool:
        """True if a text is one call into an empty session."""
        return self.header.output != LOGITS or any(op.code == Op.ATTENTION and op.params["mask"] == BIDIRECTIONAL for op in self.ops)


def decode(words: np.ndarray, names: list[str], arrays: list[np.ndarray | None], op_names: list[str] | None = None) -> Program:
    """The Program of tensor 0. The image has passed `ep_open`, which checks every word; this only takes it apart.

    Raises FormatError when the tensor is too short for what it announces.
    """
    if words.ndim != 1 or words.size < HEADER_WORDS or int(words[0]) != MAGIC:
        raise FormatError("tensor edgepos.program: no program header found; export the bundle again")
    w = [int(x) for x in words[:HEADER_WORDS]]
    n_tensors, n_values, n_ops, n_kv = w[2:6]
    digest = (w[13] & 0xFFFFFFFF) | (w[14] & 0xFFFFFFFF) << 32
    header = Header(w[8], w[9], w[10], w[11], w[6], w[7], w[12], digest, *w[15:28], output=w[38])
    at = HEADER_WORDS + TENSOR_WORDS * n_tensors
    sections = []
    for count, width in ((n_values, VALUE_WORDS), (n_kv, KV_WORDS), (n_ops, OP_WORDS)):
        rows = words[at : at + count * width]
        if rows.size != count * width:
            raise FormatError(f"tensor edgepos.program: {words.size} words are too few for {n_ops} operators; export the bundle again")
        sections.append(rows.reshape(count, width).tolist())
        at += count * width
    values, kv, ops = sections
    return Program(
        header,
        [Value(*row[:3]) for row in values],
        [KV(*row) for row in kv],
        [_operation(row, op_names[i] if op_names and i < len(op_names) else f"op{i}") for i, row in enumerate(ops)],
        names,
        arrays,
    )


def _operation(row: list[int], name: str) -> Operation:
    code = Op(row[0])
    keys = PARAMETERS[code]
    return Operation(code, row[1], tuple(row[2:4]), tuple(row[4:8]), dict(zip(keys, row[8:])), name)


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
