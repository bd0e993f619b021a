"""Executed instructions per token on emulated ARM processors, beside llama.cpp's under the same emulator.

    python bench/arm.py [BUNDLE ...] [--plugin FILE] [--on NAME ...] [--json FILE] [--no-attention] [--no-mca]

BUNDLE: exported models; tiny-rope is always counted, the Cortex-M boards take only it. The counter is a qemu TCG plugin that writes
"insns SYMBOL COUNT" lines to $SYMCOUNT_OUT, as a C source or built; default: tools/symcount/symcount.c of $EDGEPOS_SHARED. Counts are
differences of two runs of different length, so loading and start-up are not in them, and exact: one run is enough.
llama.cpp's figures (SmolLM2-135M Q8_0, GCC 12.2 -O3, one thread, short context) hold for a SmolLM2-135M bundle. Instructions are not cycles.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from kernels import write_model
from rich.console import Console
from rich.table import Table

import edgepos
from edgepos.errors import EdgePosError
from edgepos.resources import c_runtime_dir, tiny_model_dir
from edgepos.sampling import Sampling
from edgepos.targets import BOARDS, tools
from edgepos.targets.baremetal import BareMetalBoard
from edgepos.targets.boards import Job

LINUX = ("cortex-a72", "cortex-a76", "max")
BARE = ("cortex-m4", "cortex-m55")
PREFILL, DECODE, FIRST = 64, 3, 20  # tokens; the id of the first one, after which no model of these ends the text
# Million instructions per token of llama.cpp Q8_0, and how much of them w8g32 may take with a16 and with a8g32.
LLAMA_CPP = {("cortex-a72", "decode"): 125.1, ("cortex-a72", "prefill"): 97.1, ("cortex-a76", "decode"): 32.5, ("cortex-a76", "prefill"): 19.1, ("max", "decode"): 44.1, ("max", "prefill"): 18.5}
BARS = {("cortex-a72", "decode"): 0.8, ("cortex-a72", "prefill"): 0.5, ("cortex-a76", "decode"): 1.5, ("cortex-a76", "prefill"): 1.1}
BARS_A8 = {("cortex-a76", "decode"): 1.0, ("cortex-a76", "prefill"): 1.0}
ATTENTION = ("score_kv16", "mix_kv16", "scale_kv16", "exponentials", "align_kv16", "score", "attend", "mix16")
CONTEXT = 1000
# Inner loops: source, an instruction that only they have, processor for llvm-mca, extensions.
LOOPS = (("neon_linear.c", "smlal2", "cortex-a72", "+neon"), ("neon_dot.c", "sdot", "cortex-a76", "+dotprod"), ("neon_dot_rows.c", "sdot", "cortex-a76", "+dotprod"), ("neon_i8mm.c", "smmla", "cortex-a76", "+dotprod,+i8mm"))


class Counter:
    """Counts of one emulated processor."""

    def __init__(self, name: str, plugin: Path, folder: Path):
        self.name, self.out = name, folder / "counts"
        option = ("-plugin", str(plugin))
        if name in BARE:
            self.board = replace(BOARDS[f"qemu:{name}"], emulator_options=option)
        else:
            self.board = replace(BOARDS["qemu:max"], emulator=("qemu-aarch64", "-cpu", name, *option))

    def run(self, model: Path, prompt: int, n: int, context: int) -> dict[str, int]:
        """Instructions by symbol of a run that evaluates `prompt` tokens and chooses n."""
        job = Job([FIRST + 7 * i % 400 for i in range(prompt)], n, Sampling.of(), 0, context)
        os.environ["SYMCOUNT_OUT"] = str(self.out)
        made = self.board.generate(c_runtime_dir(), model, job)
        if len(made) != n:
            raise EdgePosError(f"{self.name}: {len(made)} of {n} tokens were generated, the text ended; count another model")
        counts: dict[str, int] = {}
        for line in self.out.read_text("utf-8").splitlines():
            _, symbol, count = line.split()
            counts[symbol] = counts.get(symbol, 0) + int(count)
        return counts

    def per_token(self, model: Path, part: str, prompt: int = 1, tokens: int = 0) -> dict[str, float]:
        """Instructions per token by symbol, of "prefill" or "decode" after `prompt` tokens."""
        tokens = tokens or (PREFILL if part == "prefill" else DECODE)
        context = prompt + PREFILL + 8
        more = (prompt + tokens, 1) if part == "prefill" else (prompt, 1 + tokens)
        before, after = self.run(model, prompt, 1, context), self.run(model, *more, context)
        return {symbol: (count - before.get(symbol, 0)) / tokens for symbol, count in after.items()}


def built(plugin: Path, folder: Path) -> Path:
    """The plugin, compiled if it is a source."""
    if plugin.suffix != ".c":
        return plugin.resolve()
    out = folder / "count.so"
    done = tools.run(["gcc", "-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", plugin, "-o", out], 60)
    if done.returncode:
        raise EdgePosError(f"gcc does not compile {plugin}: {tools.first_error(done.stderr)}")
    return out


def count_models(counters, models) -> list[dict]:
    rows = []
    for label, model, is_smollm2, a8 in models:
        for counter in counters:
            if counter.name in BARE and label != "tiny-rope":
                continue
            for part in ("decode", "prefill"):
                counts = counter.per_token(model, part)
                total, key = counts.pop("TOTAL"), (counter.name, part)
                row = {"model": label, "cpu": counter.name, "part": part, "instructions": round(total)}
                if is_smollm2 and key in LLAMA_CPP:
                    row |= {"llama_cpp": LLAMA_CPP[key] * 1e6, "ratio": total / (LLAMA_CPP[key] * 1e6), "bar": (BARS_A8 if a8 else BARS).get(key)}
                row["most"] = {symbol: round(n) for symbol, n in sorted(counts.items(), key=lambda item: -item[1])[:8]}
                rows.append(row)
                print(f"{label} {counter.name} {part}: {total / 1e6:.2f} million", file=sys.stderr)
    return rows


def count_attention(counters, folder: Path) -> list[dict]:
    """Attention at CONTEXT tokens of one layer in the shape of a 135M Llama, kv16: instructions per multiply-accumulate."""
    model = folder / "layer.gguf"
    write_model(model, "w8g32", 1, 16)
    macs = 9 * (64 + 64) * CONTEXT
    rows = []
    for counter in counters:
        if not isinstance(counter.board, BareMetalBoard):
            counts = counter.per_token(model, "decode", CONTEXT, 2)
            rows.append({"cpu": counter.name, "context": CONTEXT, "per_mac": sum(counts.get(name, 0) for name in ATTENTION) / macs})
    return rows


def innermost(assembly: str, instruction: str) -> list[str]:
    """The longest loop without a loop in it that has the instruction."""
    lines, best = assembly.splitlines(), []
    labels = {line.split(":")[0]: i for i, line in enumerate(lines) if re.match(r"\.L\w+:", line)}
    for i, line in enumerate(lines):
        jump = re.match(r"\s+(?:b\.?\w*|cbn?z|tbn?z)\s+(?:.*,\s*)?(\.L\w+)$", line)
        if jump and labels.get(jump[1], i) < i:
            body = lines[labels[jump[1]] + 1 : i + 1]
            if not any(re.match(r"\.L\w+:", inner) for inner in body) and any(inner.split()[:1] == [instruction] for inner in body):
                best = max(best, body, key=len)
    return [line for line in best if not line.strip().startswith((".", "//", "#"))]


def analyse(folder: Path) -> list[dict]:
    """llvm-mca's cycles of the inner loops beside the bound of the busiest pipe."""
    rows = []
    for name, instruction, cpu, attributes in LOOPS:
        source, text = c_runtime_dir() / "src" / "kernels" / name, folder / "loop.s"
        command = ["aarch64-linux-gnu-gcc", "-std=c11", "-O2", "-S", f"-I{c_runtime_dir() / 'include'}", source, "-o", text]
        if (done := tools.run(command, 120)).returncode:
            raise EdgePosError(f"{name}: {tools.first_error(done.stderr)}")
        loop = folder / "body.s"
        loop.write_text("\n".join(innermost(text.read_text("utf-8"), instruction)) + "\n", "utf-8")
        done = tools.run(["llvm-mca", "-mtriple=aarch64", f"-mcpu={cpu}", f"-mattr={attributes}", "-iterations=200", loop], 60)
        found = dict(re.findall(r"^(Instructions|Total Cycles|Block RThroughput):\s+([\d.]+)", done.stdout, re.MULTILINE))
        if done.returncode or len(found) < 3:
            raise EdgePosError(f"llvm-mca does not take the loop of {name}: {tools.first_error(done.stderr)}")
        cycles = int(found["Total Cycles"]) / 200
        rows.append({"loop": name, "cpu": cpu, "instructions": int(found["Instructions"]) // 200, "cycles": cycles, "bound": float(found["Block RThroughput"]), "of_bound": float(found["Block RThroughput"]) / cycles})
    return rows


def show(title: str, rows: list[dict]) -> None:
    table = Table(title=title, title_justify="left")
    columns = [name for name in dict.fromkeys(key for row in rows for key in row) if name != "most"]
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        cells = [row.get(name) for name in columns]
        table.add_row(*("" if v is None else f"{v:.2f}" if isinstance(v, float) and v < 1000 else f"{v:,.0f}" if isinstance(v, int | float) else v for v in cells))
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundles", nargs="*", type=Path)
    parser.add_argument("--plugin", type=Path, default=Path(os.environ.get("EDGEPOS_SHARED", ".")) / "tools" / "symcount" / "symcount.c")
    parser.add_argument("--on", nargs="+", choices=[*LINUX, *BARE], default=[*LINUX, *BARE])
    parser.add_argument("--no-attention", action="store_true")
    parser.add_argument("--no-mca", action="store_true")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    if not a.plugin.is_file():
        sys.exit(f"{a.plugin} is no file: name the counting plugin by --plugin, or its folder by EDGEPOS_SHARED")
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        folder = Path(name)
        try:
            plugin = built(a.plugin, folder)
            counters = [Counter(cpu, plugin, folder) for cpu in a.on]
            tiny = edgepos.export_bundle(tiny_model_dir("tiny-rope"), folder / "tiny-rope.edgepos")
            models = [("tiny-rope", tiny.model_path, False, False)]
            for path in a.bundles:
                bundle = edgepos.open(path)
                models.append((path.stem, bundle.model_path, bundle.program.header.vocab == 49152, bundle.program.activation_format == "a8g32"))
            result = {"rows": count_models(counters, models)}
            show("Instructions per token", result["rows"])
            if not a.no_attention:
                result["attention"] = count_attention(counters, folder)
                show(f"Attention at context {CONTEXT}, instructions per multiply-accumulate", result["attention"])
            if not a.no_mca and not tools.missing("llvm-mca"):
                result["loops"] = analyse(folder)
                show("Inner loops by llvm-mca, cycles of a turn", result["loops"])
        except EdgePosError as error:
            sys.exit(str(error))
    if a.json:
        a.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
