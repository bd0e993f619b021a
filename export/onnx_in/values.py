"""What the reader knows about a tensor of a foreign graph.

The graph is followed at one length S of the input. A tensor that does not depend on the token ids is a NumPy array. Every other
tensor is one of the classes here. The main one, Form, says for each element which components of earlier results it is made of,
so that reshapes, transposes, slices and concatenations in any order and any spelling come out the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

NOTHING = -1  # a code that refers to no component; its coefficient is 0


@dataclass(frozen=True, eq=False)
class Source:
    """A result [S, width] that later tensors refer to. Component c of token s has the code base + s·width + c.

    what: how the canonical graph makes it (a class of `sources.py`).
    """

    base: int
    width: int
    what: object


class Sources:
    """All sources of one reading, in the order of their codes."""

    def __init__(self, length: int):
        self.length = length
        self._list: list[Source] = []
        self._bases = np.zeros(0, np.int64)
        self._next = 0

    def new(self, what: object, width: int) -> Source:
        source = Source(self._next, width, what)
        self._next += self.length * width
        self._list.append(source)
        self._bases = np.append(self._bases, source.base)
        return source

    def form(self, source: Source, shape: tuple[int, ...] | None = None) -> Form:
        """All of a source as a tensor, [1, S, width] unless another shape of as many elements is given."""
        codes = source.base + np.arange(self.length * source.width, dtype=np.int64)
        return pure(codes.reshape(shape or (1, self.length, source.width)))

    def decode(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(number of the source, token, component) of each code; the codes must not be NOTHING."""
        number = np.searchsorted(self._bases, codes, "right") - 1
        widths = self.widths(number)
        within = codes - self._bases[number]
        return number, within // widths, within % widths

    def numbered(self, number: int) -> Source:
        """The source of a number."""
        return self._list[number]

    def widths(self, numbers: np.ndarray) -> np.ndarray:
        """The widths of the sources of these numbers."""
        return np.array([source.width for source in self._list], np.int64)[numbers]

    def used(self, codes: np.ndarray) -> list[Source]:
        """The sources that codes refer to, in order of appearance."""
        flat = codes.ravel()
        numbers = np.searchsorted(self._bases, flat[flat != NOTHING], "right") - 1
        found, first = np.unique(numbers, return_index=True)
        return [self._list[n] for n in found[np.argsort(first)]]


@dataclass(frozen=True, eq=False)
class Form:
    """A tensor whose elements are sums of coefficient · component, plus a constant.

    codes int64 [terms, *shape]; coefs float64 [terms, *shape]; const float64 [*shape] or None for 0.
    """

    codes: np.ndarray
    coefs: np.ndarray
    const: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape[1:]

    @property
    def is_pure(self) -> bool:
        """Whether every element is one component, unchanged."""
        return len(self.codes) == 1 and self.const is None and bool((self.coefs == 1).all())

    def scaled(self, factor: np.ndarray) -> Form:
        """This times a constant that broadcasts with it."""
        factor = np.asarray(factor, np.float64)
        shape = np.broadcast_shapes(self.shape, factor.shape)
        codes = np.broadcast_to(self.codes.reshape(len(self.codes), *(1,) * (len(shape) - len(self.shape)), *self.shape), (len(self.codes), *shape))
        coefs = self.coefs.reshape(len(self.coefs), *(1,) * (len(shape) - len(self.shape)), *self.shape) * factor
        return Form(codes, coefs, None if self.const is None else self.const * factor)

    def plus(self, constant: np.ndarray) -> Form:
        """This plus a constant that broadcasts with it."""
        constant = np.asarray(constant, np.float64)
        wide = self.scaled(np.ones(np.broadcast_shapes(self.shape, constant.shape)))
        total = constant + (0 if self.const is None else self.const)
        return replace(wide, const=np.broadcast_to(total, wide.shape) if np.any(total) else None)

    def joined(self, other: Form) -> Form:
        """The sum of two tensors of one shape; terms with the same codes become one."""
        codes, coefs = list(self.codes), list(self.coefs)
        for c, f in zip(other.codes, other.coefs):
            for i, mine in enumerate(codes):
                if np.array_equal(mine, c):
                    coefs[i] = coefs[i] + f
                    break
            else:
                codes.append(c)
                coefs.append(f)
        constants = [x for x in (self.const, other.const) if x is not None]
        return Form(np.stack(codes), np.stack(coefs), sum(constants) if constants else None)

    def moved(self, move) -> Form:
        """The tensor after `move`, a function of one array that only moves, repeats or drops elements."""
        codes = np.stack([move(c) for c in self.codes])
        coefs = np.stack([move(c) for c in self.coefs])
        return Form(codes, coefs, None if self.const is None else move(self.const))


def pure(codes: np.ndarray) -> Form:
    """A tensor of components as they are."""
    return Form(codes[None], np.ones((1, *codes.shape)))


def concatenated(forms: list[Form], axis: int) -> Form:
    """Tensors beside each other along an axis, counted from the end (negative)."""
    terms = max(len(f.codes) for f in forms)

    def padded(array: np.ndarray, fill: int) -> np.ndarray:
        return np.concatenate([array, np.full((terms - len(array), *array.shape[1:]), fill, array.dtype)])

    codes = np.concatenate([padded(f.codes, NOTHING) for f in forms], axis=axis)
    coefs = np.concatenate([padded(f.coefs, 0) for f in forms], axis=axis)
    const = None
    if any(f.const is not None for f in forms):
        const = np.concatenate([np.zeros(f.shape) if f.const is None else f.const for f in forms], axis=axis)
    return Form(codes, coefs, const)


def constant_form(array: np.ndarray) -> Form:
    """A constant beside components, in a concatenation."""
    return Form(np.full((1, *array.shape), NOTHING, np.int64), np.zeros((1, *array.shape)), np.asarray(array, np.float64))


@dataclass(frozen=True, eq=False)
class Function:
    """A scalar function of single components, known by its values: samples[i] = f(GRID[i]); codes int64 [*shape]."""

    codes: np.ndarray
    samples: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape


@dataclass(frozen=True, eq=False)
class OfRows:
    """A number of each row of components `codes` [n rows, n]; rows [*shape]: which of those rows each element is of."""

    codes: np.ndarray
    rows: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape


@dataclass(frozen=True, eq=False)
class Mean(OfRows):
    """The mean of a row."""


@dataclass(frozen=True, eq=False)
class Statistic(OfRows):
    """A function of the mean square of a row: samples[i] = h(SQUARES[i])."""

    samples: np.ndarray


@dataclass(frozen=True)
class MaskStep:
    """One thing done to scores: "add" the constant `value` times factor, "where" the boolean `value` (inverted: not) keep, else hide;
    "causal" hides later keys, "window" all but the last `value`.

    lead: the axes of the scores' heads then.
    """

    kind: str
    value: object
    factor: float = 1.0
    inverted: bool = False
    lead: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Scores:
    """q·k of every head with what was done to it; after the softmax if probabilities.

    q [heads, S, n], k [heads, S, n]; lead: the axes in front of the last two, their product is heads. samples: what became of a
    product r, over GRID; steps: masks and biases in order.
    """

    q: Form
    k: Form
    lead: tuple[int, ...]
    samples: np.ndarray
    steps: tuple[MaskStep, ...] = ()
    probabilities: bool = False
    nans: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, self.q.shape[1], self.k.shape[1])


GRID = np.unique(np.concatenate([np.linspace(-12, 12, 385), np.linspace(-1, 1, 65)]))
SQUARES = np.array([0.0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-2, 0.5, 1.0, 7.0, 300.0])
