"""Comparing bundles and sweeping formats: rows, the Pareto front, resuming, refusals, a cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings

import pytest
from test_cli import edgepos

from edgepos.errors import EdgePosError, UnsupportedError
from edgepos.report import sweep as sweeps
from edgepos.report.comparison import comparison_page, ranked, row_of, write_comparison
from edgepos.report.sweep import Sweep, measure_point
from edgepos.resources import tiny_model_dir

REPORT = {
    "name": "m", "digest": "0" * 16, "formats": {"weights": "w8", "activations": "a16", "kv": "kv16"},
    "memory": {"model_bytes": 100, "kv_bytes_per_token": 8},
    "accuracy": {"text": "t", "text_sha256": "1" * 64, "tokens": 9, "kl_mean": 0.01, "top1_agreement": 0.9, "perplexity": 3.0, "perplexity_float": 2.9},
}  # fmt: skip


def row(label: str, size: int, error: float, **accuracy) -> dict:
    return row_of(label, {**REPORT, "memory": {**REPORT["memory"], "model_bytes": size}, "accuracy": {**REPORT["accuracy"], "kl_mean": error, **accuracy}})


def test_the_front_has_what_nothing_beats():
    rows = ranked([row("a", 100, 0.3), row("b", 200, 0.1), row("c", 150, 0.3), row("d", 300, 0.1), row("e", 300, 0.01), row("f", 100, 0.3)])
    assert [r["label"] for r in rows if r["best"]] == ["a", "f", "b", "e"]
    assert [r["bytes"] for r in rows] == [100, 100, 150, 200, 300, 300]


@pytest.mark.parametrize("other, named", [({"text_sha256": "2" * 64}, "another text"), ({"tokens": 8}, "another number of tokens")])
def test_what_was_measured_differently_is_refused(other, named):
    with pytest.raises(EdgePosError, match=named):
        ranked([row("a", 1, 0.1), row("b", 2, 0.1, **other)])
    with pytest.raises(EdgePosError, match="a: not measured yet"):
        row_of("a", {**REPORT, "accuracy": None})
    embedding = {"text": "t", "text_sha256": "1" * 64, "tokens": 9, "cosine_mean": 0.99, "nearest_agreement": 1.0}
    with pytest.raises(EdgePosError, match="another kind of output"):
        ranked([row("a", 1, 0.1), row_of("b", {**REPORT, "accuracy": embedding})])


def test_the_page_escapes_and_is_written_whole(tmp_path):
    rows = ranked([row("<script>x</script>", 1, 0.1), row("b", 2, 0.05)])
    text = comparison_page(rows, "<b>title</b>")
    assert "<script>x" not in text and "<b>title" not in text and text.count("<script>") == 1
    write_comparison(tmp_path / "a.html", rows, "t")
    assert json.loads((tmp_path / "a.json").read_text())["rows"] == rows and sorted(p.name for p in tmp_path.iterdir()) == ["a.html", "a.json"]
    with pytest.raises(EdgePosError, match="ends in .html"):
        write_comparison(tmp_path / "a.txt", rows, "t")
    with pytest.raises(EdgePosError, match="cannot be written"):
        write_comparison(tmp_path / "no" / "a.html", rows, "t")


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep of two points by the command line, killed at its first result and begun again: its folder, that result's file and time, and what it printed."""
    folder = tmp_path_factory.mktemp("sweep") / "out"
    arguments = ["sweep", tiny_model_dir("tiny-alibi"), "-o", folder, "--weights", "w8g32,w8", "--kv", "kv8", "--max-tokens", 80, "--jobs", 1, "--json"]
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))
    killed = subprocess.Popen([sys.executable, "-m", "edgepos", *map(str, arguments)], env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL)
    while killed.poll() is None and not (done := list(folder.glob("points/*.json"))):
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    (first,) = done
    written = first.stat().st_mtime_ns
    return folder, (first, written), json.loads(edgepos(*arguments).stdout)


