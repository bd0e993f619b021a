"""Pass: the number of fractional bits F of every value, from running the integer operators themselves.

Each operator runs with a provisional F over the calibration tokens; the largest magnitude decides F so that at least two bits
stay free above it; then it runs again with the final F and its output feeds the next operator. Integers decide everything,
so the choices are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .. import fixedpoint as fx
from ..errors import UnsupportedError
from ..golden import Batch, Machine, image_batch
from ..program import GROUP, NONE, UNIT_F, W16G32, Op
from .assemble import Assembly, Piece
from .steps import Unit

F_MIN, F_CAP, F_MAX = -16, 26, 30
F_ZERO = 16  # of a value that is always 0
HEADROOM = 2
TOO_LARGE = 2**30  # a provisional output above this may have saturated
TOO_SMALL = 2**12  # below it the largest magnitude is known too coarsely
STEP = 8
ROWS = 4096


def calibrate(assembly: Assembly, sample: list[int] | np.ndarray, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
    """Choose F of every value by running `sample`, token ids or images uint8 [n, height, width, channels]; returns the choices, value
    name → F, in program order.

    Raises UnsupportedError naming the node when a value is too large for int32 at any F.
    """
    run = _Run(assembly, sample)
    choices = {}
    for index, piece in enumerate(assembly.pieces):
        run.settle(piece)
        if piece.op.out != NONE:
            choices[piece.step.out] = assembly.program.values[piece.op.out].f
        if progress is not None:
            progress(index + 1, len(assembly.pieces))
    _finish(assembly)
    return choices


def replay(assembly: Assembly, choices: Mapping[str, int]) -> dict[str, int]:
    """Set F of every value from recorded choices; returns them in program order.

    Raises UnsupportedError naming the value that is missing, unknown or out of range.
    """
    unknown = sorted(set(choices) - set(assembly.number))
    if unknown:
        raise UnsupportedError(f"choices: value '{unknown[0]}' is not in this model; they must come from the same source")
    result = {}
    for name, number in assembly.number.items():
        f = choices.get(name)
        if isinstance(f, bool) or not isinstance(f, int) or not F_MIN <= f <= F_MAX:
            raise UnsupportedError(f"choices: F of value '{name}' is {f!r}; allowed: a whole number from {F_MIN} to {F_MAX}")
        assembly.program.values[number].f = result[name] = f
    for piece in assembly.pieces:
        fixed = None if piece.op.out == NONE else _fixed_f(assembly, piece)
        if fixed not in (None, assembly.program.values[piece.op.out].f):
            raise UnsupportedError(f"choices: F of value '{piece.step.out}' must be {fixed}, because its {piece.op.code.name} keeps or fixes it")
        assembly.fit(piece)
        _check_sum(piece)
    _finish(assembly)
    return result


def largest_f(magnitude: float, cap: int = F_CAP) -> int:
    """The largest F ≤ cap with magnitude·2^F·4 ≤ 2^31, for a magnitude ≥ 0."""
    if magnitude == 0:
        return cap
    fraction, exponent = np.frexp(magnitude)
    return min(cap, 31 - HEADROOM - int(exponent) + int(fraction == 0.5))


class _Call:
    """A text or an image on its way through the operators."""

    def __init__(self, assembly: Assembly, batch: Batch):
        self.machine, self.batch = Machine(assembly.program, len(batch.ids)), batch
        self.values: dict[int, np.ndarray] = {}


class _Run:
    """The calibration tokens or images on their way through the operators; an output is a list of one array for each call."""

    def __init__(self, assembly: Assembly, sample: list[int] | np.ndarray):
        self.assembly = assembly
        batches = [Batch(np.array(sample, np.int64), np.arange(len(sample)), 0)]
        if assembly.source.picture is not None:
            batches = [image_batch(pixels, assembly.source.picture.tokens) for pixels in sample]
        self.calls = [_Call(assembly, batch) for batch in batches]
        self.last_use: dict[int, int] = {}
        for index, op in enumerate(assembly.program.ops):
            for value in op.ins:
                self.last_use[value] = index
        self.at = 0

    def settle(self, piece: Piece) -> None:
        """Choose F of the operator's output, set its parameters, and keep its output."""
        op = piece.op
        if op.out == NONE:
            self._execute(piece)
        else:
            fixed = _fixed_f(self.assembly, piece)
            outputs = self._search(piece) if fixed is None else self._execute(piece, fixed)
            for call, y in zip(self.calls, outputs):
                call.values[op.out] = y
        for value in op.ins:
            if self.last_use[value] == self.at and value != NONE:
                self._forget(value)
        if op.out != NONE and op.out not in self.last_use:
            self._forget(op.out)
        self.at += 1

    def _forget(self, value: int) -> None:
        for call in self.calls:
            del call.values[value]

    def _search(self, piece: Piece) -> list[np.ndarray]:
        """Run with provisional F's until the magnitude is known, then with the F it asks for; returns the output."""
        # β and bias need room of their own. The cap is where most values end, so it is tried first.
        cap = F_CAP if piece.added is None else largest_f(float(np.abs(piece.added).max()))
        if piece.limit is not None:
            cap = min(cap, piece.limit)
        if cap < F_MIN:
            largest = np.abs(piece.added).max()
            raise UnsupportedError(f"tensor '{piece.added_name}': numbers up to {largest:.3g} do not fit int32; at most 2^{31 - HEADROOM - F_MIN} is supported")
        f = cap if piece.op.code != Op.ATTENTION else min(cap, self.assembly.f_of(piece.step.v))
        too_high = F_CAP + 1
        while True:
            y = self._execute(piece, f)
            largest = self._magnitude(piece, y)
            if largest >= TOO_LARGE:
                if f == F_MIN:
                    raise UnsupportedError(
                        f"node '{piece.step.name}' ({piece.op.code.name}): its values exceed 2^{30 - F_MIN}; weights this large are not supported"
                    )
                too_high, f = f, max(f - STEP, F_MIN)
            elif largest < TOO_SMALL and f < cap and f + STEP < too_high:
                f = min(f + STEP, cap)
            else:
                break
            del y  # logits are large
        final = max(F_MIN, f + largest_f(float(largest), cap - f)) if largest else min(F_ZERO, cap)
        while final != f:
            f = final
            del y
            y = self._execute(piece, f)
            # Rounding may have carried the largest value over the limit.
            final -= self._magnitude(piece, y) > 1 << (31 - HEADROOM) and f > F_MIN
        return y

    def _execute(self, piece: Piece, f: int | None = None) -> list[np.ndarray | None]:
        if f is not None:
            self.assembly.program.values[piece.op.out].f = f
        self.assembly.fit(piece)
        _check_sum(piece)
        return [call.machine.run(piece.op, call.values, call.batch) for call in self.calls]

    def _magnitude(self, piece: Piece, outputs: list[np.ndarray]) -> int:
        """Largest |raw| of an output; of an embedding, over the whole vocabulary."""
        if piece.op.code == Op.EMBED:
            return _largest_embedding(self.assembly, piece)
        return max(max(int(y.max()), -int(y.min())) for y in outputs)


