"""Masks and biases of scores, recognised by their values at several lengths."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from edgepos.errors import EdgePosError
from edgepos.positions import RelativeBias, T5Bias

from ..graph import GraphBuilder
from ..position_tables import alibi_slopes
from ..tensor_set import Weight
from .algebra import HIDDEN
from .constants import longest_working
from .pooling import EncoderFound
from .values import MaskStep

LONGEST_PROBE = 4200  # tokens; a mask has the square of that
FIRST_PROBES = (2, 67)
MOST_BIASES = 2**24  # numbers of a bias that is looked at as a whole
MOST_SCALARS = 64  # numbers in a constant that is no table
BIAS_PROBES = (129, 257, 513, 1025)
T5_KINDS = ((32, 128), (32, 256), (16, 128), (32, 64), (64, 128))


@dataclass(frozen=True, eq=False)
class Mask:
    """Causal, within `window` keys if that is not 0; slopes [heads] or table [rows, heads] with its spec are added to the scores.

    both: attention in both directions, nothing is hidden.
    """

    window: int = 0
    slopes: np.ndarray | None = None
    table: Weight | None = None
    spec: RelativeBias | T5Bias | None = None
    both: bool = False

    def write(self, graph: GraphBuilder, heads: int) -> ir.Value | None:
        """The canonical mask, or None."""
        if self.slopes is not None:
            return graph.alibi(heads, self.slopes)
        return None if self.table is None else graph.relative_bias(self.table, self.spec)


Parts = list[tuple[int, tuple[MaskStep, ...]]]


def identify(writer, parts: Parts) -> Mask:
    """What the masks of groups of heads (heads, steps) do together. Raises UnsupportedError for anything but the kinds of Mask."""
    key = ("mask", tuple((heads, tuple((s.kind, s.value, s.factor, s.inverted) for s in steps)) for heads, steps in parts))
    if key not in writer.cache:
        writer.cache[key] = _identify(writer, parts)
    return writer.cache[key]


def _identify(writer, parts: Parts) -> Mask:
    probes = [n for n in _probes(writer, parts) if _fits(writer, parts, n)]
    if writer.longest <= LONGEST_PROBE:  # all of a mask that is a table
        probes = sorted({*probes, writer.longest})
    if writer.length > 1 and not evaluate(writer, parts, writer.length)[1].any():
        return _both_directions(writer, parts, probes)
    windows = {length: _window(writer, evaluate(writer, parts, length)[1], length) for length in probes}
    window = max(windows.values())
    if writer.encoder and window:
        raise writer.refuse(f"a window of {window} keys in a model that gives an embedding", "attention of all tokens, or causal")
    for length, found in windows.items():
        if found != (window if window < length else 0):
            raise writer.refuse(f"a window that is not {window} keys at {length} tokens", "one window")
    heads = sum(n for n, _ in parts)
    most = max(256, math.isqrt(MOST_BIASES // heads))
    last = max(p for p in probes if p <= most)
    bias, hidden = evaluate(writer, parts, last)
    if not np.any(bias[~np.broadcast_to(hidden, bias.shape)] if bias.shape == hidden.shape else np.where(hidden, 0, bias)):
        return Mask(window)
    if writer.encoder:
        raise writer.refuse("a causal mask with a bias in a model that gives an embedding", "a causal mask alone")
    bias = np.broadcast_to(bias, (heads, last, last))
    slopes = _slopes(bias, heads)
    if slopes is not None and not window:
        return Mask(slopes=slopes)
    if window:
        raise writer.refuse(f"a window of {window} keys together with a bias", "one of them")
    return _relative(writer, parts, heads)


def _fits(writer, parts: Parts, length: int) -> bool:
    """Whether the masks can be made for a length; a table that ends before it bounds the context (LimitFound)."""

    def works(n: int) -> bool:
        try:
            evaluate(writer, parts, n)
            return True
        except (EdgePosError, ValueError):
            return False

    if works(length):
        return True
    if length <= writer.length:
        raise writer.refuse("a mask that does not fit the scores", "masks that broadcast to [heads, queries, keys]")
    writer.limit(longest_working(works, writer.length, length))
    return False


def _probes(writer, parts: Parts) -> list[int]:
    """Lengths at which a mask is looked at: short ones, and one just above every constant that could be a window or the end of a table."""
    longest = writer.longest
    if longest == writer.length:
        return [writer.length]
    wanted = {writer.length, *(n for n in FIRST_PROBES if n <= longest)}
    every = {s for _, steps in parts for s in steps}
    wanted.update(min(s.value + 2, LONGEST_PROBE, longest) for s in every if s.kind == "window")
    for value in {s.value for s in every if s.kind in ("add", "where")}:
        if writer.constants.is_given(value):
            continue
        for number in _integers(value, writer):
            if 2 <= number < min(longest, writer.context):
                if number + 2 > LONGEST_PROBE:
                    raise writer.refuse(f"a mask with the constant {number}", f"windows up to {LONGEST_PROBE - 2} keys, or a context below {number}")
                wanted.add(min(number + 2, longest))
    return sorted(wanted)


def _integers(value: ir.Value, writer) -> set[int]:
    """The integers a mask is computed from, and the sizes of the tables among them."""
    found = set()
    for node in writer.constants.cone([value])[0]:
        for x in node.inputs:
            if x is None or not writer.constants.is_given(x) or x.const_value is None:
                continue
            if x.const_value.size > MOST_SCALARS:
                found.update(int(d) - 1 for d in x.const_value.shape if d > writer.length)
            if x.const_value.size <= 2 and x.const_value.dtype.is_integer():
                found.update(abs(int(n)) for n in np.ravel(x.const_value.numpy()))
        if node.op_type == "Constant":
            found.update(abs(int(n)) for y in writer.constants.run(node, []) if y.size <= 2 and y.dtype.kind == "i" for n in y.ravel())
    return found


def evaluate(writer, parts: Parts, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(bias float64, hidden bool) [heads or 1, length, length]; a bias is counted from each query's own position."""
    biases, hiddens, sizes = [], [], []
    for heads, steps in parts:
        bias, hidden = np.zeros((1, length, length)), np.zeros((1, length, length), bool)
        for step in steps:
            if step.kind in ("causal", "window"):
                away = np.arange(length)[:, None] - np.arange(length)[None, :]
                hidden = hidden | (away < 0 if step.kind == "causal" else away >= step.value)
                continue
            array = np.asarray(writer.constants.at(step.value, length))
            lead = len(step.lead)
            array = array.reshape((1,) * (lead + 2 - array.ndim) + array.shape)
            same = all(d == 1 for d in array.shape[:lead])
            shape = ((1,) * lead if same else step.lead) + (length, length)
            array = np.broadcast_to(array, shape).reshape(-1, length, length)
            if step.kind == "where":
                hidden = hidden | (array if step.inverted else ~array)
            else:
                added = array.astype(np.float64) * step.factor
                out = added <= HIDDEN
                hidden, bias = hidden | out, bias + np.where(out, 0, added)
        biases.append(bias)
        hiddens.append(hidden)
        sizes.append(heads)
    wide = [max(len(b), len(h)) for b, h in zip(biases, hiddens)]
    if len(parts) == 1:
        bias, hidden = biases[0], hiddens[0]
    else:
        every = [n if w > 1 else n for n, w in zip(sizes, wide)]
        bias = np.concatenate([np.broadcast_to(b, (n, length, length)) for b, n in zip(biases, every)])
        hidden = np.concatenate([np.broadcast_to(h, (n, length, length)) for h, n in zip(hiddens, every)])
    own = np.diagonal(bias, axis1=1, axis2=2)
    return bias - own[..., None], hidden


