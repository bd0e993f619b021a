"""Four pictures of an encoding: its table, similarity by distance, error by position beside float32's, and the methods.

Needs matplotlib, which is the extra `plots`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import EdgePosError, UnsupportedError
from ..whole_file import whole_file
from .alibi import Alibi
from .curves import UNITS, Curves, errors, heat, similarity
from .learned import Learned
from .methods import method_rows
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import Spec, check_context

FORMATS = (".png", ".svg")
LABEL = (0.07, 0.05)  # width and height of a number, as parts of a panel


def draw(spec: Spec, output: Path, context: int, weights=None, name: str = "") -> None:
    """Write the four panels of `spec` for `context` positions to a .png or .svg file.

    weights: the learned table, for what has one. Raises UnsupportedError without matplotlib, for another suffix and for a spec that
    has nothing to draw, EdgePosError when the file cannot be written.
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
    with whole_file(output) as work:
        figure.savefig(work, format=output.suffix[1:], dpi=120, metadata={"Date": None} if output.suffix == ".svg" else None)


def _heat_map(axis, spec: Spec, context: int, weights) -> None:
    h = heat(spec, context, weights)
    rows, columns = h.values.shape
    extent = (h.first - 0.5, h.first + columns - 0.5, rows - 0.5, -0.5)
    image = axis.imshow(h.values, aspect="auto", interpolation="nearest", cmap="RdBu_r", extent=extent)
    axis.yaxis.get_major_locator().set_params(integer=True)
    axis.figure.colorbar(image, ax=axis, label=h.unit)
    axis.set(title=h.title, xlabel=h.xlabel, ylabel=h.ylabel)


def _similarity(axis, spec: Spec, context: int, weights) -> None:
    _lines(axis, similarity(spec, context, weights))


def _error(axis, spec: Spec, context: int, weights) -> None:
    curves = errors(spec, context, weights)
    if curves is None:
        _say(axis, "exact: buckets are whole numbers")
    else:
        _lines(axis, curves)


def _lines(axis, curves: Curves) -> None:
    axis.set(title=curves.title, xlabel=curves.xlabel, ylabel=curves.ylabel)
    axis.set(xscale="symlog" if curves.logx else "linear", yscale="log" if curves.logy else "linear")
    for label, y in curves.lines.items():
        wide = {"linewidth": 3, "alpha": 0.4} if label == "exact" else {"linewidth": 0.9}
        axis.plot(curves.x, y, label=label, **wide)
    for y in curves.unnamed:
        axis.plot(curves.x, y, linewidth=0.8)
    if curves.lines:
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
