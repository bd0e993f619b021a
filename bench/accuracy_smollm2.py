"""SmolLM2-135M in every format, and llama.cpp on the same tokens, against the dequantized float model of the same file."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
from llama_cpp import LlamaCpp

import edgepos
from edgepos.compiler import weights as weight_formats
from edgepos.export import load
from edgepos.file_hash import sha256_of
from edgepos.float_session import FloatSession
from edgepos.report.metrics import Comparison

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from real_models import SMOLLM2, fetch  # noqa: E402

MODEL = "SmolLM2-135M-Instruct"
WINDOWS, TOKENS, LONG = 4, 512, 4000
PIECE = 500  # tokens of a long window whose logits are in memory at a time
FORMATS = [  # label, weights, activations and kv, whether the file's integers are hidden from the compiler, largest group scale
    ("w4g32 source grid, kv16", None, "a16", "kv16", False, None),
    ("w4g32 source grid, kv8", None, "a16", "kv8", False, None),
    ("w8g32, kv16", "w8g32", "a16", "kv16", False, None),
    ("w8g32, kv8", "w8g32", "a16", "kv8", False, None),
    ("w8g32 from float, 16-bit group scales, kv16", "w8g32", "a16", "kv16", True, None),
    ("w8g32 from float, 8-bit group scales, kv16", "w8g32", "a16", "kv16", True, 255),
    ("w8, kv16", "w8", "a16", "kv16", False, None),
    ("w4g32 from float, kv16", "w4g32", "a16", "kv16", True, None),
    ("w4g32 source grid, a8g32, kv16", None, "a8g32", "kv16", False, None),
    ("w8g32, a8g32, kv16", "w8g32", "a8g32", "kv16", False, None),
    ("w8g32, a8g32, kv8", "w8g32", "a8g32", "kv8", False, None),
]
PEERS = [("its file, Q4_1", None, "f16"), ("Q8_0", "Q8_0", "f16"), ("Q8_0, KV q8_0", "Q8_0", "q8_0"), ("Q4_K_M", "Q4_K_M", "f16"), ("Q4_0", "Q4_0", "f16")]
CHINESE = (
    "道可道，非常道；名可名，非常名。无名天地之始，有名万物之母。故常无欲，以观其妙；常有欲，以观其徼。此两者同出而异名，同谓之玄，玄之又玄，众妙之门。"
    "子曰：学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？"
)


def rows(text: Path, threads: int, llama: LlamaCpp | None) -> Iterable[dict]:
    """One row per format and peer on the first 4 x 512 tokens of the text, whose SHA-256 is in the rows of that very text."""
    digest = sha256_of(text)
    for row in _rows(text, threads, llama):
        yield row | ({"text_sha256": digest} if row["tokens"] == WINDOWS * (TOKENS - 1) else {})


def _rows(text: Path, threads: int, llama: LlamaCpp | None) -> Iterable[dict]:
    source = fetch(SMOLLM2) / SMOLLM2.files[0][0]
    canonical = load(source)
    ids = canonical.tokenizer.library().encode(text.read_text("utf-8"), add_special_tokens=False).ids
    windows = [ids[at : at + TOKENS] for at in range(0, WINDOWS * TOKENS, TOKENS)]
    floats = FloatSession(canonical.model, threads=threads)
    reference = [_fresh(floats, window) for window in windows]
    if llama is not None:
        yield from _peer_rows(llama, source, canonical, reference, windows, threads)
    with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
        for label, weights, activations, kv, hidden, largest in FORMATS:
            given = replace(canonical, grids={}) if hidden else canonical
            with patch.object(weight_formats, "SCALE_MAX", largest or weight_formats.SCALE_MAX):
                bundle = edgepos.export_bundle(given, Path(folder) / "model.edgepos", weights=weights, activations=activations, kv=kv, force=True)
            session = bundle.session(context=TOKENS, threads=threads)
            saturations, found = 0, []
            comparison = Comparison()
            for window, logits in zip(windows, reference):
                found.append(_fresh(session, window))
                comparison.add(logits, found[-1], np.array(window[1:]))
                saturations += session.saturations
            row = {"model": MODEL, "format": label, "against": "float", **comparison.result(), "saturations": saturations}
            yield row | {"bytes": bundle.model_path.stat().st_size}
            if label in (FORMATS[0][0], FORMATS[2][0]):
                own = FloatSession(canonical.model, weights=bundle.dequantized_weights(), threads=threads)
                comparison = Comparison()
                for window, logits in zip(windows, found):
                    comparison.add(_fresh(own, window), logits, np.array(window[1:]))
                yield {"model": MODEL, "format": label, "against": "float, same weights", **comparison.result()}
                yield _long_row(label, own, bundle, ids[:LONG], threads)
            if label == FORMATS[0][0]:
                yield from _unseen(bundle, floats, threads)


def _fresh(session, window: list[int]) -> np.ndarray:
    session.reset()
    return session.eval(window)


def _long_row(label: str, own: FloatSession, bundle, ids: list[int], threads: int) -> dict:
    """The integer arithmetic alone over one long window."""
    session, comparison = bundle.session(context=len(ids), threads=threads), Comparison()
    own.reset()
    for at in range(0, len(ids), PIECE):
        part = ids[at : at + PIECE]
        comparison.add(own.eval(part), session.eval(part), np.array(ids[at + 1 : at + 1 + len(part)]))
    return {"model": MODEL, "format": f"{label}, {len(ids)} tokens", "against": "float, same weights", **comparison.result(), "saturations": session.saturations}


def _unseen(bundle, floats: FloatSession, threads: int) -> Iterable[dict]:
    """What the counters say on text unlike the calibration's."""
    code = (Path(__file__).resolve().parent.parent / "c_runtime" / "src" / "attention.c").read_text("utf-8")
    for name, text in (("C source", code), ("Chinese", CHINESE)):
        ids = bundle.tokenizer.encode(text)[:TOKENS]
        session, comparison = bundle.session(context=TOKENS, threads=threads), Comparison()
        comparison.add(_fresh(floats, ids), session.eval(ids), np.array(ids[1:]))
        yield {"model": MODEL, "format": f"{FORMATS[0][0]}, {name}", "against": "float", **comparison.result(), "saturations": session.saturations}


def _peer_rows(llama: LlamaCpp, source: Path, canonical, reference: list[np.ndarray], windows: list[list[int]], threads: int) -> Iterable[dict]:
    """llama.cpp on the same ids; first its own float model, which the reference must equal."""
    vocab = canonical.vocab_size
    text = llama.made / "pinned.txt"
    text.write_text(canonical.tokenizer.library().decode([i for window in windows for i in window], skip_special_tokens=False), "utf-8")
    theirs = llama.token_ids(source, text)
    same = theirs == [i for window in windows for i in window]
    floats = llama.quantize(source, "F32")
    for label, kind, kv in [("F32, KV f32", "F32", "f32"), *PEERS]:
        model = source if kind is None else llama.quantize(source, kind)
        comparison = Comparison()
        for window, logits, other in zip(windows, reference, llama.logits(model, kv, windows, vocab, threads)):
            comparison.add(logits, other, np.array(window[1:]))
        row = {"model": MODEL, "format": f"llama.cpp {label}", "against": "float", **comparison.result(), "bytes": model.stat().st_size}
        if kind != "F32" and kv == "f16" and same:
            kl, top1 = llama.perplexity_kl(floats, model, text, len(windows), TOKENS)
            row |= {"llama_perplexity_kl": kl, "llama_perplexity_top1": top1}
        yield row | {"same_ids_by_their_tokenizer": same}
