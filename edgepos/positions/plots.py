"""Four pictures of an encoding: its table, similarity by distance, error by position beside float32's, and the methods.

Needs matplotlib, which is the extra `plots`.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import EdgePosError, FormatError, UnsupportedError
from .alibi import Alibi
from .alibi_plan import BIAS_BITS, BiasTablePlan, SlopePlan, exact_log2_slopes
from .angles import Angles
from .bias_plan import LearnedBiasPlan
from .exact import rounded_cos_sin_at
from .float32 import float32_cos_sin
from .learned import Learned, LearnedPlan
from .methods import method_rows
from .plan import PhasePlan, TablePlan
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import Spec, check_context

SHOWN = 512  # rows of a heat map and distances of a similarity curve
SAMPLES = 400
FORMATS = (".png", ".svg")
LABEL = (0.07, 0.05)  # width and height of a number, as parts of a panel
UNIT = 32767
NATURAL = "natural units of a score"
AWAY = "key − query, tokens"
UNITS = {"1/32767": "units of 1/32767", "log2": "log2 units of a score", "value": "the table's units"}


def draw(spec: Spec, output: Path, context: int, weights=None, name: str = "") -> None:
    """Write the four panels of `spec` for `context` positions to a .png or .svg file.

    weights: the learned table, for what has one. Raises UnsupportedError without matplotlib, for another suffix and for a spec that
    has nothing to draw.
    """
    check_context(context)
    if output.suffix not in FORMATS:
        raise UnsupportedError(f"{output.name}: the file's suffix must be one of {', '.join(FORMATS)}")
    if isinstance(spec, Sinusoidal2D):
        spec = spec.part
    if not isinstance(spec, (Rotation, Alibi, Sinusoidal, T5Bias, RelativeBias, Learned)):
        raise UnsupportedError(f"{spec.encoding} has nothing to draw")
    if isinstance(spec, (RelativeBias, Learned)) and weights is None:
        raise UnsupportedError(f"{spec.encoding} is drawn from its learned table; give the folder or file that holds it")
    figure = _figure()
    axes = figure.subplots(2, 2).ravel()
    _methods(axes[3], spec, context, weights)
    layers = getattr(spec, "layers", None)
    if layers is not None:
        spec, weights = replace(spec, layers=None), None if weights is None else np.asarray(weights)[0]
    for panel, axis in zip((_heat_map, _similarity, _error), axes):
        panel(axis, spec, context, weights)
    of = "" if layers is None else f", layer 0 of {layers}"
    figure.suptitle(f"{name + ': ' if name else ''}{spec.encoding}, {context} positions{of}")
    _save(figure, output)


def _figure():
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise UnsupportedError("matplotlib is not installed; run: pip install 'edgepos[plots]'") from None
    matplotlib.rcParams["svg.hashsalt"] = "edgepos"  # the same drawing gives the same bytes
    return Figure(figsize=(13, 9), layout="constrained")


def _save(figure, output: Path) -> None:
    work = output.with_name(f".{output.name}.part")
    try:
        figure.savefig(work, format=output.suffix[1:], dpi=120, metadata={"Date": None} if output.suffix == ".svg" else None)
        os.replace(work, output)
    except OSError as error:
        raise FormatError(f"{output}: {error.strerror}") from None
    finally:
        work.unlink(missing_ok=True)


def _bias_rows(spec: T5Bias | RelativeBias, weights, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(differences or rows, what is drawn over them [k, heads]) of a relative bias."""
    if isinstance(spec, RelativeBias):
        return np.arange(spec.rows), np.asarray(weights)
    at = np.arange(-n + 1, n if spec.bidirectional else 1)
    rows = spec.bucket(at)
    return at, rows[:, None] if weights is None else np.asarray(weights)[rows]


