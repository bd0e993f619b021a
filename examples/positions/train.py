#!/usr/bin/env python3
"""Train the models of the choice guide: one tiny decoder per position encoding, all else equal.

    python examples/positions/train.py rope t5 --seeds 1 2 3 --out runs

writes runs/ENCODING-SEED/ (weights in bfloat16, tokenizer, training.json) for `measure.py`. Nothing is chosen by a
loss: every run takes the same number of steps over the same windows in the same order, and its last weights count.
"""

import argparse
import hashlib
import json
import math
import random
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from decoder import Size, fresh, specs
from folders import save
from stories import load_stories, tiny, train_tokenizer

RECIPE = dict(steps=400, batch=8, lr=4e-3, weight_decay=0.1, warmup=40, final_rate=0.02)

CARD = {
    "license": "Apache-2.0",
    "training_data": [{"name": name, "license": license} for name, license in [tiny.DATA_LICENSES[tiny.STORIES]]],
}


def train(encoding, size, recipe, tokenizer, stories, seed):
    """(trained decoder, facts about the run)."""
    rng = random.Random(seed)
    model = fresh(size, specs(size)[encoding], seed)
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": recipe["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe["lr"], betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    stream = tiny.Stream(tokenizer, list(stories), rng)
    begin, running = time.time(), None
    for step in range(recipe["steps"]):
        progress = step / recipe["steps"]
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        rate = recipe["lr"] * min(1.0, (step + 1) / recipe["warmup"])
        for group in optimizer.param_groups:
            group["lr"] = rate * (recipe["final_rate"] + (1 - recipe["final_rate"]) * cosine)
        rows = torch.stack([stream.window(size.context, bpe_dropout=0.0) for _ in range(recipe["batch"])])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 100 == 0:
            seconds = time.time() - begin
            print(f"{encoding} {seed}  step {step + 1:4d}  {running:.3f} nats/token  {seconds:4.0f} s", flush=True)
    facts = {"encoding": encoding, "seed": seed, "recipe": recipe, "train_loss": round(running, 4)}
    facts |= {"story_passes": stream.passes, "seconds": round(time.time() - begin)}
    return model, facts


def main():
    parser = argparse.ArgumentParser(description="Train decoders that differ in their position encoding only.")
    parser.add_argument("encodings", nargs="+", choices=sorted(specs(Size())))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--steps", type=int, default=RECIPE["steps"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    size, recipe = Size(), RECIPE | {"steps": args.steps}
    stories, _, texts = load_stories()
    tokenizer = train_tokenizer(stories, size.vocab)
    for seed in args.seeds:
        for encoding in args.encodings:
            model, facts = train(encoding, size, recipe, tokenizer, stories, seed)
            facts["data"] = [
                {"file": name, "sha256": hashlib.sha256(text).hexdigest(), "bytes": len(text)} for name, text in texts.items()
            ]
            out = args.out / f"{encoding}-{seed}"
            save(out, model, tokenizer, tokenizer.token_to_id(tiny.EOT))
            (out / "training.json").write_text(json.dumps(facts | {"torch": torch.__version__}, indent=2) + "\n")
            (out / "model_card.json").write_text(json.dumps(CARD, indent=2) + "\n")


if __name__ == "__main__":
    main()
