"""Rotary positions: which pairs of q or k are turned by which angles, read off the coefficients of their components."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgepos.errors import EdgePosError
from edgepos.positions import Rope

from .values import Form

EXACT = 1e-6  # float32 of numbers up to 1, computed in a few steps
THETA = 4e-6  # relative error of a frequency that float32 computed as a power
MATCH = 3e-6  # relative difference of a measured frequency and the graph's constant


@dataclass(frozen=True, eq=False)
class Turn:
    """cos, sin [S, pairs] of the angles by which pairs are turned; layout "half" or "interleaved"."""

    cos: np.ndarray
    sin: np.ndarray
    layout: str

    def same_as(self, other: Turn) -> bool:
        return (
            self.layout == other.layout
            and self.cos.shape == other.cos.shape
            and np.allclose(self.cos, other.cos, rtol=0, atol=EXACT)
            and np.allclose(self.sin, other.sin, rtol=0, atol=EXACT)
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
    return result, _turn(cos, sin, gain, layout, partner, refuse)


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


def _turn(cos: np.ndarray, sin: np.ndarray, gain: np.ndarray, layout: str, partner: np.ndarray, refuse) -> Turn:
    n = len(partner)
    first = np.arange(n // 2) if layout == "half" else np.arange(0, n, 2)
    second = partner[first]
    c, s = cos / gain[:, None, :], np.zeros((*sin.shape[:2], n))
    s[..., first] = -sin[..., first] / gain[:, None, second]
    s[..., second] = sin[..., second] / gain[:, None, first]
    tables = [c[..., first], c[..., second]], [s[..., first], s[..., second]]
    for a, b in tables:
        if (np.abs(a - b) > EXACT).any() or (np.abs(a - a[:1]) > EXACT).any():
            raise refuse("pairs that are not turned as a whole, or differ by head")
    if cos.shape[2] > n and (np.abs(c[..., n:] - 1) > EXACT).any():
        raise refuse("components behind the rotated part times a factor that differs by position")
    c, s = tables[0][0][0], tables[1][0][0]
    if (np.abs(c**2 + s**2 - 1) > 4 * EXACT).any():
        raise refuse("pairs times a factor that differs by position")
    return Turn(c, s, layout)


def rope_spec(writer, turn: Turn, head_dim: int) -> Rope:
    """The rotation with these angles. Raises UnsupportedError when the graph's own tables do not agree with it over the context."""
    key = ("rope", turn.cos.tobytes(), turn.sin.tobytes(), turn.layout, head_dim)
    if key not in writer.cache:
        spec = _recover(writer, turn, head_dim)
        _check(writer, turn, spec)
        writer.cache[key] = spec
    return writer.cache[key]


def _recover(writer, turn: Turn, head_dim: int) -> Rope:
    pairs = turn.cos.shape[1]
    measured = np.arctan2(turn.sin[1], turn.cos[1])
    if (measured < 0).any():
        raise writer.refuse("pairs turned against the direction of growing positions", "rotations by position · frequency, with frequencies of at least 0")
    frequencies = measured
    for constant in writer.inv_freqs:
        if constant.size == pairs and np.all(np.abs(constant - measured) <= MATCH * np.maximum(constant, 1e-9) + 1e-9):
            frequencies = constant.astype(np.float64)
    settings = {"head_dim": head_dim, "rotary_dim": 2 * pairs, "layout": turn.layout}
    try:
        return _named(frequencies, settings)
    except EdgePosError as error:
        span = f"{frequencies.max():.6g} to {frequencies.min():.6g}"
        raise writer.refuse(f"a rotation with frequencies from {span} ({error})", "rotations EdgePos knows") from None


def _named(frequencies: np.ndarray, settings: dict) -> Rope:
    """The rotation by theta, by theta and a linear factor or Llama 3's rule, else by its frequencies."""
    pairs = len(frequencies)
    custom = Rope(**settings, scaling={"rope_type": "custom", "inv_freq": [float(f) for f in frequencies]})
    if pairs < 2 or (frequencies <= 0).any():
        return custom
    # Plain and linear: log f falls evenly from 0 or −log factor.
    exponent = -2 * np.arange(pairs) / (2 * pairs)
    slope, start = np.polyfit(exponent, np.log(frequencies), 1)
    for theta in _round_numbers(np.exp(slope)):
        for factor in [1.0, *_round_numbers(np.exp(-start))]:
            if np.all(np.abs(frequencies * factor / theta**exponent - 1) <= THETA):
                return Rope(**settings, theta=theta, scaling=None if factor == 1 else {"rope_type": "linear", "factor": factor})
    return _llama3(frequencies, settings) or custom


