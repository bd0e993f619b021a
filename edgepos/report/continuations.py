"""The `generation` section: what both models write, beginning with the same words."""

from __future__ import annotations

PROMPT, NEW = 16, 64  # tokens


def continuations(reference, session, tokenizer, window: list[int]) -> dict | None:
    """Greedy continuations of a window's first tokens by both models, and the index of the first different character (null: none).

    None where the model has no room for any, or no tokenizer.
    """
    prompt = window[:PROMPT]
    room = min(NEW, session.context - len(prompt))
    if tokenizer is None or room < 1:
        return None
    texts = []
    for model in (reference, session):
        model.reset()
        ids = prompt
        written: list[int] = []
        while len(written) < room:
            token = int(model.eval_int(ids, logits="last")[0].argmax())
            if token in tokenizer.eos_ids:
                break
            written.append(token)
            ids = [token]
        texts.append(tokenizer.decode(prompt + written))
    start = len(tokenizer.decode(prompt))
    exact, ours = texts
    differ = next((i for i, (a, b) in enumerate(zip(exact, ours)) if a != b), None if len(exact) == len(ours) else min(map(len, texts)))
    return {"prompt": exact[:start], "float": exact[start:], "integers": ours[start:], "differs_at": None if differ is None else max(differ - start, 0)}
