"""How far two sets of logits are from each other: KL divergence, perplexity, agreement. All float64."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .intervals import METHOD, interval, resampled_means

BLOCK = 1 << 16  # numbers at a time


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log probabilities of logits [..., vocab], float64."""
    result = np.array(logits, np.float64, order="C")
    flat = result.reshape(-1, result.shape[-1])
    for rows in _blocks(flat):
        z = flat[rows]
        z -= z.max(axis=-1, keepdims=True)
        z -= np.log(np.exp(z).sum(axis=-1, keepdims=True))
    return result


def kl_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats of log probabilities [n, vocab], float64 [n]."""
    result = np.empty(len(reference))
    for rows in _blocks(reference):
        p = reference[rows]
        result[rows] = (np.exp(p) * (p - other[rows])).sum(axis=-1)
    return result


def _blocks(array: np.ndarray) -> Iterator[slice]:
    """Some rows of [n, vocab] at a time, so that what is computed of them stays in the processor's caches."""
    step = max(1, BLOCK // array.shape[-1])
    return (slice(at, at + step) for at in range(0, len(array), step))


class Comparison:
    """Running comparison of an integer model with its float reference, window by window.

    Per prediction, one array a window: kl, nll_float, nll (nats), choice_float, choice (the most likely token of each) and their
    own log probabilities.
    """

    FIELDS = ("kl", "nll_float", "nll", "choice_float", "choice", "choice_float_nll", "choice_nll")
    CHOICES = ("choice_float", "choice")

    def __init__(self):
        self.windows: list[dict[str, np.ndarray]] = []
        self.max_error = 0.0

    def add(self, reference: np.ndarray, logits: np.ndarray, targets: np.ndarray) -> None:
        """Logits [n, vocab] of both models for the same tokens; targets int [n−1] are the tokens that follow the first n−1."""
        reference, logits = (np.asarray(x)[: len(targets)] for x in (reference, logits))
        found = {name: np.empty(len(targets), np.int64 if name in self.CHOICES else np.float64) for name in self.FIELDS}
        for rows in _blocks(reference):
            a, b, wanted = reference[rows], logits[rows], targets[rows]
            p, q, first, second, each = log_softmax(a), log_softmax(b), a.argmax(-1), b.argmax(-1), np.arange(len(a))
            parts = (kl_divergence(p, q), -p[each, wanted], -q[each, wanted], first, second, -p[each, first], -q[each, second])
            for name, part in zip(self.FIELDS, parts):
                found[name][rows] = part
            self.max_error = max(self.max_error, float(np.abs(np.subtract(a, b, dtype=np.float64)).max()))
        self.windows.append(found)

    def column(self, name: str) -> np.ndarray:
        """One field over all windows [n]."""
        return np.concatenate([window[name] for window in self.windows])

    def result(self) -> dict:
        """The figures of the `accuracy` section of report.json. Raises ValueError when nothing was added."""
        if not sum(len(window["kl"]) for window in self.windows):
            raise ValueError("the text gives no prediction: it needs at least two tokens")
        kl, nll_float, nll = (self.column(name) for name in ("kl", "nll_float", "nll"))
        same = self.column("choice_float") == self.column("choice")
        return {
            "tokens": len(kl),
            "perplexity_float": float(np.exp(nll_float.mean())),
            "perplexity": float(np.exp(nll.mean())),
            "perplexity_change": float(np.expm1(nll.mean() - nll_float.mean())),
            "nats_per_token_float": float(nll_float.mean()),
            "nats_per_token": float(nll.mean()),
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_standard_error": float(kl.std() / np.sqrt(len(kl))),
            "top1_agreement": int(same.sum()) / len(kl),
            "max_logit_error": self.max_error,
        }

    def intervals(self) -> dict:
        """Confidence intervals [low, high] of the figures under the same names, and of their ratio perplexity_change; null for a short text."""
        kl, nll_float, nll = (self.column(name) for name in ("kl", "nll_float", "nll"))
        same = self.column("choice_float") == self.column("choice")
        means = resampled_means(kl, nll_float, nll, same)
        rows = [None] * 4 if means is None else means
        return {
            "method": METHOD,
            "kl_mean": interval(rows[0]),
            "perplexity_float": interval(None if means is None else np.exp(rows[1])),
            "perplexity": interval(None if means is None else np.exp(rows[2])),
            "perplexity_change": interval(None if means is None else np.expm1(rows[2] - rows[1])),
            "top1_agreement": interval(rows[3]),
        }
