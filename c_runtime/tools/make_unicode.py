#!/usr/bin/env python3
"""Write c_runtime/src/unicode.h: what GPT-2's pre-tokenizer takes as letters, numbers and spaces.

The classes are asked of the `tokenizers` library, because a prompt must get the ids it gives:
its regular expressions, not Python, decide which Unicode version counts.
"""

from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers

OTHER, SPACE, LETTER, NUMBER = range(4)
BITS = 14  # of a code point in its block: with a class they fill 16
OUT = Path(__file__).resolve().parent.parent / "src" / "unicode.h"


def classify(split, code_point: int) -> int:
    if 0xD800 <= code_point < 0xE000:
        return OTHER  # no UTF-8 text holds a surrogate
    for probe, found in (("a", LETTER), ("1", NUMBER), ("!", OTHER)):
        if len(split(probe + chr(code_point))) == 1:
            return found
    return SPACE


def table(name: str, numbers: list[int]) -> str:
    lines = [", ".join(f"0x{number:x}" for number in numbers[i : i + 16]) for i in range(0, len(numbers), 16)]
    return f"static const uint16_t {name}[{len(numbers)}] = {{\n  " + ",\n  ".join(lines) + "};\n"


def main() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    runs, blocks, last = [], [], None
    for code_point in range(0x110000):
        inside, found = code_point % (1 << BITS), classify(split, code_point)
        if inside == 0:
            blocks.append(len(runs))
        if inside == 0 or found != last:
            runs.append(inside << 2 | found)
            last = found
    blocks.append(len(runs))
    OUT.write_text(
        f"/* Made by c_runtime/tools/make_unicode.py with tokenizers {tokenizers.__version__}. */\n"
        "enum { EP_OTHER, EP_SPACE, EP_LETTER, EP_NUMBER };\n\n"
        f"enum {{ EP_BLOCK_BITS = {BITS} }};\n\n"
        "/* Runs of a class in a block of code points: the low bits of the first one << 2 | class. */\n"
        f"{table('ep_unicode_runs', runs)}\n"
        "/* The first run of each block, and the end of the last. */\n"
        f"{table('ep_unicode_blocks', blocks)}",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
