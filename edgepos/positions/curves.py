"""What a picture of an encoding shows, as numbers: its table, similarity by distance, error by position beside float32's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .alibi import Alibi
from .alibi_plan import BIAS_BITS, BiasTablePlan, SlopePlan, exact_log2_slopes
from .angles import Angles
from .bias_plan import LearnedBiasPlan
from .exact import rounded_cos_sin_at
from .float32 import float32_cos_sin
from .learned import Learned, LearnedPlan
from .plan import TABLE_SCALES, PhasePlan
from .relative import RelativeBias, T5Bias
from .spec import Spec

SHOWN = 512  # rows of a heat map and distances of a similarity curve
SAMPLES = 400
UNIT = 32767
NATURAL = "natural units of a score"
AWAY = "key − query, tokens"
UNITS = {"1/32767": "units of 1/32767", "log2": "log2 units of a score", "value": "the table's units"}


@dataclass(frozen=True)
class Heat:
    """values [rows, columns] over first, first + 1, …; `unit` is of the values."""

    title: str
    xlabel: str
    ylabel: str
    unit: str
    values: np.ndarray
    first: int = 0


@dataclass(frozen=True)
class Curves:
    """Lines over x [n]; those without a name are one per head. Axes are linear unless logx, logy say otherwise."""

    title: str
    xlabel: str
    ylabel: str
    x: np.ndarray
    lines: dict[str, np.ndarray] = field(default_factory=dict)
    unnamed: tuple[np.ndarray, ...] = ()
    logx: bool = False
    logy: bool = False


def heat(spec: Spec, context: int, weights=None) -> Heat:
    """The integers of the encoding's table, int16, at its first positions or distances; of a learned bias its floats."""
    n = min(context, SHOWN)
    if isinstance(spec, Angles):
        values = rounded_cos_sin_at(spec, np.arange(n), UNIT, context if spec.length_dependent else None)[0].T
        return Heat("cos, int16", "position", "pair", UNITS["1/32767"], values)
    if isinstance(spec, Alibi):
        plan = BiasTablePlan(spec, n)
        return Heat("bias, int16", "distance in tokens", "head", UNITS["log2"], plan.table * plan.scale)
    if isinstance(spec, Learned):
        return Heat("learned rows, int16", "row", "component", "units of the row's scale", LearnedPlan(spec, weights).table.T)
    at, rows = _bias_rows(spec, weights, n)
    across = AWAY if isinstance(spec, T5Bias) else "row of the table"
    if weights is None:
        return Heat("bucket by distance", AWAY, "all heads", "bucket", rows.T, int(at[0]))
    return Heat("learned bias", across, "head", NATURAL, rows.T, int(at[0]))


def similarity(spec: Spec, context: int, weights=None) -> Curves:
    """How alike two positions are by their distance, exactly and in integers; of a bias the weight, the bucket or the bias."""
    n = min(context, SHOWN)
    d = np.arange(n)
    if isinstance(spec, Angles):
        fixed = context if spec.length_dependent else None
        lines = {"exact": spec.cos_sin(spec.diagonal(d), fixed)[0].mean(axis=-1)}
        for bits, scale in TABLE_SCALES.items():
            lines[f"int{bits}"] = rounded_cos_sin_at(spec, d, scale, fixed)[0].mean(axis=-1) / scale
        return Curves("similarity by distance", "distance in tokens", "mean cos over the pairs (1: same position)", d, lines)
    if isinstance(spec, Alibi):
        weight = tuple(np.maximum(2.0 ** (-bias / 2.0**BIAS_BITS), 2.0**-40) for bias in SlopePlan(spec).bias_fixed(d))
        return Curves("weight by distance, one line per head", "distance in tokens", "weight, relative to distance 0", d, unnamed=weight, logy=True)
    if isinstance(spec, Learned):
        rows = np.asarray(weights, dtype=np.float64)[spec.offset :]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        alike = rows @ rows.T
        means = np.array([np.mean(np.diagonal(alike, k)) for k in range(min(n, len(rows)))])
        return Curves("similarity of learned rows by distance", "distance in tokens", "mean cosine of two rows", np.arange(len(means)), unnamed=(means,))
    at, rows = _bias_rows(spec, weights, n)
    title, unit = ("bucket by distance", "bucket") if weights is None else ("bias, one line per head", NATURAL)
    return Curves(title, AWAY if isinstance(spec, T5Bias) else "row of the table", unit, at, unnamed=tuple(rows.T))


