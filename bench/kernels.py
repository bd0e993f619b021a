"""Decode and prefill speed of each kernel set against the memory bandwidth measured in the same run.

    python bench/kernels.py [--weights w8g32|w8|w4g32] [--layers N] [--runs N] [--prompt N] [--tokens N] [--batch N] [--kv 8|16] [--json FILE]

The model is synthetic: random numbers in the shape of a 135M Llama (width 576, inner 1536, 30 layers, 49152 tokens). Kernel sets take
turns; the best run of each counts, because the machine may be doing something else. Decode is compared with the bytes of the weights over
the bandwidth, prefill with multiply-accumulates per second.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from decode import bandwidth, build_program
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from random_programs import Shape, random_program  # noqa: E402

from edgepos.compiler import gguf_file  # noqa: E402
from edgepos.program import Op  # noqa: E402
from edgepos.runtime.native import Image  # noqa: E402

SETS = {"generic": ("--generic",), "dispatched": ()}


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


def speeds(program: Path, model: Path, flags, prompt: int, tokens: int, batch: int) -> tuple[float, float, str]:
    """(prompt tokens per second, generated tokens per second, kernels) of one run."""
    ids = ",".join(str(7 * i % 1000) for i in range(prompt))
    command = [program, model, "--ids", ids, "-n", str(tokens + 1), "--ids-out", "--context", str(prompt + tokens + 1), "--batch", str(batch), *flags]
    said = subprocess.run([*command, "--ignore-eos"], check=True, capture_output=True, text=True).stderr
    rates = re.findall(r"([\d.]+) tokens/s", said)
    return float(rates[0]), float(rates[1]), re.search(r"(\S.*) kernels", said.rpartition(", ")[2])[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", choices=("w8g32", "w8", "w4g32"), default="w8g32")
    parser.add_argument("--kv", type=int, choices=(8, 16), default=16)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sets", nargs="*", choices=SETS, default=list(SETS))
    parser.add_argument("--program", type=Path, help="edgepos-run to measure; default: built here")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.gguf"
        macs = write_model(model, options.weights, options.layers, options.kv)
        weight_bytes = Image.open(model).info.weight_bytes_per_token
        program = options.program or build_program(Path(folder))
        best: dict[str, list[float]] = {}
        memory = 0.0
        for _ in range(options.runs):
            for name in options.sets:
                memory = max(memory, bandwidth())
                prefill, decode, kernels = speeds(program, model, SETS[name], options.prompt, options.tokens, options.batch)
                row = best.setdefault(kernels, [0.0, 0.0])
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
