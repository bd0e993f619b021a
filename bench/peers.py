"""Speed, memory and accuracy of SmolLM2-135M beside llama.cpp, ONNX Runtime and CTranslate2, all measured in this run.

    python bench/peers.py [--llama FOLDER] [--llama2c CHECKOUT] [--threads N ...] [--runs N] [--prompt N] [--tokens N] [--json FILE]

The engines take turns, so that a busy machine meets all of them; medians with minimum and maximum are printed. An engine's processor
time is what a run takes beyond a run of one token, which is less disturbed by other programs than the clock. llama.cpp is built in
FOLDER on first use from the llama-cpp-python sdist. What cannot be had leaves its row out, with the reason. KL (nats per token, against
the dequantized float model) is measured on the first 512 tokens of WikiText-2 when EDGEPOS_SHARED is set.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
from decode import build_program
from llama_cpp import LlamaCpp, prepare
from peer_engines import Engine, Measured, ctranslate2_engine, edgepos_engine, llama2c_engine, llama_engine, onnxruntime_engine
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from real_models import SMOLLM2, fetch  # noqa: E402

import edgepos  # noqa: E402
from edgepos.export import CanonicalModel, load  # noqa: E402
from edgepos.float_session import FloatSession  # noqa: E402
from edgepos.report.metrics import Comparison  # noqa: E402
from edgepos.runtime.profile import bandwidth  # noqa: E402

KL_TOKENS = 512


class Divergence:
    """KL of an engine's logits from the float model's on one window of text."""

    def __init__(self, canonical: CanonicalModel, text: Path, threads: int):
        self.window = canonical.tokenizer.library().encode(text.read_text("utf-8"), add_special_tokens=False).ids[:KL_TOKENS]
        self.reference = FloatSession(canonical.model, threads=threads).eval(self.window)

    def of(self, logits: np.ndarray) -> float:
        comparison = Comparison()
        comparison.add(self.reference, logits, np.array(self.window[1:]))
        return float(comparison.column("kl").mean())


def engines(options, folder: Path, canonical: CanonicalModel, source: Path, divergence: Divergence | None) -> tuple[list[Engine], list[str]]:
    """The engines that can be had, and why others cannot."""
    found, missing = [], []
    program = build_program(folder)
    for label, weights in (("w8g32 a16 kv16", "w8g32"), ("w8g32 a8g32 kv16", "w8g32"), ("w4g32 a16 kv16", None), ("w4g32 a8g32 kv16", None)):
        bundle = edgepos.export_bundle(canonical, folder / f"{label}.edgepos", weights=weights, activations=label.split()[1], kv="kv16")
        kl = divergence and divergence.of(bundle.session(context=KL_TOKENS).eval(divergence.window))
        info, kv = bundle.image.info, bundle.image.info.kv_bytes_per_token * options.tokens // 2
        found.append(edgepos_engine("EdgePos", label, program, bundle.model_path, info.weight_bytes_per_token + kv, kl))
    if options.llama:
        found += llama_rows(prepare(options.llama), source, canonical.vocab_size, divergence)
    else:
        missing.append("llama.cpp: give --llama FOLDER, where it is built")
    for make in (onnxruntime_engine, ctranslate2_engine):
        try:
            found.append(make(folder, source, canonical))
        except (ImportError, OSError, RuntimeError, ValueError) as error:
            missing.append(f"{make.__name__.removesuffix('_engine')}: {str(error).splitlines()[0]}")
    if options.llama2c:
        shared = Path(os.environ.get("EDGEPOS_SHARED", "")) / "models" / "stories260K"
        if (shared / "stories260K.bin").is_file():
            found += llama2c_engine(options.llama2c, folder, shared, program)
        else:
            missing.append("llama2.c: EDGEPOS_SHARED has no models/stories260K")
    else:
        missing.append("llama2.c: give --llama2c CHECKOUT")
    return found, missing


def llama_rows(llama: LlamaCpp, source: Path, vocab: int, divergence: Divergence | None):
    for label, kind in (("Q8_0", "Q8_0"), ("Q4_0", "Q4_0"), ("Q4_1, its file", None)):
        model = source if kind is None else llama.quantize(source, kind)
        kl = divergence and divergence.of(next(llama.logits(model, "f16", [divergence.window], vocab)))
        yield llama_engine(label, llama.bin / "llama-bench", model, kl)


def row_of(engine: Engine, threads: int, runs: list[Measured], rate: float) -> dict:
    """One row of the result: medians over the runs."""

    def figures(name: str) -> dict:
        values = [value for run in runs if (value := getattr(run, name)) is not None]
        if not values:
            return {name: None}
        return {name: statistics.median(values), f"{name}_min": min(values), f"{name}_max": max(values)}

    row = {"engine": engine.name, "format": engine.format, "model": engine.model, "threads": threads}
    for name in ("prefill_tps", "decode_tps", "prefill_cpu_tps", "decode_cpu_tps"):
        row |= figures(name)
    row |= {"bytes_per_token": engine.bytes_per_token, "bound_tps": engine.bytes_per_token and rate / engine.bytes_per_token}
    return row | {"rss_mb": max(run.rss for run in runs) / 1e6, "file_mb": engine.file_bytes / 1e6, "kl": engine.kl}


def show(rows: list[dict], missing: list[str], rates: dict[int, float]) -> None:
    title = "; ".join(f"{threads} thread{'s' * (threads > 1)}: memory reads {rate / 1e9:.1f} GB/s" for threads, rate in rates.items())
    table = Table(title=title, title_justify="left")
    columns = ("engine", "format", "threads", "prefill t/s", "per CPU s", "decode t/s", "min…max", "per CPU s", "MB/token", "of bound", "RSS MB", "file MB", "KL")
    for column in columns:
        table.add_column(column, justify="right")

    def number(value, form: str = ".0f") -> str:
        return "" if value is None else format(value, form)

    for r in rows:
        bound = r["decode_tps"] / r["bound_tps"] if r["decode_tps"] and r["bound_tps"] else None
        spread = f"{number(r.get('decode_tps_min'))}…{number(r.get('decode_tps_max'))}"
        table.add_row(
            f"{r['engine']}, {r['model']}", r["format"], str(r["threads"]), number(r["prefill_tps"]), number(r["prefill_cpu_tps"]), number(r["decode_tps"]),
            spread, number(r["decode_cpu_tps"]), number(r["bytes_per_token"] and r["bytes_per_token"] / 1e6), number(bound, ".0%"),
            number(r["rss_mb"]), number(r["file_mb"]), number(r["kl"], ".5f"),
        )  # fmt: skip
    console = Console(width=170)
    console.print(table)
    for reason in missing:
        console.print(f"left out: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--llama", type=Path, help="folder where llama.cpp is built, or already is")
    parser.add_argument("--llama2c", type=Path, help="a checkout of llama2.c")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--only", nargs="+", help="engines by name")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if min(options.threads) < 1 or max(options.threads) > (os.cpu_count() or 1):
        parser.error(f"--threads: this machine has 1 to {os.cpu_count()}")
    if options.prompt < 2 or options.tokens < 2 or options.runs < 1:
        parser.error("--prompt and --tokens: at least 2; --runs: at least 1")
    source = fetch(SMOLLM2) / SMOLLM2.files[0][0]
    canonical = load(source)
    text = Path(os.environ.get("EDGEPOS_SHARED", "")) / "text" / "wikitext2_part1.txt"
    divergence = Divergence(canonical, text, max(options.threads)) if text.is_file() else None
    rows, rates = [], {}
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        found, missing = engines(options, Path(name), canonical, source, divergence)
        found = [engine for engine in found if not options.only or engine.name in options.only]
        for threads in options.threads:
            runs: dict[int, list[Measured]] = {i: [] for i in range(len(found))}
            rates[threads] = 0.0
            for _ in range(options.runs):
                rates[threads] = max(rates[threads], bandwidth(threads))
                for i, engine in enumerate(found):
                    runs[i].append(engine.run(min(options.prompt, engine.context), min(options.tokens, engine.context), threads))
            rows += [row_of(engine, threads, runs[i], rates[threads]) for i, engine in enumerate(found)]
    show(rows, missing, rates)
    if options.json:
        options.json.write_text(json.dumps({"bandwidth": rates, "rows": rows, "left_out": missing}, indent=1) + "\n")


if __name__ == "__main__":
    main()
