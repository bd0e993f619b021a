"""Conversations with a session: only what is new is evaluated."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

from ..errors import ContextError, EdgePosError, FormatError
from ..runtime.generate import Generation, Rules
from ..sampling import Rng
from ..session_rules import whole_number
from .template import BundleTemplate, checked_messages

STATE = struct.Struct("<4sII")  # magic, bytes of JSON, bytes of the session's state
MAGIC = b"EPCH"


class Chat:
    """A conversation. The session belongs to it: its cache holds what both sides have said, and a turn evaluates what is new.

    messages: dicts of role and content. dropped: messages left out so far because the context was full.
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
        answer = {"role": "assistant", "content": ""}
        generation = self.continue_with(ids)
        try:
            for piece in generation:
                answer["content"] += piece
                yield piece
        finally:
            self._ids, self.reason = generation.evaluated, generation.reason
            self.messages.append(answer)

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
        """The conversation with the session's cache, for `restore`."""
        head = {"messages": self.messages, "ids": self._ids, "rng": self._rng.state, "dropped": self.dropped}
        data, state = json.dumps(head).encode("ascii"), self.session.save()
        return STATE.pack(MAGIC, len(data), len(state)) + data + state

    def restore(self, state: bytes) -> None:
        """Take over a saved conversation. Raises FormatError when it is none, or of another model; nothing has changed then."""
        try:
            magic, size, rest = STATE.unpack_from(state)
            head = json.loads(bytes(state[STATE.size : STATE.size + size]))
            messages, ids = head["messages"], [int(i) for i in head["ids"]]
            rng, dropped = int(head["rng"]) % (1 << 64), int(head["dropped"])
            cache = bytes(state[STATE.size + size :])
            messages = checked_messages(messages) if messages else []
        except (struct.error, ValueError, KeyError, TypeError, RecursionError, EdgePosError):
            magic = None
        if magic != MAGIC or len(cache) != rest:
            raise FormatError("saved conversation: it is not one that Chat.save wrote")
        before = self.session.save()
        self.session.restore(cache)
        if self.session.length != len(ids):
            self.session.restore(before)
            raise FormatError(f"saved conversation: {len(ids)} ids for {self.session.length} tokens in the cache; it was changed")
        self.messages, self._ids, self.dropped = messages, ids, dropped
        self._rng.state = rng

