"""Where a target leaves the specification: digests of operators (docs/bundle.md), compared in the order of the program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..fixedpoint import fnv1a64
from ..golden_session import GoldenSession
from ..program import Op, Program


def operator_digests(program: Program) -> dict[int, int]:
    """The digest of every operator with an output over the self-test's tokens or image, by its number, as the specification computes it."""
    test, digests = program.arrays[program.header.selftest], {}
    session = GoldenSession(program, None if program.image else len(test))

    def see(op: int, output: np.ndarray) -> None:
        digests[op] = fnv1a64(np.ascontiguousarray(output, "<i4").tobytes())

    if program.image:
        session.embed_image_int(test.view(np.uint8).reshape(program.image), trace=see)
    elif program.embedding:
        session.embed_int(test, trace=see)
    else:
        session.eval_int(test, trace=see)
    return digests


def first_difference(program: Program, found: Mapping[int, int]) -> str:
    """A sentence that names the first operator whose digest is not that of the specification."""
    if not found:
        return "its runtime is too old to tell which operator differs: export the bundle again"
    for index, expected in operator_digests(program).items():
        if found.get(index) != expected:
            op = program.ops[index]
            name = f" ({op.name})" if getattr(op, "name", "") else ""
            got = f"{found[index]:016x}" if index in found else "nothing"
            return f"the first operator that differs is {index}, {Op(op.code).name}{name}: {got} computed, {expected:016x} specified"
    return "every operator gives what the specification gives: these are not the weights that the digest was made of"
