"""Model images that carry a tokenizer and the smallest valid program around it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import gguf
import numpy as np

from edgepos.compiler.tokenizer_tensors import add_tokenizer
from edgepos.program import NONE, Header, Op, Operation, Program, Value

WIDTH = 32


def tokenizer_program(spec, vocab: int | None = None) -> Program:
    """A program of one embedding and one head for the tokenizer ``spec``."""
    vocab = len(spec.tokens) if vocab is None else vocab
    header = Header(vocab, 16, 16, 0, 1, WIDTH, NONE)
    program = Program(header, [Value(WIDTH, 0), Value(vocab, 0, -1)], [], [], ["edgepos.program"], [None])

    def add(name: str, array: np.ndarray) -> int:
        program.names.append(name)
        program.arrays.append(np.ascontiguousarray(array))
        return len(program.names) - 1

    weights = add("weights", np.ones((vocab, WIDTH), np.int8))
    rows = add("rows", np.ones((vocab, 2), np.int32))
    tensors = (weights, NONE, rows, NONE)
    program.ops = [
        Operation(Op.EMBED, 0, (NONE, NONE), tensors, {"shift": 0}),
        Operation(Op.LINEAR, 1, (0, NONE), tensors, {"shift": 0}),
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
