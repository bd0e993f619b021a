"""The `onnx` section: both forms of model.onnx in ONNX Runtime, their accuracy against the float model and their speed."""

from __future__ import annotations

import time

import numpy as np

from ..bundle import ONNX_FILES
from .embedding import figures
from .metrics import Comparison
from .windows import first_tokens

MOST_TOKENS = 1024


def has_forms(bundle) -> bool:
    """Whether a bundle has the second form."""
    return bundle.path is not None and (bundle.path / ONNX_FILES["onnx-int8"]).is_file()


def compare_forms(bundle, reference, windows: list[list[int]], threads: int) -> list[dict]:
    """One entry per form over the first windows of the text, each evaluated in one call from an empty cache, the first once before."""
    few: list[list[int]] = []
    for window in windows:
        if few and sum(map(len, few)) + len(window) > MOST_TOKENS:
            break
        few.append(window)
    return [_measure(bundle, engine, reference, few, threads) for engine in ONNX_FILES]


def compare_embedding_forms(bundle, reference, texts: list[list[int]], threads: int) -> list[dict]:
    """The same for a model that gives embeddings, over the first texts."""
    few = first_tokens(texts, MOST_TOKENS)
    entries, exact = [], np.array([reference.embed(ids) for ids in few], np.float64)
    for engine in ONNX_FILES:
        session = bundle.session(context=max(map(len, few)), engine=engine, threads=threads)
        session.embed(few[0])
        started = time.perf_counter()
        ours = np.array([session.embed(ids) for ids in few], np.float64)
        seconds, tokens = time.perf_counter() - started, sum(map(len, few))
        found = figures(exact, ours)
        kept = {key: found[key] for key in ("cosine_mean", "cosine_min", "nearest_agreement")}
        entries.append({"file": ONNX_FILES[engine], "tokens": tokens, "tokens_per_second": tokens / seconds, "threads": threads, **kept})
    return entries


def _measure(bundle, engine: str, reference, windows: list[list[int]], threads: int) -> dict:
    session = bundle.session(context=max(map(len, windows)), engine=engine, threads=threads)
    session.eval(windows[0])
    comparison, seconds = Comparison(), 0.0
    for window in windows:
        session.reset()
        started = time.perf_counter()
        logits = session.eval(window)
        seconds += time.perf_counter() - started
        reference.reset()
        comparison.add(reference.eval(window), logits, window[1:])
    result, tokens = comparison.result(), sum(map(len, windows))
    kept = {key: result[key] for key in ("kl_mean", "top1_agreement", "perplexity")}
    return {"file": ONNX_FILES[engine], "tokens": tokens, "tokens_per_second": tokens / seconds, "threads": threads, **kept}
