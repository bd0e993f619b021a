"""Text generation with any engine: the C runtime, the golden executor, or the float reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import ContextError, EdgePosError
from ..sampling import Rng, Sampling, sample
from ..session_rules import whole_number, whole_numbers
from .tokenizer import TextStream, Tokenizer


def generate(
    session,
    tokenizer: Tokenizer,
    prompt: str | bytes | Sequence[int],
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Iterator[str]:
    """Continue ``prompt`` (text, or ids used as they are) and yield pieces of text, never half a code point.

    session: CSession, GoldenSession or FloatSession. A session that holds tokens already goes on from them, without
    another BOS. Ends after max_new_tokens, at EOS, or when the context is full; an incomplete code point at the end is
    left out. Raises EdgePosError for an empty prompt or parameters out of range, ContextError for a prompt that does not
    fit; both before anything is evaluated.
    """
    how = Sampling.of(temperature, top_k, top_p)
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens, 0, 2**31 - 1)
    seed = whole_number("seed", seed, 0, 2**64 - 1)
    used = session.length
    if isinstance(prompt, (str, bytes)):
        ids = tokenizer.encode(prompt, bos=False if used else None)
    else:
        ids = whole_numbers("prompt", prompt).tolist()
    if not ids:
        raise EdgePosError("the prompt is empty and this model puts no token in front of it; give some text")
    if session.context is not None and used + len(ids) > session.context:
        raise ContextError(
            f"the prompt has {len(ids)} tokens, the context has room for {session.context - used} more; "
            "shorten it or open a longer session"
        )
    return _stream(session, tokenizer, ids, max_new_tokens, how, Rng(seed))


def _stream(session, tokenizer, ids, max_new_tokens, how, rng) -> Iterator[str]:
    text = TextStream(tokenizer, ids[-1])
    for _ in range(max_new_tokens):
        token = _next_token(session, ids, how, rng)
        if token in tokenizer.eos_ids:
            return
        piece = text.push(token)
        if piece:
            yield piece
        if session.context is not None and session.length >= session.context:
            return
        ids = [token]


def _next_token(session, ids: list[int], how: Sampling, rng: Rng) -> int:
    if hasattr(session, "choose"):
        session.eval_int(ids, logits="none")
        return session.choose(how, rng)
    return sample(session.eval_int(ids, logits="last")[0], session.logits_f, how, rng)
