"""The `onnx` section: both forms of model.onnx in ONNX Runtime, their accuracy against the float model and their speed."""

from __future__ import annotations

import time

from ..bundle import ONNX_FILES
from .metrics import Comparison

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
    figures = {key: result[key] for key in ("kl_mean", "top1_agreement", "perplexity")}
    return {"file": ONNX_FILES[engine], "tokens": tokens, "tokens_per_second": tokens / seconds, "threads": threads, **figures}
