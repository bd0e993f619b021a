"""Decode and prefill speed of each kernel set against the memory bandwidth measured in the same run.

    python bench/kernels.py [--weights w8g32|w8|w4g32] [--layers N] [--runs N] [--prompt N] [--tokens N] [--batch N] [--kv 8|16] [--json FILE]

The model is synthetic: random numbers in the shape of a 135M Llama (width 576, inner 1536, 30 layers, 49152 tokens). Kernel sets take
turns in one thread, timed by the processor time they get, and the best run of each counts, because the machine may be doing something
else. Decode is compared with the bytes of the weights over the bandwidth, prefill with multiply-accumulates per second.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from random_programs import Shape, random_program  # noqa: E402

from edgepos.compiler import gguf_file  # noqa: E402
from edgepos.program import Op  # noqa: E402
from edgepos.runtime.native import Image, kernel_sets  # noqa: E402
from edgepos.runtime.session import CSession  # noqa: E402


def write_model(path: Path, weights: str, layers: int, kv: int):
    """A model.gguf of random numbers; returns the multiply-accumulates of a prompt's token."""
    shape = Shape(
        heads=9, kv_heads=3, head_dim=64, v_dim=64, pairs=32, layout=0, grouped=weights != "w8", w4=weights == "w4g32",
        kv_bits=kv, layers=layers, width=576, inner=1536, vocab=49152, context=8192,
    )  # fmt: skip
    program = random_program(np.random.default_rng(0), shape)
    gguf_file.write(path, program, gguf_file.Facts(name="synthetic", license=""))
    body = [op for op in program.ops[: program.header.head_start] if op.code == Op.LINEAR]
    return sum(program.values[op.out].width * program.values[op.ins[0]].width for op in body)


def bandwidth() -> float:
    """Bytes per second that one thread reads from memory: the best of several sums over 512 MB."""
    block = np.ones(1 << 26, np.int64)
    times = []
    for _ in range(5):
        started = time.process_time()
        block.max()
        times.append(time.process_time() - started)
    return block.nbytes / min(times)


def speeds(image: Image, kernels: str, prompt: int, tokens: int, batch: int) -> tuple[float, float]:
    """(prompt tokens per second, generated tokens per second of the best eight in a row) of one run."""
    session = CSession(image, context=prompt + tokens, n_batch=batch, kernels=kernels)
    started = time.process_time()
    session.eval_int([7 * i % 1000 for i in range(prompt)], logits="none")
    prefill = prompt / (time.process_time() - started)
    stamps = [time.process_time()]
    for _ in range(tokens):
        session.eval_int([session.argmax()], logits="none")
        stamps.append(time.process_time())
    best = min(later - earlier for earlier, later in zip(stamps, stamps[8:], strict=False))
    return prefill, 8 / best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=("w8g32", "w8", "w4g32"), default="w8g32")
    parser.add_argument("--kv", type=int, choices=(8, 16), default=16)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=24, help="at least 8")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sets", nargs="*", choices=kernel_sets(), default=kernel_sets(), help="kernel sets of this processor")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    best: dict[str, list[float]] = {}
    memory = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        macs = write_model(model, options.weights, options.layers, options.kv)
        image = Image(model.read_bytes(), "synthetic")
        weight_bytes = image.info.weight_bytes_per_token
        for _ in range(options.runs):
            for name in options.sets:
                memory = max(memory, bandwidth())
                prefill, decode = speeds(image, name, options.prompt, options.tokens, options.batch)
                row = best.setdefault(name, [0.0, 0.0])
                row[:] = max(row[0], prefill), max(row[1], decode)
    rows = [
        {
            "kernels": kernels, "prefill_tps": prefill, "prefill_gmacs": prefill * macs / 1e9, "decode_tps": decode,
            "decode_of_bandwidth": decode * weight_bytes / memory,
        }
        for kernels, (prefill, decode) in best.items()
    ]  # fmt: skip
    table = Table(*rows[0], title=f"{options.weights} kv{options.kv}, {weight_bytes / 1e6:.0f} MB per token, memory {memory / 1e9:.1f} GB/s")
    for row in rows:
        table.add_row(*(value if isinstance(value, str) else f"{value:.2f}" for value in row.values()))
    Console(width=120).print(table)
    if options.json:
        options.json.write_text(json.dumps({"bandwidth": memory, "weight_bytes": weight_bytes, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
