"""report.md: what report.json holds, for a reader."""

from __future__ import annotations


def render(report: dict) -> str:
    """Markdown of a report (see docs/report.md for its keys)."""
    lines = [f"# {report['name']}", "", f"Digest of the self-test: `{report['digest']}`. Formats: {_formats(report)}.", ""]
    for section in (_accuracy, _positions, _memory, _layers):
        lines += section(report)
    return "\n".join(lines) + "\n"


def _formats(report: dict) -> str:
    return " ".join(report["formats"][key] for key in ("weights", "activations", "kv"))


def _accuracy(report: dict) -> list[str]:
    a = report.get("accuracy")
    if not a:
        return ["## Accuracy", "", "Not measured yet: run `edgepos report BUNDLE --source SRC`.", ""]
    change = a["perplexity"] / a["perplexity_float"] - 1
    return [
        "## Accuracy against the float model",
        "",
        f"Text: {a['text']}, {a['tokens']} predictions.",
        "",
        "| figure | value |",
        "|---|---|",
        f"| perplexity, float model | {a['perplexity_float']:.4f} |",
        f"| perplexity, integers | {a['perplexity']:.4f} ({change:+.3%}) |",
        f"| KL divergence, mean | {a['kl_mean']:.3g} ± {a['kl_standard_error']:.1g} nats |",
        f"| KL divergence, 99th percentile | {a['kl_p99']:.3g} nats |",
        f"| same first choice | {a['top1_agreement']:.2%} |",
        f"| largest error of a logit | {a['max_logit_error']:.3g} |",
        "",
    ]


def _positions(report: dict) -> list[str]:
    lines = ["## Position encoding", ""]
    if not report["positions"]:
        return [*lines, "None.", ""]
    lines += ["| kind | method | bits | proven bound | measured maximum | bytes |", "|---|---|---|---|---|---|"]
    for p in report["positions"]:
        unit = p.get("unit", "")
        lines.append(f"| {p['kind']} | {p['method']} | {p['bits']} | {_number(p['bound'])} {unit} | {_number(p['measured_max'])} | {p['bytes']} |")
    return [*lines, ""]


def _memory(report: dict) -> list[str]:
    m = report["memory"]
    lines = ["## Memory", "", "| what | bytes |", "|---|---|"]
    sizes = {key.replace("_", " "): value for key, value in m.items() if isinstance(value, int)}
    if "plan width" in sizes:
        sizes["values per token"] = 4 * sizes.pop("plan width")  # int32 elements
    lines += [f"| {name} | {value:,} |" for name, value in sizes.items()]
    lines += [f"| arena for a context of {context} | {value:,} |" for context, value in m.get("arena", {}).items()]
    return [*lines, ""]


def _layers(report: dict) -> list[str]:
    lines = [
        "## Operators in data-flow order",
        "",
        "SQNR is the ratio of the float signal to its difference from the integers, summed over a window of the text.",
        "",
        "| operator | kind | SQNR dB | saturations |",
        "|---|---|---|---|",
    ]
    for layer in report["layers"]:
        lines.append(f"| {layer['name']} | {layer['op']} | {_number(layer.get('sqnr_db'), '.1f')} | {layer.get('saturations', '–')} |")
    return [*lines, ""]


def _number(value, spec: str = ".4g") -> str:
    return "–" if value is None else format(value, spec)
