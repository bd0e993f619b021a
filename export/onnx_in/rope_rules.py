"""Which rule gives the frequencies of a rotation: theta, linear, Llama 3's, YaRN, LongRoPE, dynamic NTK, or the frequencies themselves.

A parameter is the roundest number with which the rule gives every frequency to the precision of float32.
"""

from __future__ import annotations

import math

import numpy as np

from edgepos.positions import Rope

THETA = 4e-6  # relative error of a frequency that float32 computed as a power
YARN_LENGTHS = [2**k for k in range(5, 22)] + [3 * 2**k for k in range(5, 20)] + [1000 * n for n in range(1, 17)]
LEAST_PAIRS = 4  # fewer are given by some theta, factor and length whatever they are
LONG_THETAS = (1e4, 5e5, 1e5, 1e6)


def named(frequencies: np.ndarray, settings: dict, factor: float = 1.0, precision: np.ndarray | float = THETA) -> Rope:
    """The rotation by theta, by theta and a linear factor, Llama 3's rule or YaRN's, else by its frequencies [pairs].

    settings: head_dim, rotary_dim and layout. factor: the attention factor, which only YaRN's rule takes.
    precision: what each frequency may be off by, relatively.
    """
    pairs = len(frequencies)
    precision = np.broadcast_to(precision, (pairs,))
    custom = Rope(**settings, scaling={"rope_type": "custom", "inv_freq": [float(f) for f in frequencies]})
    if pairs < 2 or (frequencies <= 0).any():
        return custom
    # Plain and linear: log f falls evenly from 0 or −log factor.
    exponent = -2 * np.arange(pairs) / (2 * pairs)
    slope, start = np.polyfit(exponent, np.log(frequencies), 1, w=1 / precision)
    rough = 4 * np.min(precision[1:] / -exponent[1:])
    for theta in round_numbers(np.exp(slope), rough):
        for divisor in [1.0, *round_numbers(np.exp(-start), 4 * precision.min())]:
            if np.all(np.abs(frequencies * divisor / theta**exponent - 1) <= precision):
                return Rope(**settings, theta=theta, scaling=None if divisor == 1 else {"rope_type": "linear", "factor": divisor})
    return _llama3(frequencies, settings, precision) or _yarn(frequencies, settings, factor, precision) or custom


def gives(spec: Rope, frequencies: np.ndarray, length: int | None = None, precision: np.ndarray | float = THETA) -> bool:
    """Whether the frequencies are those of a spec, in a session of `length` tokens."""
    exact = np.array([float(f) for f in spec.frequencies(length)])
    return bool(np.all(np.abs(frequencies - exact) <= precision * exact))


def _llama3(frequencies: np.ndarray, settings: dict, precision: np.ndarray) -> Rope | None:
    """The rotation by Llama 3's rule: fast pairs as they are, slow ones divided by a factor, between them a share that is linear in the
    plain frequency. Two pairs in between give the line; the rule's three numbers are fixed by it up to a common factor, so the
    lower one is taken as 1.
    """
    pairs = len(frequencies)
    for theta in round_numbers(frequencies[1] ** -float(pairs), pairs * precision[1]):
        plain = theta ** (-np.arange(pairs) / pairs)
        for factor in round_numbers(plain[-1] / frequencies[-1], 2 * precision[-1]):
            if factor <= 1:
                continue
            share = (frequencies / plain - 1 / factor) / (1 - 1 / factor)
            middle = (share > precision * factor) & (share < 1 - precision * factor)
            if middle.sum() < 2:
                continue
            slope, start = np.polyfit(plain[middle], share[middle], 1)
            if not (slope > 0 and start < 0):
                continue
            high = 1 - 1 / start
            length = round(2 * np.pi * slope * (high - 1))
            scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "original_max_position_embeddings": length}
            for upper in round_numbers(high, 100 * precision[middle].max()):
                spec = Rope(**settings, theta=theta, scaling=scaling | {"high_freq_factor": upper})
                if gives(spec, frequencies, precision=precision):
                    return spec
    return None


