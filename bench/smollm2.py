"""SmolLM2-135M from its GGUF file in integers: accuracy on pinned text, time and memory of the export, of the start and of edgepos-run.

    python bench/smollm2.py TEXT [--weights source w8g32 ...] [--kv kv16]

TEXT is a UTF-8 text whose first 4 x 512 tokens are measured (../shared/text/wikitext2_part1.txt for the figures of
docs/families.md). The model is fetched once by tests/real_models.py. start_ms: processor time from a closed file to the first
logits, beyond that of a token itself; rss_mb: peak of edgepos-run beside file + KV + 30 MB (rss_allowed_mb).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from decode import build_program, generate

import edgepos
from edgepos import export_bundle
from edgepos.export import load
from edgepos.float_session import FloatSession
from edgepos.report.metrics import Comparison

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from real_models import SMOLLM2, fetch  # noqa: E402

WINDOWS, TOKENS = 4, 512


def start_and_memory(path: Path, program: Path) -> dict[str, float]:
    """start_ms, rss_mb and rss_allowed_mb of a bundle."""
    extra = []
    for _ in range(5):
        started = time.process_time()
        bundle = edgepos.open(path)
        session = bundle.session(context=TOKENS)
        session.eval_int([1], logits="last")
        first = time.process_time()
        session.eval_int([2], logits="last")
        extra.append((first - started) - (time.process_time() - first))
    kv = TOKENS * bundle.image.info.kv_bytes_per_token
    _, peak = generate(program, bundle.model_path, TOKENS - 1)
    start = round(statistics.median(extra) * 1e3, 1)
    return {"start_ms": start, "rss_mb": round(peak / 1e6, 1), "rss_allowed_mb": round((bundle.model_path.stat().st_size + kv) / 1e6 + 30, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("--weights", nargs="+", default=["source", "w8g32"])
    parser.add_argument("--kv", default="kv16")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    path = fetch(SMOLLM2) / SMOLLM2.files[0][0]
    canonical = load(path)
    ids = canonical.tokenizer.library().encode(options.text.read_text("utf-8"), add_special_tokens=False).ids[: WINDOWS * TOKENS]
    windows = [ids[at : at + TOKENS] for at in range(0, len(ids), TOKENS)]
    with tempfile.TemporaryDirectory() as folder:
        bundles = {}
        for weights in options.weights:  # before the float model is in memory, so that the peak is the export's
            started = time.monotonic()
            bundles[weights] = export_bundle(path, Path(folder) / f"{weights}.edgepos", weights=weights, kv=options.kv)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(json.dumps({"weights": weights, "export_seconds": round(time.monotonic() - started, 1), "peak_gb": round(peak, 2)}), flush=True)
        program = build_program(Path(folder))
        for weights, bundle in bundles.items():
            print(json.dumps({"weights": weights} | start_and_memory(bundle.path, program)), flush=True)
        floats = FloatSession(canonical.model, threads=options.threads)
        reference = []
        for window in windows:
            floats.reset()
            reference.append(floats.eval(window))
        for weights, bundle in bundles.items():
            comparison, saturations = Comparison(), 0
            session = bundle.session(context=TOKENS, threads=options.threads)
            for window, logits in zip(windows, reference):
                session.reset()
                comparison.add(logits, session.eval(window), np.array(window[1:]))
                saturations += session.saturations
            size = bundle.model_path.stat().st_size
            print(json.dumps({"weights": weights, "kv": options.kv, "model_bytes": size, "saturations": saturations} | comparison.result()), flush=True)


if __name__ == "__main__":
    main()
