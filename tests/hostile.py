"""Mutated model files, opened and run in a process with a limit on memory: only named errors may come of it.

    python tests/hostile.py KIND FOLDER FIRST COUNT

KIND: bundle (a model.gguf of ours), gguf (a source file), safetensors (a Hugging Face folder). FOLDER holds the valid files. Prints
how many were accepted and how many refused; any other outcome ends the process with a traceback and the seed.
"""

from __future__ import annotations

import json
import resource
import struct
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np

from edgepos.bundle import Bundle
from edgepos.compiler import compile_model
from edgepos.errors import EdgePosError
from edgepos.export import load
from edgepos.golden_session import GoldenSession

ROOM = 768 << 20  # address space that a batch may take beyond what the interpreter has
SECONDS = 10  # of processor time, for one file
WORDS = (0, 1, 2, 31, 63, 255, 2**15, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
VALUES = (None, True, 0, -1, 1, 7, 2**31, 2**63, 2**70, 1e300, float("inf"), float("nan"), "", "x", "é" * 500, [], [0], {}, {"a": 1}, [[]])


def mutate(data: bytes, rng: np.random.Generator, structure: int) -> bytes:
    """1 to 4 changes: bits, words that may be lengths, cut ends, parts copied, removed or put elsewhere; 7 of 8 in the first `structure` bytes."""
    out = bytearray(data)
    for _ in range(rng.integers(1, 5)):
        if not out:
            break
        end = min(structure, len(out)) if rng.random() < 0.875 else len(out)
        at, other, n = int(rng.integers(end)), int(rng.integers(len(out))), int(rng.integers(1, 65))
        kind = rng.integers(8)
        if kind <= 1:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind <= 3:
            width = 4 if rng.random() < 0.5 else 8
            word = WORDS[rng.integers(len(WORDS))] % 2 ** (8 * width)
            out[at : at + width] = word.to_bytes(width, "little")
        elif kind == 4:
            near = int.from_bytes(out[at : at + 4], "little") + int(rng.integers(-2, 3))
            out[at : at + 4] = (near % 2**32).to_bytes(4, "little")
        elif kind == 5:
            del out[at if rng.random() < 0.5 else other :]
        elif kind == 6:
            out[at : at + n] = out[other : other + n]
        elif rng.random() < 0.5:
            del out[at : at + n]
        else:
            out[at:at] = out[other : other + n]
    return bytes(out)


def try_bundle(folder: Path, data: bytes, rng: np.random.Generator) -> None:
    """Open the image in C and Python; what is accepted is run by both, with equal results."""
    file = folder / "model.gguf"
    file.unlink(missing_ok=True)  # a mapped file must not change
    file.write_bytes(data)
    bundle = Bundle(file)
    program = bundle.program
    context = min(4, bundle.context)
    session = bundle.session(context=context)
    ids = rng.integers(0, program.header.vocab, context).tolist()
    if not program.embedding:
        found = session.eval_int(ids)
        np.testing.assert_array_equal(GoldenSession(program, context).eval_int(ids), found)
    if bundle.image.info.tokenizer:
        text = "the quick \u00e9\u4e2d\U0001f600 " + chr(int(rng.integers(32, 0x2FFF)))
        bundle.tokenizer.decode(bundle.tokenizer.encode(text))


def try_gguf(folder: Path, data: bytes, _rng) -> None:
    file = folder / "m.gguf"
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    compile_model(load(file), calibration=[1, 2, 3], context=8)


def try_folder(folder: Path, valid: dict[str, bytes], rng: np.random.Generator) -> None:
    """A folder with its safetensors header, config or tokenizer changed: bytes, or one JSON value."""
    files = dict(valid)
    name = ("model.safetensors", "config.json", "tokenizer.json")[rng.integers(3)]
    if name == "model.safetensors":
        length = int.from_bytes(files[name][:8], "little")
        if rng.random() < 0.5:
            head = change_value(json.loads(files[name][8 : 8 + length]), rng)
            files[name] = struct.pack("<Q", len(head)) + head + files[name][8 + length :]
        else:
            files[name] = mutate(files[name], rng, 8 + length)
    else:
        files[name] = change_value(json.loads(files[name]), rng) if rng.random() < 0.7 else mutate(files[name], rng, len(files[name]))
    for file, content in files.items():
        (folder / file).unlink(missing_ok=True)
        (folder / file).write_bytes(content)
    compile_model(load(folder), calibration=[1, 2, 3], context=8)


def change_value(content: dict, rng: np.random.Generator) -> bytes:
    """JSON with one value replaced, removed or doubled, at any depth."""
    place = content
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            break
        key = keys[rng.integers(len(keys))]
        if isinstance(place[key], (dict, list)) and place[key] and rng.random() < 0.8:
            place = place[key]
            continue
        kind = rng.integers(4)
        if kind == 0:
            del place[key]
        elif kind == 1 and isinstance(place[key], int):
            place[key] = place[key] * 2 + int(rng.integers(-1, 2))
        else:
            place[key] = VALUES[rng.integers(len(VALUES))]
        break
    return json.dumps(content).encode()


def run(kind: str, source: Path, first: int, count: int) -> dict[str, int]:
    """Outcomes of the mutations with the seeds first … first + count − 1."""
    outcomes = {"accepted": 0, "refused": 0}
    valid = {p.name: p.read_bytes() for p in source.iterdir() if p.is_file()}
    with tempfile.TemporaryDirectory() as name:
        for seed in range(first, first + count):
            rng, started = np.random.default_rng(seed), time.process_time()
            try:
                if kind == "safetensors":
                    try_folder(Path(name), valid, rng)
                else:
                    data = mutate(valid["model.gguf"], rng, 24576)
                    (try_bundle if kind == "bundle" else try_gguf)(Path(name), data, rng)
                outcomes["accepted"] += 1
            except EdgePosError as error:
                if "\n" in str(error) or not str(error) or len(str(error)) > 600:
                    raise AssertionError(f"seed {seed}: the message is not one short line: {str(error)[:2000]!r}") from error
                outcomes["refused"] += 1
            except BaseException as error:
                error.add_note(f"seed {seed}") if hasattr(error, "add_note") else print(f"seed {seed}", file=sys.stderr)
                raise
            if time.process_time() - started > SECONDS:
                raise AssertionError(f"seed {seed} took {time.process_time() - started:.0f} s")
    return outcomes


def main() -> None:
    kind, source, first, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    warnings.simplefilter("ignore")
    run(kind, source, first, 1)  # whatever is imported late is here before the limit
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, has + ROOM))
    print(json.dumps(run(kind, source, first, count)))


if __name__ == "__main__":
    main()