def _heat_map(axis, spec: Spec, context: int, weights) -> None:
    n, first = min(context, SHOWN), 0
    if isinstance(spec, Angles):
        values = rounded_cos_sin_at(spec, np.arange(n), UNIT, context if spec.length_dependent else None)[0].T
        title, unit, labels = "cos, int16", UNITS["1/32767"], ("position", "pair")
    elif isinstance(spec, Alibi):
        plan = BiasTablePlan(spec, n)
        values, title, unit, labels = plan.table * plan.scale, "bias, int16", UNITS["log2"], ("distance in tokens", "head")
    elif isinstance(spec, Learned):
        values, title, unit, labels = LearnedPlan(spec, weights).table.T, "learned rows, int16", "units of the row's scale", ("row", "component")
    else:
        at, rows = _bias_rows(spec, weights, n)
        values, title, labels = rows.T, "learned bias", (AWAY if isinstance(spec, T5Bias) else "row of the table", "head")
        first, unit = int(at[0]), NATURAL
        if weights is None:
            title, unit, labels = "bucket by distance", "bucket", (AWAY, "all heads")
    image = axis.imshow(values, aspect="auto", interpolation="nearest", cmap="RdBu_r", extent=(first - 0.5, first + values.shape[1] - 0.5, len(values) - 0.5, -0.5))
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.figure.colorbar(image, ax=axis, label=unit)
    axis.set(title=title, xlabel=labels[0], ylabel=labels[1])


def _similarity(axis, spec: Spec, context: int, weights) -> None:
    n = min(context, SHOWN)
    d = np.arange(n)
    axis.set(title="similarity by distance", xlabel="distance in tokens", ylabel="mean cos over the pairs (1: same position)")
    if isinstance(spec, Angles):
        at = spec.diagonal(d)
        fixed = context if spec.length_dependent else None
        exact = spec.cos_sin(at, fixed)[0].mean(axis=-1)
        axis.plot(d, exact, label="exact", linewidth=3, alpha=0.4)
        for label, scale in (("int16", UNIT), ("int8", 127)):
            axis.plot(d, rounded_cos_sin_at(spec, d, scale, fixed)[0].mean(axis=-1) / scale, label=label, linewidth=0.8)
        axis.legend()
    elif isinstance(spec, Alibi):
        for bias in SlopePlan(spec).bias_fixed(d):
            axis.semilogy(d, np.maximum(2.0 ** (-bias / 2.0**BIAS_BITS), 2.0**-40), linewidth=0.8)
        axis.set(title="weight by distance, one line per head", ylabel="weight, relative to distance 0")
    elif isinstance(spec, Learned):
        rows = np.asarray(weights, dtype=np.float64)[spec.offset :]
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-300)
        alike = rows @ rows.T
        axis.plot([np.mean(np.diagonal(alike, k)) for k in range(min(n, len(rows)))])
        axis.set(title="similarity of learned rows by distance", ylabel="mean cosine of two rows")
    else:
        at, rows = _bias_rows(spec, weights, n)
        axis.plot(at, rows, linewidth=0.8)
        title, unit = ("bucket by distance", "bucket") if weights is None else ("bias, one line per head", NATURAL)
        axis.set(title=title, xlabel=AWAY if isinstance(spec, T5Bias) else "row of the table", ylabel=unit)


