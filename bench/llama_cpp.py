"""llama.cpp for comparisons: built from the sources that the llama-cpp-python sdist carries, run on the same token ids."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SDIST = "llama-cpp-python==0.3.36"
TARGETS = ("llama-quantize", "llama-perplexity", "llama-bench", "llama-tokenize")
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class LlamaCpp:
    """Built tools: `bin` has llama.cpp's own, `logits` is llama_logits.c, `made` holds quantized files."""

    bin: Path
    logits_program: Path
    made: Path

    def quantize(self, source: Path, kind: str) -> Path:
        """`source` in another GGUF type, made on first use; from the dequantized floats, as llama-quantize does it."""
        out = self.made / f"{source.stem}.to.{kind}.gguf"
        if not out.is_file():
            _run([self.bin / "llama-quantize", "--allow-requantize", source, out.with_suffix(".tmp"), kind])
            out.with_suffix(".tmp").rename(out)
        return out

    def logits(self, model: Path, kv: str, windows: list[list[int]], vocab: int, threads: int = 1) -> Iterator[np.ndarray]:
        """float32 logits [n, vocab] of every window, each from an empty cache."""
        size = len(windows[0])
        if any(len(window) != size for window in windows[:-1]):
            raise ValueError("all windows but the last must be equally long")
        command = [str(part) for part in (self.logits_program, model, kv, size, threads)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            child.stdin.write(np.array([i for window in windows for i in window], "<i4").tobytes())
            child.stdin.close()
            for window in windows:
                yield np.frombuffer(child.stdout.read(4 * vocab * len(window)), "<f4").reshape(len(window), vocab)
        if child.returncode:
            sys.exit(f"llama_logits: exit status {child.returncode}")

    def token_ids(self, model: Path, text: Path) -> list[int]:
        """The ids llama.cpp gives a text."""
        done = _run([self.bin / "llama-tokenize", "--model", model, "--file", text, "--ids", "--no-bos", "--no-escape", "--log-disable"])
        return [int(word) for word in re.findall(r"\d+", done[done.rindex("[") :])]

    def perplexity_kl(self, reference: Path, model: Path, text: Path, windows: int, size: int) -> tuple[float, float]:
        """(mean KL, share of the same first choice) as llama-perplexity prints them: second halves of the windows only."""
        base = self.made / f"{reference.stem}.{text.stem}.kld"
        common = ["-f", text, "-c", str(size), "-b", str(size), "--chunks", str(windows), "-t", "1"]
        if not base.is_file():
            _run([self.bin / "llama-perplexity", "-m", reference, *common, "--kl-divergence-base", base])
        done = _run([self.bin / "llama-perplexity", "-m", model, *common, "--kl-divergence-base", base, "--kl-divergence"])
        kl, same = re.search(r"Mean\s+KLD:\s+(\S+)", done), re.search(r"Same top p:\s+(\S+)", done)
        return float(kl[1]), float(same[1]) / 100


def prepare(folder: Path) -> LlamaCpp:
    """Download and build what is not in `folder` yet (several minutes, once)."""
    folder.mkdir(parents=True, exist_ok=True)
    build, program = folder / "build", folder / "llama_logits"
    if not list(folder.glob("llama_cpp_python-*/vendor/llama.cpp")):
        _run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", folder, SDIST])
        with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
    source = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    if not all((build / "bin" / target).is_file() for target in TARGETS):
        off = [f"-D{key}=OFF" for key in ("BUILD_SHARED_LIBS", "LLAMA_CURL", "LLAMA_BUILD_TESTS", "LLAMA_BUILD_SERVER", "LLAMA_BUILD_EXAMPLES")]
        _run(["cmake", "-S", source, "-B", build, "-DCMAKE_BUILD_TYPE=Release", *off])
        _run(["cmake", "--build", build, "--parallel", "2", "--target", *TARGETS])
    if not program.is_file() or program.stat().st_mtime < (HERE / "llama_logits.c").stat().st_mtime:
        libraries = [build / "src" / "libllama.a", *(build / "ggml" / "src" / f"lib{name}.a" for name in ("ggml", "ggml-cpu", "ggml-base"))]
        includes = [f"-I{source / 'include'}", f"-I{source / 'ggml' / 'include'}"]
        _run(["cc", "-O2", *includes, HERE / "llama_logits.c", "-o", program, *libraries, "-lstdc++", "-lgomp", "-lpthread", "-ldl", "-lm"])
    return LlamaCpp(build / "bin", program, folder)


def _run(command: list) -> str:
    """What a command prints; ends the benchmark with its last line when it fails."""
    done = subprocess.run([str(part) for part in command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{command[0]}: {(done.stdout.strip().splitlines() or ['no message'])[-1]}")
    return done.stdout
