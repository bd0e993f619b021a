#!/usr/bin/env python3
"""Measure a trained example model, and what it loses when its positions are damaged.

    python examples/tiny/probe.py examples/tiny/tiny-rope

Prints bits per byte of the held-out stories: intact, as one unbroken stream,
and with the position encoding removed or computed wrongly. A model that did
not depend on its RoPE or ALiBi would not notice the damage. Then follow the
range of the activations and a greedy sample.
"""

import contextlib
import sys
from pathlib import Path
from unittest import mock

from train import CONTEXT, EOT, bits_per_byte, load_documents, read_texts, story_loss

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer
from transformers.models.bloom import modeling_bloom
from transformers.models.llama import modeling_llama


def damages(model):
    """Return (description, context manager that damages the positions) pairs."""
    if model.config.model_type == "llama":
        rotate = modeling_llama.apply_rotary_pos_emb
        size = model.config.head_dim
        evens_first = [*range(0, size, 2), *range(1, size, 2)]

        def without(q, k, cos, sin, *rest, **named):
            return q, k

        def interleaved(q, k, *rest, **named):
            return rotate(q[..., evens_first], k[..., evens_first], *rest, **named)

        def slower(q, k, cos, sin, *rest, **named):
            halved = torch.arange(cos.shape[1]) // 2
            return rotate(q, k, cos[:, halved], sin[:, halved])

        variants = [
            ("no rotation", without),
            ("neighbouring pairs (2i, 2i+1) instead of halves (i, i+8)", interleaved),
            ("positions halved", slower),
        ]
        target = (modeling_llama, "apply_rotary_pos_emb")
    else:
        heads = model.config.n_head
        right = modeling_bloom._get_alibi_slopes
        steps = torch.arange(1, heads + 1, dtype=torch.float32)

        def first_eight_only(n, device):
            slopes = right(n, device).clone()
            slopes[8:] = 0
            return slopes

        variants = [
            ("all slopes zero", lambda n, device: torch.zeros(n)),
            ("slopes 9 to 12 zero", first_eight_only),
            ("one series 2^(-8h/12)", lambda n, device: 2.0 ** (-8 * steps / heads)),
            ("first series continued, 2^(-h)", lambda n, device: 2.0**-steps),
            ("slopes in reverse order", lambda n, device: right(n, device).flip(0)),
        ]
        target = (modeling_bloom, "_get_alibi_slopes")
    return [("intact", contextlib.nullcontext())] + [
        (name, mock.patch.object(*target, function)) for name, function in variants
    ]


def stream_loss(model, tokenizer, stories):
    """Like story_loss, but over windows of one stream that holds all stories."""
    eot, ids = tokenizer.token_to_id(EOT), []
    for story in stories:
        ids += [eot] + tokenizer.encode(story).ids
    ids = torch.tensor(ids + [eot])
    nats = 0.0
    with torch.no_grad():
        for start in range(0, len(ids) - 1, CONTEXT):
            window = ids[start : start + CONTEXT + 1]
            logits = model(window[None, :-1], use_cache=False).logits[0].float()
            nats += F.cross_entropy(logits, window[1:], reduction="sum").item()
    return nats, len(ids) - 1, sum(len(story.encode("utf-8")) for story in stories)


def activation_ranges(model, tokenizer, stories):
    """Return {kind of output: (largest magnitude, root mean square)} over all layers."""
    peaks, squares = {}, {}

    def watch(kind):
        def hook(module, _, out):
            out = out[0] if isinstance(out, tuple) else out
            peaks[kind] = max(peaks.get(kind, 0.0), out.abs().max().item())
            squares.setdefault(kind, []).append(out.square().mean().item())

        return hook

    layers = model.model.layers if model.config.model_type == "llama" else model.transformer.h
    hooks = []
    for layer in layers:
        hooks.append(layer.register_forward_hook(watch("residual stream")))
        for name, module in layer.named_modules():
            if isinstance(module, torch.nn.Linear):
                hooks.append(module.register_forward_hook(watch(name)))
    hooks.append(model.lm_head.register_forward_hook(watch("logits")))
    with torch.no_grad():
        for story in stories:
            ids = [tokenizer.token_to_id(EOT)] + tokenizer.encode(story).ids
            model(torch.tensor([ids[:CONTEXT]]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return {kind: (peaks[kind], (sum(v) / len(v)) ** 0.5) for kind, v in squares.items()}


def main():
    if len(sys.argv) != 2 or not Path(sys.argv[1], "config.json").is_file():
        sys.exit("usage: probe.py FOLDER (a model folder written by train.py)")
    folder = sys.argv[1]
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    plain = Tokenizer.from_file(str(Path(folder, "tokenizer.json")))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    held_out = load_documents(read_texts())[2]

    print("bits per byte of the held-out stories")
    for name, damage in damages(model):
        with damage:
            print(f"  {bits_per_byte(story_loss(model, plain, held_out)):.4f}  {name}")
    print(f"  {bits_per_byte(stream_loss(model, plain, held_out)):.4f}  intact, windows of one stream")
    half = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    print(f"  {bits_per_byte(story_loss(half, plain, held_out)):.4f}  intact, computed in bfloat16")

    print("activations: largest magnitude, root mean square")
    for kind, (peak, rms) in activation_ranges(model, plain, held_out[:10]).items():
        print(f"  {peak:8.2f} {rms:8.3f}  {kind}")

    prompt = tokenizer("Once upon a time", return_tensors="pt")
    out = model.generate(**prompt, max_new_tokens=60, do_sample=False)
    print("greedy sample\n" + tokenizer.decode(out[0]))


if __name__ == "__main__":
    main()
