"""A tokenizer of the C runtime without a model: an image whose program has no row per token."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from ..errors import UnsupportedError
from ..export import load
from ..export.hf_folder import read_tokenizer
from ..export.tokenizers import TokenizerSpec
from ..program import EMBEDDING, GROUP, NONE, POOLS, POSITIONS, Header, Op, Operation, Program, Value
from ..runtime.native import Image
from ..runtime.tokenizer import Tokenizer
from ..fixedpoint import fnv1a64
from ..whole_file import whole_file
from .gguf_file import Facts, write
from .tokenizer_tensors import add_tokenizer

NAME = "tokenizer"
MOST_TOKENS = 2**20


def export_tokenizer(source: str | os.PathLike, out: str | os.PathLike) -> int:
    """Write the tokenizer of a model, or of a tokenizer.json, as a file the C runtime opens; returns its bytes.

    Raises FormatError or UnsupportedError for a source that cannot be read, UnsupportedError for a model whose tokenizer EdgePos has
    not, EdgePosError when the file cannot be written.
    """
    source, out = Path(source), Path(out)
    if source.suffix == ".json" or (source.is_dir() and not (source / "config.json").is_file()):
        spec, problem, bos_id, eos_ids, _ = read_tokenizer(source, MOST_TOKENS)
    else:
        model = load(source)
        spec, problem, bos_id, eos_ids = model.tokenizer, model.tokenizer_problem, model.bos_id, model.eos_ids
    if spec is None:
        raise UnsupportedError(f"{source.name}: {problem or 'has no tokenizer'}")
    with whole_file(out) as temporary:
        write(temporary, smallest_program(spec, bos_id, eos_ids), Facts(name=source.stem, license=""))
        Tokenizer(Image(temporary.read_bytes(), out.name))
        return temporary.stat().st_size


def tokenizer(spec: TokenizerSpec, bos_id: int | None = None, eos_ids: tuple[int, ...] = ()) -> Tokenizer:
    """The C tokenizer of `spec`. Raises FormatError when the runtime refuses it."""
    with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
        path = Path(folder) / "tokenizer.gguf"
        write(path, smallest_program(spec, bos_id, eos_ids), Facts(name=NAME, license=""))
        return Tokenizer(Image(path.read_bytes(), NAME))


def smallest_program(spec: TokenizerSpec, bos_id: int | None = None, eos_ids: tuple[int, ...] = ()) -> Program:
    """The program around a tokenizer: an embedding of one zero row by position, so that no tensor grows with the vocabulary."""
    vocab = len(spec.tokens)
    digest = fnv1a64(bytes(4 * GROUP))  # of its embedding, zeros
    header = Header(vocab, 1, 16, 0, 1, 2 * GROUP, NONE, digest, output=EMBEDDING)
    program = Program(header, [Value(GROUP, 0, 0), Value(GROUP, 0, GROUP)], [], [], ["edgepos.program"], [None])

    def add(name: str, array: np.ndarray) -> int:
        program.names.append(name)
        program.arrays.append(np.ascontiguousarray(array))
        return len(program.names) - 1

    row = (add("row", np.zeros((1, GROUP), np.int8)), NONE, add("row.scale", np.zeros((1, 2), np.int32)), NONE)
    program.ops = [
        Operation(Op.EMBED, 0, (NONE, NONE), row, {"shift": 0, "source": POSITIONS}),
        Operation(Op.POOL, 1, (0, NONE), params={"kind": POOLS.index("first")}),
    ]
    header.selftest = add("selftest", np.zeros(1, np.int32))
    add_tokenizer(header, spec, vocab, eos_ids, bos_id, add)
    return program
