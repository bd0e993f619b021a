"""How far two sets of logits are from each other: KL divergence, perplexity, agreement. All float64."""

from __future__ import annotations

import numpy as np

from .intervals import METHOD, interval, resampled_means


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log probabilities of logits [..., vocab], float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def kl_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats of log probabilities [n, vocab], float64 [n]."""
    return (np.exp(reference) * (reference - other)).sum(axis=-1)


class Comparison:
    """Running comparison of an integer model with its float reference, window by window.

    Per prediction, one array a window: kl, nll_float, nll (nats), choice_float, choice (the most likely token of each) and their
    own log probabilities.
    """

    FIELDS = ("kl", "nll_float", "nll", "choice_float", "choice", "choice_float_nll", "choice_nll")

    def __init__(self):
        self.windows: list[dict[str, np.ndarray]] = []
        self.max_error = 0.0

    def add(self, reference: np.ndarray, logits: np.ndarray, targets: np.ndarray) -> None:
        """Logits [n, vocab] of both models for the same tokens; targets int [n−1] are the tokens that follow the first n−1."""
        predicted = len(targets)
        rows = np.arange(predicted)
        p, q = log_softmax(reference[:predicted]), log_softmax(logits[:predicted])
        first, second = (np.asarray(x)[:predicted].argmax(-1) for x in (reference, logits))
        found = (kl_divergence(p, q), -p[rows, targets], -q[rows, targets], first, second, -p[rows, first], -q[rows, second])
        self.windows.append(dict(zip(self.FIELDS, found)))
        self.max_error = max(self.max_error, float(np.abs(np.asarray(reference, np.float64) - logits)[:predicted].max(initial=0.0)))

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
