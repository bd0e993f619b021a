"""Pass: the self-test: token ids and the digest of the logits or the embedding they give."""

from __future__ import annotations

import numpy as np

from ..fixedpoint import fnv1a64
from ..golden_session import GoldenSession
from ..program import Program

TEXT_TOKENS, SPREAD_TOKENS = 16, 16


def selftest_ids(calibration: list[int], vocab: int, context: int) -> list[int]:
    """Up to 32 ids: the start of the calibration tokens, then ids spread over the vocabulary, so that odd rows are seen too."""
    spread = [(2 * i + 1) * vocab // (2 * SPREAD_TOKENS) for i in range(SPREAD_TOKENS)]
    return (calibration[:TEXT_TOKENS] + spread)[:context]


def digest(program: Program, ids: list[int]) -> int:
    """fnv1a64 of the logits of ids at positions 0 … n−1, or of their embedding, computed by golden."""
    session = GoldenSession(program, len(ids))
    output = session.embed_int(ids) if program.embedding else session.eval_int(ids)
    return fnv1a64(np.ascontiguousarray(output, dtype="<i4").tobytes())
