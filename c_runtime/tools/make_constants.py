"""Write c_runtime/src/constants.h: the two tables of docs/arithmetic.md, rounded from mpmath.

    python c_runtime/tools/make_constants.py > c_runtime/src/constants.h
"""

from edgepos.fixedpoint import exp2_table, quarter_table


def array(name: str, comment: str, values) -> str:
    rows = [", ".join(str(v) for v in values[i : i + 8]) for i in range(0, len(values), 8)]
    return f"/* {comment} */\nstatic const int32_t {name}[{len(values)}] = {{\n  " + ",\n  ".join(rows) + "};\n"


def render() -> str:
    return "\n".join(
        [
            "/* Made by c_runtime/tools/make_constants.py: do not edit. */",
            "#ifndef EP_CONSTANTS_H\n#define EP_CONSTANTS_H\n#include <stdint.h>\n",
            array("EP_EXP2", "round(2^(30 - j/256))", exp2_table()),
            array("EP_QUARTER", "round(32767 * 2^15 * (1 + h^2/16) * sin(j * h)), h = pi/512", quarter_table()),
            "#endif",
        ]
    )


if __name__ == "__main__":
    print(render())
