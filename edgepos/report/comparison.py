"""Several measured bundles in one table and one chart of size against error."""

from __future__ import annotations

from pathlib import Path

from ..errors import EdgePosError
from . import charts
from .files import dumps, replace_file
from .page import environment

LOGITS, EMBEDDING = "KL divergence, nats per token", "1 - cosine"


def row_of(label: str, report: dict) -> dict:
    """A measured report as one row: label, name, formats, bytes, error (its `measure` says of what), same, perplexity, digest …

    Raises EdgePosError for a report without a measurement.
    """
    a = report.get("accuracy")
    if not isinstance(a, dict) or not {"kl_mean", "top1_agreement"} <= set(a) and not {"cosine_mean", "nearest_agreement"} <= set(a):
        raise EdgePosError(f"{label}: not measured yet; run edgepos report {label} --source SRC")
    logits = "kl_mean" in a
    return {
        "label": label,
        "name": report["name"],
        "formats": " ".join(report["formats"][key] for key in ("weights", "activations", "kv", "positions") if key in report["formats"]),
        "bytes": report["memory"]["model_bytes"],
        "kv_bytes_per_token": report["memory"]["kv_bytes_per_token"],
        "measure": LOGITS if logits else EMBEDDING,
        "error": a["kl_mean"] if logits else 1 - a["cosine_mean"],
        "interval": (a.get("intervals") or {}).get("kl_mean"),
        "same": a["top1_agreement"] if logits else a["nearest_agreement"],
        "perplexity": a.get("perplexity"),
        "perplexity_float": a.get("perplexity_float"),
        "text": a["text"],
        "text_sha256": a["text_sha256"],
        "tokens": a["tokens"],
        "digest": report["digest"],
    }


def ranked(rows: list[dict]) -> list[dict]:
    """The rows by size, each with `best`: no other is at least as small and as exact, and better in one. Raises EdgePosError where texts differ."""
    for row in rows[1:]:
        for key, what in (("measure", "gives another kind of output than"), ("text_sha256", "was measured on another text than"), ("tokens", "was measured on another number of tokens than")):
            if row[key] != rows[0][key]:
                raise EdgePosError(f"{row['label']}: {what} {rows[0]['label']} ({row[key]} and {rows[0][key]}); measure them alike with edgepos report")
    place = {id(row): (row["bytes"], row["error"]) for row in rows}

    def beaten(row: dict) -> bool:
        mine = place[id(row)]
        return any(a[0] <= mine[0] and a[1] <= mine[1] and a != mine for a in place.values())

    return sorted(({**row, "best": not beaten(row)} for row in rows), key=lambda row: (row["bytes"], row["error"]))


def comparison_page(rows: list[dict], title: str, failed: list[dict] | None = None) -> str:
    """The page of ranked rows; failed: {label, error} of what could not be measured."""
    charts.restart()
    points = [
        {"x": row["bytes"], "y": max(row["error"], 1e-12), "label": f"{row['label']}: {row['error']:.3g}", "group": row["formats"], "mark": row["label"][-24:], "ring": not row["best"]}
        for row in rows
    ]  # fmt: skip
    chart = charts.scatter("size against error; filled and joined: none is smaller and as exact", "bytes of model.gguf", rows[0]["measure"], points, logy=True, joined=True) if rows else None
    return environment().get_template("compare.html").render(title=title, rows=rows, failed=failed or [], chart=chart)


def write_comparison(file: Path, rows: list[dict], title: str, failed: list[dict] | None = None) -> None:
    """Write the page to `file` (a name that ends in .html) and its rows beside it as .json. Raises EdgePosError when that cannot be done."""
    if file.suffix != ".html":
        raise EdgePosError(f"{file}: a name that ends in .html is needed")
    replace_file(file.with_suffix(".json"), dumps({"title": title, "rows": rows, "failed": failed or []}).encode("utf-8"))
    replace_file(file, comparison_page(rows, title, failed).encode("utf-8"))
