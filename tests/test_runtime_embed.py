"""Embeddings from outside: edgepos embed and edgepos-run --embed give the rows of the session; the report's figures."""

from __future__ import annotations

import json
import subprocess

import numpy as np
import pytest
from boards import require
from encoder_models import add_sentence_layout, make  # skips where PyTorch is missing
from test_cli import edgepos

from edgepos import targets
from edgepos.bundle import Bundle
from edgepos.compiler import export_bundle
from edgepos.embedding import cosines
from edgepos.fixedpoint import fnv1a64
from edgepos.report.embedding import figures, sentences, spearman

LONG = "the cat sat on the mat " * 20
TEXTS = ["the cat sat", "the dog didn't; it's 2024", LONG, "mat"]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    make(folder, "bert")
    add_sentence_layout(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(source, tmp_path_factory):
    return Bundle(export_bundle(source, tmp_path_factory.mktemp("bundle") / "m.edgepos"))


@pytest.fixture(scope="module")
def run(edgepos_run):
    """Call edgepos-run; returns (exit status, standard output, standard error)."""

    def call(*arguments, given=""):
        done = subprocess.run([edgepos_run, *map(str, arguments)], capture_output=True, text=True, input=given, timeout=120)
        return done.returncode, done.stdout, done.stderr

    return call


def test_the_command_prints_the_rows_of_every_engine(bundle, tmp_path):
    want = bundle.embed(TEXTS)
    for engine in ("c", "golden"):
        done = edgepos("embed", bundle.path, *TEXTS, "--engine", engine)
        np.testing.assert_array_equal(np.array([json.loads(line) for line in done.stdout.splitlines()], np.float32), want)
        assert "4 texts" in done.stderr and "1 cut to 50 tokens" in done.stderr and "saturations 0" in done.stderr
    file, rows = tmp_path / "texts", tmp_path / "rows.npy"
    file.write_text("\n\n".join(TEXTS[1:]) + "\n")
    edgepos("embed", bundle.model_path, TEXTS[0], "--file", file, "--output", rows)
    np.testing.assert_array_equal(np.load(rows), want)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    printed = edgepos("embed", bundle.path, *TEXTS, "--similarity").stdout
    np.testing.assert_allclose([[float(x) for x in line.split()] for line in printed.splitlines()], cosines(want), atol=6e-5)


def test_the_c_program_prints_the_same_numbers(run, bundle):
    session = bundle.session()
    rows = [session.embed_int(ids) for ids in map(bundle.tokenizer.encode, (TEXTS[0], TEXTS[3]))]
    for threads in (1, 2):
        status, out, err = run(bundle.model_path, "--embed", "--digest", "--threads", threads, given=f"{TEXTS[0]}\r\n\n{TEXTS[3]}")
        *lines, digest = out.splitlines()
        assert status == 0 and "2 texts" in err and "saturations 0" in err
        exact = [[round(x * 2.0**session.logits_f) for x in json.loads(line)] for line in lines]
        np.testing.assert_array_equal(exact, rows)
        assert digest == f"digest 0x{fnv1a64(np.concatenate(rows).astype('<i4').tobytes()):016x}"
    one = run(bundle.model_path, "--embed", "-p", TEXTS[3])[1]
    assert one == lines[1] + "\n"
    ids = ",".join(map(str, bundle.tokenizer.encode(TEXTS[3])))
    assert run(bundle.model_path, "--embed", "--ids", ids)[1] == one
    status, out, err = run(bundle.model_path, "--embed", "-p", LONG)
    np.testing.assert_allclose(json.loads(out), bundle.embed([LONG])[0], rtol=0, atol=1e-7)
    assert "was cut to 50" in err
    assert run(bundle.model_path, "--selftest")[0] == 0


@pytest.mark.parametrize(
    "arguments, status, words",
    [
        (("-p", "a"), 1, "gives an embedding, not logits: use --embed"),
        (("-p", "a", "-n", 0, "--digest"), 1, "gives an embedding, not logits: use --embed"),
        (("--perplexity", __file__), 1, "predicts no token: use --embed"),
        (("--embed", "--ids", ",".join(["5"] * 51)), 1, "--ids gives 51 tokens, the model takes 50"),
        (("--embed", "--ids-out"), 2, "--embed goes with"),
        (("--embed", "--ids", "120"), 2, "a token id from 0 to 119"),
    ],
)
def test_the_c_program_names_what_does_not_go(run, bundle, arguments, status, words):
    found, out, err = run(bundle.model_path, *arguments)
    assert (found, out, len(err.splitlines())) == (status, "", 1) and words in err


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("run", "{bundle}", "-p", "a"), "gives an embedding of 48 numbers, not logits"),
        (("perplexity", "{bundle}", __file__), "gives an embedding of 48 numbers, not logits"),
        (("embed", "{bundle}"), "no text is given"),
        (("embed", "{bundle}", "--file", "{bundle}/none"), "none"),
        (("embed", "{bundle}", "a", "-o", "{bundle}/no/where.npy"), "cannot be written"),
    ],
)
def test_commands_name_what_does_not_go(bundle, arguments, words):
    done = edgepos(*(argument.format(bundle=bundle.path) for argument in arguments), expect=1)
    assert len(done.stderr.splitlines()) == 1 and words in done.stderr