def _llama3(frequencies: np.ndarray, settings: dict) -> Rope | None:
    """The rotation by Llama 3's rule: fast pairs as they are, slow ones divided by a factor, between them a share that is linear in the
    plain frequency. Two pairs in between give the line; the rule's three numbers are fixed by it up to a common factor, so the
    lower one is taken as 1.
    """
    pairs = len(frequencies)
    for theta in _round_numbers(frequencies[1] ** -float(pairs)):
        plain = theta ** (-np.arange(pairs) / pairs)
        for factor in _round_numbers(plain[-1] / frequencies[-1]):
            if factor <= 1:
                continue
            share = (frequencies / plain - 1 / factor) / (1 - 1 / factor)
            middle = (share > THETA * factor) & (share < 1 - THETA * factor)
            if middle.sum() < 2:
                continue
            slope, start = np.polyfit(plain[middle], share[middle], 1)
            if not (slope > 0 and start < 0):
                continue
            high = 1 - 1 / start
            length = round(2 * np.pi * slope * (high - 1))
            scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "original_max_position_embeddings": length}
            for upper in _round_numbers(high):
                spec = Rope(**settings, theta=theta, scaling=scaling | {"high_freq_factor": upper})
                exact = np.array([float(f) for f in spec.frequencies(None)])
                if np.all(np.abs(frequencies / exact - 1) <= THETA):
                    return spec
    return None


def _round_numbers(x: float) -> list[float]:
    """Numbers of few digits close to x, the shortest first, and x itself."""
    shorter = [float(f"{x:.{digits}g}") for digits in range(1, 9)]
    return [n for n in dict.fromkeys(shorter) if abs(n / x - 1) < 2e-5] + [float(x)]


def _check(writer, turn: Turn, spec: Rope) -> None:
    """The graph's own cos and sin, at every position of the context, are those of the spec to float32's precision."""
    seen, gains = False, {1.0}
    for which, table in enumerate((turn.cos, turn.sin)):
        for value, array in list(writer.lengthy.items()):
            small = array.reshape([d for d in array.shape if d != 1]) if array.ndim else array
            if small.ndim != 2 or small.shape[0] != writer.length:
                continue
            if which == 0 and small[0, 0] > 0:
                gains.add(float(small[0, 0]))  # cos 0 times an attention factor, which the sines have too
            for gain in sorted(gains):
                columns = _columns(small / gain, table)
                if columns is None:
                    continue
                seen = True
                whole = writer.whole(value)
                whole = whole.reshape([d for d in whole.shape if d != 1])[:, columns] / gain
                _compare(writer, whole, spec, which)
    for tables in writer.caches:
        if all(t.shape[1] == want.shape[1] and np.abs(t[: len(want)] - want).max() <= EXACT for t, want in zip(tables, (turn.cos, turn.sin))):
            seen = True
            for which, table in enumerate(tables):
                _compare(writer, table[: writer.context], spec, which)
    if not seen:
        for which, table in enumerate((turn.cos, turn.sin)):
            _compare(writer, table, spec, which)


def _columns(array: np.ndarray, table: np.ndarray) -> np.ndarray | None:
    """For each column of table the column of array that is equal to it, or None."""
    if array.shape[1] < table.shape[1] or np.abs(array).max() > 1 + EXACT:
        return None
    away = np.abs(array[:, :, None] - table[:, None, :]).max(axis=0)
    best = away.argmin(axis=0)
    return best if (away.min(axis=0) <= EXACT).all() else None


def _compare(writer, table: np.ndarray, spec: Rope, which: int) -> None:
    for start in range(0, len(table), 4096):
        part = table[start : start + 4096]
        positions = np.arange(start, start + len(part))
        exact = spec.cos_sin(positions, None)[which]
        fastest = float(spec.frequencies(None)[0])
        allowed = EXACT + 4e-7 * np.maximum(1.0, positions[:, None] * max(1.0, fastest))
        wrong = ~(np.abs(part - exact) <= allowed)
        if wrong.any():
            row, pair = np.argwhere(wrong)[0]
            raise writer.refuse(
                f"its {('cosine', 'sine')[which]} at position {start + row}, pair {pair} is {part[row, pair]:.9g}, where theta {spec.theta:.9g} "
                f"({spec.layout}) gives {exact[row, pair]:.9g}",
                "a rotation that is the same rule at every position of the context",
            )
