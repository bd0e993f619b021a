"""The `encodings` section: what the position encodings of a model look like, and how far float32 and the integers are from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..compiler.match import match
from ..compiler.position_tables import encodings
from ..errors import EdgePosError
from ..export import CanonicalModel
from ..positions import NoPosition, Sinusoidal2D, Spec
from ..positions.curves import Curves, errors, heat, similarity
from ..positions.methods import method_rows

ROWS, COLUMNS, POINTS, LINES = 24, 48, 64, 16


def encoding_curves(canonical: CanonicalModel, context: int) -> list[dict]:
    """One entry per different encoding: encoding, its parameters in words, heat map, similarity and errors as numbers, and every method with its costs.

    `context` is the number of positions. Long tables and lines are thinned out evenly, many heads too.
    """
    found = []
    for spec, weights in encodings(match(canonical.model)):
        if spec == NoPosition():
            continue
        try:
            methods = method_rows(spec, context, weights)
        except EdgePosError:
            methods = []
        one, table = _single(spec, weights)
        curves = errors(one, context, table, POINTS)
        found.append(
            {
                "encoding": spec.encoding,
                "named": named(spec),
                "context": context,
                "heat": _heat(one, context, table),
                "similarity": _curves(similarity(one, context, table)),
                "errors": None if curves is None else _with_bounds(_curves(curves), methods),
                "methods": methods,
            }
        )
    return found


def named(spec: Spec) -> str:
    """The parameters of a spec in one line; rows of numbers by their ends."""
    data = spec.to_json()
    del data["encoding"]
    scaling = data.pop("scaling", None)
    text = _parameters(data)
    return f"{text}; {scaling.pop('rope_type')} scaling: {_parameters(scaling)}" if scaling else text


def _parameters(data: dict) -> str:
    def shown(value) -> str:
        if isinstance(value, list) and len(value) > 2:
            return f"{shown(value[0])} … {shown(value[-1])} ({len(value)} values)"
        return f"{value:.7g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{key} {shown(value)}" for key, value in data.items() if value is not None)


def _single(spec: Spec, weights) -> tuple[Spec, np.ndarray | None]:
    """What is drawn of a spec: the first layer of a table per layer, one coordinate of a two-dimensional encoding."""
    if isinstance(spec, Sinusoidal2D):
        return spec.part, weights
    if getattr(spec, "layers", None) is not None:
        return replace(spec, layers=None), None if weights is None else np.asarray(weights)[0]
    return spec, weights


def _thin(n: int, most: int) -> np.ndarray:
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(int))


def _heat(spec: Spec, context: int, weights) -> dict:
    h = heat(spec, context, weights)
    rows, columns = (_thin(n, most) for n, most in zip(h.values.shape, (ROWS, COLUMNS)))
    values = np.asarray(h.values, np.float64)[np.ix_(rows, columns)]
    axes = {"columns": (columns + h.first).tolist(), "rows": rows.tolist()}
    return {"title": h.title, "xlabel": h.xlabel, "ylabel": h.ylabel, "unit": h.unit, **axes, "values": [_short(row) for row in values]}


def _curves(c: Curves) -> dict:
    at = _thin(len(c.x), POINTS)
    heads = _thin(len(c.unnamed), LINES).tolist() if c.unnamed else []
    lines = dict(c.lines) | {f"head {h}" if len(c.unnamed) > 1 else "value": c.unnamed[h] for h in heads}
    return {
        "title": c.title,
        "xlabel": c.xlabel,
        "ylabel": c.ylabel,
        "logx": c.logx,
        "logy": c.logy,
        "x": np.asarray(c.x)[at].tolist(),
        "lines": {name: _short(np.asarray(y, np.float64)[at]) for name, y in lines.items()},
    }


def _with_bounds(curves: dict, methods: list[dict]) -> dict:
    """The proven bound of the runtime's own methods, which hold at every position, as lines beside the measured errors."""
    for row in methods:
        if row["method"] in curves["lines"]:
            curves["lines"][f"{row['method']}, proven bound"] = [float(f"{row['bound']:.5g}")] * len(curves["x"])
    return curves


def _short(values: np.ndarray) -> list[float]:
    """Five digits are enough to draw."""
    return [float(f"{x:.5g}") for x in values]
