"""The float session of a report, which evaluates no text twice."""

from __future__ import annotations

import numpy as np


class Remembering:
    """A session that keeps what it gave: the logits of the first windows, `tokens` of them in all, and every embedding."""

    def __init__(self, session, tokens: int):
        self.session, self._room = session, tokens
        self._windows: list[tuple[list[int], np.ndarray]] = []
        self._embeddings: dict[tuple[int, ...], np.ndarray] = {}
        self.reset()

    def reset(self) -> None:
        """Forget every token."""
        self.session.reset()
        self._held: list[int] = []
        self._missing: list[int] = []  # those of them that the session has not evaluated

    def eval(self, ids: list[int]) -> np.ndarray:
        """Float32 logits [n, vocab], behind a reset from what is kept if a kept window begins with `ids`."""
        ids, fresh = list(ids), not self._held
        self._held += ids
        if fresh:
            for window, logits in self._windows:
                if window[: len(ids)] == ids:
                    self._missing = ids
                    return logits[: len(ids)]
        if self._missing:
            self.session.eval(self._missing, logits="none")
            self._missing = []
        logits = self.session.eval(ids)
        if fresh and self._room > 0:
            self._windows.append((ids, logits))
            self._room -= len(ids)
        return logits

    def embed(self, ids: list[int]) -> np.ndarray:
        """The embedding of a text, float32 [d]."""
        key = tuple(ids)
        if key not in self._embeddings:
            self._embeddings[key] = self.session.embed(ids)
        return self._embeddings[key]

    def embed_image(self, pixels) -> np.ndarray:
        """The row of an image, float32 [d]."""
        return self.session.embed_image(pixels)
