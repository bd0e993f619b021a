"""The C tokenizer from Python: what a board encodes and decodes is what this does."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

import numpy as np

from ..errors import EdgePosError
from .native import Image, check, ffi, int32_pointer, lib


class Tokenizer:
    """Text to token ids and back.

    kind: "bpe-bytelevel", "bpe-spm", "wordpiece" or "unigram"; bos_id: int or None; eos_ids: tuple of ids; adds_bos: whether texts start with BOS.
    """

    def __init__(self, image: Image):
        """Raises EdgePosError when the image carries no tokenizer."""
        if image.info.tokenizer == 0:
            raise EdgePosError(f"{image.origin}: the model carries no tokenizer; work with token ids")
        self._image = image
        self.kind = ("bpe-bytelevel", "bpe-spm", "wordpiece", "unigram")[image.info.tokenizer - 1]
        self.bos_id = image.info.bos
        self.eos_ids = image.info.eos
        self.adds_bos = bool(lib.ep_adds_bos(image.model))
        self._usual: dict[int, bytes] = {}  # token → its bytes behind one that is not BOS, as far as they were asked for

    def encode(self, text: str | bytes, bos: bool | None = None) -> list[int]:
        """Ids of a text. ``bos``: put BOS in front, and behind what the model has for that; None does what the model wants.

        Bytes that are not UTF-8 are encoded too. Raises EdgePosError for a str that no UTF-8 can hold or a BOS the model has not.
        """
        if isinstance(text, str):
            try:
                text = text.encode("utf-8", "surrogateescape")  # undecodable arguments of a command line are bytes again
            except UnicodeEncodeError as error:
                raise EdgePosError(f"text, character {error.start}: a lone surrogate; no UTF-8 can hold it") from None
        return self._encode(text, self.adds_bos if bos is None else bool(bos))

    def encode_chat(self, text: bytes, contents: Sequence[tuple[int, int]]) -> list[int]:
        """Ids of a conversation as UTF-8. contents: the parts [start, end) in bytes, ascending, in which control tokens are text.

        No BOS is added: the text has what the model wants.
        """
        return self._encode(text, False, contents)

    def _encode(self, text: bytes, bos: bool, contents: Sequence[tuple[int, int]] = ()) -> list[int]:
        if bos and self.bos_id is None and not self.adds_bos:
            raise EdgePosError("bos=True, but this model has no BOS token; use bos=False")
        spans = ffi.new("ep_span[]", [tuple(span) for span in contents])
        model, data = self._image.model, ffi.from_buffer(text)
        size = lib.ep_encode_chat_scratch(model, data, len(text), spans, len(spans))
        room = size // 4 + 2
        ids, scratch = np.empty(room, np.int32), np.empty(size, np.int32)
        n = ffi.new("size_t *")
        if len(spans):
            status = lib.ep_encode_chat(model, data, len(text), spans, len(spans), int32_pointer(ids), room, int32_pointer(scratch), n)
        else:
            status = lib.ep_encode(model, data, len(text), bos, int32_pointer(ids), room, int32_pointer(scratch), n)
        check(status, f"encoding {len(text)} bytes")
        return ids[: n[0]].tolist()

    def token_bytes(self, previous: int, token: int) -> bytes:
        """Bytes of one token after ``previous`` (-1: none); maybe no whole code point, empty for control tokens.

        Raises EdgePosError for an id outside the vocabulary.
        """
        vocab = self._image.info.vocab
        if not 0 <= token < vocab:
            raise EdgePosError(f"token id {token} is outside 0 … {vocab - 1}, the vocabulary")
        data, n = ffi.new("char **"), ffi.new("size_t *")
        check(lib.ep_token_bytes(self._image.model, previous if 0 <= previous < vocab else -1, token, data, n), f"token {token}")
        return ffi.buffer(data[0], n[0])[:]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Bytes of a row of ids. Raises EdgePosError for an id outside the vocabulary."""
        parts, previous = [], -1
        for token in ids:
            # Which token is in front matters only where there is none or BOS.
            usual = previous >= 0 and previous != self.bos_id
            text = self._usual.get(token) if usual else None
            if text is None:
                text = self.token_bytes(previous, token)
                if usual and token != self.bos_id:
                    self._usual[token] = text
                previous = self._previous(previous, token)
            parts.append(text)
        return b"".join(parts)

    def _previous(self, previous: int, token: int) -> int:
        """What a token leaves as the previous one: those that never print anything do not count, except BOS."""
        return token if token == self.bos_id or self.token_bytes(token, token) else previous

    def decode(self, ids: Iterable[int]) -> str:
        """Text of a row of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", "replace")


class TextStream:
    """Tokens to pieces of text. A piece never splits a code point, and holds nothing that could begin one of the stop strings."""

    def __init__(self, tokenizer: Tokenizer, previous: int = -1, stops: Sequence[bytes] = ()):
        self._tokenizer = tokenizer
        self._previous = previous
        self._stops = stops
        self._held = b""
        self._taken = bytearray()  # by the decoder
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.stopped = False  # a stop string was there: the text ends before it

    def push(self, token: int) -> str:
        """The text that this token completes, maybe ''."""
        data = self._held + self._tokenizer.token_bytes(self._previous, token)
        self._previous = self._tokenizer._previous(self._previous, token)
        found = [at for stop in self._stops if (at := data.find(stop)) >= 0]
        self.stopped = bool(found)
        ready = min(found) if found else min((len(data) - _overlap(data, stop) for stop in self._stops), default=len(data))
        self._held = data[ready:]
        return self._decode(data[:ready])

    def end(self) -> str:
        """What is left when no more tokens come, without a code point that is not complete; '' from then on."""
        held, self._held = self._held, b""
        return "" if self.stopped else self._decode(held)

    @property
    def data(self) -> bytes:
        """The bytes of the pieces so far; those that are not UTF-8, which a piece has as U+FFFD, as they are."""
        return bytes(self._taken[: len(self._taken) - len(self._decoder.getstate()[0])])

    def _decode(self, data: bytes) -> str:
        self._taken += data
        return self._decoder.decode(data)


def _overlap(data: bytes, stop: bytes) -> int:
    """Bytes at the end of data that are a beginning of stop, the most there are."""
    return next((n for n in range(min(len(stop) - 1, len(data)), 0, -1) if data.endswith(stop[:n])), 0)