def _window(writer, hidden: np.ndarray, length: int) -> int:
    """Keys a token sees, 0 for all, of a causal mask."""
    away = np.arange(length)[:, None] - np.arange(length)[None, :]
    first = hidden[0]
    if (hidden != first).any():
        raise writer.refuse("a mask that differs by head", "one mask for all heads")
    seen = np.where(~first, away, -1)
    window = int(seen.max()) + 1
    if (first != ((away < 0) | (away >= window))).any():
        row, column = np.argwhere(first != ((away < 0) | (away >= window)))[0]
        raise writer.refuse(f"a mask that {'hides' if first[row, column] else 'shows'} key {column} to query {row}", "causal masks, whole or within a window")
    return window if window < length else 0


def _slopes(bias: np.ndarray, heads: int) -> np.ndarray | None:
    """float32 [heads] where the bias is −slope · distance."""
    n = bias.shape[1]
    away = np.arange(n)[:, None] - np.arange(n)[None, :]
    past = away >= 0
    slopes = -bias[:, -1, 0] / (n - 1)
    exact = -slopes[:, None, None] * away
    if (slopes < 0).any() or (np.abs(bias - exact)[:, past] > 2e-6 * np.maximum(1, np.abs(exact).max())).any():
        return None
    known = alibi_slopes(heads)
    return known if np.allclose(slopes, known, rtol=1e-6, atol=0) else slopes.astype(np.float32)


