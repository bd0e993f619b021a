"""Model images that carry a tokenizer and the smallest valid program around it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gguf
import numpy as np

from edgepos.compiler.tokenizer_tensors import add_tokenizer
from edgepos.program import NONE, Header, Op, Operation, Program, Value

WIDTH = 32


def tokenizer_program(spec, seed: int = 0, context: int = 16) -> Program:
    """A program of one embedding and one head for the tokenizer ``spec``: random logits that depend on the last token."""
    vocab = len(spec.tokens)
    f, rng = 12, np.random.default_rng(seed)
    header = Header(vocab, context, 16, f, 1, WIDTH, NONE)
    program = Program(header, [Value(WIDTH, 0), Value(vocab, f, -1)], [], [], ["edgepos.program"], [None])

    def add(name: str, array: np.ndarray) -> int:
        program.names.append(name)
        program.arrays.append(np.ascontiguousarray(array))
        return len(program.names) - 1

    rows = add("rows", np.tile(np.array([[1, 0]], np.int32), (vocab, 1)))
    embedding, head = (add(name, rng.integers(-128, 128, (vocab, WIDTH)).astype(np.int8)) for name in ("embedding", "head"))
    program.ops = [
        Operation(Op.EMBED, 0, (NONE, NONE), (embedding, NONE, rows, NONE), {"shift": 0}),
        Operation(Op.LINEAR, 1, (0, NONE), (head, NONE, rows, NONE), {"shift": 0}),
    ]
    header.selftest = add("selftest", np.zeros(1, np.int32))
    add_tokenizer(header, spec, vocab, spec.eos_ids, spec.bos_id, add)
    return program


def image(program: Program) -> bytes:
    """The model.gguf of a program, by the gguf package and docs/bundle.md alone."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, "edgepos")
        writer.add_custom_alignment(64)
        writer.add_uint32("edgepos.format", 1)
        writer.add_uint32("edgepos.arith", 1)
        for name, array in zip(program.names, [program.words(), *program.arrays[1:]]):
            writer.add_tensor(name, array)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()
