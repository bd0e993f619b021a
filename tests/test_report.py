"""The report: its figures against independent computations, its schema, its page, its gate and its texts."""

from __future__ import annotations

import copy
import html
import html.parser
import json
import re

import jsonschema
import numpy as np
import pytest

import edgepos
from edgepos.compiler.pipeline import compile
from edgepos.compiler.tokenizer_image import tokenizer
from edgepos.errors import EdgePosError, GateError
from edgepos.export import load
from edgepos.float_session import FloatSession
from edgepos.golden_session import GoldenSession
from edgepos.positions import Rope
from edgepos.report import intervals, markdown
from edgepos.report.build import measure
from edgepos.report.changes import measure_changes
from edgepos.report.encodings import named
from edgepos.report.gate import Gate
from edgepos.report.layers import trace_layers, with_outputs
from edgepos.report.metrics import Comparison
from edgepos.report.page import page
from edgepos.report.peers import MEASURED, on_the_same_text, read_peers
from edgepos.report.remembering import Remembering
from edgepos.report.scores import score_errors
from edgepos.report.verdict import verdict
from edgepos.report.windows import Text, read_text, read_texts, text_windows
from edgepos.resources import tiny_model_dir

SECTIONS = ["summary", "positions", "layers", "attention", "text", "again"]


