"""The `accuracy` section of an embedding model: its rows beside those of the float graph, for the sentences of a text."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ..embedding import Embedder, cosines
from ..errors import EdgePosError

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")
MOST_SENTENCES = 1000  # pairs grow with the square


def sentences(text: str) -> list[str]:
    """The different sentences of a text in order: cut behind . ! ? and at line ends, of at least two words, at most 1000."""
    parts = (part.strip() for part in SENTENCE_END.split(text))
    return list(dict.fromkeys(part for part in parts if len(part.split()) > 1))[:MOST_SENTENCES]


def compare_embeddings(
    reference, session, tokenizer, texts: list[str], max_tokens: int, progress: Callable[[int, int], None] | None = None
) -> tuple[dict, list[list[int]]]:
    """(figures, ids of the texts): embeddings of both sessions for the texts that fit into `max_tokens` tokens.

    cosine: of the two rows of a text. nearest_agreement: texts whose most similar other text is the same. rank_correlation:
    Spearman's, of the cosines of all pairs of texts. Raises EdgePosError when fewer than three texts are left.
    """
    embedder = Embedder(session, tokenizer)
    ids, total = [], 0
    for text in texts:
        ids.append(embedder.ids(text))
        total += len(ids[-1])
        if total > max_tokens:
            ids.pop()
            break
    if len(ids) < 3:
        raise EdgePosError(f"the text gives {len(ids)} sentences within {max_tokens} tokens; at least 3 are needed to compare pairs")
    total, done = sum(map(len, ids)), 0
    rows = []
    for row in ids:
        rows.append((reference.embed(row), session.embed(row)))
        done += len(row)
        if progress is not None:
            progress(done, total)
    exact, ours = (np.array(side, np.float64) for side in zip(*rows))
    return {**figures(exact, ours), "texts": len(ids), "tokens": total, "saturations": session.saturations}, ids


def figures(exact: np.ndarray, ours: np.ndarray) -> dict:
    """How far embeddings float64 [n, d], n ≥ 3, are from the exact ones; see `compare_embeddings`."""
    n = len(exact)
    both = cosines(np.concatenate([exact, ours]))
    own = np.diag(both[:n, n:])
    pairs = np.triu_indices(n, 1)
    a, b = both[:n, :n], both[n:, n:]
    others = 4 * np.eye(n)  # no text is its own neighbour
    return {
        "cosine_mean": float(own.mean()),
        "cosine_min": float(own.min()),
        "nearest_agreement": float(((a - others).argmax(axis=1) == (b - others).argmax(axis=1)).mean()),
        "rank_correlation": spearman(a[pairs], b[pairs]),
        "pairs": len(pairs[0]),
        "max_error": float(np.abs(exact - ours).max()),
    }


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's rank correlation of float64 [n], n ≥ 2; equal values share their mean rank. 1 where both are constant, 0 where one is."""
    rx, ry = (ranks(v) - (len(v) - 1) / 2 for v in (x, y))
    sx, sy = (rx * rx).sum(), (ry * ry).sum()
    if sx == 0 or sy == 0:
        return float(sx == sy)
    return float((rx * ry).sum() / np.sqrt(sx * sy))


def ranks(x: np.ndarray) -> np.ndarray:
    """Mean ranks from 0 of float64 [n]."""
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count + 1) / 2)[place]
