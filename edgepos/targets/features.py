"""What a program does not use, so that a build for it alone can leave it out (src/included.h)."""

from __future__ import annotations

from ..program import Program


def definitions(program: Program) -> list[str]:
    """Compiler flags that name the opcodes, and the kind, cut and normalizer of the tokenizer, that the program has."""
    header = program.header
    masks = {
        "OPERATORS": sum(1 << code for code in {int(op.code) for op in program.ops}),
        "TOKENIZERS": 1 << header.tokenizer,
        "PRETOKENIZERS": 1 << header.pre_tokenizer,
        "NORMALIZERS": 1 << header.normalizer,
    }
    return [f"-DEDGEPOS_{name}={mask:#x}u" for name, mask in masks.items()]
