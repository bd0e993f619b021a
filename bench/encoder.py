"""Speed of all-MiniLM-L6-v2 (batch 1) beside ONNX Runtime, in float and quantized by its own tool, all measured in this run.

    python bench/encoder.py [--tokens N] [--threads N ...] [--runs N] [--json FILE]

Sessions take turns; medians with minimum and maximum of the clock and of the processor time, which other programs disturb less. The
cosine is that of the embeddings to ONNX Runtime's float ones, over eight rows of token ids: the least of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from real_models import MINILM, fetch  # noqa: E402

import edgepos  # noqa: E402
from edgepos.export import load  # noqa: E402
from edgepos.float_session import FloatSession  # noqa: E402

FIRST, LAST = 1000, 29000  # ids of words


def quantized(folder: Path, model: Path) -> Path:
    """ONNX Runtime's dynamic int8 of the float graph's matrices, one scale per output channel. Its quantized Attention is not of this form."""
    out = folder / "int8.onnx"
    quantize_dynamic(model, out, op_types_to_quantize=["MatMul", "Gemm", "Gather"], per_channel=True, weight_type=QuantType.QInt8)
    return out


def sessions(folder: Path, threads: int) -> dict[str, object]:
    """name -> a session with embed(ids)."""
    source = fetch(MINILM)
    canonical = load(source)
    model = folder / "float.onnx"
    if not model.is_file():
        onnx_ir.save(canonical.model, model, external_data="float.data")
        quantized(folder, model)
    found = {
        f"onnxruntime {onnxruntime.__version__}, f32": FloatSession(str(model), threads=threads),
        f"onnxruntime {onnxruntime.__version__}, dynamic int8 per channel": FloatSession(str(folder / "int8.onnx"), threads=threads),
    }
    for weights in ("w8g32", "w8"):
        bundle = edgepos.export_bundle(canonical, folder / f"{weights}.edgepos", weights=weights, force=True)
        found[f"EdgePos, {weights} a16"] = bundle.session(context=256, threads=threads)
    return found


def timed(session, ids: list[int]) -> tuple[float, float]:
    """(seconds by the clock, of processor time) of one embedding."""
    wall, cpu = time.perf_counter(), time.process_time()
    session.embed(ids)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.threads) < 1 or max(options.threads) > (os.cpu_count() or 1):
        parser.error(f"--threads: this machine has 1 to {os.cpu_count()}")
    if not 2 <= options.tokens <= 256 or options.runs < 1:
        parser.error("--tokens: 2 to 256; --runs: at least 1")
    rng = np.random.default_rng(0)
    texts = [[101, *rng.integers(FIRST, LAST, options.tokens - 2).tolist(), 102] for _ in range(8)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        for threads in options.threads:
            found = sessions(Path(name), threads)
            embeddings = {label: np.array([session.embed(text) for text in texts], np.float64) for label, session in found.items()}
            exact = next(iter(embeddings.values()))
            times: dict[str, list[tuple[float, float]]] = {label: [] for label in found}
            for i in range(options.runs):
                for label, session in found.items():
                    times[label].append(timed(session, texts[i % len(texts)]))
            for label, taken in times.items():
                wall, cpu = ([1e3 * t[i] for t in taken] for i in range(2))
                row = {"engine": label, "threads": threads, "ms": statistics.median(wall), "ms_min": min(wall), "ms_max": max(wall)}
                rows.append(row | {"cpu_ms": statistics.median(cpu), "cpu_ms_min": min(cpu), "cosine_min": float((exact * embeddings[label]).sum(1).min())})
    table = Table(*rows[0], title=f"all-MiniLM-L6-v2, {options.tokens} tokens, batch 1", title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:.5f}" if key == "cosine_min" else f"{value:.1f}" if isinstance(value, float) else str(value) for key, value in row.items()))
    Console(width=150).print(table)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
