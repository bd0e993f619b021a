"""Peak memory and time of exporting a large Llama with random weights (bfloat16, sharded safetensors).

    python bench/large_export.py [--size 1.5B|0.2B] [--folder FOLDER] [--json FILE]

The model is written to FOLDER (a temporary one by default; 1.5B needs 5 GB of disk) and exported by the command line in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers

SIZES = {
    "1.5B": dict(hidden_size=1536, intermediate_size=8960, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936),
    "0.2B": dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=16, num_attention_heads=12, num_key_value_heads=4, vocab_size=49152),
}
SHARD = 1 << 30  # bytes after which a new file begins
BLOCK = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
EXPORT = """
import re, sys
from edgepos.cli import main
try:
    main()
finally:
    print("VmHWM", re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


def shapes(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of a Llama with a tied head."""
    d, inner = config["hidden_size"], config["intermediate_size"]
    kv = d // config["num_attention_heads"] * config["num_key_value_heads"]
    yield "model.embed_tokens.weight", (config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        yield p + "input_layernorm.weight", (d,)
        for name, rows in (("q", d), ("k", kv), ("v", kv), ("o", d)):
            yield f"{p}self_attn.{name}_proj.weight", (rows, d)
        yield p + "post_attention_layernorm.weight", (d,)
        for name, shape in (("gate", (inner, d)), ("up", (inner, d)), ("down", (d, inner))):
            yield f"{p}mlp.{name}_proj.weight", shape
    yield "model.norm.weight", (d,)


def make_model(folder: Path, config: dict) -> int:
    """Write a Hugging Face folder with weights that repeat a block of normal numbers; returns the number of parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    size = 0
    for name, shape in shapes(config):
        if size >= SHARD:
            shards.append([])
            size = 0
        shards[-1].append((name, shape))
        size += 2 * int(np.prod(shape))
    places, count = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, at = {}, 0
        for name, shape in shard:
            n = int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + 2 * n]}
            places[name] = file
            at, count = at + 2 * n, count + n
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(folder / file, "wb") as out:
            out.write(len(head).to_bytes(8, "little") + head)
            for name, shape in shard:
                _write(out, shape, seed=len(name))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 2 * count}, "weight_map": places}))
    other = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    other |= {"rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config | other))
    _write_tokenizer(folder / "tokenizer.json")
    return count


def _write(out, shape: tuple[int, ...], seed: int) -> None:
    """One tensor: norms near 1, matrices scaled so that activations stay near 1."""
    n = int(np.prod(shape))
    values = 1 + 0.1 * BLOCK if len(shape) == 1 else BLOCK * np.float32(shape[1] ** -0.5)
    bits = (np.roll(values, seed * 977).view(np.uint32) >> 16).astype("<u2")
    for at in range(0, n, len(bits)):
        out.write(bits[: min(len(bits), n - at)].tobytes())


def _write_tokenizer(path: Path) -> None:
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(["the quick brown fox jumps over the lazy dog"], trainer)
    bpe.save(str(path))


def measure(source: Path, out: Path) -> dict:
    """Export on the command line: seconds, peak resident bytes, bytes of the bundle's model."""
    started = time.monotonic()
    command = [sys.executable, "-c", EXPORT, "export", str(source), "-o", str(out)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"export failed: {done.stderr.strip().splitlines()[-1]}")
    peak = int(re.search(r"VmHWM (\d+)", done.stdout)[1]) * 1024
    return {"seconds": round(time.monotonic() - started, 1), "peak_bytes": peak, "model_bytes": (out / "model.gguf").stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="1.5B")
    parser.add_argument("--folder", type=Path, help="keep the model and the bundle here")
    parser.add_argument("--json", type=Path)
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edgepos-") as name:
        folder = a.folder or Path(name)
        source = folder / f"llama-{a.size}"
        count = make_model(source, SIZES[a.size])
        result = {"size": a.size, "parameters": count, **measure(source, folder / f"llama-{a.size}.edgepos")}
    print(json.dumps(result))
    if a.json:
        a.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
