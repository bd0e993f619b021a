"""The `accuracy` section: an integer session against the float model on a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from .metrics import Comparison

WORST = 8  # tokens that are shown in their context
CONTEXT_CHARS = 160
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


def run(reference, session, windows: Iterable[list[int]], progress: Callable[[int], None] | None = None) -> Comparison:
    """Run both sessions over the windows (lists of token ids) from a fresh cache each. `progress(tokens)` is called after each part.

    The logits of at most 512 tokens are in memory at a time.
    """
    comparison = Comparison()
    for window in windows:
        reference.reset()
        session.reset()
        parts = []
        for at in range(0, len(window), EDGES[-1]):
            part = window[at : at + EDGES[-1]]
            one = Comparison()
            one.add(reference.eval(part), session.eval(part), np.asarray(window[at + 1 : at + 1 + len(part)]))
            parts += one.windows
            comparison.max_error = max(comparison.max_error, one.max_error)
            if progress is not None:
                progress(len(part))
        comparison.windows.append({name: np.concatenate([part[name] for part in parts]) for name in Comparison.FIELDS})
    return comparison


def compare(reference, session, windows: Iterable[list[int]], progress: Callable[[int], None] | None = None) -> dict:
    """The figures of `Comparison.result` for the windows: see `run`."""
    return run(reference, session, windows, progress).result()


def worst_tokens(comparison: Comparison, windows: list[list[int]], tokenizer) -> list[dict]:
    """The predictions with the largest KL divergence, worst first, each with the text before it and what both models expected."""
    kl = comparison.column("kl")
    places = [(w, i) for w, window in enumerate(comparison.windows) for i in range(len(window["kl"]))]
    entries = []
    for at in np.argsort(-kl, kind="stable")[:WORST].tolist():
        w, i = places[at]
        ids, found = windows[w], comparison.windows[w]
        entries.append(
            {
                "window": w,
                "position": i,
                "before": _text(tokenizer, ids[max(0, i - 63) : i + 1])[-CONTEXT_CHARS:],
                "token": _text(tokenizer, [ids[i + 1]]),
                "kl": float(found["kl"][i]),
                "probability_float": float(np.exp(-found["nll_float"][i])),
                "probability": float(np.exp(-found["nll"][i])),
                "choice_float": _text(tokenizer, [int(found["choice_float"][i])]),
                "choice": _text(tokenizer, [int(found["choice"][i])]),
            }
        )
    return entries


def _text(tokenizer, ids: list[int]) -> str:
    """The text of token ids, or their numbers where there is no tokenizer or no text."""
    text = tokenizer.decode(ids) if tokenizer is not None else ""
    return text or " ".join(f"#{i}" for i in ids)


def loss_by_position(comparison: Comparison) -> list[dict]:
    """Mean loss of both models and KL divergence, nats, over the predictions at positions first … last of their windows."""
    place = np.concatenate([np.arange(len(window["kl"])) for window in comparison.windows])
    edges = [0, *EDGES]
    while edges[-1] <= place.max():
        edges.append(2 * edges[-1])
    rows = []
    for first, end in zip(edges, edges[1:]):
        inside = (place >= first) & (place < end)
        if inside.any():
            means = {name: float(comparison.column(name)[inside].mean()) for name in ("nll_float", "nll", "kl")}
            rows.append({"first": first, "last": min(end - 1, int(place.max())), "tokens": int(inside.sum()), **means})
    return rows