def errors(spec: Spec, context: int, weights=None, samples: int = SAMPLES) -> Curves | None:
    """The largest error by position of float32 and of the integer methods; None where the integers are exact."""
    p = np.unique(np.geomspace(1, context, samples).astype(np.int64) - 1)
    if isinstance(spec, Angles):
        lines = _angle_errors(spec, context, p)
        return Curves("error by position", "position", "largest error, units of 1/32767", p, lines, logx=True, logy=True)
    if isinstance(spec, Alibi):
        exact = np.array([float(s) for s in exact_log2_slopes(spec)])[:, None] * p
        found = {
            "float32": spec.slopes().astype(np.float32)[:, None] * p.astype(np.float32) / np.float32(np.log(2)),
            "slopes": SlopePlan(spec).bias_fixed(p) * 2.0**-BIAS_BITS,
        }
        lines = {label: np.maximum(np.where(exact < 40, np.abs(ours - exact), 0).max(axis=0), 1e-9) for label, ours in found.items()}
        return Curves("error by distance", "distance in tokens", "largest error, log2 units, weights above 2^-40", p, lines, logx=True, logy=True)
    if isinstance(spec, Learned):
        lines = {f"int{bits}": LearnedPlan(spec, weights, bits).row_errors for bits in (16, 8)}
        return Curves("error by row", "row", "largest error of the row, the table's units", np.arange(len(lines["int16"])), lines, logy=True)
    if weights is None:
        return None
    exact, lines = np.asarray(weights, dtype=np.float64) / np.log(2), {}
    for bits in (32, 16, 8):
        plan = LearnedBiasPlan(spec, weights, bits)
        lines[f"int{bits}"] = np.maximum(np.abs(plan.table * plan.scale - exact).max(axis=1), 1e-9)
    label = "largest error of the heads, log2 units of a score"
    return Curves("error by row", "row of the table", label, np.arange(len(exact)), lines, logy=True)


def _angle_errors(spec: Angles, context: int, p: np.ndarray) -> dict[str, np.ndarray]:
    at = spec.diagonal(p)
    fixed = context if spec.length_dependent else None
    exact = spec.cos_sin(at, fixed)
    found = {}
    if spec.linear:  # float32 code and phases need frequencies
        found |= {"float32": (float32_cos_sin(spec, at, fixed), 1.0), "phase": (PhasePlan(spec, context).cos_sin(at), 1 / UNIT)}
    if context * spec.pairs <= 2**22:
        found |= {f"int{bits} table": (rounded_cos_sin_at(spec, p, scale, fixed), 1 / scale) for bits, scale in TABLE_SCALES.items()}

    def worst(values, scale: float) -> np.ndarray:
        return np.max([np.abs(f * scale - e).max(axis=-1, initial=0.0) for f, e in zip(values, exact)], axis=0) * UNIT

    return {label: np.maximum(worst(values, scale), 1e-4) for label, (values, scale) in found.items()}


def _bias_rows(spec: T5Bias | RelativeBias, weights, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(differences or rows, what is drawn over them [k, heads]) of a relative bias."""
    if isinstance(spec, RelativeBias):
        return np.arange(spec.rows), np.asarray(weights)
    at = np.arange(-n + 1, n if spec.bidirectional else 1)
    rows = spec.bucket(at)
    return at, rows[:, None] if weights is None else np.asarray(weights)[rows]