def _yarn(frequencies: np.ndarray, settings: dict, attention_factor: float, precision: np.ndarray) -> Rope | None:
    """The rotation by YaRN's rule with its usual 32 and 1 rotations at the ends of the ramp: theta from the first or the last two pairs,
    which are not on the ramp, and the first usual length of training that gives the ramp.
    """
    pairs = len(frequencies)
    if pairs < LEAST_PAIRS:
        return None
    numbers = np.arange(pairs)
    guesses = [frequencies[1] ** -float(pairs), (frequencies[-2] / frequencies[-1]) ** float(pairs)]
    for theta in (t for guess in guesses if np.isfinite(guess) and guess > 1 for t in round_numbers(guess, pairs * precision[1])):
        plain = theta ** (-numbers / pairs)
        for factor in round_numbers(plain[-1] / frequencies[-1], 2 * precision[-1]):
            if factor <= 1:
                continue
            ramp = (1 - frequencies / plain) / (1 - 1 / factor)
            off = precision * factor
            if (ramp < -off).any() or (ramp > 1 + off).any() or (np.diff(ramp) < -np.maximum(off[1:], off[:-1])).any():
                continue
            usual = 0.1 * math.log(factor) + 1
            between = ((ramp > off) & (ramp < 1 - off)).sum()
            kept = None if abs(attention_factor / usual - 1) < max(1e-6, precision.max()) else attention_factor
            if kept is not None and between < 2:
                continue  # Llama 3's rule could be it as well
            for length in YARN_LENGTHS:
                for whole in (True, False):
                    low, high = (pairs * math.log(length / (turns * 2 * math.pi)) / math.log(theta) for turns in (32, 1))
                    if whole:
                        low, high = math.floor(low), math.ceil(high)
                    low, high = max(low, 0), min(high, 2 * pairs - 1)
                    if high > low and np.all(np.abs(np.clip((numbers - low) / (high - low), 0, 1) - ramp) < np.maximum(1e-4, off)):
                        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length, "attention_factor": kept, "truncate": whole}
                        spec = Rope(**settings, theta=theta, scaling=scaling)
                        if gives(spec, frequencies, precision=precision):
                            return spec
    return None


def long_rope(short: np.ndarray, long: np.ndarray, length: int, settings: dict, factor: float) -> Rope:
    """The rotation with frequencies `short` in sessions of up to `length` tokens and `long` in longer ones.

    Theta and the divisors are known as products only: theta is the usual one with which they are round, else 10000.
    """
    exponent = -np.arange(len(short)) / len(short)

    def divisors(theta: float) -> list[np.ndarray]:
        return [theta**exponent / f for f in (short, long)]

    def roundness(theta: float) -> float:
        every = np.concatenate(divisors(theta))
        return float(np.mean(np.abs(every - np.round(every, 3)) <= THETA * every))

    theta = max(LONG_THETAS, key=roundness)
    rows = [[_round(d) for d in row] for row in divisors(theta)]
    scaling = {"rope_type": "longrope", "short_factor": rows[0], "long_factor": rows[1], "original_max_position_embeddings": length, "attention_factor": factor}
    return Rope(**settings, theta=theta, scaling=scaling)


def dynamic_ntk(plain: Rope, at: dict[int, np.ndarray], length: int) -> Rope | None:
    """Dynamic NTK over the rotation `plain` where the frequencies at lengths beyond `length` follow its rule, else None."""
    pairs = plain.pairs
    if plain.scaling is not None or pairs < 2:
        return None
    longest = max(at)
    theta = at[longest][1] ** -float(pairs)
    factor = ((theta / plain.theta) ** ((pairs - 1) / pairs) - 1) * length / (longest - length)
    for guess in round_numbers(factor) if factor > 0 else ():
        settings = {"head_dim": plain.head_dim, "rotary_dim": plain.rotary_dim, "layout": plain.layout}
        spec = Rope(**settings, theta=plain.theta, scaling={"rope_type": "dynamic", "factor": guess, "max_position_embeddings": length})
        if all(gives(spec, frequencies, n) for n, frequencies in at.items()):
            return spec
    return None


def round_numbers(x: float, within: float = 0.0) -> list[float]:
    """Numbers of few digits close to x, the shortest first, and x itself; within: relatively, where that is more than float32's."""
    shorter = [float(f"{x:.{digits}g}") for digits in range(1, 9)]
    return [n for n in dict.fromkeys(shorter) if abs(n / x - 1) < max(2e-5, within)] + [float(x)]


def _round(x: float) -> float:
    """x, or the number of up to 6 digits that float32 cannot tell from it."""
    return next((n for digits in range(1, 7) if abs((n := float(f"{x:.{digits}g}")) / x - 1) < 3e-7), float(x))
