"""Rotary positions: which pairs of q or k are turned by which angles, read off the coefficients of their components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .precision import rounding_of
from .values import Form

EXACT = 1e-6  # float32 of numbers up to 1, computed in a few steps


def flat(array: np.ndarray) -> np.ndarray:
    """An array without its axes of size 1."""
    return array.reshape([d for d in array.shape if d != 1]) if array.ndim else array


def exactness(writer) -> float:
    """What cosines and sines of the graph may be off by: more where a table of them is stored in 16 bits."""
    tables = [flat(a) for a in writer.lengthy.values()] + [t.array[: writer.length] for pair in writer.caches for t in pair]
    at_start = (t for t in tables if t.ndim == 2 and (t[0] == t[0, 0]).all() and np.abs(t).max() <= 2 and (t != t[0]).any())
    return max(EXACT, *(2 * rounding_of(t) for t in at_start), 0.0)


@dataclass(frozen=True, eq=False)
class Turn:
    """cos, sin [S, pairs] of the angles by which pairs are turned; layout "half" or "interleaved"; exact: what the numbers may be off by."""

    cos: np.ndarray
    sin: np.ndarray
    layout: str
    exact: float = EXACT

    def same_as(self, other: Turn) -> bool:
        return (
            self.layout == other.layout
            and self.cos.shape == other.cos.shape
            and np.allclose(self.cos, other.cos, rtol=0, atol=self.exact)
            and np.allclose(self.sin, other.sin, rtol=0, atol=self.exact)
        )


def unrotate(writer, x: Form) -> tuple[Form, Turn | None]:
    """x [heads, S, n] as components times a factor that is the same for all tokens, and how these are turned by position.

    At position 0 nothing is turned, so there every element is one component; at the others its partner joins.
    """
    heads, length, n = x.shape
    refuse = lambda found: writer.refuse(found, "q, k and v that are linears or norms of them, turned in pairs by position")  # noqa: E731
    at_start = np.abs(x.coefs[:, :, 0]) > 0
    if (at_start.sum(axis=0) != 1).any() or (x.codes[:, :, 0][at_start] < 0).any():
        raise refuse("components that are already mixed at position 0")
    own = np.argmax(at_start, axis=0)
    pick = lambda a: np.take_along_axis(a[:, :, 0], own[None], axis=0)[0]  # noqa: E731
    base, gain = pick(x.codes), pick(x.coefs)
    number, token, _ = writer.sources.decode(base)
    if token.any():
        raise refuse("position 0 made from another token")
    steps = np.arange(length)[None, :, None] * writer.sources.widths(number)[:, None, :]
    codes = base[:, None, :] + steps
    mine = x.codes == codes
    cos = np.where(mine, x.coefs, 0).sum(axis=0)
    rest = ~mine & (x.coefs != 0)
    if (rest.sum(axis=0) > 1).any():
        raise refuse("sums of more than two components")
    result = Form(codes[None], np.broadcast_to(gain[:, None, :], codes.shape)[None].copy(), _constant(writer, x))
    if not rest.any():
        if (np.abs(cos - gain[:, None, :]) > EXACT * np.abs(gain[:, None, :])).any():
            raise refuse("components times a factor that differs by position")
        return result, None
    if result.const is not None:
        raise refuse("a constant added after the rotation")
    back = x.codes - steps  # as if of token 0
    shifted = np.where(rest, back, -1).max(axis=(0, 2))
    if (rest & (back != shifted[None, :, None, :])).any():
        raise refuse("partners that differ by position")
    layout, partner = _layout(writer, base, shifted, refuse)
    sin = np.where(rest, x.coefs, 0).sum(axis=0)
    return result, _turn(cos, sin, gain, layout, partner, exactness(writer), refuse)


def _constant(writer, x: Form) -> np.ndarray | None:
    if x.const is None or not np.any(x.const):
        return None
    if (x.const != x.const[:, :1]).any():
        raise writer.refuse("a constant that differs by position, added to q, k or v", "biases")
    return x.const


def _layout(writer, base: np.ndarray, partner_codes: np.ndarray, refuse) -> tuple[str, np.ndarray]:
    """(layout, partner of each component of the rotated part) from the codes [heads, n] of components and their partners (-1: none)."""
    same = base[:, :, None] == partner_codes[:, None, :]  # [heads, which, of]
    partners = np.where(same.any(axis=1), same.argmax(axis=1), -1)
    if (partners != partners[:1]).any() or ((partners < 0) & (partner_codes >= 0)).any():
        raise refuse("pairs that differ by head or reach outside the head")
    found = partners[0]
    turned = np.flatnonzero(found >= 0)
    distance = abs(int(found[turned[0]]) - int(turned[0]))
    even = np.arange(len(found)) // 2 * 2
    for layout, rotary, pairs in (
        ("half", 2 * distance, np.where(np.arange(len(found)) < distance, np.arange(len(found)) + distance, np.arange(len(found)) - distance)),
        ("interleaved", int(turned[-1]) + 1 + (int(turned[-1]) + 1) % 2, np.where(np.arange(len(found)) % 2, even, even + 1)),
    ):
        if turned[-1] < rotary <= len(found) and (found[turned] == pairs[turned]).all():
            return layout, pairs[:rotary]
    raise refuse("pairs that are neither halves of the rotated part nor neighbours")


def _turn(cos: np.ndarray, sin: np.ndarray, gain: np.ndarray, layout: str, partner: np.ndarray, exact: float, refuse) -> Turn:
    n = len(partner)
    first = np.arange(n // 2) if layout == "half" else np.arange(0, n, 2)
    second = partner[first]
    c, s = cos / gain[:, None, :], np.zeros((*sin.shape[:2], n))
    s[..., first] = -sin[..., first] / gain[:, None, second]
    s[..., second] = sin[..., second] / gain[:, None, first]
    tables = [c[..., first], c[..., second]], [s[..., first], s[..., second]]
    for a, b in tables:
        if (np.abs(a - b) > exact).any() or (np.abs(a - a[:1]) > exact).any():
            raise refuse("pairs that are not turned as a whole, or differ by head")
    if cos.shape[2] > n and (np.abs(c[..., n:] - 1) > EXACT).any():
        raise refuse("components behind the rotated part times a factor that differs by position")
    c, s = tables[0][0][0], tables[1][0][0]
    if (np.abs(c**2 + s**2 - 1) > 4 * exact).any():
        raise refuse("pairs times a factor that differs by position")
    return Turn(c, s, layout, exact)
