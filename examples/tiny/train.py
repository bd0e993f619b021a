#!/usr/bin/env python3
"""Train the two example models of EdgePos from scratch on a laptop-sized CPU.

    python examples/tiny/train.py rope    # LlamaForCausalLM: GQA, RoPE, RMSNorm, SiLU-gated MLP
    python examples/tiny/train.py alibi   # BloomForCausalLM: ALiBi, LayerNorm, GELU MLP

The result is a folder that `transformers` loads as it is, plus `training.json`
(every figure about the run) and `model_card.json` (licence and training data).

The data is small (about 350 KB of simple stories), so everything here is about
not overfitting: dropout, weight decay, a moving average of the weights, BPE
dropout, randomly placed windows, and old children's books as a warm-up that
fades out. The last tenth of the stories is held out. It touches neither the
tokenizer nor the weights nor the choice of the snapshot; that choice uses a
validation slice cut from the training part.
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import shutil
import sys
import time
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as error:
    sys.exit(
        f"train.py needs the Python packages torch, transformers and tokenizers ({error}).\n"
        "Install them with: pip install torch transformers tokenizers"
    )

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
EOT = "<|endoftext|>"
STORIES, CLASSICS = "tinystories.txt", "children_classics_pd.txt"
DATA_LICENSES = {
    STORIES: ("TinyStories", "CDLA-Sharing-1.0"),
    CLASSICS: ("excerpts of public-domain children's books", "Public domain"),
}
HELD_OUT, VALIDATION = 0.10, 0.05  # of all stories; of the remaining stories
VOCAB, CONTEXT = 1024, 512
WINDOWS = ((128, 16), (256, 8), (512, 4))  # (length, batch): equal tokens per step
WINDOW_ODDS = (0.5, 0.35, 0.15)

RECIPES = {
    # With this little data the validation loss rises again after 15 to 20 passes: `steps` ends
    # the schedule there. The weights that count are the average at the best validation loss.
    "rope": dict(steps=1350, lr=3e-3, weight_decay=0.1, dropout=0.2, bpe_dropout=0.1, ema=0.99),
    "alibi": dict(steps=1000, lr=3e-3, weight_decay=0.1, dropout=0.2, bpe_dropout=0.1, ema=0.99),
}


# ---------------------------------------------------------------- texts


def read_texts():
    """Return {file name: bytes} of the training texts."""
    shared = Path(os.environ.get("EDGEPOS_SHARED", "../shared"))
    folder = (shared if shared.is_absolute() else ROOT / shared) / "text"
    missing = [name for name in (STORIES, CLASSICS) if not (folder / name).is_file()]
    if missing:
        sys.exit(
            f"train.py does not find {' and '.join(missing)} in {folder}.\n"
            "Set EDGEPOS_SHARED to the folder whose sub-folder text/ holds them "
            "(relative paths start at the project root)."
        )
    return {name: (folder / name).read_bytes() for name in (STORIES, CLASSICS)}


def split_stories(text, shortest=250):
    """Cut the story file into stories.

    A story ends at a single line break (blank lines separate paragraphs), but a
    few stories hold single breaks themselves. A break therefore counts as a
    boundary only between two stretches of at least `shortest` characters.
    """
    stories = [""]
    for piece in re.split(r"(?<!\n)\n(?!\n)", text):
        if len(stories[-1]) >= shortest and len(piece) >= shortest:
            stories.append(piece)
        else:
            stories[-1] += "\n" + piece if stories[-1] else piece
    return [story.strip() for story in stories]


def load_documents(texts):
    """Return the training, validation and held-out stories and stretches of the old books."""
    stories = split_stories(texts[STORIES].decode("utf-8"))
    total, tail, cut = sum(map(len, stories)), 0, len(stories)
    while tail < HELD_OUT * total:
        cut -= 1
        tail += len(stories[cut])
    known, held_out = stories[:cut], stories[cut:]
    known = [story for story in known if story not in set(held_out)]
    every = round(1 / VALIDATION)
    validation = known[every // 2 :: every]
    train = [story for i, story in enumerate(known) if i % every != every // 2]

    # The books come as wrapped lines without blank ones: join them, cut at ends of sentences.
    books = texts[CLASSICS].decode("utf-8").translate(str.maketrans("“”‘’", "\"\"''"))
    stretches = re.findall(r".{1200,}?[.!?]+[\"']*(?= |$)|.+$", " ".join(books.split()))
    stretches = [stretch.strip() for stretch in stretches]
    return train, validation, held_out, stretches


def train_tokenizer(documents):
    """Byte-level BPE: every UTF-8 text can be written, nothing is normalised."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


# ---------------------------------------------------------------- models


