"""Text generation with any engine: the C runtime, the golden executor, or the float reference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import ContextError, EdgePosError
from ..sampling import Rng, Sampling, sample
from ..session_rules import whole_number, whole_numbers
from .tokenizer import TextStream, Tokenizer


@dataclass(frozen=True)
class Rules:
    """How a text goes on and ends: at most `most` tokens, before a token of `eos` or a text of `stops`."""

    how: Sampling = Sampling()
    most: int = 128
    stops: tuple[bytes, ...] = ()
    eos: frozenset[int] = frozenset()

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer,
        max_new_tokens: int = 128,
        stop: str | bytes | Iterable[str | bytes] = (),
        eos: bool | Iterable[int] = True,
        **sampling,
    ) -> Rules:
        """From what users give. eos: True for the model's ids, False for none, or ids. sampling: the parameters of Sampling.of.
        Raises EdgePosError for anything out of range."""
        texts = [stop] if isinstance(stop, (str, bytes)) else list(stop)
        if not all(isinstance(text, (str, bytes)) and text for text in texts):
            raise EdgePosError(f"stop is {stop!r}; one or more texts that are not empty are needed")
        stops = tuple(text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text for text in texts)
        ids = (tokenizer.eos_ids if eos else ()) if isinstance(eos, bool) else whole_numbers("eos", list(eos)).tolist()
        return cls(Sampling.of(**sampling), whole_number("max_new_tokens", max_new_tokens, 0, 2**31 - 1), stops, frozenset(ids))


@dataclass
class Generation:
    """A text that is being made. evaluated: the ids in the session's cache. Iterate it for pieces of text, once.

    ids: those to evaluate next: the prompt, then the token chosen last.
    reason: why it ended: "eos", "stop", "length" (as many tokens as were asked for) or "context" (no room); None before.
    """

    session: object
    tokenizer: Tokenizer
    ids: list[int]
    rules: Rules
    rng: Rng
    evaluated: list[int] = field(default_factory=list)
    reason: str | None = None
    _text: TextStream | None = field(default=None, init=False, repr=False)

    @property
    def data(self) -> bytes:
        """The bytes of the pieces so far, also where they are not UTF-8 and a piece has U+FFFD."""
        return b"" if self._text is None else self._text.data

    def end(self) -> str:
        """What was held back of a text that ends before its time, because a stop text might have begun there."""
        return "" if self._text is None else self._text.end()

    def __iter__(self) -> Iterator[str]:
        text = self._text = TextStream(self.tokenizer, self.ids[-1], self.rules.stops)
        reason = "length"
        for _ in range(self.rules.most):
            token = self._choose(self.ids)
            if token in self.rules.eos:
                reason = "eos"
                break
            piece = text.push(token)
            if piece:
                yield piece
            if text.stopped:
                reason = "stop"
                break
            self.ids = [token]
            if self.session.context is not None and self.session.length >= self.session.context:
                reason = "context"
                break
        piece = text.end()
        if piece:
            yield piece
        self.reason = reason

    def _choose(self, ids: list[int]) -> int:
        session, how = self.session, self.rules.how
        own_choice = hasattr(session, "choose")
        logits = session.eval_int(ids, logits="none" if own_choice else "last")
        self.evaluated += ids
        if own_choice:
            return session.choose(how, self.rng, self.evaluated)
        return sample(logits[0], session.logits_f, how, self.rng, self.evaluated)


def generate(
    session,
    tokenizer: Tokenizer,
    prompt: str | bytes | Sequence[int],
    max_new_tokens: int = 128,
    *,
    seed: int = 0,
    **rules,
) -> Generation:
    """Continue ``prompt`` (text, or ids used as they are); yields pieces of text, never half a code point.

    session: CSession, GoldenSession or FloatSession. A session that holds tokens already goes on from them, without
    another BOS. rules: the others of Rules.of. Ends after max_new_tokens, at EOS, before a stop string, or when the context is full; an
    incomplete code point at the end is left out. The penalty counts the tokens of the prompt and of what follows it. Raises
    EdgePosError for an empty prompt or parameters out of range, ContextError for a prompt that does not fit; both before
    anything is evaluated.
    """
    checked = Rules.of(tokenizer, max_new_tokens, **rules)
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
    return Generation(session, tokenizer, ids, checked, Rng(seed))
