"""The chat template of a bundle: the runtime's form where it has the conversation, else Jinja."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from ..errors import EdgePosError
from ..runtime.native import Image, check, ffi, lib, status_text
from ..runtime.tokenizer import Tokenizer
from .jinja import ChatTemplate, Message

ROLES = {"system": lib.EP_SYSTEM, "user": lib.EP_USER, "assistant": lib.EP_ASSISTANT}


def checked_messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as dicts of role and content. Raises EdgePosError naming the first that is none."""
    result = []
    for i, message in enumerate(messages):
        role, content = (message.get(key) for key in ("role", "content")) if isinstance(message, Mapping) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise EdgePosError(f"message {i + 1} is {str(message)[:80]}; a role ({', '.join(ROLES)}) and a content (str) are needed")
        try:
            content.encode("utf-8", "surrogateescape")  # undecodable bytes of an input are bytes again
        except UnicodeEncodeError as error:
            raise EdgePosError(f"message {i + 1}, character {error.start}: a lone surrogate; no UTF-8 can hold it") from None
        result.append({"role": role, "content": content})
    if not result:
        raise EdgePosError("no messages; give at least one")
    return result


class BundleTemplate:
    """Turns conversations into ids. jinja: the source's template, None where there is only the form. controls: gives the texts
    that no content may turn into control tokens."""

    def __init__(self, image: Image, tokenizer: Tokenizer, jinja: ChatTemplate | None, controls: Callable[[], list[str]]):
        """Raises EdgePosError when the image has no form and there is no template."""
        if not image.info.chat and jinja is None:
            raise EdgePosError(f"{image.origin}: the model has no chat template; give it texts to continue instead")
        self._image, self._tokenizer, self.jinja, self._controls = image, tokenizer, jinja, controls

    def render(self, messages: Sequence[Message]) -> tuple[bytes, list[tuple[int, int]]]:
        """(text up to where the answer begins, parts [start, end) in bytes in which no token may be a control token).

        Raises EdgePosError for messages that are none, and for a conversation that the model's template refuses.
        """
        messages = checked_messages(messages)
        if self._image.info.chat:
            rendered, good = self.by_form(messages)
            if rendered is not None or self.jinja is None:
                return rendered or self._refuse(messages, good)
        return self.jinja.render(messages, self._controls(), self._needs_date)

    def ids(self, messages: Sequence[Message]) -> list[int]:
        """The ids that the model continues with its answer. Raises EdgePosError like `render`."""
        return self._tokenizer.encode_chat(*self.render(messages))

    def by_form(self, messages: Sequence[Message]) -> tuple[tuple[bytes, list[tuple[int, int]]] | None, int]:
        """(what the C runtime renders, or None where its form has not these messages; how many it has)."""
        texts = [message["content"].encode("utf-8", "surrogateescape") for message in messages]
        held = [ffi.from_buffer(text) for text in texts]
        rows = [{"role": ROLES[m["role"]], "text": ffi.cast("char *", data), "bytes": len(text)} for m, data, text in zip(messages, held, texts)]
        given, n, spans = ffi.new("ep_message[]", rows), len(rows), ffi.new("ep_span[]", len(rows))
        size, good = ffi.new("size_t *"), ffi.new("size_t *")
        status = lib.ep_chat_render(self._image.model, given, n, ffi.NULL, 0, size, spans, good)
        if status == lib.EP_ERR_ROLE:
            return None, int(good[0])
        text = bytearray(size[0])
        check(lib.ep_chat_render(self._image.model, given, n, ffi.from_buffer(text), len(text), size, spans, good), "chat template")
        return (bytes(text), [(int(span.start), int(span.end)) for span in spans]), n

    def _refuse(self, messages: Sequence[Message], good: int):
        where = f"message {good + 1} ({messages[good]['role']})" if good < len(messages) else f"an answer to {messages[-1]['role']}"
        raise EdgePosError(f"{where}: {status_text(lib.EP_ERR_ROLE)}")

    @cached_property
    def _needs_date(self) -> bool:
        return self.jinja.needs_date()