def _error(axis, spec: Spec, context: int, weights) -> None:
    p = np.unique(np.geomspace(1, context, SAMPLES).astype(np.int64) - 1)
    axis.set(title="error by position", xlabel="position", xscale="symlog", yscale="log")
    if isinstance(spec, Angles):
        at = spec.diagonal(p)
        fixed = context if spec.length_dependent else None
        exact = spec.cos_sin(at, fixed)

        def worst(found, scale: float) -> np.ndarray:
            return np.max([np.abs(f * scale - e).max(axis=-1, initial=0.0) for f, e in zip(found, exact)], axis=0) * UNIT

        lines = {"float32": (float32_cos_sin(spec, at, fixed), 1.0)}
        if spec.linear:
            lines["phase"] = PhasePlan(spec, context).cos_sin(at), 1 / UNIT
        if context * spec.pairs <= 2**22:
            lines |= {f"int{bits} table": (TablePlan(spec, context, bits).cos_sin(at), s) for bits, s in ((16, 1 / UNIT), (8, 1 / 127))}
        for label, (found, scale) in lines.items():
            axis.plot(p, np.maximum(worst(found, scale), 1e-4), label=label, linewidth=0.9)
        axis.set(ylabel="largest error, units of 1/32767")
    elif isinstance(spec, Alibi):
        exact = np.array([float(s) for s in exact_log2_slopes(spec)])[:, None] * p
        lines = {
            "float32": spec.slopes().astype(np.float32)[:, None] * p.astype(np.float32) / np.float32(np.log(2)),
            "slopes": SlopePlan(spec).bias_fixed(p) * 2.0**-BIAS_BITS,
        }
        for label, found in lines.items():
            error = np.where(exact < 40, np.abs(found - exact), 0).max(axis=0)
            axis.plot(p, np.maximum(error, 1e-9), label=label, linewidth=0.9)
        axis.set(title="error by distance", xlabel="distance in tokens", ylabel="largest error, log2 units, weights above 2^-40")
    elif isinstance(spec, Learned):
        for bits in (16, 8):
            axis.plot(LearnedPlan(spec, weights, bits).row_errors, label=f"int{bits}", linewidth=0.9)
        axis.set(title="error by row", xlabel="row", ylabel="largest error of the row, the table's units", xscale="linear")
    elif weights is None:
        _say(axis, "exact: buckets are whole numbers")
        return
    else:
        exact = np.asarray(weights, dtype=np.float64) / np.log(2)
        for bits in (32, 16, 8):
            plan = LearnedBiasPlan(spec, weights, bits)
            axis.plot(np.maximum(np.abs(plan.table * plan.scale - exact).max(axis=1), 1e-9), label=f"int{bits}", linewidth=0.9)
        axis.set(title="error by row", xlabel="row of the table", ylabel="largest error of the heads, log2 units of a score", xscale="linear")
    axis.legend()


def _methods(axis, spec: Spec, context: int, weights) -> None:
    """Every method as a number at its bytes and error, with the names beside the panel; numbers that would overlap stand together."""
    try:
        rows = method_rows(spec, context, weights)
    except EdgePosError as error:
        _say(axis, str(error))
        return
    families = list(dict.fromkeys(row["method"].partition("-")[0] for row in rows))
    at = np.array([(max(row["bytes"], 1), max(row["bound"], 1e-12)) for row in rows])
    for n, row in enumerate(rows, 1):
        colour = f"C{families.index(row['method'].partition('-')[0])}"
        axis.scatter(*at[n - 1], facecolors=colour if row["best"] else "none", edgecolors=colour, label=f"{n}  {row['method']}, {row['bits']} bits")
    axis.set(title="methods; filled: none better in bytes, error, operations", xlabel="bytes", xscale="log", yscale="log")
    axis.set(ylabel=f"proven error, {UNITS.get(rows[0]['unit'], rows[0]['unit'])}")
    axis.margins(0.1)
    for place, numbers in _together(at):
        axis.annotate(", ".join(str(i + 1) for i in numbers), place, fontsize=8, xytext=(0, 6), textcoords="offset points", ha="center")
    axis.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, borderaxespad=0.5)


def _together(at: np.ndarray) -> list[tuple[tuple[float, float], list[int]]]:
    """(place of the label, indices) of points [n, 2] on logarithmic axes, those that would overlap together."""
    logs = np.log10(at)
    logs = (logs - logs.min(axis=0)) / np.maximum(np.ptp(logs, axis=0), 1e-9)
    groups: list[list[int]] = []
    for i in np.argsort(logs[:, 0], kind="stable").tolist():
        near = next((g for g in groups if (np.abs(logs[g] - logs[i]) < LABEL).all()), None)
        if near is None:
            groups.append([i])
        else:
            near.append(i)
    return [((float(np.exp(np.log(at[g, 0]).mean())), float(at[g, 1].max())), sorted(g)) for g in groups]


def _say(axis, text: str) -> None:
    axis.set_axis_off()
    axis.text(0.5, 0.5, text, ha="center", va="center", wrap=True, transform=axis.transAxes)
