"""Accuracy of every format on the built-in, shared and real models, and of llama.cpp on the same tokens.

    python bench/accuracy.py [--models NAME ...] [--llama FOLDER] [--json FILE] [--quick]

stories260K: the 24 stories of TinyStories that its published figure is measured on (shared text). Tiny models: the same stories.
SmolLM2-135M-Instruct: the first 4 x 512 tokens of WikiText-2 (shared text); with --llama, llama.cpp too, built in FOLDER on first use.
Reference: the float graph in ONNX Runtime. "float, same weights" is that graph with the bundle's own dequantized weights, so only the
integer arithmetic is left.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from unittest.mock import patch

import accuracy_smollm2
import numpy as np
from llama_cpp import prepare
from rich.console import Console
from rich.table import Table

import edgepos
from edgepos.compiler import weights as weight_formats
from edgepos.export import load
from edgepos.report.accuracy import compare
from edgepos.report.windows import stories
from edgepos.resources import TINY_MODELS, tiny_model_dir

ROOT = Path(__file__).resolve().parent.parent
FORMATS = [
    ("w8g32", "a16", "kv16"), ("w8g32", "a16", "kv8"), ("w8", "a16", "kv16"), ("w8", "a16", "kv8"), ("w4g32", "a16", "kv16"),
    ("w8g32", "a8g32", "kv16"), ("w8g32", "a8g32", "kv8"), ("w8", "a8g32", "kv16"), ("w4g32", "a8g32", "kv16"),
]  # fmt: skip


def sources(shared: Path) -> dict[str, Path]:
    """Name and path of every model measured here."""
    found = {"stories260K": shared / "models" / "stories260K" / "stories260K.bin"}
    return found | {name: tiny_model_dir(name) for name in TINY_MODELS}


def story_windows(bundle, text: str, count: int) -> list[list[int]]:
    """Token ids of the first stories, each with its BOS, cut at the context."""
    return [bundle.tokenizer.encode(story)[: bundle.context] for story in stories(text, count)]


class Shifted:
    """A session whose tokens sit `by` positions later."""

    def __init__(self, session, by: int):
        self.session, self.by = session, by

    def reset(self) -> None:
        self.session.reset()

    def eval(self, ids) -> np.ndarray:
        return self.session.eval(ids, positions=np.arange(self.by, self.by + len(ids)))


def rows_of(name: str, source: Path, text: str, count: int, folder: Path) -> list[dict]:
    """One row per format and comparison."""
    canonical = load(source)
    reference = edgepos.reference(canonical)
    rows = []
    for weights, activations, kv in FORMATS:
        label = f"{weights} {activations} {kv}"
        bundle = edgepos.export_bundle(source, folder / f"{name}-{label}.edgepos", weights=weights, activations=activations, kv=kv)
        windows = story_windows(bundle, text, count)
        rows.append({"model": name, "format": label, "against": "float", **compare(reference, bundle.session(), windows)})
        if label == "w8g32 a16 kv16":
            own = edgepos.reference(canonical, weights_of=bundle)
            rows.append({"model": name, "format": label, "against": "float, same weights", **compare(own, bundle.session(), windows)})
            shifted = Shifted(bundle.session(), 1000)
            rows.append({"model": name, "format": label + ", positions + 1000", "against": "float", **compare(reference, shifted, windows)})
            onnx = bundle.session(engine="onnx")
            rows.append({"model": name, "format": "model.onnx", "against": label, **compare(bundle.session(), onnx, windows)})
    # Group scales of 8 bits are no format of a bundle; their accuracy is that of 16-bit ones that never exceed 255.
    with patch.object(weight_formats, "SCALE_MAX", 255):
        bundle = edgepos.export_bundle(source, folder / f"{name}-8.edgepos")
    row = {"model": name, "format": "w8g32 a16 kv16, 8-bit group scales", "against": "float"}
    return [*rows, row | compare(reference, bundle.session(), windows)]


def table(rows: list[dict]) -> Table:
    """The rows as a table for a terminal."""
    out = Table(title="Accuracy (KL in nats)", title_justify="left")
    for column in ("model", "format", "against"):
        out.add_column(column)
    for column in ("tokens", "nats/token", "perplexity", "change", "KL", "KL p99", "top-1", "max error", "saturations", "bytes"):
        out.add_column(column, justify="right")
    for r in rows:
        out.add_row(
            r["model"], r["format"], r["against"], str(r["tokens"]), f"{r['nats_per_token']:.4f}", f"{r['perplexity']:.4f}",
            f"{r['perplexity'] / r['perplexity_float'] - 1:+.3%}", f"{r['kl_mean']:.2e}", f"{r['kl_p99']:.2e}",
            f"{r['top1_agreement']:.2%}", f"{r['max_logit_error']:.3g}", str(r.get("saturations", "")), f"{r['bytes']:,}" if "bytes" in r else "",
        )  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the rows here")
    parser.add_argument("--quick", action="store_true", help="4 stories instead of 24")
    parser.add_argument("--llama", type=Path, metavar="FOLDER", help="measure llama.cpp too; it is downloaded and built in this folder once")
    parser.add_argument("--threads", type=int, default=1, help="of SmolLM2's sessions")
    shared = Path(os.environ.get("EDGEPOS_SHARED", ROOT.parent / "shared"))
    known = [*sources(shared), accuracy_smollm2.MODEL]
    parser.add_argument("--models", nargs="+", choices=known, default=known)
    arguments = parser.parse_args()
    text = (shared / "text" / "tinystories.txt").read_text("utf-8")
    rows = []
    with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
        for name, source in sources(shared).items():
            if name in arguments.models:
                rows += rows_of(name, source, text, 4 if arguments.quick else 24, Path(folder))
    if accuracy_smollm2.MODEL in arguments.models:
        llama = None if arguments.llama is None else prepare(arguments.llama.resolve())
        for row in accuracy_smollm2.rows(shared / "text" / "wikitext2_part1.txt", arguments.threads, llama):
            rows.append(row)
            print(json.dumps(row), flush=True)  # it takes minutes: show what is known
    Console(width=220).print(table(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