def test_report_and_inspect(bundle, source):
    printed = edgepos("report", bundle.path, "--source", source, "--max-tokens", 400).stdout
    accuracy = json.loads((bundle.path / "report.json").read_text())["accuracy"]
    assert accuracy["texts"] > 10 and accuracy["pairs"] == accuracy["texts"] * (accuracy["texts"] - 1) // 2 and accuracy["tokens"] <= 400
    assert 0.9999 < accuracy["cosine_min"] <= accuracy["cosine_mean"] < 1 and accuracy["rank_correlation"] > 0.99 and accuracy["saturations"] == 0
    assert "rank correlation of the pairs" in printed and "same nearest sentence" in (bundle.path / "report.md").read_text()
    measured = [layer["sqnr_db"] for layer in bundle.report["layers"] if layer["sqnr_db"] is not None]
    assert len(measured) == len(bundle.program.ops) - len(bundle.program.kv) and min(measured) > 30
    facts = json.loads(edgepos("inspect", bundle.path, "--json").stdout)
    assert facts["output"] == "embedding of 48 numbers" and facts["tokenizer"] == "WordPiece" and facts["positions"] == "rows of a table for 64 positions"


@pytest.mark.parametrize("name", ["host", "qemu:cortex-m3"])
def test_boards_compute_the_digest(bundle, name):
    board = targets.board(name)
    require(*board.needs())
    assert f"{bundle.program.header.digest:016x}" in targets.verify(bundle, board)


def test_figures_against_their_definitions():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=40), rng.normal(size=40)
    x[:5] = y[3:9] = 0.5
    mean_rank = [[np.mean(np.flatnonzero(np.sort(v) == value)) for value in v] for v in (x, y)]
    assert spearman(x, y) == pytest.approx(np.corrcoef(*mean_rank)[0, 1], abs=1e-12)
    assert spearman(x, 3 * x + 1) == pytest.approx(1) and spearman(x, -x) == pytest.approx(-1)
    assert spearman(np.ones(4), np.ones(4)) == 1 and spearman(np.ones(4), np.arange(4)) == 0
    exact = np.array([[1.0, 0, 0], [0.9, 0.1, 0], [0, 0, 1]])
    ours = np.array([[1.0, 0, 0], [0, 1, 0], [0.5, 0, 1]])
    got = figures(exact, ours)
    assert got["cosine_mean"] == pytest.approx((1 + 0.1 / np.hypot(0.9, 0.1) + 1 / np.hypot(0.5, 1)) / 3)
    assert got["cosine_min"] == pytest.approx(0.1 / np.hypot(0.9, 0.1)) and got["max_error"] == 0.9 and got["pairs"] == 3
    assert got["nearest_agreement"] == pytest.approx(2 / 3)  # the first one's neighbour changes from the second to the third
    assert sentences("One two. Three\nfour five! One two.\nSix seven?") == ["One two.", "four five!", "Six seven?"]
