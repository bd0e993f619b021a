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
    rows = [f"| {name} | {value} |" for name, value in accuracy_rows(a)]
    rows += [f"| {form['file']} | {form_line(form)} |" for form in report.get("onnx", ())]
    return ["## Accuracy against the float model", "", "| figure | value |", "|---|---|", *rows, ""]


def accuracy_rows(a: dict) -> list[tuple[str, str]]:
    """(figure, its value as text) of the `accuracy` section, of logits or of embeddings."""
    if "cosine_mean" in a:
        what, one = (f"{a['images']} images", "image") if "images" in a else (f"{a['texts']} sentences, {a['tokens']} tokens", "sentence")
        same = [("same first class", f"{a['same_class']:.2%}")] if "same_class" in a else []
        return [
            ("images" if "images" in a else "text", f"{a['text']}, {what}"),
            *same,
            ("cosine to the float row" if "images" in a else "cosine to the float embedding", f"mean {a['cosine_mean']:.6f}, least {a['cosine_min']:.6f}"),
            (f"same nearest {one}", f"{a['nearest_agreement']:.2%}"),
            ("rank correlation of the pairs", f"{a['rank_correlation']:.6f}, {a['pairs']} pairs"),
            ("largest error of a number", f"{a['max_error']:.3g}"),
            (f"saturations in these {one}s", str(a["saturations"])),
            *([("rank correlation with the labels", labels_line(a["labels"]))] if "labels" in a else []),
        ]
    return [
        ("text", f"{a['text']}, {a['tokens']} predictions"),
        ("perplexity, float model", f"{a['perplexity_float']:.4f}"),
        ("perplexity, integers", f"{a['perplexity']:.4f} ({a['perplexity_change']:+.3%})"),
        ("KL divergence, mean", f"{a['kl_mean']:.3g} ± {a['kl_standard_error']:.1g} nats"),
        ("KL divergence, 99th percentile", f"{a['kl_p99']:.3g} nats"),
        ("same first choice", f"{a['top1_agreement']:.2%}"),
        ("largest error of a logit", f"{a['max_logit_error']:.3g}"),
    ]


def labels_line(labels: dict) -> str:
    """Labelled pairs in one line."""
    return f"{labels['spearman']:.4f}, float model {labels['spearman_float']:.4f} (Spearman, {labels['pairs']} pairs of {labels['file']})"


def form_line(form: dict) -> str:
    """A form of model.onnx in one line: its accuracy against the float model and its speed."""
    if "cosine_mean" in form:
        accuracy = f"cosine mean {form['cosine_mean']:.6f}, least {form['cosine_min']:.6f}, same nearest sentence {form['nearest_agreement']:.2%}"
    else:
        accuracy = f"KL {form['kl_mean']:.3g} nats, same first choice {form['top1_agreement']:.2%}"
    return f"{accuracy}, {form['tokens_per_second']:.0f} tokens/s over {form['tokens']} tokens, {form['threads']} thread{'s' * (form['threads'] > 1)}"


def _positions(report: dict) -> list[str]:
    lines = ["## Position encoding", ""]
    if not report["positions"]:
        return [*lines, "None.", ""]
    for entry in report.get("encodings", ()):
        lines += [f"{entry['encoding']}: {entry['named']}", ""]
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
        "SQNR is the ratio of the float signal to its difference from the integers, summed over a window of the text, or over an image.",
        "",
        "| operator | kind | SQNR dB | saturations |",
        "|---|---|---|---|",
    ]
    for layer in report["layers"]:
        lines.append(f"| {layer['name']} | {layer['op']} | {_number(layer.get('sqnr_db'), '.1f')} | {layer.get('saturations', '–')} |")
    return [*lines, ""]


def _number(value, spec: str = ".4g") -> str:
    return "–" if value is None else format(value, spec)