@pytest.fixture(scope="module")
def schema(root):
    content = json.loads((root / "docs" / "report.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(content)
    return jsonschema.Draft202012Validator(content)


@pytest.fixture(scope="module")
def source():
    return load(tiny_model_dir("tiny-rope"))


@pytest.fixture(scope="module")
def report(bundle, source):
    return measure(bundle("tiny-rope"), edgepos.reference(source), source, read_text(), max_tokens=400, command=["edgepos", "report", "a b"])


def parsed(text: str):
    """(ids, problems) of a page."""

    class Reader(html.parser.HTMLParser):
        void = {"meta", "link", "br"}

        def __init__(self):
            super().__init__()
            self.open, self.ids, self.problems, self.scripts, self.words = [], [], [], 0, []

        def handle_starttag(self, tag, attributes):
            facts = dict(attributes)
            self.ids += [facts["id"]] if "id" in facts else []
            self.scripts += tag == "script"
            self.problems += [f"{tag} {name}" for name in facts if name.startswith("on")]
            if any((facts.get(name) or "").startswith(("http", "//")) for name in ("src", "href", "xlink:href")):
                self.problems.append(f"{tag} loads {facts}")
            if tag not in self.void:
                self.open.append(tag)

        def handle_startendtag(self, tag, attributes):
            self.handle_starttag(tag, attributes)
            self.open[-1:] = []

        def handle_endtag(self, tag):
            if self.open.pop() != tag:
                self.problems.append(f"</{tag}> closes another")

        def handle_data(self, data):
            self.words.append(data)

    reader = Reader()
    reader.feed(text)
    assert not reader.open
    return reader


def test_the_report_keeps_its_schema(report, schema, bundle):
    schema.validate(report)
    schema.validate(json.loads(json.dumps(report)))
    schema.validate(bundle("tiny-rope").report)  # before any measurement
    for broken in ({**report, "digest": "x"}, {**report, "more": 1}, {k: v for k, v in report.items() if k != "layers"}):
        with pytest.raises(jsonschema.ValidationError):
            schema.validate(broken)


def test_the_page_has_every_section_and_nothing_from_elsewhere(report):
    text = page(report)
    assert text == page(report)
    found = parsed(text)
    assert found.problems == [] and found.scripts == 1 and len(text) < 500_000
    assert [i for i in found.ids if i in SECTIONS] == SECTIONS and len(set(found.ids)) == len(found.ids)
    assert text.count("<svg") == text.count("<desc") == text.count('role="img"') >= 9
    assert not re.search("https?:", text)
    words = " ".join(found.words)
    for figure in (report["digest"], f"{report['accuracy']['perplexity']:.4f}", report["provenance"]["model_sha256"], "edgepos report 'a b'", "proven bound"):
        assert figure in words


def test_every_number_of_the_page_is_in_the_json(report):
    """Cells of tables to the last digit, whatever else is written to the digits that are shown; charts are drawn of the same lists."""

    def leaves(value):
        inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else None
        return [value] if inner is None else [leaf for part in inner for leaf in leaves(part)]

    values = leaves(report)
    numbers = np.array([float(value) for value in values if isinstance(value, (int, float))])
    said = " ".join(map(str, values))
    body = re.sub(r"<(style|script|svg)\b.*?</\1>", "", page(report), flags=re.DOTALL)
    cells = [float(value) for value in re.findall(r'data-value="(-?[\d.][^"]*)"', body)]
    assert len(cells) > 300 and set(cells) <= set(numbers)
    shown = re.findall(r"(?<![\w.,/-])([-+]?\d[\d,]*(?:\.\d+)?)(e[-+]?\d+)?(%?)(?![\w.])", html.unescape(re.sub("<[^>]+>", " ", body)))
    assert len(shown) > 500
    for digits, power, percent in shown:
        digits = digits.replace(",", "").lstrip("+")
        unit = 10.0 ** (int(power[1:] or 0) - len(digits.partition(".")[2])) / (100 if percent else 1)
        scaled = (numbers, numbers / 1e3, numbers / 1e6)  # sizes
        assert digits in said or min(np.abs(some - float(digits + power) / (100 if percent else 1)).min() for some in scaled) <= 0.51 * unit, (digits, power, percent)


def test_a_bundle_that_was_not_measured_has_a_page(bundle):
    text = (bundle("tiny-rope").path / "report.html").read_text("utf-8")
    found = parsed(text)
    assert [i for i in found.ids if i in SECTIONS] == SECTIONS and "Not measured yet" in text


def test_the_parameters_of_an_encoding_are_named(report):
    (encoding,) = report["encodings"]
    assert encoding["named"] == "head_dim 16, rotary_dim 16, theta 10000, layout half"
    assert f"rope: {encoding['named']}" in markdown.render(report) and encoding["named"] in page(report)
    yarn = Rope(64, theta=1e6, scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768})
    assert "theta 1000000, layout half; yarn scaling: factor 4, original_max_position_embeddings 32768, beta_fast 32" in named(yarn)
    assert named(Rope(8, scaling={"rope_type": "custom", "inv_freq": [1.0, 0.5, 0.25, 0.125]})).endswith("inv_freq 1 … 0.125 (4 values)")


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"


def test_hostile_names_and_texts_stay_text(report):
    changed = copy.deepcopy(report)
    changed["name"] = changed["accuracy"]["text"] = changed["provenance"]["command"] = changed["formats"]["kv"] = HOSTILE
    changed["generation"] = {"prompt": HOSTILE, "float": HOSTILE, "integers": HOSTILE, "differs_at": 3}
    for entry in changed["accuracy"]["worst"]:
        entry["before"] = entry["token"] = entry["choice"] = HOSTILE
    for layer in changed["layers"]:
        layer["name"] = layer["op"] = HOSTILE
    for entry in changed["changes"]["matrices"]:
        entry["matrix"] = entry["format"] = HOSTILE
    for encoding in changed["encodings"]:
        encoding["encoding"] = encoding["named"] = encoding["heat"]["title"] = encoding["similarity"]["xlabel"] = HOSTILE
        encoding["errors"]["lines"][HOSTILE] = encoding["errors"]["lines"]["phase"]
    found = parsed(page(changed))
    assert found.scripts == 1 and found.problems == [] and HOSTILE in " ".join(found.words)


def test_figures_that_a_changed_file_holds_as_words(report):
    changed = copy.deepcopy(report)
    changed["memory"]["model_bytes"] = changed["positions"][0]["bound"] = "many"
    assert "many" in page(changed)


def test_noise_in_one_layer_is_ranked_first(bundle, source):
    """The weights of one matrix of the program are changed on purpose: it must lead the list, and its operator's own SQNR must be the least."""
    program = copy.copy(bundle("tiny-rope").program)
    program.arrays = list(program.arrays)
    op = next(op for op in program.ops if op.name == "layers.3.mlp.up")
    clean = program.arrays[op.tensors[0]]
    noise = np.random.default_rng(3).integers(-12, 13, clean.shape)
    program.arrays[op.tensors[0]] = np.clip(clean + noise, -127, 127).astype(np.int8)
    ids = text_windows(bundle("tiny-rope").tokenizer, read_text(), 64, 512)[0]
    layers = trace_layers(program, source.model, ids)
    changes = measure_changes(program, source.model, [ids], layers)
    assert changes["matrices"][0]["operators"] == ["layers.3.mlp.up"]
    assert changes["suggestions"][0]["what"].startswith(changes["matrices"][0]["matrix"])
    assert changes["matrices"][0]["saves"] > 5 * changes["matrices"][1]["saves"]
    formats = {(layer["op"], layer["format"]) for layer in layers if layer["format"] is not None}
    assert formats == {("EMBED", "w8g32"), ("LINEAR", "w8g32 a16"), ("ATTENTION", "kv16")}
    linears = [layer for layer in layers if layer["op"] == "LINEAR"]
    for layer in layers:  # a uniform error of half a step: about 6 dB a bit, less what the largest number is above the others
        fine, coarse = {"LINEAR": ("a16", "a8g32"), "ATTENTION": ("kv16", "kv8")}.get(layer["op"], (None, None))
        if fine is None:
            assert layer["reads_db"] is None
        else:
            assert set(layer["reads_db"]) == {fine, coarse} and 65 < layer["reads_db"][fine] < 98 and 35 < layer["reads_db"][coarse] < 50
    assert min(linears, key=lambda layer: layer["own_sqnr_db"])["name"] == "layers.3.mlp.up"
    assert changes["weights"] == pytest.approx(changes["total"], rel=0.05) and changes["arithmetic"] < 0.01 * changes["total"]


def test_scores_are_those_of_attention_on_exact_integers(bundle, source):
    """Scores by hand from the rotated integers of the first layer, before any rounding of the cache."""
    program = bundle("tiny-rope").program
    ids = text_windows(bundle("tiny-rope").tokenizer, read_text(), 24, 512)[0]
    rows = score_errors(program, bundle("tiny-rope").session(), source.model, ids)
    assert [row["distance"] for row in rows] == list(range(len(ids)))
    outputs = {}
    GoldenSession(program, len(ids)).eval_int(ids, trace=lambda index, output: outputs.setdefault(program.ops[index].name, (output, program.ops[index].out)))
    errors: list[list[float]] = [[] for _ in ids]
    layers = sorted({name.split(".")[1] for name in outputs if name.endswith(".attn.q.rope")})
    names = [f"layers.{layer}.attn.{which}.rope" for layer in layers for which in "qk"]
    exact = FloatSession(with_outputs(source.model, names)).values(ids, names)
    kv = program.kv[0]
    for layer in layers:
        ours, real = [], []
        for which in "qk":
            output, value = outputs[f"layers.{layer}.attn.{which}.rope"]
            ours.append(output.reshape(len(ids), -1, kv.k_dim) * 2.0 ** -program.values[value].f)
            real.append(exact[f"layers.{layer}.attn.{which}.rope"][0].reshape(len(ids), -1, kv.k_dim))
        group = ours[0].shape[1] // ours[1].shape[1]
        a, b = (np.einsum("thd,shd->hts", q, np.repeat(k, group, axis=1)) / np.sqrt(kv.k_dim) for q, k in (ours, real))
        for t in range(len(ids)):
            for s in range(t + 1):
                errors[t - s] += np.abs(a - b)[:, t, s].tolist()
    for row, expected in zip(rows, errors):
        assert row["mean"] == pytest.approx(np.mean(expected), rel=0.02, abs=1e-5) and row["max"] == pytest.approx(max(expected), rel=0.02, abs=1e-4)


def test_a_wide_cache_is_offered_to_a_narrow_one(bundle, source):
    found = measure(bundle("tiny-rope", "kv8"), edgepos.reference(source), source, read_text(), max_tokens=64)["changes"]["suggestions"]
    assert found[0]["flags"] == "--kv kv16" and found[0]["saves"] > 0


def test_finer_weights_are_offered_to_coarse_ones(source):
    """The size that the change is said to cost is what an export with its option has more."""
    coarse, fine = (compile(source, weights=weights) for weights in ("w8", "w8g32"))
    ids = text_windows(tokenizer(source.tokenizer), read_text(), 48, 512)[0]
    layers = trace_layers(coarse, source.model, ids)
    (offered,) = (change for change in measure_changes(coarse, source.model, [ids], layers)["suggestions"] if "for" not in change["flags"])
    assert offered["flags"] == "--weights w8g32" and offered["saves"] > 0
    assert offered["bytes"] == sum(a.nbytes for a in fine.arrays[1:]) - sum(a.nbytes for a in coarse.arrays[1:])


def test_intervals_hold_the_mean_as_often_as_they_say():
    rng = np.random.default_rng(5)
    held = 0
    for _ in range(200):
        low, high = intervals.interval(intervals.resampled_means(rng.exponential(2.0, 64 * 40))[0])
        held += low <= 2.0 <= high
    assert 0.88 <= held / 200 <= 0.99
    short = [rng.exponential(2.0, 64 * 6) for _ in range(200)]  # six blocks: without Student's t about 85 % are held
    held = sum(low <= 2.0 <= high for low, high in (intervals.interval(intervals.resampled_means(x)[0]) for x in short))
    assert 0.9 <= held / 200 <= 0.99
    assert intervals.interval(intervals.resampled_means(np.arange(200) < 3)[0])[0] == 0  # no mean is outside the numbers
    assert intervals.resampled_means(np.ones(100)) is None


def test_dependent_tokens_widen_the_interval():
    rng = np.random.default_rng(6)
    free = rng.normal(size=64 * 32)
    bound = np.repeat(rng.normal(size=32), 64)
    widths = [np.subtract(*intervals.interval(intervals.resampled_means(x)[0])[::-1]) for x in (free, bound)]
    assert widths[1] > 4 * widths[0]


def test_figures_of_a_comparison_by_hand():
    p, q = np.array([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]), np.array([[0.4, 0.5, 0.1], [0.1, 0.7, 0.2]])
    comparison = Comparison()
    comparison.add(np.log(np.vstack([p, p[:1]])), np.log(np.vstack([q, q[:1]])), np.array([0, 1]))
    result = comparison.result()
    kl = (p * np.log(p / q)).sum(axis=1)
    assert result["kl_mean"] == pytest.approx(kl.mean()) and result["top1_agreement"] == 0.5
    assert result["nats_per_token"] == pytest.approx(-np.log([0.4, 0.7]).mean())


def test_worst_tokens_and_loss_by_position(report):
    worst = report["accuracy"]["worst"]
    assert [w["kl"] for w in worst] == sorted((w["kl"] for w in worst), reverse=True) and worst[0]["kl"] >= report["accuracy"]["kl_p99"]
    loss = report["attention"]["loss"]
    tokens = sum(row["tokens"] for row in loss)
    assert tokens == report["accuracy"]["tokens"]
    assert sum(row["tokens"] * row["nll"] for row in loss) / tokens == pytest.approx(report["accuracy"]["nats_per_token"])
    assert sum(row["tokens"] * row["kl"] for row in loss) / tokens == pytest.approx(report["accuracy"]["kl_mean"])


def test_both_texts_begin_with_the_prompt(report, bundle):
    generation = report["generation"]
    text = "".join(bundle("tiny-rope").session().generate(generation["prompt"], max_new_tokens=64))
    assert text.startswith(generation["integers"][:100]) and len(generation["integers"]) > 60
    at = generation["differs_at"]
    assert (at is None) == (generation["float"] == generation["integers"])
    if at is not None:
        assert generation["float"][:at] == generation["integers"][:at]


GOOD = {"kl_mean": 0.002, "top1_agreement": 0.97, "perplexity": 10.1, "perplexity_float": 10.0, "perplexity_change": 0.01}


@pytest.mark.parametrize(
    "limits, named",
    [("kl=0.01,top1=0.95", None), ("kl=0.001", "kl is 0.002, above"), ("top1=0.98", "top1 is 0.97, below"), ("change=0.001", "change"), (" kl = 1 ,change=1", None)],
)
def test_the_gate(limits, named):
    gate = Gate.of(limits)
    if named is None:
        gate.check({"m": GOOD})
        return
    with pytest.raises(GateError, match=named):
        gate.check({"m": GOOD})


@pytest.mark.parametrize("limits", ["", "kl", "kl=", "kl=x", "kl=nan", "kl=inf", "speed=1", "kl=1,kl=2", "kl=1,,top1=1", "kl=-0.1", "top1=95", "cosine=1.1", "perplexity=0.9", "change=-2"])
def test_a_gate_that_means_nothing_is_refused(limits):
    with pytest.raises(EdgePosError, match="--fail-above"):
        Gate.of(limits)


def test_a_gate_on_a_figure_that_is_not_there():
    with pytest.raises(EdgePosError, match="cosine"):
        Gate.of("cosine=0.9").check({"m": GOOD})
    with pytest.raises(GateError):
        Gate.of("kl=0.1").check({"m": {**GOOD, "kl_mean": float("nan")}})


def test_the_verdict_is_the_worse_of_two_figures():
    assert verdict({"kl_mean": 0.0001, "top1_agreement": 0.99, "tokens": 129})["grade"] == "very good"
    assert verdict({"kl_mean": 0.0001, "top1_agreement": 0.90, "tokens": 500})["grade"] == "fair"
    assert verdict({"kl_mean": 0.2, "top1_agreement": 0.99, "tokens": 500})["grade"] == "poor"
    short = verdict({"kl_mean": 0.0, "top1_agreement": 1.0, "tokens": 128})
    assert short == {"grade": "unknown", "words": "a text of 128 predictions is too short to judge by, give at least 129"}
    assert verdict({"cosine_mean": 0.996, "nearest_agreement": 1.0})["grade"] == "good"


def test_texts_of_every_kind(tmp_path, bundle):
    tokenizer = bundle("tiny-rope").tokenizer
    (tmp_path / "a.txt").write_text("Once upon a time there was a dog.")
    (tmp_path / "b.jsonl").write_text('{"text": "One day the dog ran."}\n\n{"text": "It was happy.", "x": 1}\n')
    (tmp_path / "c.json").write_text("[[5, 6, 7], [8, 9]]")
    text = read_texts([tmp_path / name for name in ("a.txt", "b.jsonl", "c.json")])
    cut = text_windows(tokenizer, text, 1000, 512)
    expected = [tokenizer.encode(part) for part in ("Once upon a time there was a dog.", "One day the dog ran.", "It was happy.")]
    assert cut == [*expected, [5, 6, 7], [8, 9]] and text.name == "a.txt + b.jsonl + c.json"
    assert text_windows(None, read_texts([tmp_path / "c.json"]), 4, 512) == [[5, 6, 7]]
    with pytest.raises(EdgePosError, match="no tokenizer"):
        text_windows(None, text, 1000, 512)


@pytest.mark.parametrize(
    "name, data, named",
    [
        ("a.txt", b"", "empty"),
        ("a.txt", b" \n ", "empty"),
        ("a.txt", b"\xff\xfe", "UTF-8"),
        ("a.txt", b"a\0b", "byte 1 is zero"),
        ("a.jsonl", b'{"text": "a"}\n{"body": "b"}', "line 2"),
        ("a.jsonl", b"{", "line 1"),
        ("a.jsonl", b"[" * 100000, "line 1"),
        ("a.jsonl", b"\n", "empty"),
        ("a.json", b'{"a": 1}', "token ids"),
        ("a.json", b"[1, true]", "token ids"),
        ("a.json", b"[1, -1]", "token ids"),
        ("a.json", b"[]", "empty"),
        ("a.json", b"[" * 100000, "token ids"),
    ],
)
def test_texts_that_are_refused(name, data, named, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(EdgePosError, match=named):
        read_texts([tmp_path / name])


def test_the_calibration_text_is_refused_unless_forced(source, tmp_path):
    text = "Once upon a time there was a small dog. It liked to run in the park and to play with a red ball. " * 12
    made = edgepos.export_bundle(source, tmp_path / "m.edgepos", calibration=text, context=128)
    floats = edgepos.reference(source)
    with pytest.raises(EdgePosError, match="calibrated on it"):
        measure(made, floats, source, Text("t", text, "0" * 64), max_tokens=128)
    assert measure(made, floats, source, Text("t", text, "0" * 64), max_tokens=128, force=True)["accuracy"]["tokens"] > 50
    assert measure(made, floats, source, Text("t", "Another one. " + text, "0" * 64), max_tokens=128)["accuracy"]["tokens"] > 50


def test_peers_are_shown_only_on_the_same_text(report, schema, tmp_path):
    mine = {"text_sha256": report["accuracy"]["text_sha256"], "tokens": report["accuracy"]["tokens"]}
    rows = [{"format": "x <b>", **mine, "kl_mean": 0.25}, {"format": "y", **mine, "tokens": 1}, {"format": "z", **mine, "text_sha256": "0"}, {"format": "w"}]
    (tmp_path / "p.json").write_text(json.dumps({"rows": rows}))
    found = on_the_same_text(read_peers(tmp_path / "p.json"), report["accuracy"])
    assert [(p["name"], p["kl_mean"], p["bytes"]) for p in found] == [("x <b>", 0.25, None)]
    shown = {**report, "peers": found}
    schema.validate(shown)
    assert "x &lt;b&gt;" in page(shown) and "Others on the same text" in page(shown) and "Others on" not in page(report)


def test_measured_peers_belong_to_their_source(root):
    """Every figure that travels with the package is in docs/accuracy.md, and shown for the source and text that it was measured on alone."""
    rows = read_peers(MEASURED)
    text = (root / "docs" / "accuracy.md").read_text("utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| llama.cpp")]
    table = {(float(line[1]), round(float(line[3].removesuffix(" %")) / 100, 4), float(line[4]), int(line[6])) for line in lines}
    assert {(row["kl_mean"], row["top1_agreement"], row["perplexity"], round(row["bytes"] / 1e6)) for row in rows} == table and len(table) == 5
    here = {"text_sha256": rows[0]["text_sha256"], "tokens": rows[0]["tokens"]}
    shown = on_the_same_text(rows, here, [rows[0]["source_sha256"]])
    assert [p["kl_mean"] for p in shown] == sorted(row["kl_mean"] for row in rows)
    assert on_the_same_text(rows, here, ["0" * 64]) == on_the_same_text(rows, {**here, "tokens": 2043}, [rows[0]["source_sha256"]]) == []
    given = {"format": rows[0]["format"], **here, "kl_mean": 1.0}
    assert on_the_same_text([given, *rows], here, [rows[0]["source_sha256"]])[-1]["kl_mean"] == 1.0


@pytest.mark.parametrize("content", ["[]", "{}", '{"rows": [1]}', '{"rows": [{"format": "x", "kl_mean": "0"}]}', '{"rows": [{"format": "x", "bytes": true}]}', "{"])
def test_peers_of_another_form_are_refused(content, tmp_path):
    (tmp_path / "p.json").write_text(content)
    with pytest.raises(EdgePosError, match="p.json"):
        read_peers(tmp_path / "p.json")


def test_progress_tells_every_stage(bundle, source):
    seen: dict[str, list[tuple[int, int]]] = {}
    measure(bundle("tiny-rope"), edgepos.reference(source), source, read_text(), max_tokens=40, progress=lambda what, done, total: seen.setdefault(what, []).append((done, total)))
    assert list(seen) == ["text", "operators", "matrices"] and seen["text"][-1] == (40, 40)
    assert [done for done, _ in seen["matrices"]] == list(range(1, seen["matrices"][-1][1] + 1))


def test_no_window_is_evaluated_twice(bundle, source):
    """The float session of a report sees every token of the text once, besides the prompts of the texts it writes; what it kept is right."""

    class Counting:
        def __init__(self, session):
            self.session, self.seen = session, []

        def reset(self):
            self.session.reset()

        def eval(self, ids, logits="all"):
            self.seen.append(list(ids))
            return self.session.eval(ids, logits=logits)

        def __getattr__(self, name):
            return getattr(self.session, name)

    floats = Counting(edgepos.reference(source))
    found = measure(bundle("tiny-rope"), floats, source, read_text(), max_tokens=300, window=64, swap_tokens=100)
    assert sum(map(len, floats.seen)) == 300 and found["changes"]["tokens"] == 100
    plain = edgepos.reference(source)
    shared, ids = Remembering(plain, 50), list(range(20, 60))
    first = shared.eval(ids)
    shared.reset()
    np.testing.assert_array_equal(shared.eval(ids[:30]), first[:30])
    np.testing.assert_allclose(shared.eval(ids[30:]), first[30:], atol=1e-3)