def test_a_sweep_measures_every_point(swept):
    folder, (first, written), rows = swept
    assert first.stat().st_mtime_ns == written, "the killed sweep's result was measured again"
    assert sorted(r["formats"] for r in rows) == ["w8 a16 kv8", "w8g32 a16 kv8"] and all(0 < r["error"] < 0.01 for r in rows)
    assert json.loads((folder / "sweep.json").read_text())["rows"] == rows
    assert sorted(p.name for p in folder.iterdir()) == ["points", "sweep.html", "sweep.json"] and len(list((folder / "points").iterdir())) == 2


def plan(folder, tokens: int = 80, weights=("w8g32", "w8")) -> Sweep:
    return Sweep(tiny_model_dir("tiny-alibi"), folder, {"weights": list(weights), "kv": ["kv8"]}, [], "text", None, tokens)


def test_an_interrupted_sweep_goes_on(swept, monkeypatch):
    """What is there is not measured again; what is missing or damaged is, and another number of tokens is another point."""
    folder, _, rows = swept
    files = sorted((folder / "points").iterdir())
    whole = files[0].read_bytes()
    measured = []

    def local(jobs, points):
        for point in points:
            measured.append(point["options"]["weights"])
            yield point, {"label": "x", "report": {"of": point["options"]["weights"]}}

    monkeypatch.setattr(sweeps, "_local", local)
    again = plan(folder).run(1, None, lambda done: None)
    assert measured == [] and {r["report"]["digest"] for r in again} == {r["digest"] for r in rows}
    files[0].write_bytes(whole[: len(whole) // 2])
    counted = []
    plan(folder).run(1, None, counted.append)
    assert len(measured) == 1 and counted == [1, 2]
    files[0].write_bytes(whole)
    plan(folder, tokens=81).run(1, None, lambda done: None)
    assert len(measured) == 3


def test_a_point_that_is_refused_says_why(tmp_path):
    (point,) = plan(tmp_path, weights=["source"]).points
    point["options"]["kv"] = "kv4"
    assert "kv4" in measure_point(point)["error"]
    point["source_sha256"] = {}
    assert "not the same files" in measure_point(point)["error"]


def test_a_cluster_gives_the_same_figures(swept, tmp_path):
    distributed = pytest.importorskip("distributed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1") as cluster:
            (found,) = plan(tmp_path, weights=["w8"]).run(1, cluster.scheduler_address, lambda done: None)
    assert found["report"]["digest"] in {r["digest"] for r in swept[2]}


def test_a_scheduler_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with pytest.raises(EdgePosError, match="no answer"):
        plan(tmp_path, weights=["w8"]).run(1, "nonsense://x", lambda done: None)
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(UnsupportedError, match="cluster"):
        plan(tmp_path, weights=["w8"]).run(1, "tcp://127.0.0.1:1", lambda done: None)


def test_compare_on_the_command_line(tmp_path):
    made = tmp_path / "a.edgepos"
    edgepos("export", tiny_model_dir("tiny-alibi"), "-o", made, "--context", 64)
    assert "not measured yet" in edgepos("compare", made, expect=1).stderr
    gate = edgepos("report", made, "--source", tiny_model_dir("tiny-alibi"), "--max-tokens", 130, "--fail-above", "kl=1e-9", expect=3)
    assert "kl is" in gate.stderr and (made / "report.html").stat().st_size > 50_000
    (row,) = json.loads(edgepos("compare", made, "-o", tmp_path / "c.html", "--json", "--fail-above", "top1=0.5").stdout)
    assert row["label"] == "a.edgepos" and row["best"]
    edgepos("compare", made, "--fail-above", "kl=0", expect=3)
    assert "--fail-above" in edgepos("compare", made, "--fail-above", "speed=1", expect=1).stderr
    assert "--kv" in edgepos("sweep", made, "-o", tmp_path / "s", "--kv", "kv4", expect=1).stderr
