"""What four bits cost a model that had floats, measured where that is quick: the text of export's warning."""

from __future__ import annotations

import numpy as np

from ..embedding import cosines
from ..export import CanonicalModel
from ..golden_session import GoldenSession
from ..program import Program
from ..report.metrics import kl_divergence, log_softmax

TOKENS = 128
FLOAT_BYTES = 2**30  # a float model above this is not run only to word a warning


def four_bit_warning(canonical: CanonicalModel, program: Program, sample: list[int] | np.ndarray) -> str:
    """One line: the loss of w4g32 on the first calibration tokens or images of `sample` against the float graph in ONNX Runtime."""
    return f"weights w4g32 of a float source: {_loss(canonical, program, sample[:TOKENS])}; use w8g32 where that is too much"


def _loss(canonical: CanonicalModel, program: Program, sample: list[int] | np.ndarray) -> str:
    size = sum(value.const_value.nbytes for value in canonical.model.graph.initializers.values())
    if size > FLOAT_BYTES:
        return f"plain 4-bit rounding costs accuracy, not measured here because the float model has {size / 1e9:.1f} GB (`edgepos report` measures it)"
    from ..float_session import FloatSession

    floats, integers = FloatSession(canonical.model), GoldenSession(program, None if program.image else len(sample))
    if program.image:
        rows = np.stack([session.embed_image(sample[0]) for session in (floats, integers)])
        return f"cosine {cosines(rows)[0, 1]:.4f} to the float row, on one calibration image"
    if program.embedding:
        rows = np.stack([session.embed(sample) for session in (floats, integers)])
        return f"cosine {cosines(rows)[0, 1]:.4f} to the float embedding, on {len(sample)} calibration tokens"
    p, q = floats.eval(sample), integers.eval(sample)
    kl = kl_divergence(log_softmax(p), log_softmax(q)).mean()
    same = (p.argmax(-1) == q.argmax(-1)).mean()
    return f"KL {kl:.2g} nats per token to the float model and {same:.0%} the same first choice, on {len(sample)} calibration tokens"
