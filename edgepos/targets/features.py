"""What a program does not use, so that a build for it alone can leave it out (src/included.h)."""

from __future__ import annotations

from ..program import INTERLEAVED, NONE, W4G32, W16G32, Op, Program


ENCODE = 1 << 17


def definitions(program: Program, encodes: bool = True) -> list[str]:
    """Compiler flags that name the opcodes, the kind, cut and normalizer of the tokenizer, and the features, that the program has."""
    header = program.header
    masks = {
        "OPERATORS": sum(1 << code for code in {int(op.code) for op in program.ops}),
        "TOKENIZERS": 1 << header.tokenizer,
        "PRETOKENIZERS": 1 << header.pre_tokenizer,
        "NORMALIZERS": 1 << header.normalizer,
    }
    masks["FEATURES"] = _features(program) | ENCODE * encodes
    return [f"-DEDGEPOS_{name}={mask:#x}u" for name, mask in masks.items()]


def _features(program: Program) -> int:
    """Bits of EP_FEATURE_ in src/included.h."""
    bits = 1 << (7 if program.header.kv_bits == 8 else 6) if program.kv else 0
    for op in program.ops:
        bits |= (op.params.get("form") == W16G32) << 16
        if op.code is Op.LINEAR:
            form = 2 if op.params["form"] == W4G32 else 0 if op.tensors[1] == NONE else 1
            bits |= 1 << form + 3 * op.params["inputs"] | (op.params["softcap"] != NONE) << 10 | (op.tensors[3] != NONE) << 15
        elif op.code is Op.ATTENTION:
            bits |= sum(1 << bit for bit, tensor in zip((8, 9, 10), op.tensors, strict=False) if tensor != NONE)
        elif op.code is Op.ROPE:
            bits |= 1 << (13 if op.params["layout"] == INTERLEAVED else 12)
        elif op.code is Op.NORM:
            bits |= bool(op.params["center"]) << 14
    return bits | bool(program.header.chat_texts) << 11
