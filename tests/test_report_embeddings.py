"""The report of an embedding model: labelled pairs, both forms of model.onnx, several texts for the changes; and long texts in parts."""

from __future__ import annotations

import hashlib
import json

import jsonschema
import numpy as np
import pytest
from encoder_models import add_sentence_layout, make

import edgepos
from edgepos import bounded_file
from edgepos.errors import EdgePosError
from edgepos.export import load
from edgepos.report import windows
from edgepos.report.build import measure
from edgepos.report.embedding import ranks, sentences
from edgepos.report.page import page
from edgepos.report.pairs import read_pairs
from edgepos.report.windows import read_text, read_texts, text_windows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """(source folder, bundle with both forms of model.onnx) of a small random encoder."""
    folder = tmp_path_factory.mktemp("embeddings")
    make(folder / "source", "bert")
    add_sentence_layout(folder / "source")
    return folder / "source", edgepos.export_bundle(folder / "source", folder / "m.edgepos", onnx="int8")


PAIRS = [("a small dog", "the little dog ran", 4.5), ("one day", "two days", 3), ("a cat", "the sky was blue", 0.5), ("it was big", "it was small", 2.0)]


@pytest.fixture(scope="module")
def report(model, tmp_path_factory):
    source, bundle = model
    file = tmp_path_factory.mktemp("pairs") / "p.tsv"
    file.write_text("".join(f"{a}\t{b}\t{label}\n" for a, b, label in PAIRS))
    canonical = load(source)
    return measure(bundle, edgepos.reference(canonical), canonical, read_text(), max_tokens=300, swap_tokens=60, pairs=read_pairs(file))


def test_labels_against_the_definition(report, model):
    """Spearman's correlation by hand from the embeddings of Python's own interface."""
    source, bundle = model
    labels = report["accuracy"]["labels"]
    for key, session in (("spearman_float", edgepos.reference(source)), ("spearman", bundle.session())):
        rows = [[np.float64(session.embed(bundle.tokenizer.encode(text))) for text in pair[:2]] for pair in PAIRS]
        cosines = np.array([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in rows])
        x, y = ranks(cosines), ranks(np.array([pair[2] for pair in PAIRS]))
        assert labels[key] == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert labels["pairs"] == 4 and labels["truncated"] == 0 and "rank correlation with the labels" in page(report)


def test_both_forms_of_the_graph_have_a_line(report, root, model):
    """The mean cosine of each by hand, over the report's own sentences."""
    source, bundle = model
    plain, fast = report["onnx"]
    assert (plain["file"], fast["file"]) == ("model.onnx", "model.int8.onnx")
    texts = [bundle.tokenizer.encode(text) for text in sentences(read_text().content)[: report["accuracy"]["texts"]]]
    floats = edgepos.reference(source)
    exact = np.array([floats.embed(ids) for ids in texts], np.float64)
    for form, engine in ((plain, "onnx"), (fast, "onnx-int8")):
        session = bundle.session(engine=engine)
        ours = np.array([session.embed(ids) for ids in texts], np.float64)
        cosines = (exact * ours).sum(axis=1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(ours, axis=1)
        assert (form["cosine_mean"], form["cosine_min"]) == (pytest.approx(cosines.mean()), pytest.approx(cosines.min()))
        assert form["tokens"] == sum(map(len, texts)) and form["tokens_per_second"] > 0
    schema = json.loads((root / "docs" / "report.schema.json").read_text("utf-8"))
    jsonschema.validate(report, schema)
    assert "model.int8.onnx" in page(report)
    broken = {**report, "onnx": [{**fast, "cosine_mean": None}]}
    del broken["onnx"][0]["cosine_mean"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, schema)


def test_changes_are_tried_on_several_texts(report):
    assert 30 < report["changes"]["tokens"] <= 60 and report["changes"]["measure"] == "1 - cosine" and report["changes"]["total"] > 0


@pytest.mark.parametrize(
    "name, text, named",
    [
        ("p.tsv", "a\tb\t1\na\tb\n", "line 2"), ("p.tsv", "a\tb\tx\n", "line 1"), ("p.tsv", "a\tb\tnan\n", "line 1"), ("p.tsv", "\tb\t1\n", "line 1"),
        ("p.tsv", "a\tb\t1\n\na\tc\t2\n", "2 pairs"), ("p.jsonl", '{"text1": "a", "text2": "b"}', "line 1"), ("p.jsonl", "[" * 100000, "line 1"),
        ("p.jsonl", '{"text1": "a", "text2": "b", "label": true}', "line 1"), ("p.jsonl", "", "0 pairs"),
    ],
)  # fmt: skip
def test_pairs_that_are_refused(name, text, named, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(EdgePosError, match=named):
        read_pairs(tmp_path / name)
    with pytest.raises(EdgePosError, match="No such file"):
        read_pairs(tmp_path / "missing.tsv")


def test_both_forms_of_pairs_are_read(tmp_path):
    lines = [{"sentence1": a, "sentence2": b, "score": label} for a, b, label in PAIRS]
    lines[0] = {"text1": PAIRS[0][0], "text2": PAIRS[0][1], "label": PAIRS[0][2]}
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "p.tsv").write_text("\r\n".join("\t".join(map(str, row)) for row in PAIRS))
    assert read_pairs(tmp_path / "p.jsonl").rows == read_pairs(tmp_path / "p.tsv").rows == tuple((a, b, float(label)) for a, b, label in PAIRS)


# ---- long texts


def test_the_beginning_of_a_text_gives_the_windows_of_all_of_it(tmp_path, bundle, monkeypatch):
    """A text with code points of several bytes, cut in the middle of one: the same windows and SHA-256 as read whole."""
    monkeypatch.setattr(windows, "_PIECE", 1000)
    data = ("Once upon a time there was a caf\u00e9 \u2014 \U0001f642 it was big.\n" * 400).encode()
    tokenizer = bundle("tiny-rope").tokenizer
    for shift in range(4):
        (tmp_path / "t.txt").write_bytes(b"x" * shift + data)
        (tmp_path / "t.jsonl").write_bytes(b"\n".join(json.dumps({"text": line}).encode() for line in (b"x" * shift + data).decode().splitlines()))
        for name in ("t.txt", "t.jsonl"):
            whole, part = read_texts([tmp_path / name]), read_texts([tmp_path / name], "text", 60)
            assert len(part.content) < len(whole.content) / 3 and part.sha256 == whole.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
            assert text_windows(tokenizer, part, 60, 512, 32) == text_windows(tokenizer, whole, 60, 512, 32)


def test_files_of_any_size_are_read_in_part(tmp_path, monkeypatch):
    monkeypatch.setattr(windows, "_PIECE", 1000)
    monkeypatch.setattr(bounded_file, "MOST_BYTES", 20000)
    (tmp_path / "t.txt").write_text("word " * 10000)
    assert len(read_texts([tmp_path / "t.txt"], "text", 100).content) == 64 * 100 + 1000
    with pytest.raises(EdgePosError, match="more than 20000 bytes"):
        read_texts([tmp_path / "t.txt"])
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": "word " * 10000}))
    with pytest.raises(EdgePosError, match="line 1 has more than 7400 bytes"):
        read_texts([tmp_path / "t.jsonl"], "text", 100)
