"""GoldenSession: tokens, positions and logits around golden.Machine, with the interface of the C runtime's session."""

from __future__ import annotations

import numpy as np

from . import golden_state
from .embedding import Embeds, check_input, check_output
from .errors import ContextError
from .generation import Generates
from .golden import Batch, Machine, image_batch
from .program import MAX_POSITION, NONE, Op, Program
from .session_rules import OneAtATime, checked_ids, checked_image, checked_logits, checked_positions, checked_rewind, checked_state, whole_number


class GoldenSession(Generates, Embeds):
    """A session computed by `Machine`. One thread at a time may use it (EdgePosError otherwise)."""

    def __init__(self, program: Program, context: int | None = None):
        """`context` is the number of tokens it can hold, by default the model's. Raises ContextError when it does not fit."""
        limit = program.header.context
        self.context = limit if context is None else whole_number("context", context, 1, limit, ContextError)
        self.program = program
        if self.image is not None:
            self.context = limit  # an image is always all of its tokens
        self._alone = OneAtATime()
        self.reset()

    @property
    def logits_f(self) -> int:
        """Fractional bits of the logits."""
        return self.program.header.logits_f

    @property
    def logit_scale(self) -> float:
        """A logit is its int32 times this."""
        return 2.0**-self.logits_f

    @property
    def vocab(self) -> int:
        """Columns of the logits."""
        return self.program.header.vocab

    @property
    def embedding(self) -> int:
        """Numbers of the one row it gives for a text or an image; 0: it gives logits."""
        return self.program.embedding

    @property
    def image(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the image it reads; None: it reads tokens."""
        return self.program.image

    @property
    def saturations(self) -> int:
        """Values clamped since the start or the last reset."""
        return self.machine.saturations

    @property
    def position(self) -> int:
        """The position the next token gets by default."""
        return min(self._last + 1, MAX_POSITION)

    @property
    def _last(self) -> int:
        return int(self.machine.positions[self.length - 1]) if self.length else -1

    def reset(self) -> None:
        """Forget all tokens."""
        with self._alone():
            self.machine = self._new_machine()
            self.length = 0
            self._row: np.ndarray | None = None

    def _new_machine(self) -> Machine:
        return Machine(self.program, self.context)

    def rewind(self, n: int) -> None:
        """Keep the first n tokens. Raises ContextError when there are fewer."""
        with self._alone():
            self.length = checked_rewind(n, self.length)
            self._row = None

    def save(self) -> bytes:
        """The state in the format of docs/bundle.md; any engine of the same bundle restores it."""
        with self._alone():
            return golden_state.save(self.program, self.machine, self.length, self._row)

    def restore(self, state: bytes) -> None:
        """Take over a saved state. Raises FormatError when it is not of this model; nothing has changed then."""
        state = checked_state(state)
        with self._alone():
            positions, blocks, row = golden_state.load(self.program, self.context, state)
            self.length, self._row = len(positions), row
            self.machine.positions[: self.length] = positions
            for layer, head, area, array in blocks:
                getattr(self.machine.caches[layer], area)[head, : self.length] = array

    def eval_int(self, ids, positions=None, logits: str = "all", trace=None) -> np.ndarray:
        """Append tokens; int32 logits [n, vocab] (`all`), [1, vocab] (`last`) or [0, vocab] (`none`). `trace(op, output)` sees every operator.

        Raises EdgePosError for a model that gives an embedding or ids out of range, ContextError for positions that do not ascend or have no row in a position
        table, a full context, or a second call of a bidirectional program; nothing has changed then.
        """
        check_output(self, embedding=False)
        with self._alone():
            checked_logits(logits)
            ids = checked_ids(ids, self.vocab, self.length, self.context)
            if self.length and self.program.one_call:
                raise ContextError(
                    f"{self.length} tokens are in the cache of a model that attends in both directions; reset it and give all tokens in one call"
                )
            positions = checked_positions(positions, len(ids), self._last, self.program.max_position)
            return self._run(Batch(ids, positions, self.length), logits, trace)

    def eval(self, ids, positions=None, logits: str = "all") -> np.ndarray:
        """Like eval_int, as float32."""
        return (self.eval_int(ids, positions, logits) * self.logit_scale).astype(np.float32)

    def embed_int(self, ids, positions=None, trace=None) -> np.ndarray:
        """The embedding of a text as int32 [d], value = raw · 2^−logits_f: see `embed`. `trace(op, output)` sees every operator."""
        check_output(self, embedding=True)
        check_input(self, image=False)
        with self._alone():
            ids = checked_ids(ids, self.vocab, 0, self.context)
            positions = checked_positions(positions, len(ids), -1, self.program.max_position)
            self.length, self._row = 0, None
            return self._run(Batch(ids, positions, 0), "all", trace)[0]

    def embed_image_int(self, pixels, trace=None) -> np.ndarray:
        """The row of an image as int32 [d], value = raw · 2^−logits_f: see `embed_image`. `trace(op, output)` sees every operator."""
        check_input(self, image=True)
        with self._alone():
            pixels = checked_image(pixels, self.image)
            self.length, self._row = 0, None
            self.machine.positions[: self.context] = np.arange(self.context)
            return self._run(image_batch(pixels, self.context), "all", trace)[0]

    def _run(self, batch: Batch, logits: str, trace) -> np.ndarray:
        values: dict[int, np.ndarray] = {}
        head = self.program.header.head_start
        for index, op in enumerate(self.program.ops):
            if index == head and op.code != Op.POOL:
                self._row = values[self.program.head_input][-1]
                if logits == "none":
                    break
                if logits == "last":
                    values[self.program.head_input] = self._row[None]
            values[op.out] = self.machine.run(op, values, batch)
            if op.code == Op.POOL:
                self._row = values[op.out][0]
            if trace is not None and op.out != NONE:
                trace(index, values[op.out])
        self.length += len(batch.ids)
        if logits == "none":
            return np.empty((0, self.vocab), np.int32)
        return values[self.program.ops[-1].out].astype(np.int32)
