"""Inputs and outputs of a foreign graph: which is what, and what the other inputs hold while the token ids are followed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from edgepos.errors import UnsupportedError

from ..shorten import shorten
from .constants import FLOATS

CACHE = re.compile(r"past|cache", re.IGNORECASE)
INTEGERS = (ir.DataType.INT64, ir.DataType.INT32)
KINDS = (*INTEGERS, *FLOATS, ir.DataType.BOOL)
CACHE_KINDS = tuple(kind for kind in FLOATS if kind != ir.DataType.DOUBLE)
PROBE = 5  # tokens, for sizes without numbers
MOST_FIXED = 4200  # the length of reading is then this one, and masks have its square
MOST_SIZE = 2**20  # of an axis of a cache
PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)

At = Callable[[int], np.ndarray]


@dataclass(frozen=True, eq=False)
class Frame:
    """ids: the input of token ids; others: what every other input holds at a length; logits: the output; fixed: the one length
    the graph was exported for, or None; last: values that are the row of the last token, and what `last_row.keep_all` wants of them."""

    ids: ir.Value
    others: dict[ir.Value, At]
    logits: ir.Value
    fixed: int | None
    last: Mapping[str, int | None] = field(default_factory=dict, kw_only=True)

    def sample(self, rng: np.random.Generator, vocab: int, length: int) -> np.ndarray:
        """Random token ids."""
        return rng.integers(0, vocab, length)

    def feed(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs for ids [n], by name."""
        given = np.asarray(ids, self.ids.dtype.numpy()).reshape((1,) * (len(self.ids.shape) - 1) + (len(ids),))
        return {self.ids.name: given} | {value.name: at(len(ids)) for value, at in self.others.items()}

    def of_copy(self, graph: ir.Graph, output: int) -> Frame:
        """The frame of a graph with the same inputs; output: the number of what is read."""
        named = {value.name: value for value in graph.inputs}
        others = {named[value.name]: at for value, at in self.others.items()}
        return replace(self, ids=named[self.ids.name], others=others, logits=graph.outputs[output])

    def with_caches(self, shapes: dict[str, tuple[int, ...]]) -> Frame:
        """The frame with empty caches of shapes that the reading found, by name."""
        arrays = {value: _empty(value, shapes[value.name]) for value in self.others if value.name in shapes}
        return replace(self, others=self.others | {value: lambda n, array=array: array for value, array in arrays.items()})


class OutputFound(Exception):
    """The output to read is another one: the first is the rows of all tokens of a causal model."""

    def __init__(self, index: int):
        super().__init__(index)
        self.index = index


def row_output(graph: ir.Graph, frame: Frame) -> ir.Value | None:
    """An output other than the frame's that is one row for a whole text, or None."""
    rows = (v for v in graph.outputs if v is not frame.logits and v.shape is not None and len(v.shape) == 2 and isinstance(v.shape[1], int))
    return next(rows, None)


def frame_of(graph: ir.Graph, origin: str) -> Frame:
    """The frame of a graph. Raises UnsupportedError naming the input or output that is not understood."""
    inputs = [value for value in graph.inputs if value.const_value is None]
    for value in inputs:
        if value.dtype is None or value.shape is None:
            raise UnsupportedError(f"{origin}: input {shorten(value.name)} has no type or shape; export the model again")
        if value.dtype not in KINDS:
            raise UnsupportedError(f"{origin}: input {shorten(value.name)} is {value.dtype.name}; supported: integers, floats and truth values")
    ids = _ids(inputs, origin)
    others = {value: _other(value, origin) for value in inputs if value is not ids}
    last = ids.shape[-1]
    fixed = last if isinstance(last, int) else None
    if fixed is not None and not 1 <= fixed <= MOST_FIXED:
        raise UnsupportedError(f"{origin}: exported for {fixed} tokens; supported: 1 to {MOST_FIXED}, or any length")
    if len(ids.shape) == 2 and isinstance(ids.shape[0], int) and ids.shape[0] != 1:
        raise UnsupportedError(f"{origin}: input {shorten(ids.name)} has a batch of {ids.shape[0]}; supported: 1, or a batch that is not fixed")
    output = output_of(graph, origin)
    _check_agreement(ids, others, output, origin)
    return Frame(ids, others, output, fixed)


