"""How each engine of peers.py is run: a command in a process of its own, its speeds, processor time and peak memory."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import edgepos
from edgepos.export import CanonicalModel


@dataclass(frozen=True)
class Measured:
    """One run: tokens per second by the clock and per second of processor time, None where there is none; peak resident bytes."""

    prefill_tps: float | None
    decode_tps: float | None
    prefill_cpu_tps: float | None
    decode_cpu_tps: float | None
    rss: int


@dataclass(frozen=True)
class Engine:
    """command(prompt, tokens, threads) evaluates a prompt and generates tokens, 0 of one of them; speeds reads (prefill, decode) from
    what it prints."""

    name: str
    format: str
    model: str
    command: Callable[[int, int, int], list]
    speeds: Callable[[str], tuple[float | None, float | None]]
    file_bytes: int
    bytes_per_token: int | None = None
    kl: float | None = None
    context: int = 1 << 20

    def run(self, prompt: int, tokens: int, threads: int) -> Measured:
        # The first run may pay for pages that another program had.
        least = min(watched(self.command(1, 0, threads))[1] for _ in range(2))
        text, prefill, prefill_peak = watched(self.command(prompt, 0, threads))
        more, decode, decode_peak = watched(self.command(1, tokens, threads))
        speed, generated = self.speeds(text)[0], self.speeds(more)[1]
        beyond = [count / (taken - least) if taken > least else None for count, taken in ((prompt - 1, prefill), (tokens, decode))]
        return Measured(speed, generated, beyond[0] if speed else None, beyond[1] if generated else None, max(prefill_peak, decode_peak))


def watched(command: list) -> tuple[str, float, int]:
    """(what it prints, seconds of processor time, peak resident bytes) of a process; ends the benchmark when it fails."""
    child = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    # Asked of the running process: what wait4 tells of memory includes this process's own before exec.
    peak = 0
    with child.stdout, child.stderr:
        while True:
            try:
                found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child.pid}/status").read_text())
            except OSError:
                break
            if not found:  # it has ended
                break
            peak = max(peak, int(found.group(1)) * 1024)
            time.sleep(0.002)
        text = child.stdout.read() + child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{command[0]}: {(text.strip().splitlines() or ['no message'])[-1]}")
    return text, usage.ru_utime + usage.ru_stime, peak


def edgepos_engine(name: str, label: str, program: Path, model: Path, bytes_per_token: int, kl: float | None, of: str = "SmolLM2-135M", context: int = 1 << 20) -> Engine:
    """The C program that people run. Prompts go through it 256 tokens at a time (llama.cpp takes up to 512)."""

    def command(prompt: int, tokens: int, threads: int) -> list:
        ids = ",".join(str(7 * i % 500) for i in range(prompt))
        # The last token chosen is not evaluated.
        return [program, model, "--ids", ids, "-n", tokens + (tokens > 0), "--context", prompt + tokens, "--no-eos", "--ids-out", "--copy", "--batch", 256, "--threads", threads]

    def speeds(text: str) -> tuple[float | None, float | None]:
        found = [re.search(rf"{what}: .*?([\d.]+) tokens/s", text) for what in ("prompt", "generation")]
        return tuple(float(match[1]) if match else None for match in found)

    return Engine(name, label, of, command, speeds, model.stat().st_size, bytes_per_token, kl, context)


def llama_engine(label: str, program: Path, model: Path, kl: float | None) -> Engine:
    def command(prompt: int, tokens: int, threads: int) -> list:
        counts = ["-p", 0, "-n", tokens] if tokens else ["-p", prompt, "-n", 0]
        return [program, "-m", model, *counts, "-t", threads, "-r", 1, "--no-warmup", "-o", "json"]

    def speeds(text: str) -> tuple[float | None, float | None]:
        rows = json.loads(text[text.index("[") : text.rindex("]") + 1])
        prefill = [r["avg_ts"] for r in rows if r["n_prompt"]]
        decode = [r["avg_ts"] for r in rows if r["n_gen"]]
        return (prefill or [None])[0], (decode or [None])[0]

    return Engine("llama.cpp", label, "SmolLM2-135M", command, speeds, model.stat().st_size, model.stat().st_size, kl)


def _child(kind: str, model: Path) -> tuple[Callable, Callable]:
    """Engines that are Python libraries: this file runs them."""

    def command(prompt: int, tokens: int, threads: int) -> list:
        return [sys.executable, Path(__file__), kind, model, prompt, tokens, threads]

    def speeds(text: str) -> tuple[float | None, float | None]:
        found = json.loads(text.strip().splitlines()[-1])
        return found["prefill"], found["decode"]

    return command, speeds


def onnxruntime_engine(folder: Path, source: Path, canonical: CanonicalModel) -> Engine:
    """The float graph of this project, with its KV cache, in ONNX Runtime."""
    import onnx_ir

    model = folder / "float.onnx"
    onnx_ir.save(canonical.model, model, external_data="float.data")
    command, speeds = _child("onnxruntime", model)
    size = sum(path.stat().st_size for path in folder.glob("float.*"))
    return Engine("onnxruntime", "f32", "SmolLM2-135M", command, speeds, size, size)


def ctranslate2_engine(folder: Path, source: Path, canonical: CanonicalModel) -> Engine:
    """CTranslate2 int8 of the dequantized model, through the transformers library, which needs accelerate for GGUF files."""
    import ctranslate2
    import torch
    import transformers

    loaded = transformers.AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = transformers.LlamaConfig(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    fresh = transformers.LlamaForCausalLM(config)
    fresh.load_state_dict(loaded.state_dict())
    fresh.save_pretrained(folder / "hf")
    transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder / "hf")
    ctranslate2.converters.TransformersConverter(str(folder / "hf")).convert(str(folder / "ct2"), quantization="int8")
    command, speeds = _child("ctranslate2", folder / "ct2")
    size = sum(path.stat().st_size for path in (folder / "ct2").iterdir())
    return Engine("ctranslate2", "int8", "SmolLM2-135M", command, speeds, size, size)


def llama2c_engine(checkout: Path, folder: Path, shared: Path, program: Path) -> list[Engine]:
    """llama2.c's run at -Ofast, and EdgePos, on stories260K: decode only, one thread."""
    run, model = folder / "run", shared / "stories260K.bin"
    if not (checkout / "run.c").is_file():
        sys.exit(f"{checkout}: no run.c; --llama2c takes a checkout of llama2.c")
    subprocess.run([shutil.which("gcc") or "cc", "-Ofast", "-march=native", checkout / "run.c", "-lm", "-o", run], check=True)

    def command(prompt: int, tokens: int, threads: int) -> list:
        return [run, model, "-z", shared / "tok512.bin", "-t", 0, "-n", max(tokens, 1)]

    def speeds(text: str) -> tuple[None, float | None]:
        found = re.search(r"achieved tok/s: ([\d.]+)", text)
        return None, float(found[1]) if found else None

    bundle = edgepos.export_bundle(model, folder / "stories260K.edgepos", weights="w8g32", kv="kv16")
    size = model.stat().st_size
    mine = edgepos_engine("EdgePos", "w8g32 a16 kv16", program, bundle.model_path, None, None, "stories260K", context=200)
    return [mine, Engine("llama2.c", "f32", "stories260K", command, speeds, size, None, None, 200)]


