"""Conversations with a session: only what is new is evaluated."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np

from ..errors import ContextError, FormatError
from ..runtime.generate import Generation, Rules
from ..sampling import Rng
from ..session_rules import checked_state, whole_number
from .template import ROLES, BundleTemplate, checked_messages

STATE = struct.Struct("<4sIQIIII")  # docs/bundle.md, "Saved conversation"
MAGIC, FORMAT = b"EPCH", 1
NAME = "saved conversation"


class Chat:
    """A conversation. The session belongs to it: its cache holds what both sides have said, and a turn evaluates what is new.

    messages: dicts of role and content; a byte that is not UTF-8 is a lone surrogate there, as of os.fsdecode. dropped: messages left out
    so far because the context was full. rest: of an answer that was broken off, the end that had not been yielded: it might have begun a stop text.
    """

    def __init__(self, session, template: BundleTemplate, system: str | None = None, seed: int = 0, **rules):
        """rules: those of edgepos.runtime.generate.Rules.of. Raises EdgePosError for parameters out of range."""
        self.session, self.template = session, template
        self.tokenizer = session.the_tokenizer()
        self._rules = Rules.of(self.tokenizer, **rules)
        self._rng = Rng(whole_number("seed", seed, 0, 2**64 - 1))
        self._ids: list[int] = []  # in the session's cache
        self.messages = [] if system is None else checked_messages([{"role": "system", "content": system}])
        self.dropped = 0
        self.reason: str | None = None
        self.rest = ""
        session.reset()

    def send(self, text: str) -> Iterator[str]:
        """Say `text` and yield the answer in pieces; then it is in `messages`, too, or as much as was made of it.

        The oldest turns go where the context has no room for a quarter of itself (or the most tokens of an answer, if less).
        Raises ContextError when not even this turn fits, EdgePosError when the template refuses it; nothing has changed then.
        """
        messages = [*self.messages, *checked_messages([{"role": "user", "content": text}])]
        fitting, ids = self._fit(messages)
        self.dropped += len(messages) - len(fitting)
        self.messages = fitting
        return self._answer(ids)

    def _answer(self, ids: list[int]) -> Iterator[str]:
        generation = self.continue_with(ids)
        try:
            yield from generation
        finally:
            self._ids, self.reason, self.rest = generation.evaluated, generation.reason, generation.end()
            self.messages.append({"role": "assistant", "content": generation.data.decode("utf-8", "surrogateescape")})

    def continue_with(self, ids: list[int]) -> Generation:
        """The generation after `ids`, of which what the cache has already is not evaluated again."""
        same = 0
        while same < min(len(ids) - 1, len(self._ids)) and ids[same] == self._ids[same]:
            same += 1
        self.session.rewind(same)
        self._ids = ids[:same]
        return Generation(self.session, self.tokenizer, ids[same:], self._rules, self._rng, self._ids)

    def _fit(self, messages: list[dict]) -> tuple[list[dict], list[int]]:
        """(messages without the oldest turns, their ids), so that there is room for an answer."""
        room = self.session.context - min(self._rules.most, self.session.context // 4)
        first = 1 if messages[0]["role"] == "system" else 0
        while True:
            ids = self.template.ids(messages)
            if len(ids) <= room:
                return messages, ids
            if len(messages) <= first + 1:
                raise ContextError(
                    f"the message makes {len(ids)} tokens of conversation, a context of {self.session.context} has room for {room} and an answer; "
                    "shorten it or open a longer session"
                )
            messages = messages[:first] + messages[first + 2 :]

    def save(self) -> bytes:
        """The conversation with the session's cache, for `restore`: the bytes of `edgepos-run --chat --save`."""
        texts = [message["content"].encode("utf-8", "surrogateescape") for message in self.messages]
        head = STATE.pack(MAGIC, FORMAT, self._rng.state, self.dropped, len(texts), len(self._ids), sum(map(len, texts)))
        rows = [(ROLES[message["role"]], len(text)) for message, text in zip(self.messages, texts)]
        parts = [head, np.array(rows, "<u4").tobytes(), np.array(self._ids, "<i4").tobytes(), *texts, self.session.save()]
        return b"".join(parts)

    def restore(self, state: bytes) -> None:
        """Take over a saved conversation. Raises FormatError when it is none, or of another model; nothing has changed then."""
        rng, dropped, messages, ids, cache = _parts(state)
        if any(not 0 <= i < self.session.vocab for i in ids):
            raise FormatError(f"{NAME}: an id is outside 0 … {self.session.vocab - 1}; restore it with the model that saved it")
        before = self.session.save()
        self.session.restore(cache)
        if self.session.length != len(ids):
            self.session.restore(before)
            raise FormatError(f"{NAME}: {len(ids)} ids for {self.session.length} tokens in the cache; it was changed")
        self.messages, self._ids, self.dropped = messages, ids, dropped
        self._rng.state = rng


def _parts(state: bytes) -> tuple[int, int, list[dict[str, str]], list[int], bytes]:
    """(state of the random numbers, messages left out, messages, ids, state of the session) of a saved conversation."""
    state = checked_state(state)
    if len(state) < STATE.size or STATE.unpack_from(state)[:2] != (MAGIC, FORMAT):
        raise FormatError(f"{NAME}: it is not one that this version saved")
    _, _, rng, dropped, count, length, size = STATE.unpack_from(state)
    ids = STATE.size + 8 * count
    texts = ids + 4 * length
    cache = texts + size
    if len(state) < cache:
        raise FormatError(f"{NAME}: {len(state)} bytes, at least {cache} are needed; it was cut off")
    roles, sizes = np.frombuffer(state, "<u4", 2 * count, STATE.size).reshape(-1, 2).T.tolist()
    names, messages = {number: name for name, number in ROLES.items()}, []
    if any(role not in names for role in roles) or sum(sizes) != size:
        raise FormatError(f"{NAME}: roles or sizes of its messages are none; it was changed")
    at = texts
    for role, n in zip(roles, sizes):
        messages.append({"role": names[role], "content": state[at : at + n].decode("utf-8", "surrogateescape")})
        at += n
    return rng, dropped, messages, np.frombuffer(state, "<i4", length, ids).tolist(), state[cache:]
