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


def digest(program: Program, test: list[int] | np.ndarray) -> int:
    """fnv1a64 of the logits of ids at positions 0 … n−1, or of the one row of ids or an image, computed by golden."""
    if program.image is not None:
        output = GoldenSession(program).embed_image_int(test)
    else:
        session = GoldenSession(program, len(test))
        output = session.embed_int(test) if program.embedding else session.eval_int(test)
    return fnv1a64(np.ascontiguousarray(output, dtype="<i4").tobytes())
