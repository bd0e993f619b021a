"""The perplexity of a text under a bundle alone, without its source: docs/arithmetic.md, section 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .metrics import log_softmax
from .windows import Text, text_windows


@dataclass(frozen=True)
class Perplexity:
    """tokens: predictions counted. perplexity: exp of nats_per_token, the mean of −ln p of what followed."""

    tokens: int
    nats_per_token: float

    @property
    def perplexity(self) -> float:
        return float(np.exp(self.nats_per_token))


def measure(
    bundle,
    text: Text,
    *,
    max_tokens: int = 8192,
    context: int | None = None,
    threads: int = 1,
    engine: str = "c",
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """How well `bundle` predicts the first `max_tokens` tokens of `text`, in windows of at most `context` and 512 tokens.

    `progress(done, total)` counts tokens. Raises EdgePosError when text or context are too short for a prediction.
    """
    limit = bundle.context if context is None else context
    cut = text_windows(bundle.tokenizer, text, max_tokens, limit)
    session = bundle.session(context=max(map(len, cut)), threads=threads, engine=engine)
    losses, done, total = [], 0, sum(map(len, cut))
    for window in cut:
        session.reset()
        logits = log_softmax(session.eval(window)[:-1])
        losses.append(-logits[np.arange(len(window) - 1), window[1:]])
        done += len(window)
        if progress is not None:
            progress(done, total)
    nats = np.concatenate(losses)
    return Perplexity(len(nats), float(nats.mean()))