def _both_directions(writer, parts: Parts, probes: list[int]) -> Mask:
    """The mask of an encoder: none, or T5's bias by distance."""
    if not writer.encoder:
        raise EncoderFound
    heads = sum(n for n, _ in parts)
    for length in probes:
        bias, hidden = evaluate(writer, parts, length)
        if hidden.any():
            raise writer.refuse(f"a mask that hides keys at {length} tokens", "attention of all tokens to all tokens")
    if not np.any(bias):
        return Mask(both=True)
    n = min(writer.longest, writer.context, BIAS_PROBES[1])
    bias = np.broadcast_to(evaluate(writer, parts, n)[0], (heads, n, n))
    away = np.arange(n)[None, :] - np.arange(n)[:, None]
    # By key − query, −(n − 1) … n − 1.
    by_distance = np.concatenate([bias[:, -1, :-1], bias[:, 0, :]], axis=1).T
    if (np.abs(bias - by_distance[away + n - 1].transpose(2, 0, 1)) > 1e-5 * np.maximum(1, np.abs(by_distance).max())).any():
        raise writer.refuse("a bias on the scores that is no function of head and distance", "T5's bias by distance")
    for buckets, longest in T5_KINDS:
        spec = T5Bias(buckets, longest)
        bucket = spec.bucket(np.arange(1 - n, n))
        found, first = np.unique(bucket, return_index=True)
        if np.abs(by_distance - by_distance[first][np.searchsorted(found, bucket)]).max() <= 1e-6 * max(1, np.abs(by_distance).max()):
            table = np.zeros((buckets, heads), np.float32)
            table[found] = by_distance[first]
            return Mask(table=Weight(writer.name("relative_bias.weight"), table, table.shape), spec=spec, both=True)
    raise writer.refuse("a bias on the scores of an encoder", f"T5's buckets, {', '.join(f'{b} up to {m}' for b, m in T5_KINDS)}")


def _relative(writer, parts: Parts, heads: int) -> Mask:
    """A bias by distance, read from the last query of long inputs until it no longer changes, or of one that holds every distance."""
    longest = min(writer.longest, max(writer.context, BIAS_PROBES[0]))
    whole = min(writer.context, writer.longest)
    for length in [n for n in BIAS_PROBES if n <= longest] + [whole] * (whole <= BIAS_PROBES[-1]):
        bias = np.broadcast_to(evaluate(writer, parts, length)[0], (heads, length, length))
        by_distance = bias[:, -1, ::-1]
        away = np.arange(length)[:, None] - np.arange(length)[None, :]
        past = away >= 0
        if (np.abs(bias - by_distance[:, np.maximum(away, 0)])[:, past] > 1e-5 * np.maximum(1, np.abs(by_distance).max())).any():
            raise writer.refuse("a bias on the scores that is no function of head and distance", "ALiBi, T5 and other biases by distance")
        changes = np.flatnonzero((by_distance[:, 1:] != by_distance[:, :-1]).any(axis=0))
        n = int(changes[-1]) + 2 if len(changes) else 1
        if n < length * 3 // 4 or length == whole:
            return _table(writer, by_distance[:, : max(n, 2)].T.astype(np.float32))
    reach = BIAS_PROBES[-1] * 3 // 4
    raise writer.refuse("a bias on the scores that still changes at the largest distance looked at", f"biases that are constant beyond {reach} tokens")


def _table(writer, by_distance: np.ndarray) -> Mask:
    """The Mask of a bias by distance [n, heads]; T5's buckets where they are those of a usual model."""
    n, heads = by_distance.shape
    name = writer.name("relative_bias.weight")
    for buckets, longest in T5_KINDS:
        try:
            spec = T5Bias(num_buckets=buckets, max_distance=longest, bidirectional=False)
            bucket = np.minimum(spec.bucket(-np.arange(n)), buckets - 1)
        except (EdgePosError, TypeError):
            continue
        first = np.unique(bucket, return_index=True)[1]
        if len(first) == buckets and (by_distance == by_distance[first][bucket]).all() and len(np.unique(by_distance[first], axis=0)) > buckets // 2:
            return Mask(table=Weight(name, np.ascontiguousarray(by_distance[first]), (buckets, heads)), spec=spec)
    extent = n - 1
    rows = by_distance[np.maximum(extent - np.arange(2 * extent + 1), 0)]
    return Mask(table=Weight(name, np.ascontiguousarray(rows), rows.shape), spec=RelativeBias((extent,)))
