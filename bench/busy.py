"""Decode with 1 and more threads while another program keeps one processor busy: more threads must not be slower by more than a tenth.

    python bench/busy.py BUNDLE [--threads N] [--runs N] [--tokens N] [--json FILE]

A loop runs on the first processor this program may use. Runs with 1 and N threads take turns; medians of tokens per second are
compared. The exit status is 1 when N threads are below 0.9 of one. Before the threads find out, they wait for a processor that was taken
away, once for a few milliseconds: runs should last for a second or longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from decode import build_program, generate

import edgepos

LEAST = 0.9
LOOP = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mine = sorted(os.sched_getaffinity(0))
    if not 2 <= options.threads <= len(mine):
        parser.error(f"--threads: 2 to {len(mine)}, the processors this program may use")
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        program = build_program(Path(name))
        bundle = edgepos.open(options.bundle)
        tokens = min(options.tokens, bundle.context - 1)
        speeds: dict[int, list[float]] = {1: [], options.threads: []}
        loop = subprocess.Popen([sys.executable, "-c", LOOP, str(mine[0])])
        try:
            for _ in range(options.runs):
                for threads, found in speeds.items():
                    found.append(generate(program, bundle.model_path, tokens, threads)[0])
        finally:
            loop.kill()
            loop.wait()
    one, more = (statistics.median(found) for found in speeds.values())
    print(f"one processor busy: 1 thread {one:.0f} tokens/s, {options.threads} threads {more:.0f} tokens/s, {more / one:.2f} of it")
    if options.json:
        options.json.write_text(json.dumps({"one": one, "threads": options.threads, "more": more}, indent=1) + "\n")
    return 0 if more >= LEAST * one else 1


if __name__ == "__main__":
    sys.exit(main())
