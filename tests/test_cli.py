"""The command line from outside: what it prints, and what bad input gets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest


from edgepos.resources import tiny_model_dir


def edgepos(*arguments, expect: int = 0) -> subprocess.CompletedProcess:
    result = subprocess.run([sys.executable, "-m", "edgepos", *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert result.returncode == expect, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "tiny.edgepos"
    printed = edgepos("export", tiny_model_dir("tiny-rope"), "-o", path).stdout
    assert re.search(r"digest [0-9a-f]{16}", printed)
    return path


def test_run_is_the_same_on_every_engine(tiny):
    texts = {engine: edgepos("run", tiny, "--prompt", "Once upon a time", "-n", 12, "--engine", engine).stdout for engine in ("c", "golden", "onnx")}
    assert texts["c"].startswith("Once upon a time") and len(texts["c"]) > 30
    assert texts["c"] == texts["golden"] == texts["onnx"]


def test_a_seed_gives_the_same_text(tiny):
    def sampled(seed):
        return edgepos("run", tiny / "model.gguf", "-p", "One day", "-n", 20, "--temperature", 0.9, "--top-k", 40, "--top-p", 0.95, "--seed", seed).stdout

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


def test_report_fills_report_json(tiny):
    before = json.loads((tiny / "report.json").read_text())
    assert "accuracy" not in before or before["accuracy"] is None
    printed = edgepos("report", tiny, "--source", tiny_model_dir("tiny-rope"), "--json", "--max-tokens", 300).stdout
    report = json.loads(printed)
    assert report == json.loads((tiny / "report.json").read_text())
    accuracy = report["accuracy"]
    assert {"text", "tokens", "perplexity_float", "perplexity", "kl_mean", "kl_p99", "top1_agreement", "max_logit_error"} <= set(accuracy)
    assert 0 < accuracy["kl_mean"] <= 0.001 and accuracy["top1_agreement"] > 0.97
    assert all({"kind", "method", "bits", "bound", "measured_max"} <= set(p) and p["measured_max"] <= p["bound"] for p in report["positions"])
    assert all({"name", "op", "sqnr_db", "saturations"} <= set(layer) for layer in report["layers"])
    measured = [layer["sqnr_db"] for layer in report["layers"] if layer["sqnr_db"] is not None]
    assert len(measured) > 0.9 * len(report["layers"]) and min(measured) > 20
    assert f"{accuracy['tokens']} predictions" in (tiny / "report.md").read_text()


def test_inspect(tiny):
    facts = json.loads(edgepos("inspect", tiny, "--json").stdout)
    assert facts["formats"] == "w8g32 a16 kv16"
    assert facts["positions"].startswith("RoPE, half")
    assert facts["kv_bytes_per_token"] > 0 and facts["arena_bytes"]
    assert "digest" in edgepos("inspect", tiny).stdout


def test_selftest_notices_a_changed_file(tiny, tmp_path):
    import shutil

    assert "identical" in edgepos("selftest", tiny).stdout
    copy = tmp_path / "copy.edgepos"
    shutil.copytree(tiny, copy)
    table = next((copy / "tables").glob("*.c"))
    table.write_text(table.read_text().replace("1", "2", 1))
    assert f"{table.name}" in edgepos("selftest", copy, expect=1).stderr


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["run", "nothing.edgepos"], "nothing.edgepos"),
        (["inspect", "."], "model.gguf"),
        (["export", "nothing", "-o", "x.edgepos"], "nothing"),
        (["report", "nothing", "--source", "nothing"], "nothing"),
        (["verify", "nothing"], "nothing"),
        (["demo", "--model", "huge"], "tiny-rope"),
    ],
)
def test_errors_are_one_line(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stderr = edgepos(*arguments, expect=1).stderr
    assert words in stderr and len(stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", [["--engine", "gpu"], ["-n", "-1"], ["--threads", "0"]])
def test_usage_errors_exit_with_2(tiny, option):
    edgepos("run", tiny, *option, expect=2)


@pytest.mark.parametrize(
    "option, words",
    [
        (["--threads", "64"], "this machine has"),
        (["--context", "0"], "context"),
        (["--context", "100000"], "context"),
        (["--temperature", "-1"], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--top-p", "1.5"], "top_p"),
        (["--top-k", "-2"], "top_k"),
        (["--context", "3", "--prompt", "a prompt that has too many words"], "context"),
    ],
)
def test_run_time_errors_are_one_line(tiny, option, words):
    stderr = edgepos("run", tiny, "-p", "x", *option, expect=1).stderr
    assert words in stderr and len(stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("arguments", [("inspect", "{tiny}"), ("run", "{tiny}", "-p", "Once"), ("positions", "--help")])
def test_a_reader_that_has_gone(tiny, arguments):
    """Like a program that SIGPIPE ends, and without a word."""
    gone, output = os.pipe()
    os.close(gone)
    command = [sys.executable, "-m", "edgepos", *(text.format(tiny=tiny) for text in arguments)]
    with open(output, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, timeout=300)
    assert (done.returncode, done.stderr) == (141, b"")


def test_export_replaces_only_with_force(tiny):
    before = (tiny / "model.gguf").read_bytes()
    assert "--force" in edgepos("export", tiny_model_dir("tiny-alibi"), "-o", tiny, expect=1).stderr
    assert (tiny / "model.gguf").read_bytes() == before
    assert [p.name for p in tiny.parent.iterdir()] == [tiny.name]


def test_perplexity_is_that_of_the_report_in_both_languages(tiny, edgepos_run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("Once upon a time, there was a little girl who liked to sing. \u00e9 " * 60, "utf-8")
    report = json.loads(edgepos("report", tiny, "--source", tiny_model_dir("tiny-rope"), "--text", text, "--json").stdout)["accuracy"]
    c = subprocess.run([edgepos_run, tiny / "model.gguf", "--perplexity", text], capture_output=True, text=True, check=True).stdout
    for line in (c, edgepos("perplexity", tiny, text).stdout):
        said, value, nats, tokens = re.fullmatch(r"(.*): perplexity ([\d.]+), ([\d.]+) nats per token, (\d+) tokens\n", line).groups()
        assert said == str(text) and int(tokens) == report["tokens"] > 600
        assert abs(float(nats) / report["nats_per_token"] - 1) < 1e-6
        assert abs(float(value) / report["perplexity"] - 1) < 1e-6
    empty = tmp_path / "empty"
    empty.write_text(" ")
    assert "is empty" in edgepos("perplexity", tiny, empty, expect=1).stderr
    assert "No such file" in edgepos("perplexity", tiny, tmp_path / "none", expect=1).stderr


def test_chat_options_that_contradict_each_other(tiny):
    for arguments in (["--chat", "-p", "x"], ["--system", "x", "-p", "y"], ["--chat"], ["--stop", ""], ["--repetition-penalty", 0.5]):
        assert "error" in edgepos("run", tiny, *arguments, expect=1).stderr
