#!/usr/bin/env python3
"""Measure every run of `train.py` on the held-out stories and write results.json.

    python examples/positions/measure.py runs

Three lengths: 1, 2 and 4 times the trained context. Every length predicts the same held-out tokens, in windows of that length, so
the columns differ only in how much text precedes a token. Losses are nats per token of the bfloat16 weights computed in float32.
"""

import argparse
import dataclasses
import json
import re
import statistics
from pathlib import Path

import torch
import torch.nn.functional as F
from decoder import Size, specs
from folders import load
from integer_tables import substituted
from stories import FACTORS, held_out_stream, load_stories
from tokenizers import Tokenizer

from edgepos import positions
from edgepos.positions import costs

HERE = Path(__file__).resolve().parent
SCALINGS = ("linear", "ntk")
BATCH_TOKENS = 4096


def window_logits(model, stream, length):
    """(logits, targets) of the stream in windows of `length`, a few at a time."""
    inputs, targets = stream[:-1].view(-1, length), stream[1:].view(-1, length)
    with torch.no_grad():
        for rows in zip(inputs.split(max(1, BATCH_TOKENS // length)), targets.split(max(1, BATCH_TOKENS // length))):
            yield model(rows[0]), rows[1]


def loss(model, stream, length):
    """Mean nats per token."""
    total = sum(F.cross_entropy(y.flatten(0, 1), t.flatten(), reduction="sum").item() for y, t in window_logits(model, stream, length))
    return total / (len(stream) - 1)


def stretched(model, kind, factor):
    """`loss` at a longer length needs another spec: RoPE with a scaling, a learned table with interpolated rows."""
    if kind == "interpolated":
        table, spec = positions.interpolate(model.model.embed_positions.weight.detach().numpy(), model.spec, factor * model.size.context)
        longer = type(model)(model.size, spec)
        longer.load_state_dict(model.state_dict() | {"model.embed_positions.weight": torch.from_numpy(table).float()})
        return longer.eval()
    other = type(model)(model.size, dataclasses.replace(model.spec, scaling={"rope_type": kind, "factor": factor}))
    other.load_state_dict(model.state_dict())
    return other.eval()


def losses(model, stream):
    """Key such as "2x" or "4x ntk" -> nats per token; null where the encoding has no value for the position."""
    found = {}
    for factor in FACTORS:
        length = factor * model.size.context
        learned = isinstance(model.spec, positions.Learned)
        found[f"{factor}x"] = None if learned and factor > 1 else loss(model, stream, length)
        kinds = () if factor == 1 else SCALINGS if isinstance(model.spec, positions.Rope) else ("interpolated",) if learned else ()
        for kind in kinds:
            found[f"{factor}x {kind}"] = loss(stretched(model, kind, factor), stream, length)
    return found


def integer_cost(model, stream, bits):
    """At the trained length: (loss with positions of `bits` minus loss with exact ones, mean KL divergence in nats per token)."""
    length, nats, kl = model.size.context, 0.0, 0.0
    tables = model.tables
    exact = [y for y, _ in window_logits(model, stream, length)]
    model.tables = lambda n: substituted(model, n, bits)
    for before, (after, target) in zip(exact, window_logits(model, stream, length)):
        p, q = (F.log_softmax(y.double().flatten(0, 1), dim=-1) for y in (before, after))
        nats += (F.nll_loss(q, target.flatten(), reduction="sum") - F.nll_loss(p, target.flatten(), reduction="sum")).item()
        kl += F.kl_div(q, p, log_target=True, reduction="sum").item()
    model.tables = tables
    return nats / (len(stream) - 1), kl / (len(stream) - 1)


def measure(folder, stream):
    """Everything about one run."""
    model, facts = load(folder), json.loads((folder / "training.json").read_text())
    row = {"encoding": facts["encoding"], "seed": facts["seed"], "train_loss": facts["train_loss"]}
    row["loss"] = {key: value if value is None else round(value, 4) for key, value in losses(model, stream).items()}
    row["integer"] = {}
    for bits in (16, 8):
        change, kl = integer_cost(model, stream, bits)
        row["integer"][str(bits)] = {"loss_change": float(f"{change:.3g}"), "kl": float(f"{abs(kl):.3g}")}
    return row


def summary(rows, key):
    """Mean and sample standard deviation over the seeds."""
    values = [row["loss"][key] for row in rows]
    if None in values:
        return None
    return {"mean": round(statistics.mean(values), 4), "spread": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0}


def sizes(size, spec):
    """Bytes and integer operations of an encoding at the trained context."""
    shape = costs.Shape(size.dim, size.heads, size.head_dim, size.layers)
    return {
        "runtime_bytes": costs.runtime_bytes(spec, shape, size.context),
        "int16_bytes": costs.table_bytes(spec, shape, size.context, 16),
        "int8_bytes": costs.table_bytes(spec, shape, size.context, 8),
        "operations": {f"{factor}x": costs.operations(spec, shape, factor * size.context) for factor in FACTORS},
    }


def multiplications(size):
    """Weight multiplications of one token in the whole decoder, to compare operations with."""
    return size.layers * (4 * size.dim**2 + 3 * size.dim * size.hidden) + size.vocab * size.dim


def main():
    parser = argparse.ArgumentParser(description="Measure the runs of train.py.")
    parser.add_argument("runs", type=Path)
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    size = Size()
    folders = sorted(path for path in args.runs.iterdir() if re.fullmatch(r"[a-z0-9]+-\d+", path.name))
    _, held_out, _ = load_stories()
    tokenizer = Tokenizer.from_file(str(folders[0] / "tokenizer.json"))
    stream = held_out_stream(tokenizer, held_out, FACTORS[-1] * size.context)
    rows = []
    for folder in folders:
        rows.append(measure(folder, stream))
        print(folder.name, rows[-1]["loss"], rows[-1]["integer"], flush=True)
    encodings = {}
    for name, spec in specs(size).items():
        runs = [row for row in rows if row["encoding"] == name]
        if runs:
            encodings[name] = {
                "spec": spec.to_json(),
                "loss": {key: summary(runs, key) for key in runs[0]["loss"]},
                "integer": {
                    bits: {what: max((run["integer"][bits][what] for run in runs), key=abs) for what in ("loss_change", "kl")}
                    for bits in ("16", "8")
                },
                **sizes(size, spec),
            }
    facts = json.loads((folders[0] / "training.json").read_text())
    result = {
        "size": dataclasses.asdict(size),
        "multiplications": multiplications(size),
        "recipe": facts["recipe"],
        "data": facts["data"],
        "held_out": {"stories": len(held_out), "tokens": len(stream) - 1},
        "torch": facts["torch"],
        "encodings": encodings,
        "runs": rows,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
