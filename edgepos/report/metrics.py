"""How far two sets of logits are from each other: KL divergence, perplexity, agreement. All float64."""

from __future__ import annotations

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural log probabilities of logits [..., vocab], float64."""
    z = np.asarray(logits, np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    return z - np.log(np.exp(z).sum(axis=-1, keepdims=True))


def kl_divergence(reference: np.ndarray, other: np.ndarray) -> np.ndarray:
    """KL(reference ‖ other) in nats of log probabilities [n, vocab], float64 [n]."""
    return (np.exp(reference) * (reference - other)).sum(axis=-1)


class Comparison:
    """Running comparison of an integer model with its float reference, window by window."""

    def __init__(self):
        self.kl: list[np.ndarray] = []
        self.nll_float: list[np.ndarray] = []
        self.nll: list[np.ndarray] = []
        self.same_top1 = 0
        self.max_error = 0.0

    def add(self, reference: np.ndarray, logits: np.ndarray, targets: np.ndarray) -> None:
        """Logits [n, vocab] of both models for the same tokens; targets int [n−1] are the tokens that follow the first n−1."""
        p, q = log_softmax(reference), log_softmax(logits)
        predicted = len(targets)
        rows = np.arange(predicted)
        self.kl.append(kl_divergence(p, q)[:predicted])
        self.nll_float.append(-p[rows, targets])
        self.nll.append(-q[rows, targets])
        self.same_top1 += int((reference[:predicted].argmax(-1) == logits[:predicted].argmax(-1)).sum())
        self.max_error = max(self.max_error, float(np.abs(np.asarray(reference, np.float64) - logits)[:predicted].max(initial=0.0)))

    def result(self) -> dict:
        """The `accuracy` figures of report.json. Raises ValueError when nothing was added."""
        if not sum(map(len, self.kl)):
            raise ValueError("the text gives no prediction: it needs at least two tokens")
        kl, nll_float, nll = map(np.concatenate, (self.kl, self.nll_float, self.nll))
        return {
            "tokens": len(kl),
            "perplexity_float": float(np.exp(nll_float.mean())),
            "perplexity": float(np.exp(nll.mean())),
            "nats_per_token_float": float(nll_float.mean()),
            "nats_per_token": float(nll.mean()),
            "kl_mean": float(kl.mean()),
            "kl_p99": float(np.quantile(kl, 0.99)),
            "kl_standard_error": float(kl.std() / np.sqrt(len(kl))),
            "top1_agreement": self.same_top1 / len(kl),
            "max_logit_error": self.max_error,
        }
