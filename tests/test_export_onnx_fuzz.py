"""Damaged ONNX files: bits flipped, ends cut, fields changed. Each is read, or refused in one line, soon and within little memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from foreign_graphs import decoder
from test_export_onnx_blocks import Genai
from test_export_onnx_halves import halved
from test_export_onnx_lengths import branched, by_length, merged, table_branch
from test_export_onnx_spellings import (
    MS, alibi_added, attention_operator, by_einsum, cached_tables, head_norms, learned, learned_behind_padding, ort_attention, ort_embeddings,
    plain_attention, t5,
)  # fmt: skip

from edgepos.errors import EdgePosError
from edgepos.export import load

FILES = 60  # of each group
LONGEST = 20.0  # seconds of processor time for one file; the slowest took 1.5
MOST_GROWTH = 1 << 20  # kB of memory that all of a group may add
HUGE = (0, -1, 1, 2, 3, 7, 31, 2**31 - 1, 2**31, 2**40, 2**62, -(2**63), 2**63 - 1)

GROUPS = {
    "plain": lambda: decoder(attend=head_norms),
    "positions": lambda: decoder(attend=lambda g, x: plain_attention(g, x, None, t5), start=learned),
    "alibi": lambda: decoder(attend=lambda g, x: plain_attention(g, x, None, alibi_added)),
    "operators": lambda: decoder(attend=attention_operator, opset=23),
    "genai": lambda: Genai(zeros="codes").model(tied=True),
    "optimizer": lambda: decoder(attend=ort_attention, start=ort_embeddings, domains=MS),
    "letters": lambda: decoder(attend=by_einsum, start=learned_behind_padding),
    "halves": lambda: halved(decoder(attend=lambda g, x: plain_attention(g, x, cached_tables)), onnx.TensorProto.FLOAT16),
    "tables": lambda: table_branch(50, (50, 90)),
    "lengths": lambda: by_length(30),
    "merged": merged,
    "branches": branched,
}


def _places(model: onnx.ModelProto, data: bytes) -> np.ndarray:
    """Bytes that are no weights: most of a file is, and says nothing about reading it."""
    keep = np.ones(len(data), bool)
    for weight in model.graph.initializer:
        if len(weight.raw_data) > 256:
            start = data.find(weight.raw_data)
            keep[start : start + len(weight.raw_data)] = False
    return np.flatnonzero(keep)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _changed(model: onnx.ModelProto, rng: np.random.Generator) -> bytes:
    """One or two fields of a copy changed: a name, a number, a shape, a type, an operator."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = list(_nodes(copy.graph))
    names = [w.name for w in copy.graph.initializer] + [o for n in nodes for o in n.output] + ["", "input_ids"]
    for _ in range(rng.integers(1, 3)):
        node = nodes[rng.integers(len(nodes))]
        weight = copy.graph.initializer[rng.integers(len(copy.graph.initializer))]
        kind = rng.integers(9)
        if kind == 0 and node.input:
            node.input[rng.integers(len(node.input))] = names[rng.integers(len(names))]
        elif kind == 1 and node.output:
            node.output[rng.integers(len(node.output))] = names[rng.integers(len(names))]
        elif kind == 2 and node.attribute:
            attribute = node.attribute[rng.integers(len(node.attribute))]
            attribute.i = HUGE[rng.integers(len(HUGE))]
            attribute.ints[:] = [HUGE[rng.integers(len(HUGE))] for _ in attribute.ints]
            attribute.f = float(rng.choice([np.nan, np.inf, -1.0, 0.0, 1e30]))
        elif kind == 3 and weight.dims:
            weight.dims[rng.integers(len(weight.dims))] = HUGE[rng.integers(len(HUGE))]
        elif kind == 4:
            weight.data_type = int(rng.integers(0, 24))
        elif kind == 5 and weight.data_type == onnx.TensorProto.INT64 and weight.raw_data:
            numbers = np.frombuffer(weight.raw_data, np.int64).copy()
            numbers[rng.integers(numbers.size)] = HUGE[rng.integers(len(HUGE))]
            weight.raw_data = numbers.tobytes()
        elif kind == 6:
            node.op_type = nodes[rng.integers(len(nodes))].op_type
        elif kind == 7:
            del copy.graph.node[rng.integers(len(copy.graph.node))]
            nodes = list(_nodes(copy.graph)) or nodes
        else:
            value = copy.graph.input[rng.integers(len(copy.graph.input))].type.tensor_type
            value.elem_type = int(rng.integers(0, 24))
            if value.shape.dim:
                value.shape.dim[rng.integers(len(value.shape.dim))].dim_value = HUGE[rng.integers(len(HUGE))]
    return copy.SerializeToString()


def damaged(model: onnx.ModelProto, rng: np.random.Generator) -> Iterator[bytes]:
    """A third each: bits flipped, the end cut off or zeros put in, fields changed."""
    data = model.SerializeToString()
    places = _places(model, data)
    while True:
        yield _changed(model, rng)
        flipped = bytearray(data)
        for place in rng.choice(places, rng.choice([1, 1, 2, 8])):
            flipped[place] ^= 1 << rng.integers(8)
        yield bytes(flipped)
        yield _changed(model, rng)
        cut = int(rng.integers(len(data)))
        yield data[:cut] if rng.integers(2) else data[:cut] + bytes(int(rng.integers(1, 9))) + data[cut + 8 :]


def _peak() -> int:
    """The most memory that this process has had, in kB."""
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))


@pytest.mark.parametrize("group", GROUPS)
def test_damaged_files_are_read_or_refused_in_one_line(group, tmp_path):
    rng, path = np.random.default_rng(sum(group.encode())), tmp_path / "m.onnx"
    model, read = GROUPS[group](), 0
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: that of earlier tests would hide this one's
    before = _peak()
    for _, data in zip(range(FILES), damaged(model, rng)):
        path.write_bytes(data)
        start = time.process_time()
        try:
            load(path, context=60)
            read += 1
        except EdgePosError as error:
            assert "\n" not in str(error)
        assert time.process_time() - start < LONGEST
    assert read < FILES
    assert _peak() - before < MOST_GROWTH