def build_model(kind, eot, dropout):
    """Return an untrained model of about a million parameters."""
    ids = dict(bos_token_id=eot, eos_token_id=eot, pad_token_id=None)
    if kind == "rope":
        # 8 query heads share 2 key/value heads; 344 is no multiple of 32.
        config = transformers.LlamaConfig(
            vocab_size=VOCAB, hidden_size=128, intermediate_size=344, num_hidden_layers=6,
            num_attention_heads=8, num_key_value_heads=2, head_dim=16, rms_norm_eps=1e-5,
            max_position_embeddings=CONTEXT, tie_word_embeddings=True, attention_dropout=0.0,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, **ids,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        # LlamaForCausalLM has no residual dropout of its own; hooks add it while training.
        drop = lambda module, _, out: F.dropout(out, dropout, module.training)
        hooked = [model.model.embed_tokens]
        for layer in model.model.layers:
            hooked += [layer.self_attn.o_proj, layer.mlp.down_proj]
        for module in hooked:
            module.register_forward_hook(drop)
    else:
        # 12 heads: not a power of two, so the last four ALiBi slopes come from the second series.
        config = transformers.BloomConfig(
            vocab_size=VOCAB, hidden_size=144, n_layer=4, n_head=12, layer_norm_epsilon=1e-5,
            hidden_dropout=dropout, attention_dropout=0.0, seq_length=CONTEXT,
            tie_word_embeddings=True, **ids,
        )  # fmt: skip
        model = transformers.BloomForCausalLM(config)
    # Smaller residual writes at the start keep the activations even across depth.
    depth = config.num_hidden_layers
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight", "dense.weight", "dense_4h_to_h.weight")):
            parameter.data.mul_(1 / math.sqrt(2 * depth))
    return model


# ---------------------------------------------------------------- measuring


def story_loss(model, tokenizer, stories):
    """Return (nats, tokens, bytes) of `stories`, each one predicted on its own.

    A story is read after one end-of-text token and ends with another, which is
    predicted too. Stories longer than the context continue in windows that see
    half a context of what came before. The bytes are those of the story texts;
    the end-of-text tokens add none.
    """
    eot, nats, tokens = tokenizer.token_to_id(EOT), 0.0, 0
    model.eval()
    with torch.no_grad():
        for story in stories:
            ids = [eot] + tokenizer.encode(story).ids + [eot]
            done = 1
            while done < len(ids):
                start = max(0, done - CONTEXT // 2) if len(ids) > CONTEXT + 1 else 0
                window = torch.tensor(ids[start : start + CONTEXT + 1])
                logits = model(window[None, :-1], use_cache=False).logits[0].float()
                skip = done - 1 - start
                nats += F.cross_entropy(logits[skip:], window[1 + skip :], reduction="sum").item()
                tokens += len(window) - 1 - skip
                done = start + len(window)
    return nats, tokens, sum(len(story.encode("utf-8")) for story in stories)


def bits_per_byte(loss):
    nats, _, size = loss
    return nats / math.log(2) / size


# ---------------------------------------------------------------- training


class Stream:
    """Endless random windows over documents that are shuffled and re-tokenised every pass."""

    def __init__(self, tokenizer, documents, rng):
        self.tokenizer, self.documents, self.rng = tokenizer, documents, rng
        self.passes = 0
        self.tokens = torch.empty(0, dtype=torch.long)

    def refresh(self, bpe_dropout):
        eot = self.tokenizer.token_to_id(EOT)
        self.tokenizer.model.dropout = bpe_dropout or None
        self.rng.shuffle(self.documents)
        ids, self.starts = [], []
        for encoding in self.tokenizer.encode_batch(self.documents):
            self.starts.append(len(ids))
            ids += [eot] + encoding.ids
        self.tokenizer.model.dropout = None
        self.tokens = torch.tensor(ids + [eot])
        self.left = len(ids)
        self.passes += 1

    def window(self, length, bpe_dropout):
        """Return length + 1 tokens; every second window starts where a document starts."""
        if not len(self.tokens) or self.left <= 0:
            self.refresh(bpe_dropout)
        self.left -= length
        last = len(self.tokens) - length - 1
        at = self.rng.choice(self.starts) if self.rng.random() < 0.5 else self.rng.randrange(last + 1)
        at = min(at, last)
        return self.tokens[at : at + length + 1]


def train(kind, recipe, tokenizer, documents, minutes, seed):
    """Train and return (weights chosen on the validation stories, facts about the run).

    The schedule ends after the recipe's steps or after `minutes`, whichever comes first.
    """
    stories, validation, _, stretches = documents
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model = build_model(kind, tokenizer.token_to_id(EOT), recipe["dropout"])
    decay = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": recipe["weight_decay"]}, {"params": plain, "weight_decay": 0.0}],
        lr=recipe["lr"], betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    average = {name: value.clone() for name, value in model.state_dict().items()}
    main, old = Stream(tokenizer, list(stories), rng), Stream(tokenizer, list(stretches), rng)
    best, best_step, best_weights = math.inf, 0, None
    begin, step, progress, shown, running = time.time(), 0, 0.0, 0.0, None

    while progress < 1.0:
        progress = max(progress, step / recipe["steps"], (time.time() - begin) / (60 * minutes))
        progress = min(progress, 1.0)
        warm = min(1.0, (step + 1) / 100)
        rate = recipe["lr"] * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        bpe_dropout = recipe["bpe_dropout"] * max(0.0, 1 - progress / 0.8)
        from_books = 0.25 * max(0.0, 1 - progress / 0.5)

        length, batch = rng.choices(WINDOWS, WINDOW_ODDS)[0]
        rows = []
        for _ in range(batch):
            stream = old if rng.random() < from_books else main
            rows.append(stream.window(length, bpe_dropout))
        rows = torch.stack(rows)
        model.train()
        logits = model(rows[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        keep = min(recipe["ema"], (1 + step) / (10 + step))
        with torch.no_grad():
            for name, value in model.state_dict().items():
                average[name].lerp_(value, 1 - keep)
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()

        if progress - shown >= 0.04 or progress >= 1.0:
            shown = progress
            raw = {name: value.clone() for name, value in model.state_dict().items()}
            model.load_state_dict(average)
            score = bits_per_byte(story_loss(model, tokenizer, validation))
            model.load_state_dict(raw)
            if score < best:
                best, best_step = score, step
                best_weights = {name: value.clone() for name, value in average.items()}
            print(
                f"{(time.time() - begin) / 60:5.1f} min  step {step:5d}  passes {main.passes:3d}  "
                f"train {running:.3f} nats/token  validation {score:.4f} bits/byte",
                flush=True,
            )
    facts = dict(
        steps=step, chosen_step=best_step, story_passes=main.passes,
        tokens_per_step=WINDOWS[0][0] * WINDOWS[0][1],
        minutes=round((time.time() - begin) / 60, 1), validation_bits_per_byte=round(best, 4),
    )  # fmt: skip
    return best_weights, facts


# ---------------------------------------------------------------- saving


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save(kind, out, weights, tokenizer):
    """Write the folder in the layout `transformers` expects, weights as bfloat16."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    eot = tokenizer.token_to_id(EOT)
    model = build_model(kind, eot, 0.0)
    model.load_state_dict(weights)
    model = model.to(torch.bfloat16)
    model.config.dtype = torch.bfloat16
    model.generation_config = transformers.GenerationConfig(
        bos_token_id=eot, eos_token_id=eot, pad_token_id=eot
    )
    model.save_pretrained(out)
    tokenizer.save(str(out / "tokenizer.json"))
    write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": EOT,
            "eos_token": EOT,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT,
        },
    )


def record(out, texts, documents, recipe, facts, seed):
    """Measure the saved weights on the held-out stories and write the two JSON records."""
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    stories, validation, held_out, _ = documents
    loss = story_loss(model, tokenizer, held_out)
    nats, tokens, size = loss
    figure = round(bits_per_byte(loss), 4)
    write_json(
        out / "training.json",
        {
            "bits_per_byte": figure,
            "nats_per_token": round(nats / tokens, 4),
            "held_out": {
                "file": STORIES,
                "from_byte": texts[STORIES].rfind(held_out[0].encode("utf-8")),
                "stories": len(held_out),
                "tokens": tokens,
                "bytes": size,
            },
            "validation_stories": len(validation),
            "train_stories": len(stories),
            "parameters": sum(p.numel() for p in model.parameters()),
            "seed": seed,
            "recipe": recipe,
            **facts,
            "data": [
                {"file": name, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
                for name, content in texts.items()
            ],
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    )
    write_json(
        out / "model_card.json",
        {
            "license": "Apache-2.0",
            "training_data": [{"name": n, "license": l} for n, l in DATA_LICENSES.values()],
            "bits_per_byte": figure,
        },
    )
    print(f"{out.name}: {figure:.4f} bits per byte on {len(held_out)} held-out stories")


def main():
    parser = argparse.ArgumentParser(description="Train one of the two example models.")
    parser.add_argument("kind", choices=sorted(RECIPES))
    parser.add_argument("--out", type=Path, help="folder to write (default: beside this script)")
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after this time (default: 30)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: 1)")
    for name, value in RECIPES["rope"].items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(value), help="replace this value of the recipe")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    recipe = dict(RECIPES[args.kind])
    recipe.update({name: getattr(args, name) for name in recipe if getattr(args, name) is not None})
    texts = read_texts()
    documents = load_documents(texts)
    tokenizer = train_tokenizer(documents[0] + [" ".join(documents[3])])
    weights, facts = train(args.kind, recipe, tokenizer, documents, args.minutes, args.seed)
    out = args.out or HERE / f"tiny-{args.kind}"
    save(args.kind, out, weights, tokenizer)
    record(out, texts, documents, recipe, facts, args.seed)


if __name__ == "__main__":
    main()
