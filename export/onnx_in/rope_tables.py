"""The rotation of a graph against its own tables of cos and sin: at every position of the context, and at every length of a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edgepos.errors import EdgePosError
from edgepos.positions import Rope
from edgepos.positions.rope_scaling import LongRope, Yarn

from . import rope_rules
from .constants import longest_working
from .rotation import EXACT, Turn, flat

MATCH = 3e-6  # relative difference of a measured frequency and the graph's constant


@dataclass(frozen=True, eq=False)
class Table:
    """Cosines (which = 0) or sines (1) in the graph. at(n): float64 [rows, pairs] of a text of n tokens, as they are there, times `gain`;
    exact: what they may be off by."""

    which: int
    at: Callable[[int], np.ndarray]
    gain: float
    exact: float


def rope_spec(writer, turn: Turn, head_dim: int) -> tuple[Rope, float]:
    """(the rotation with these angles, the factor of its tables that its attention factor stands for).

    Raises UnsupportedError when the graph's own tables do not agree with it over the context.
    """
    key = ("rope", turn.cos.tobytes(), turn.sin.tobytes(), turn.layout, head_dim)
    if key not in writer.cache:
        writer.cache[key] = _spec(writer, turn, {"head_dim": head_dim, "rotary_dim": 2 * turn.cos.shape[1], "layout": turn.layout})
    return writer.cache[key]


def _spec(writer, turn: Turn, settings: dict) -> tuple[Rope, float]:
    tables = _tables(writer, turn)
    gain = next((t.gain for t in tables if t.which == 0), 1.0)
    short, precision = _frequencies(writer, turn, tables)
    spec = _named(writer, short, settings, gain, precision)
    problem = _difference(writer, turn, tables, spec, 1.0)
    if problem is not None:
        spec = _by_length(writer, tables, spec, short, precision, settings)
        if spec is None:
            raise writer.refuse(problem, "a rotation that is the same rule at every position of the context")
    return spec, gain if isinstance(spec.scaling, (LongRope, Yarn)) else 1.0


def _frequencies(writer, turn: Turn, tables: list[Table]) -> tuple[np.ndarray, np.ndarray]:
    """(what each pair turns by, what that may be off by relatively): the graph's own numbers where they are among its constants, else from
    its cosines and sines."""
    measured = np.arctan2(turn.sin[1], turn.cos[1])
    if (measured < 0).any():
        raise writer.refuse("pairs turned against the direction of growing positions", "rotations by position · frequency, with frequencies of at least 0")
    if turn.exact > EXACT:
        pair = [next((t.at(writer.context) / t.gain for t in tables if t.which == which), near) for which, near in enumerate((turn.cos, turn.sin))]
        return _measured(*pair, turn.exact)
    precision = np.full(len(measured), rope_rules.THETA)
    for constant in writer.inv_freqs:
        if constant.size == len(measured) and np.all(np.abs(constant - measured) <= MATCH * np.maximum(constant, 1e-9) + 1e-9):
            return constant.astype(np.float64), precision
    return measured, precision


def _measured(cos: np.ndarray, sin: np.ndarray, exact: float) -> tuple[np.ndarray, np.ndarray]:
    """(frequencies, what each may be off by relatively) from cosines and sines [n, pairs] at positions 0 … n − 1.

    From exact ones, what position 1 turns by. From rounded ones, each further position, up to twice the one before, tells more, and the
    whole turns until there are known from the frequency so far; in the end all positions together.
    """
    frequencies = np.arctan2(sin[1], cos[1])
    if exact <= EXACT:
        return frequencies, np.full(len(frequencies), rope_rules.THETA)
    last = len(cos) - 1

    def angles(positions: np.ndarray) -> np.ndarray:
        wanted = positions[:, None] * frequencies
        away = np.arctan2(sin[positions], cos[positions]) - wanted
        return wanted + (away + np.pi) % (2 * np.pi) - np.pi

    position = 1
    while position < last:
        position = min(2 * position, last)
        frequencies = angles(np.array([position]))[0] / position
    every = np.arange(1, last + 1)
    frequencies = (every[:, None] * angles(every)).sum(axis=0) / (every.astype(np.float64) ** 2).sum()
    with np.errstate(all="ignore"):
        return frequencies, rope_rules.THETA + exact * np.minimum(2, 1 / np.maximum(np.abs(frequencies) * last, 1e-300))


def _named(writer, frequencies: np.ndarray, settings: dict, factor: float, precision: np.ndarray) -> Rope:
    try:
        return rope_rules.named(frequencies, settings, factor, precision)
    except EdgePosError as error:
        span = f"{frequencies.max():.6g} to {frequencies.min():.6g}"
        raise writer.refuse(f"a rotation with frequencies from {span} ({error})", "rotations EdgePos knows") from None


def _tables(writer, turn: Turn) -> list[Table]:
    """The constants of the graph that hold these cosines and sines at the length of reading."""
    found, gains = [], {1.0}
    for which, wanted in enumerate((turn.cos, turn.sin)):
        for value, array in list(writer.lengthy.items()):
            small = flat(array)
            if small.ndim != 2 or small.shape[0] != writer.length:
                continue
            if which == 0 and small[0, 0] > 0:
                gains.add(float(small[0, 0]))  # cos 0 times an attention factor, which the sines have too
            for gain in sorted(gains):
                columns = _columns(small / gain, wanted, turn.exact)
                if columns is not None:
                    found.append(Table(which, _rows_of(writer, value, columns), gain, turn.exact))
                    break
    for cache in writer.caches:
        gain = float(cache[0].array[0, 0])
        for which, (part, wanted) in enumerate(zip(cache, (turn.cos, turn.sin))):
            rows = part.array[: len(wanted)]
            if gain > 0 and rows.shape == wanted.shape and np.abs(rows / gain - wanted).max() <= turn.exact:
                found.append(Table(which, part.at, gain, turn.exact))
    return found


def _rows_of(writer, value, columns: np.ndarray) -> Callable[[int], np.ndarray]:
    def at(n: int) -> np.ndarray:
        array = writer.whole(value) if n == writer.context else writer.constants.at(value, n)
        return flat(np.asarray(array, np.float64))[:, columns]

    return at


def _columns(array: np.ndarray, table: np.ndarray, exact: float) -> np.ndarray | None:
    """For each column of table the column of array that is equal to it, or None."""
    if array.shape[1] < table.shape[1] or np.abs(array).max() > 1 + exact:
        return None
    away = np.abs(array[:, :, None] - table[:, None, :]).max(axis=0)
    best = away.argmin(axis=0)
    return best if (away.min(axis=0) <= exact).all() else None


def _difference(writer, turn: Turn | None, tables: list[Table], spec: Rope, ratio: float) -> str | None:
    """What the tables have at some position of the context that the spec has not, or None. ratio: of their factor there to that at the
    length of reading."""
    if not tables:
        return next((p for p in (_compare(t, spec, which, writer.context, turn.exact) for which, t in enumerate((turn.cos, turn.sin))) if p), None)
    for table in tables:
        problem = _compare(table.at(writer.context)[: writer.context] / (table.gain * ratio), spec, table.which, writer.context, table.exact)
        if problem is not None:
            return problem
    return None


def _compare(table: np.ndarray, spec: Rope, which: int, context: int, exactness: float) -> str | None:
    fastest = float(spec.frequencies(context)[0])
    for start in range(0, len(table), 4096):
        part = table[start : start + 4096]
        positions = np.arange(start, start + len(part))
        exact = spec.cos_sin(positions, context)[which]
        allowed = exactness + 4e-7 * np.maximum(1.0, positions[:, None] * max(1.0, fastest))
        wrong = ~(np.abs(part - exact) <= allowed)
        if wrong.any():
            row, pair = np.argwhere(wrong)[0]
            return (
                f"its {('cosine', 'sine')[which]} at position {start + row}, pair {pair} is {part[row, pair]:.9g}, where theta {spec.theta:.9g} "
                f"({spec.layout}) gives {exact[row, pair]:.9g}"
            )
    return None


def _by_length(writer, tables: list[Table], spec: Rope, short: np.ndarray, precision: np.ndarray, settings: dict) -> Rope | None:
    """The rotation whose frequencies depend on the length of a text, LongRoPE or dynamic NTK, where the tables at several lengths say so.

    Notes in the writer up to which length they are those of the reading, and from which on those of the context.
    """
    pair = [next((t for t in tables if t.which == which), None) for which in (0, 1)]
    if None in pair or writer.context <= writer.length:
        return None

    def turned(n: int) -> tuple[np.ndarray, np.ndarray, float]:
        """(frequencies, what they may be off by relatively, attention factor) of a text of n tokens."""
        cos, sin = (t.at(n) for t in pair)
        return *_measured(cos, sin, pair[0].exact), float(cos[0, 0])

    def like(a: np.ndarray, off: np.ndarray, b: np.ndarray, b_off: np.ndarray) -> bool:
        return bool(np.all(np.abs(a - b) <= np.maximum(1e-5, off + b_off) * b))

    def is_short(n: int) -> bool:
        return like(*turned(n)[:2], short, precision)

    long, long_precision, factor = turned(writer.context)
    if (long <= 0).any() or not factor > 0 or is_short(writer.context):
        return None
    length = longest_working(is_short, writer.length, writer.context)
    after = turned(length + 1)[:2]
    same_from = writer.context
    if like(*after, long, long_precision):
        same_from = length + 1
        found = rope_rules.long_rope(short, long, length, settings, factor)
    else:
        between = {n: turned(n)[0] for n in {length + 1, (length + writer.context) // 2 + 1, writer.context}}
        found = rope_rules.dynamic_ntk(spec, between, length)
    if found is None or _difference(writer, None, tables, found, factor / pair[0].gain) is not None:
        return None
    if writer.changes not in (None, (length, same_from)):
        raise writer.refuse(f"rotations that change beyond {writer.changes[0]} and beyond {length} tokens", "one such length")
    writer.changes = length, same_from
    return found
