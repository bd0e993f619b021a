#!/usr/bin/env python3
"""Write c_runtime/src/unicode.h: what GPT-2's pre-tokenizer takes as letters, numbers and spaces.

The classes are asked of the `tokenizers` library, because a prompt must get the ids it gives:
its regular expressions, not Python, decide which Unicode version counts.
"""

from pathlib import Path

import tokenizers
from tokenizers import pre_tokenizers

OTHER, SPACE, LETTER, NUMBER = range(4)
OUT = Path(__file__).resolve().parent.parent / "src" / "unicode.h"


def classify(split, code_point: int) -> int:
    if 0xD800 <= code_point < 0xE000:
        return OTHER  # no UTF-8 text holds a surrogate
    for probe, found in (("a", LETTER), ("1", NUMBER), ("!", OTHER)):
        if len(split(probe + chr(code_point))) == 1:
            return found
    return SPACE


def main() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True).pre_tokenize_str
    entries, last = [], None
    for code_point in range(0x110000):
        found = classify(split, code_point)
        if found != last:
            entries.append(f"0x{code_point << 2 | found:x}")
            last = found
    lines = [", ".join(entries[i : i + 14]) for i in range(0, len(entries), 14)]
    OUT.write_text(
        f"/* Made by c_runtime/tools/make_unicode.py with tokenizers {tokenizers.__version__}. */\n"
        "enum { EP_OTHER, EP_SPACE, EP_LETTER, EP_NUMBER };\n\n"
        "/* First code point of each run << 2 | class of the run. */\n"
        f"static const uint32_t ep_unicode_runs[{len(entries)}] = {{\n  " + ",\n  ".join(lines) + "};\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