def _timed_onnxruntime(model: str, prompt: int, tokens: int, threads: int) -> tuple[float, float | None]:
    from edgepos.float_session import FloatSession

    session = FloatSession(model, threads=threads)
    started = time.perf_counter()
    session.eval([7 * i % 500 for i in range(prompt)])
    between = time.perf_counter()
    for i in range(tokens):
        session.eval([7 * i % 500])
    return prompt / (between - started), tokens / (time.perf_counter() - between) if tokens else None


def _timed_ctranslate2(model: str, prompt: int, tokens: int, threads: int) -> tuple[float, float | None]:
    import ctranslate2

    generator = ctranslate2.Generator(model, device="cpu", intra_threads=threads)
    names = json.loads((Path(model) / "vocabulary.json").read_text())
    ids = [names[7 * i % 500] for i in range(prompt)]
    started = time.perf_counter()
    generator.generate_batch([ids], max_length=1, sampling_topk=1, include_prompt_in_result=False)
    between = time.perf_counter()
    if tokens:
        generator.generate_batch([ids[:1]], min_length=tokens, max_length=tokens, sampling_topk=1, include_prompt_in_result=False)
    return prompt / (between - started), tokens / (time.perf_counter() - between) if tokens else None


def main() -> None:
    kind, model, *numbers = sys.argv[1:]
    timed = {"onnxruntime": _timed_onnxruntime, "ctranslate2": _timed_ctranslate2}[kind]
    prefill, decode = timed(model, *map(int, numbers))
    print(json.dumps({"prefill": prefill, "decode": decode}))


if __name__ == "__main__":
    main()