def _check_agreement(ids: ir.Value, others: dict[ir.Value, At], output: ir.Value, origin: str) -> None:
    """Refuse sizes that contradict each other: inputs of a text with one name for two sizes, or an output for another number of tokens."""
    n = ids.shape[-1] if isinstance(ids.shape[-1], int) else PROBE
    sizes: dict[object, tuple[int, str]] = {}
    inputs = {ids: (1,) * (len(ids.shape) - 1) + (n,)} | {v: at(n).shape for v, at in others.items() if not _is_cache(v)}
    for value, shape in inputs.items():
        for size, found in zip(value.shape, shape):
            known = size if isinstance(size, int) else sizes.setdefault(size.value, (found, value.name))[0] if size.value else found
            if known != found:
                found = f"says {size} tokens" if isinstance(size, int) else f"and {shorten(sizes[size.value][1])} have {shorten(str(size))} for two sizes"
                raise UnsupportedError(f"{origin}: input {shorten(value.name)} {found}; supported: sizes that agree for one text of any length")
    tokens = output.shape[1] if output.shape is not None and len(output.shape) == 3 else None
    if isinstance(tokens, int) and tokens not in (1, ids.shape[-1]):
        raise UnsupportedError(f"{origin}: output {shorten(output.name or '?')} is of {tokens} tokens, input {shorten(ids.name)} of {ids.shape[-1]}; export the model again")


def _ids(inputs: list[ir.Value], origin: str) -> ir.Value:
    whole = [v for v in inputs if v.dtype in INTEGERS and len(v.shape) in (1, 2)]
    like = [v for v in whole if re.search(r"ids|tokens|idx", v.name or "") and not re.search(r"position|type", v.name)]
    found = [v for v in whole if v.name == "input_ids"] or like or whole
    if not found:
        names = ", ".join(f"{v.name} ({v.dtype.name})" for v in inputs[:4])
        raise UnsupportedError(f"{origin}: no input of token ids among {shorten(names)}; supported: models that read token ids, int64 [1, tokens]")
    return found[0]


def _other(value: ir.Value, origin: str) -> At:
    """What an input that is not the token ids holds."""
    name, shape, kind = value.name or "", list(value.shape), value.dtype.numpy()
    if re.search(r"attention_mask|padding_mask", name) and len(shape) == 2:
        return lambda n: np.ones((1, n), kind)
    if re.search(r"position", name) and value.dtype in INTEGERS and len(shape) in (1, 2):
        return lambda n: np.arange(n, dtype=kind).reshape((1,) * (len(shape) - 1) + (n,))
    if re.search(r"token_type", name) and len(shape) == 2:
        return lambda n: np.zeros((1, n), kind)
    if name == "use_cache_branch":
        return lambda n: np.zeros(1, kind)
    if name == "seqlens_k":
        return lambda n: np.full((1,) * len(shape), n - 1, kind)
    if name == "total_sequence_length":
        return lambda n: np.full((1,) * len(shape), n, kind)
    if _is_cache(value) and len(shape) in (3, 4) and value.dtype in CACHE_KINDS:
        # The cache is empty: its axes without a fixed size are the batch and the tokens in it.
        sizes = tuple(d if isinstance(d, int) else 1 if i == 0 else 0 for i, d in enumerate(shape))
        if 0 in sizes and all(0 <= d <= MOST_SIZE for d in sizes):
            return lambda n: _empty(value, sizes)
    raise UnsupportedError(
        f"{origin}: input {shorten(name)} ({value.dtype.name} {[str(d) for d in shape]}) is not understood; supported: token ids, attention_mask, "
        "position_ids, token_type_ids and a cache of keys and values, joined to new ones, whose length is not fixed"
    )


def _is_cache(value: ir.Value) -> bool:
    """Whether an input is called a cache, or is joined to something head by head. One without heads could be a prefix of embeddings."""
    joined = value.dtype in CACHE_KINDS and len(value.shape) == 4 and any(use.node.op_type == "Concat" for use in value.uses())
    return joined or bool(CACHE.search(value.name or ""))


def _empty(value: ir.Value, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, np.float32 if value.dtype == ir.DataType.BFLOAT16 else value.dtype.numpy())


def output_of(graph: ir.Graph, origin: str) -> ir.Value:
    """The output to read: a usual name, else the first that is no cache."""
    named = [v for name in ("logits", "sentence_embedding", "text_embeds", "image_embeds") for v in graph.outputs if v.name == name]
    first = [v for v in graph.outputs if not re.search(r"present|past|cache", v.name or "")]
    found = named or first
    if not found:
        raise UnsupportedError(f"{origin}: no output of logits or an embedding; supported: a model whose first output is one")
    return found[0]


def reading_length(frame: Frame, graph: ir.Graph) -> int:
    """The length to follow a graph at: a small prime that divides no size in it, so that axes of tokens can be told from others."""
    if frame.fixed is not None:
        return frame.fixed
    sizes = {int(d) for value in graph.initializers.values() for d in value.const_value.shape}
    return next((p for p in PRIMES if all(d % p for d in sizes if d)), PRIMES[-1])


def needed(graph: ir.Graph, output: ir.Value) -> list[ir.Node]:
    """The nodes an output needs, in the graph's order."""
    wanted: set[ir.Node] = set()
    stack = [output]
    while stack:
        node = stack.pop().producer()
        if node is not None and node not in wanted:
            wanted.add(node)
            stack.extend(x for x in node.inputs if x is not None)
    return [node for node in graph if node in wanted]
