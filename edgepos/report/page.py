"""report.html: what report.json holds, as one page that needs no network."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from . import charts
from .markdown import accuracy_rows, form_line

TEMPLATES = Path(__file__).with_name("templates")


@cache
def environment() -> Environment:
    """The templates' environment: everything is escaped that is not a chart."""
    env = Environment(loader=FileSystemLoader(TEMPLATES), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    env.filters |= {"number": number, "size": size}
    env.globals |= {"style": Markup((TEMPLATES / "style.css").read_text("utf-8")), "script": Markup((TEMPLATES / "sort.js").read_text("utf-8"))}
    return env


def number(value, spec: str = ".4g") -> str:
    """A number in a format; anything else, which only a changed report.json can hold, as it is."""
    if value is None:
        return "–"
    return format(value, spec) if isinstance(value, (int, float)) else str(value)


def size(count) -> str:
    """Bytes for a reader."""
    if not isinstance(count, (int, float)):
        return number(count)
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= step:
            return f"{count / step:.3g} {unit}"
    return f"{count} bytes"


def page(report: dict) -> str:
    """The page of a report, which may lack everything that is measured. The same report gives the same page."""
    charts.restart()
    accuracy = report.get("accuracy")
    return environment().get_template("report.html").render(
        report=report,
        accuracy=accuracy,
        rows=accuracy_rows(accuracy) if accuracy else [],
        forms=[(form["file"], form_line(form)) for form in report.get("onnx", ())],
        arena=sorted((report["memory"].get("arena") or {}).items(), key=lambda item: (len(item[0]), item[0])),
        figures=_figures(report),
        formats=list(dict.fromkeys(form for entry in (report.get("changes") or {}).get("matrices", ()) for form in entry["alternatives"])),
    )


def _figures(report: dict) -> dict:
    """Section → its charts."""
    found = {"layers": _layers(report["layers"]), "attention": _attention(report.get("attention") or {}), "changes": _changes(report.get("changes"))}
    found["encodings"] = [_encoding(entry) for entry in report.get("encodings", ())]
    return found


def _encoding(entry: dict) -> list[Markup]:
    def lines(c: dict) -> Markup:
        return charts.line_chart(c["title"], c["xlabel"], c["ylabel"], c["x"], c["lines"], c["logx"], c["logy"])

    h, methods = entry["heat"], entry["methods"]
    drawn = [lines(entry["errors"])] if entry["errors"] else []
    drawn += [lines(entry["similarity"]), charts.heat_map(h["title"], h["xlabel"], h["ylabel"], h["unit"], h["columns"], h["rows"], h["values"])]
    if methods:
        points = [
            {"x": max(m["bytes"], 1), "y": max(m["bound"], 1e-12), "label": f"{m['method']}, {m['bits']} bits", "group": m["method"].partition("-")[0], "ring": not m["best"]}
            for m in methods
        ]
        title = "the plan's alternatives; filled: none is as good in bytes, bound and operations"
        drawn.append(charts.scatter(title, "bytes", f"proven bound, {methods[0]['unit']}", points, True, True))
    return drawn


def _layers(layers: list[dict]) -> list[Markup]:
    drawn = []
    for key, title in (("sqnr_db", "with all errors before it"), ("own_sqnr_db", "of each operator alone, on exact inputs")):
        points = [{"x": n, "y": layer[key], "label": f"{layer['name']}: {layer[key]:.1f} dB", "group": layer["op"]} for n, layer in enumerate(layers) if layer.get(key) is not None]
        if points:
            drawn.append(charts.scatter(f"signal to error, {title}", "operator, in data-flow order", "SQNR, dB", points))
    return drawn


def _attention(attention: dict) -> list[Markup]:
    drawn = []
    if scores := attention.get("scores"):
        lines = {name: [row[name] for row in scores] for name in ("mean", "max")}
        drawn.append(charts.line_chart("error of the scores by distance", "distance of query and key, tokens", "|error|, natural units", [r["distance"] for r in scores], lines, False, True))
    if loss := attention.get("loss"):
        x = [row["first"] for row in loss]
        both = {"float model": [row["nll_float"] for row in loss], "integers": [row["nll"] for row in loss]}
        drawn.append(charts.line_chart("loss by position", "first position of the range, tokens", "mean loss, nats per token", x, both, True))
        drawn.append(charts.line_chart("KL divergence by position", "first position of the range, tokens", "mean KL, nats per token", x, {"KL": [row["kl"] for row in loss]}, True, True))
    return drawn


def _changes(changes: dict | None) -> list[Markup]:
    points = [
        {"x": n + 1, "y": e["saves"], "label": f"{e['matrix']}: {e['saves']:.3g}", "group": e["format"]}
        for n, e in enumerate(e for e in changes["matrices"] if e.get("saves", 0) > 0)
    ] if changes else []  # fmt: skip
    if not points:
        return []
    return [charts.scatter("what each matrix's rounding costs", "matrices, the costliest first", f"saved without it, {changes['measure']}", points, False, True)]
