"""A TokenizerSpec as the tokenizer of the C runtime, before or without a bundle."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from ..export.tokenizers import TokenizerSpec
from ..program import GROUP, NONE, Header, Op, Operation, Program, Value
from ..runtime.native import Image
from ..runtime.tokenizer import Tokenizer
from .gguf_file import Facts, write
from .tokenizer_tensors import add_tokenizer


def tokenizer(spec: TokenizerSpec, bos_id: int | None = None, eos_ids: tuple[int, ...] = ()) -> Tokenizer:
    """The C tokenizer of `spec`, in an image with the smallest program there is. Raises FormatError when the runtime refuses it."""
    vocab = len(spec.tokens)
    program = Program(Header(vocab, 1, 16, 0, 1, GROUP, NONE), [Value(GROUP, 0), Value(vocab, 0, -1)], [], [], ["edgepos.program"], [None])

    def add(name: str, array: np.ndarray) -> int:
        program.names.append(name)
        program.arrays.append(np.ascontiguousarray(array))
        return len(program.names) - 1

    weights = (add("weights", np.zeros((vocab, GROUP), np.int8)), NONE, add("scales", np.zeros((vocab, 2), np.int32)), NONE)
    program.ops = [
        Operation(Op.EMBED, 0, (NONE, NONE), weights, {"shift": 0}),
        Operation(Op.LINEAR, 1, (0, NONE), weights, {"shift": 0}),
    ]
    program.header.selftest = add("selftest", np.zeros(1, np.int32))
    add_tokenizer(program.header, spec, vocab, eos_ids, bos_id, add)
    with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
        path = Path(folder) / "tokenizer.gguf"
        write(path, program, Facts(name="tokenizer", license=""))
        return Tokenizer(Image(path.read_bytes(), "tokenizer"))
