"""CSession: a session of the C runtime."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..embedding import Embeds, check_input, check_output
from ..errors import ContextError, EdgePosError, FormatError
from ..generation import Generates
from ..sampling import Rng, Sampling
from ..session_rules import OneAtATime, checked_ids, checked_image, checked_logits, checked_rewind, checked_state, whole_number
from .native import Image, aligned, check, ffi, int32_array, int32_pointer, lib, make_config, status_text

MAX_THREADS = 256


@dataclass(frozen=True)
class TraceEvent:
    """Output of an operator for the rows [token, token + rows) of a call: data int32 [rows, width], value = raw · 2^−f."""

    op: int
    opcode: int
    value: int
    token: int
    f: int
    data: np.ndarray
    saturations: int


class _Trace:
    """A callback on its way through C. Its first exception stops the reports and is raised by the call that made them."""

    def __init__(self, callback: Callable[[TraceEvent], None]):
        self.callback = callback
        self.error: BaseException | None = None
        self.handle = ffi.new_handle(self)

    def report(self, event) -> None:
        if self.error is not None:
            return
        try:
            size = event.rows * event.width
            data = np.frombuffer(ffi.buffer(event.data, 4 * size), np.int32).reshape(event.rows, event.width).copy()
            self.callback(
                TraceEvent(event.op, event.opcode, event.value, event.token, event.f, data, int(event.saturations))
            )
        except BaseException as error:  # an exception cannot cross C
            self.error = error


@ffi.def_extern()
def edgepos_trace(user, event):
    ffi.from_handle(user).report(event)


def _new_pool(threads: int):
    pool = lib.ep_pool_new(threads)
    if pool == ffi.NULL:
        raise EdgePosError(f"{threads} threads: no memory for them; use fewer")
    owner = os.getpid()

    def free(pool) -> None:
        if os.getpid() == owner:  # a forked child has none of the threads to wait for
            lib.ep_pool_free(pool)

    return ffi.gc(pool, free)


class CSession(Generates, Embeds):
    """Tokens and their KV cache, evaluated by the C runtime. Calls release the GIL.

    One thread at a time may use a session (EdgePosError otherwise); sessions of the same image are independent.
    """

    def __init__(self, image: Image, context: int | None = None, threads: int = 1, n_batch: int = 0, kernels: str | None = None):
        """context: tokens it can hold, None for the model's; n_batch: tokens evaluated at a time, 0 for the default.
        kernels: a name of native.KERNELS instead of the best that this processor runs; changes the speed, never a bit.

        Raises ContextError for a context outside 1 … the model's, EdgePosError for other parameters out of range.
        """
        threads = whole_number("threads", threads, 1, MAX_THREADS)
        config = make_config(context, n_batch, kernels)
        self._pool = _new_pool(threads) if threads > 1 else None
        if self._pool is not None:
            config.threads = lib.ep_pool_threads(self._pool)
            config.parallel = ffi.addressof(lib, "ep_pool_run")
            config.pool = self._pool
        self._image = image  # the session points into both
        size = image.arena_size(config=config)
        self._arena = aligned(size)
        session = ffi.new("ep_session **")
        check(lib.ep_session_init(session, image.model, config, ffi.from_buffer(self._arena), size), "session")
        self._c = session[0]
        self._alone = OneAtATime()
        self._trace: _Trace | None = None
        self.context: int = image.info.context if image.image_shape else config.context or image.info.context
        self.vocab: int = image.info.vocab
        self.logits_f: int = image.info.logits_f
        self.embedding: int = image.info.embedding
        self.image = image.image_shape
        self.arena_bytes = size
        self.kernels: str = ffi.string(lib.ep_kernels_name(self._c)).decode("ascii")

    # ---- evaluation

    def eval_int(self, ids: Sequence[int], positions: Sequence[int] | None = None, logits: str = "all") -> np.ndarray:
        """Append tokens. Returns int32 logits (value = raw · 2^−logits_f): [n, vocab] for "all", [1, vocab] for "last", [0, vocab] for "none".

        positions: n ascending numbers above the last one; None continues. Raises EdgePosError for a model that gives an embedding or ids outside the
        vocabulary, ContextError for positions that do not ascend or have no row in a position table, for a full context, and
        where attention is bidirectional for a call that is not the first or longer than n_batch; nothing has changed then.
        """
        checked_logits(logits)
        check_output(self, embedding=False)
        with self._alone():
            tokens = np.ascontiguousarray(checked_ids(ids, self.vocab, self.length, self.context), np.int32)
            out = np.empty((len(tokens) if logits == "all" else int(logits == "last"), self.vocab), np.int32)
            self._evaluate(tokens, positions, int32_pointer(out) if logits == "all" else ffi.NULL)
            if logits == "last":
                check(lib.ep_logits(self._c, int32_pointer(out)), "logits")
            self._raise_trace_error()
        return out

    def embed_int(self, ids: Sequence[int], positions: Sequence[int] | None = None) -> np.ndarray:
        """The embedding of a text as int32 [d], value = raw · 2^−logits_f: see `embed`."""
        check_output(self, embedding=True)
        check_input(self, image=False)
        with self._alone():
            tokens = np.ascontiguousarray(checked_ids(ids, self.vocab, 0, self.context), np.int32)
            check(lib.ep_rewind(self._c, 0), "emptying the session")
            self._evaluate(tokens, positions, ffi.NULL)
            out = np.empty(self.embedding, np.int32)
            check(lib.ep_embedding(self._c, int32_pointer(out)), "embedding")
            self._raise_trace_error()
        return out

    def embed_image_int(self, pixels) -> np.ndarray:
        """The row of an image as int32 [d], value = raw · 2^−logits_f: see `embed_image`."""
        check_input(self, image=True)
        with self._alone():
            pixels = checked_image(pixels, self.image)
            check(lib.ep_eval_image(self._c, ffi.from_buffer("uint8_t[]", pixels), pixels.size), "evaluating an image")
            out = np.empty(self.embedding, np.int32)
            check(lib.ep_embedding(self._c, int32_pointer(out)), "embedding")
            self._raise_trace_error()
        return out

    def _evaluate(self, tokens: np.ndarray, positions: Sequence[int] | None, out) -> None:
        """ep_eval of checked tokens, its statuses as exceptions."""
        n = len(tokens)
        row = None if positions is None else int32_array("positions", positions)
        if row is not None and len(row) != n:
            raise ContextError(f"{len(row)} positions for {n} tokens; give one each")
        status = lib.ep_eval(self._c, int32_pointer(tokens), ffi.NULL if row is None else int32_pointer(row), n, out)
        if status == lib.EP_ERR_POSITION:
            raise ContextError(f"positions must ascend from {self.position} to at most {self._image.info.max_position}")
        if status == lib.EP_ERR_CONTEXT:
            raise ContextError(
                f"{n} tokens: this model attends in both directions and takes one call of at most n_batch tokens; "
                "reset the session, or open it with a larger n_batch"
            )
        check(status, f"evaluating {n} tokens")

    def eval(self, ids: Sequence[int], positions: Sequence[int] | None = None, logits: str = "all") -> np.ndarray:
        """Like eval_int, as float32."""
        raw = self.eval_int(ids, positions, logits)
        return np.multiply(raw, np.float32(self.logit_scale), dtype=np.float32, casting="unsafe")  # a power of two: rounded once

    def argmax(self) -> int:
        """The lowest id of the largest logit of the last token. Raises EdgePosError before the first token and after rewind."""
        token = ffi.new("int32_t *")
        with self._alone():
            check(lib.ep_argmax(self._c, token), "choosing a token")
            self._raise_trace_error()
        return token[0]

    def sample(
        self,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        rng: Rng | None = None,
        repetition_penalty: float = 1.0,
        text: Sequence[int] = (),
    ) -> int:
        """Choose a next token by section 4 of docs/arithmetic.md; ``rng`` (default: seed 0) advances.

        text: the ids so far, which the penalty makes less likely. Raises EdgePosError for parameters out of range, before
        the first token and after rewind.
        """
        return self.choose(Sampling.of(temperature, top_k, top_p, repetition_penalty), Rng(0) if rng is None else rng, text)

    def choose(self, how: Sampling, rng: Rng, text: Sequence[int] = ()) -> int:
        """`sample` with integer parameters."""
        repeated = int32_array("text", how.penalized(text))
        if how.temperature == 0 and not len(repeated):
            return self.argmax()
        logits, scratch = np.empty(self.vocab, np.int32), np.empty(self.vocab, np.uint32)
        parameters = ffi.new("ep_sampling *", {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p})
        state, token = ffi.new("ep_rng *", {"state": rng.state}), ffi.new("int32_t *")
        with self._alone():
            check(lib.ep_logits(self._c, int32_pointer(logits)), "logits")
            room = ffi.cast("uint32_t *", ffi.from_buffer(scratch))
            if len(repeated):
                status = lib.ep_penalize(int32_pointer(logits), self.vocab, how.penalty, int32_pointer(repeated), len(repeated), room)
                check(status, "repetition penalty")
            status = lib.ep_sample(int32_pointer(logits), self.vocab, self.logits_f, parameters, state, room, token)
            check(status, "sampling")
            self._raise_trace_error()
        rng.state = int(state.state)
        return token[0]

    # ---- state

    @property
    def logit_scale(self) -> float:
        """A logit is its int32 times this."""
        return 2.0**-self.logits_f

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return lib.ep_length(self._c)

    @property
    def position(self) -> int:
        """The position the next token gets by default."""
        return lib.ep_next_position(self._c)

    @property
    def saturations(self) -> int:
        """Values clamped since the start or the last reset."""
        return int(lib.ep_saturations(self._c))

    def reset(self) -> None:
        """Forget all tokens."""
        with self._alone():
            lib.ep_reset(self._c)

    def rewind(self, n: int) -> None:
        """Keep the first n tokens. Raises ContextError when there are fewer."""
        with self._alone():
            check(lib.ep_rewind(self._c, checked_rewind(n, self.length)), "rewind")

    def save(self) -> bytes:
        """The state in the format of docs/bundle.md; any engine of the same bundle restores it."""
        with self._alone():
            state = bytearray(lib.ep_state_size(self._c))
            check(lib.ep_state_save(self._c, ffi.from_buffer(state), len(state)), "saving the state")
        return bytes(state)

    def restore(self, state: bytes) -> None:
        """Take over a saved state. Raises FormatError when it is not of this model or does not fit; nothing has changed then."""
        state = checked_state(state)
        with self._alone():
            status = lib.ep_state_restore(self._c, ffi.from_buffer(state), len(state))
        if status != lib.EP_OK:
            raise FormatError(f"saved state of {len(state)} bytes: {status_text(status)}; restore it with the bundle that saved it")

    def set_trace(self, callback: Callable[[TraceEvent], None] | None) -> None:
        """Call ``callback(TraceEvent)`` after every operator with an output; None stops it. It must not use the session."""
        self._report_to(None if callback is None else _Trace(callback))

    def _report_to(self, trace: _Trace | None) -> None:
        with self._alone():
            self._trace = trace
            if trace is None:
                lib.ep_set_trace(self._c, ffi.NULL, ffi.NULL)
            else:
                lib.ep_set_trace(self._c, lib.edgepos_trace, trace.handle)

    def _raise_trace_error(self) -> None:
        if self._trace is not None and self._trace.error is not None:
            error, self._trace.error = self._trace.error, None
            raise error
