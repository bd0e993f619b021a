"""Decode speed of `edgepos-run` against the memory bandwidth of this machine, measured in the same run.

    python bench/decode.py [BUNDLE ...] [--position N] [--tokens N] [--threads N] [--runs N] [--copy] [--program PATH] [--json FILE]

Without bundles the tiny models are exported. --position: tokens of a prompt in front. Rows: tokens per second (median of the runs), bytes
read per token, of weights and KV cache, the bound bandwidth / bytes and the share of it, peak resident memory of the program beside
file + KV + 30 MB. Small models fit in the caches: their bound is that of memory and says nothing about them.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import edgepos
from edgepos.resources import TINY_MODELS, c_runtime_dir, tiny_model_dir
from edgepos.runtime.profile import bandwidth


def build_program(folder: Path) -> Path:
    """edgepos-run built from the packaged sources at -O3."""
    build = folder / "build"
    source = c_runtime_dir()
    subprocess.run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--target", "edgepos-run"], check=True, stdout=subprocess.DEVNULL)
    return next(p for p in build.rglob("edgepos-run") if p.is_file())


def generate(program: Path, model: Path, tokens: int, threads: int = 1, prompt: int = 1, copy: bool = False) -> tuple[float, int]:
    """(tokens per second behind a prompt of so many, peak resident bytes) of one run."""
    ids = ",".join(str(7 * i % 251 + 1) for i in range(prompt))
    command = [program, model, "--ids", ids, "-n", str(tokens), "--context", str(prompt + tokens), "--no-eos", "--ids-out", "--threads", str(threads)]
    command += ["--copy"] * copy
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    # Asked of the running process: what wait4 tells afterwards includes this process's own memory before exec.
    peak = 0
    while child.poll() is None:
        try:
            found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child.pid}/status").read_text())
        except OSError:
            break
        peak = max(peak, int(found.group(1)) * 1024 if found else 0)
        time.sleep(0.002)
    message, status = child.stderr.read(), child.wait()
    speed = re.search(r"generation: .*?([\d.]+) tokens/s", message)
    if status or not speed:
        sys.exit(f"{program}: {message.strip()}")
    return float(speed.group(1)), peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--position", type=int, default=1, help="tokens in front of those that are generated")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--copy", action="store_true", help="as edgepos-run --copy")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--program", type=Path, help="an edgepos-run that is already built")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        folder = Path(name)
        program = a.program or build_program(folder)
        paths = a.bundles or [edgepos.export_bundle(tiny_model_dir(m), folder / f"{m}.edgepos").path for m in TINY_MODELS]
        rate = bandwidth(a.threads)
        rows = []
        for path in paths:
            bundle = edgepos.open(path)
            info = bundle.image.info
            tokens = min(a.tokens, bundle.context - a.position)
            if tokens < 1:
                sys.exit(f"{path}: --position {a.position}: its context has room for {bundle.context} tokens")
            results = [generate(program, bundle.model_path, tokens, a.threads, a.position, a.copy) for _ in range(a.runs)]
            rate = max(rate, bandwidth(a.threads))
            speeds = [speed for speed, _ in results]
            per_token = info.weight_bytes_per_token + info.kv_bytes_per_token * (a.position + tokens // 2)
            allowed = bundle.model_path.stat().st_size + info.kv_bytes_per_token * (a.position + tokens) + 30_000_000
            rows.append(
                {
                    "model": path.stem, "tokens_per_second": statistics.median(speeds), "min": min(speeds), "max": max(speeds),
                    "threads": a.threads, "position": a.position, "bytes_per_token": per_token, "bound": rate / per_token, "bandwidth": rate,
                    "rss": max(rss for _, rss in results), "rss_allowed": allowed,
                }  # fmt: skip
            )
    table = Table(title=f"Decode at position {a.position}, {a.threads} thread{'s' * (a.threads > 1)}; memory reads {rate / 1e9:.1f} GB/s in this run", title_justify="left")
    for column in ("model", "tokens/s", "min…max", "bytes/token", "bound tokens/s", "of it", "peak RSS MB", "file + KV + 30 MB"):
        table.add_column(column, justify="right")
    for r in rows:
        table.add_row(
            r["model"], f"{r['tokens_per_second']:.0f}", f"{r['min']:.0f}…{r['max']:.0f}", f"{r['bytes_per_token']:,}",
            f"{r['bound']:.0f}", f"{r['tokens_per_second'] / r['bound']:.0%}", f"{r['rss'] / 1e6:.1f}", f"{r['rss_allowed'] / 1e6:.1f}",
        )  # fmt: skip
    Console(width=140).print(table)
    if a.json:
        a.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
