"""Embeddings of texts: `Session.embed` for every engine, and texts to ids that fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from .errors import ContextError, EdgePosError
from .whole_file import whole_file


class Embeds:
    """Adds `embed` to a session with `embed_int`."""

    def embed(self, ids: Sequence[int], positions: Sequence[int] | None = None) -> np.ndarray:
        """The embedding of a text by the model's own pooling, float32 [d].

        `ids` [n] is the whole text with its special tokens, as `Embedder` or the tokenizer make it: nothing is padded, so no
        mask is needed. What the session held before is forgotten. Raises EdgePosError for a model that gives logits or ids
        outside the vocabulary, ContextError for more ids than the context, or positions that do not ascend.
        """
        return (self.embed_int(ids, positions) * self.logit_scale).astype(np.float32)

    def embed_image(self, pixels) -> np.ndarray:
        """The row that a model gives for an image, float32 [d]: an embedding, or one logit per class.

        `pixels` is uint8 [height, width, channels] of exactly the size `session.image` says, as PPM files, cameras and libraries of
        images hold it; what preprocessing subtracts and divides by is in the weights. Raises EdgePosError for another array, and
        for a model that reads tokens.
        """
        return (self.embed_image_int(pixels) * self.logit_scale).astype(np.float32)


class Embedder:
    """Texts to embeddings with one session. texts, truncated: how many it has seen, and how many of them it had to cut."""

    def __init__(self, session, tokenizer):
        """session: of an embedding model, of any engine. Raises EdgePosError for a model that gives logits."""
        check_output(session, embedding=True)
        check_input(session, image=False)
        self.session, self.tokenizer = session, tokenizer
        self.texts = self.truncated = 0

    def ids(self, text: str | bytes, truncate: bool = True) -> list[int]:
        """Ids of a text with the model's special tokens. Of one too long for the context, the tokens that do not fit before the
        special ones behind it are left out, as sentence-transformers does; with truncate=False it raises ContextError."""
        ids, limit = self.tokenizer.encode(text), self.session.context
        self.texts += 1
        if len(ids) <= limit:
            return ids
        if not truncate:
            raise ContextError(f"text {self.texts} has {len(ids)} tokens, the model takes {limit}; shorten it, or let it be cut")
        self.truncated += 1
        special = len(ids) - len(self.tokenizer.encode(text, bos=False))
        behind = max(0, special - (self.tokenizer.bos_id is not None))
        return (ids[: limit - behind] + ids[len(ids) - behind :])[:limit]

    def embed(self, texts: Iterable[str | bytes], truncate: bool = True, progress: Callable[[int], None] | None = None) -> np.ndarray:
        """float32 [n, d]. `progress(n)` is called behind each text. Errors as of `ids` and `Session.embed`, which name the text."""
        rows = []
        for text in texts:
            if not isinstance(text, (str, bytes)):
                raise EdgePosError(f"text {self.texts + 1} is {type(text).__name__}; a str or bytes is needed")
            ids = self.ids(text, truncate)
            if not ids:
                raise EdgePosError(f"text {self.texts} is empty and this model puts no token around it; give some text")
            rows.append(self.session.embed(ids))
            if progress is not None:
                progress(len(rows))
        return np.stack(rows) if rows else np.zeros((0, self.session.embedding), np.float32)


def cosines(rows: np.ndarray) -> np.ndarray:
    """Cosines of all pairs of rows [n, d], float64 [n, n]; 0 with a row of zeros."""
    rows = np.asarray(rows, np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    return rows @ rows.T


def write_rows(path: Path, rows: np.ndarray) -> None:
    """Write an array to a .npy file, whole or not at all. Raises EdgePosError when it cannot be written."""
    with whole_file(path) as temporary, open(temporary, "wb") as file:
        np.save(file, rows, allow_pickle=False)


def check_input(session, *, image: bool) -> None:
    """Raises EdgePosError when a session reads tokens where an image is given, or the other way round."""
    if image and session.image is None:
        raise EdgePosError("this model reads tokens, not an image; use embed, eval or generate")
    if session.image is not None and not image:
        height, width, channels = session.image
        raise EdgePosError(f"this model reads an image of {height} × {width} pixels and {channels} channels, not tokens; use embed_image")


def check_output(session, *, embedding: bool) -> None:
    """Raises EdgePosError when a session gives logits where an embedding is asked for, or the other way round."""
    if embedding and not session.embedding:
        raise EdgePosError("this model gives logits, not an embedding; use eval or generate (edgepos run)")
    if session.embedding and not embedding:
        raise EdgePosError(f"this model gives an embedding of {session.embedding} numbers, not logits; use embed (edgepos embed)")
