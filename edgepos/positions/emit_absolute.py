"""The tables of sinusoidal and learned positions: what is added to an embedding."""

from __future__ import annotations

import numpy as np

from .learned import Learned, LearnedPlan
from .sinusoidal import Sinusoidal, Sinusoidal2D, SinusoidalPlan
from .table_file import TableFile


def sinusoidal_tables(
    spec: Sinusoidal | Sinusoidal2D, context: int, bits: tuple[int, ...]
) -> list[tuple[SinusoidalPlan, TableFile]]:
    """The plans and files for positions 0 … context − 1; of a 2-D encoding those of one coordinate, which both share."""
    plans = [SinusoidalPlan(spec, context, b) for b in bits]
    return [(plan, _sinusoidal_file(plan)) for plan in plans]


def sinusoidal_error(plan: SinusoidalPlan) -> float:
    """Largest error found over every position of a coordinate, in units of 1/full_scale times the spec's scale."""
    at = np.arange(plan.context)
    return float(np.abs(plan.rows(at) - plan.part.table(at) / plan.scale).max())


def _sinusoidal_file(plan: SinusoidalPlan) -> TableFile:
    spec, stem = plan.part, f"{plan.spec.encoding}_int{plan.bits}"
    whole = plan.spec if isinstance(plan.spec, Sinusoidal2D) else None
    upper = f"EDGEPOS_{stem.upper()}"
    about = (
        f"Sinusoidal positions as int{plan.bits}, one row per position. Written by EdgePos.",
        f"dim {spec.dim}, {spec.convention}, {spec.first} first, denominator {spec.denominator}, theta {spec.theta!r}, start {spec.start}, "
        f"scale {spec.scale!r}.",
        f"value = entry * {upper}_SCALE. Error at most {upper}_BOUND unit against the exact value, proven: every entry is correctly",
        "rounded.",
        *_use(whole, f"edgepos_{stem}_rows", f"{upper}_DIM"),
    )
    macros = {"CONTEXT": plan.context, "DIM": spec.dim, "SCALE": plan.scale, "BOUND": plan.bound}
    kind = {"kind": "sinusoidal"} if whole is None else {"kind": "sinusoidal", "whole": whole.to_json()}
    description = {**kind, **plan.certificate(), "scale": plan.scale, "arrays": {"rows": "[position][component]"}}
    rows = plan.rows(np.arange(plan.context))
    return TableFile(stem, about, macros, {"rows": rows}, {"rows": ("CONTEXT", "DIM")}, description)


def _use(whole: Sinusoidal2D | None, rows: str, dim: str) -> list[str]:
    """The usage lines of a header."""
    if whole is None:
        return [f"Use: x[i] += {rows}[position][i], with x in the same units, i < {dim}."]
    first, second = ("row", "column") if whole.row_first else ("column", "row")
    return [
        f"For images: the embedding has 2 * {dim} components, half of them from each coordinate. Use, with x in the same units,",
        f"i < {dim}: x[i] += {rows}[{first}][i]; x[{dim} + i] += {rows}[{second}][i];",
    ]


def learned_tables(spec: Learned, weights, bits: tuple[int, ...], per_tensor: bool = False) -> list[tuple[LearnedPlan, TableFile]]:
    """The plans and files of a learned table [count, dim], with a factor per row or for the tensor."""
    plans = [LearnedPlan(spec, weights, b, "tensor" if per_tensor else "row") for b in bits]
    return [(plan, _learned_file(plan, weights)) for plan in plans]


def _learned_file(plan: LearnedPlan, weights) -> TableFile:
    spec, stem = plan.spec, f"learned_int{plan.bits}"
    upper = f"EDGEPOS_{stem.upper()}"
    padding = "" if spec.pad_id is None else f"; token {spec.pad_id} is padding and takes row {spec.offset - 1}"
    modulo = "" if spec.modulo is None else f", positions modulo {spec.modulo}"
    at = "r" if plan.per == "row" else "0"
    about = (
        f"Learned positions as int{plan.bits} with a factor per {plan.per}. Written by EdgePos.",
        f"{spec.count} rows, the first position is row {spec.offset}{modulo}{padding}.",
        f"value = rows[r][i] * factors[{at}][0] * 2^-factors[{at}][1]. Error at most {upper}_BOUND, found over every entry.",
        f"Use: edgepos_{stem}_rows[{upper}_OFFSET + position][i], i < {upper}_DIM.",
    )
    sizes = {"ROWS": spec.count, "OFFSET": spec.offset, "DIM": plan.table.shape[1], "FACTORS": len(plan.factors), "FACTOR_WORDS": 2}
    return TableFile(
        stem,
        about,
        sizes | {"BOUND": plan.bound},
        {"rows": plan.table, "factors": plan.factors},
        {"rows": ("ROWS", "DIM"), "factors": ("FACTORS", "FACTOR_WORDS")},
        {
            "kind": "learned",
            **plan.certificate(),
            "arrays": {"rows": "[row][component]", "factors": f"[{plan.per}] m, h", "source": "[row][component]"},
        },
        learned=np.asarray(weights, dtype=np.float64),
    )
