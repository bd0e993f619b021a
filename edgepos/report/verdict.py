"""The `verdict` section: the figures in a word. docs/report.md states the limits."""

from __future__ import annotations

from .intervals import LEAST

GRADES = ("very good", "good", "fair", "poor")
UNKNOWN = "unknown"
LOGITS = ((0.001, 0.98), (0.01, 0.95), (0.05, 0.85))  # largest mean KL divergence in nats, least top-1 agreement
EMBEDDINGS = ((0.9995, 0.98), (0.995, 0.95), (0.97, 0.85))  # least mean cosine, least share of the same nearest sentence
MEANING = (
    "its answers can hardly be told from the float model's",
    "close to the float model; few answers differ",
    "differences show; try it on your own task",
    "far from the float model; choose finer formats",
)


def verdict(accuracy: dict) -> dict:
    """{"grade": one of GRADES, "words": a sentence's half that says what it means}; the worse of the two figures decides.

    UNKNOWN for a text with too few predictions for an interval.
    """
    if "kl_mean" in accuracy and accuracy["tokens"] < LEAST:
        return {"grade": UNKNOWN, "words": f"a text of {accuracy['tokens']} predictions is too short to judge by, give at least {LEAST}"}
    if "cosine_mean" in accuracy:
        steps = (accuracy["cosine_mean"] >= cosine and accuracy["nearest_agreement"] >= same for cosine, same in EMBEDDINGS)
    else:
        steps = (accuracy["kl_mean"] <= kl and accuracy["top1_agreement"] >= same for kl, same in LOGITS)
    grade = next((i for i, good in enumerate(steps) if good), len(GRADES) - 1)
    return {"grade": GRADES[grade], "words": MEANING[grade]}
