"""Write c_runtime/src/constants.h: the tables and constants of docs/arithmetic.md, rounded from mpmath.

    python c_runtime/tools/make_constants.py > c_runtime/src/constants.h
"""

import itertools

from edgepos.fixedpoint import exp2_table, increment_constants, quarter_table


def rows_of(values, width: int) -> str:
    return ",\n  ".join(", ".join(str(v) for v in values[i : i + width]) for i in range(0, len(values), width))


def array(name: str, comment: str, values, shared: str = "") -> str:
    """A table of every source that includes the header, or with the name `shared` that of the one that defines EP_TABLES."""
    body = f"const int32_t {name}[{len(values)}] = {{\n  {rows_of(values, 8)}}};\n"
    if not shared:
        return f"/* {comment} */\nstatic {body}"
    return f"/* {comment} */\n#define {name} {shared}\nextern const int32_t {name}[{len(values)}];\n#ifdef EP_TABLES\n{body}#endif\n"


def exp2_bytes() -> str:
    """The table of exp2_neg and its differences byte by byte, for instructions that look up bytes."""
    values = exp2_table()
    numbers = [(values, 4), ([a - b for a, b in itertools.pairwise(values)], 3)]
    planes = [[v >> 8 * i & 255 for v in column[:256]] for column, size in numbers for i in range(size)]
    planes = ",\n  ".join(f"{{{rows_of(plane, 32)}}}" for plane in planes)
    return f"/* The bytes of EP_EXP2[j], low ones first, then of EP_EXP2[j] - EP_EXP2[j + 1] */\nstatic const uint8_t EP_EXP2_BYTES[7][256] = {{\n  {planes}}};\n"


def words(value: int) -> list[str]:
    """The 256 bits of a number, 32 at a time."""
    return [f"0x{value >> 32 * i & 0xFFFFFFFF:08x}" for i in range(8)]


def render() -> str:
    return "\n".join(
        [
            "/* Made by c_runtime/tools/make_constants.py: do not edit. */",
            "#ifndef EP_CONSTANTS_H\n#define EP_CONSTANTS_H\n#include <stdint.h>\n",
            array("EP_EXP2", "round(2^(30 - j/256))", exp2_table(), "ep_exp2_table"),
            exp2_bytes(),
            array("EP_QUARTER", "round(32767 * 2^15 * (1 + h^2/16) * sin(j * h)), h = pi/512", quarter_table()),
            *(
                f"/* {what} * 2^192, 256 bits, low words first */\n#define {name} {{{', '.join(words(value))}}}\n"
                for name, what, value in zip(("EP_LN2", "EP_TURN"), ("ln 2", "1 / (2 pi)"), increment_constants())
            ),
            "#endif",
        ]
    )


if __name__ == "__main__":
    print(render())