def _largest_embedding(assembly: Assembly, piece: Piece) -> int:
    w, g, row = (None if t == NONE else assembly.program.arrays[t] for t in piece.op.tensors[:3])
    largest = 0
    for start in range(0, len(row), ROWS):
        part = slice(start, min(start + ROWS, len(row)))
        x = _times_scales(w, g, part)
        if piece.op.params["form"] == W16G32:
            x += _times_scales(w, g, slice(part.start + len(row), part.stop + len(row)))
        x = np.abs(x).max(axis=1)
        m, h = row[part].astype(np.int64).T
        largest = max(largest, int(np.abs(fx.requant(x, m, h + piece.op.params["shift"])).max()))
    return largest


def _times_scales(w: np.ndarray, g: np.ndarray | None, rows: slice) -> np.ndarray:
    x = w[rows].astype(np.int64)
    return x if g is None else x * np.repeat(g[rows].astype(np.int64), GROUP, axis=1)


def _fixed_f(assembly: Assembly, piece: Piece) -> int | None:
    """F that an output must have: PATCHES has bytes; POOL, and a rotation of part of a head, which copies the rest, keep it; a row of norm 1 has the largest."""
    step = piece.step
    if isinstance(step, Unit):
        return UNIT_F
    if piece.op.code == Op.PATCHES:
        return 0
    if piece.op.code == Op.POOL:
        return assembly.f_of(step.x)
    if piece.op.code == Op.ROPE and step.spec.rotary_dim < step.spec.head_dim:
        return assembly.f_of(step.x)
    return None


def _check_sum(piece: Piece) -> None:
    p = piece.op.params
    if piece.op.code == Op.ADD and max(p["la"], p["lb"]) > 30:
        raise UnsupportedError(f"node '{piece.step.name}' (ADD): its terms differ by {max(p['la'], p['lb'])} bits in F; at most 30 are supported")


def _finish(assembly: Assembly) -> None:
    assembly.program.header.logits_f = assembly.program.values[assembly.program.ops[-1].out].f
