"""Formats of single matrices: what the report suggests, exported with the flags it prints, lowers the error it measured."""

from __future__ import annotations

import json
import re
import shlex

import numpy as np
import pytest
from real_models import smollm2_gguf
from test_cli import edgepos as command

import edgepos
from edgepos.compiler.match import match
from edgepos.compiler.options import check, check_matrices, matrix_formats
from edgepos.compiler.pipeline import compile
from edgepos.errors import EdgePosError, UnsupportedError
from edgepos.export import load
from edgepos.program import Op
from edgepos.report.build import _wide_cache, measure
from edgepos.report.changes import Swaps, measure_changes
from edgepos.report.page import page
from edgepos.report.windows import first_tokens, read_text, read_texts, text_windows
from edgepos.resources import tiny_model_dir


@pytest.fixture(scope="module")
def source():
    return load(tiny_model_dir("tiny-rope"))


def formats(program) -> dict[str, str]:
    """Matrix → format, from the tensors themselves."""
    found = {}
    for op in program.ops:
        if op.code in (Op.LINEAR, Op.EMBED):
            found[program.names[op.tensors[0]]] = op.weight_format
    return found


def test_a_bundle_in_w8g32_is_offered_more_bits_for_single_matrices(tmp_path, source):
    """By the command line: each flag saves what the report says of it, for the bytes that it says; of a model in 16 bits nothing is left to offer."""
    model = tiny_model_dir("tiny-rope")
    made = edgepos.export_bundle(source, tmp_path / "m.edgepos", context=128)
    text = read_text()
    before = measure(made, edgepos.reference(source), source, text, max_tokens=256, swap_tokens=128)
    offered = before["changes"]["suggestions"]
    assert len(offered) == 3 and all(change["flags"].endswith("=w16g32") for change in offered)
    flags = [part for change in offered for part in shlex.split(change["flags"])]
    command("export", model, "-o", tmp_path / "after.edgepos", "--context", 128, *flags)
    after = edgepos.open(tmp_path / "after.edgepos")
    after.selftest()
    assert after.report["formats"]["weights"].endswith("w16g32+w8g32")
    texts = first_tokens(text_windows(after.tokenizer, text, 128, 128), 128)
    fell = before["changes"]["total"] - Swaps(after.program, source.model, texts).total
    assert fell == pytest.approx(sum(change["saves"] for change in offered), rel=0.25) and fell > 0.4 * before["changes"]["total"]
    grown = after.model_path.stat().st_size - before["memory"]["model_bytes"]
    assert abs(grown - sum(change["bytes"] for change in offered)) < 64 * 100
    fine = compile(source, weights="w16g32", context=128)
    found = measure_changes(fine, source.model, texts, [{"name": op.name, "own_sqnr_db": 90.0} for op in fine.ops])
    assert found["total"] < 1e-3 * before["changes"]["total"] and all(change["flags"] is None for change in found["suggestions"])


def test_the_last_glob_that_matches_decides(source):
    given = {"*mlp*": "w8g32", "model.layers.0.*": "w4g32", "*.0.mlp.down*": "w8"}
    found = formats(compile(source, weights="w8", weights_for=given))
    assert any(form == "w4g32" for form in found.values())
    for name, form in found.items():
        wanted = "w8"
        if "mlp" in name:
            wanted = "w8g32"
        if name.startswith("model.layers.0."):
            wanted = "w4g32"
        if ".0.mlp.down" in name:
            wanted = "w8"
        assert form == wanted, name
    assert set(formats(compile(source, weights="w8")).values()) == {"w8"}


@pytest.mark.parametrize(
    "given, named",
    [({"*.nothing": "w8"}, "no matrix is named '\\*.nothing'"), ({"*": "w5"}, "w5"), ({"": "w8"}, "names"), ({3: "w8"}, "names"), ({"*embed_tokens*": "w4g32"}, "table of token ids")],
)
def test_formats_that_are_refused(source, given, named):
    with pytest.raises(UnsupportedError, match=named):
        compile(source, weights_for=given)


@pytest.mark.parametrize("text", ["", "w8", "=w8", "a=", "a=w5"])
def test_options_that_are_refused(text):
    with pytest.raises(EdgePosError, match="--weights-for"):
        matrix_formats([text])


def test_the_example_of_the_readme_names_a_matrix_of_every_kind_of_source(root, source, shared):
    given = matrix_formats(re.findall("--weights-for '(.*?)'", (root / "README.md").read_text("utf-8")))
    others = [match(load(file).model) for file in (shared / "models/stories260K/stories260K.bin", smollm2_gguf())]
    for program in (match(source.model), *others):
        check_matrices(check(weights="w8g32", activations="a16", kv="kv16", context=8, limit=8, weights_for=given), program)
    assert len(given) == 1


def test_options_keep_their_order():
    assert list(matrix_formats(["a=w8", "b=x=w4g32", "a=w8g32"]).items()) == [("b=x", "w4g32"), ("a", "w8g32")]


def test_the_flags_of_every_suggestion_lower_the_error(tmp_path, source):
    """By the command line: every suggestion's flags, added to those of the bundle, give a bundle with less error."""
    model, text = tiny_model_dir("tiny-rope"), tmp_path / "text.txt"
    text.write_text((read_text().content + "\n") * 2, "utf-8")
    noisy = ["--context", 128, "--weights", "w8", "--weights-for", "*.2.mlp.*=w4g32", "--weights-for", "*.4.self_attn.q*=w4g32"]

    command("export", model, "-o", tmp_path / "before.edgepos", *noisy)
    before = json.loads(command("report", tmp_path / "before.edgepos", "--source", model, "--text", text, "--max-tokens", 256, "--swap-tokens", 128, "--json").stdout)
    assert before["changes"]["tokens"] == 128 and before["provenance"]["options"]["weights_for"] == ["*.2.mlp.*=w4g32", "*.4.self_attn.q*=w4g32"]
    assert "*.2.mlp.*=w4g32 *.4.self_attn.q*=w4g32" in page(before) and "--weights-for" in page(before)
    suggested = before["changes"]["suggestions"]
    assert len(suggested) == 3 and [s["saves"] for s in suggested] == sorted((s["saves"] for s in suggested), reverse=True)
    for change in suggested:
        command("export", model, "-o", tmp_path / "after.edgepos", "--force", *noisy, *shlex.split(change["flags"]))
        after = edgepos.open(tmp_path / "after.edgepos")
        texts = first_tokens(text_windows(after.tokenizer, read_texts([text]), 128, 128), 128)
        fell = before["changes"]["total"] - Swaps(after.program, source.model, texts).total
        assert fell == pytest.approx(change["saves"], rel=0.1)
        grown = after.model_path.stat().st_size - before["memory"]["model_bytes"]
        assert abs(grown - change["bytes"]) < 64 * 100  # tensors begin at multiples of 64


def test_a_narrow_cache_keeps_the_formats_of_matrices(tmp_path, source):
    """The 16-bit cache that is offered is measured with the bundle's own matrices."""
    made = edgepos.export_bundle(source, tmp_path / "m.edgepos", kv="kv8", context=128, weights_for={"*.1.mlp.*": "w8"})
    changes = measure(made, edgepos.reference(source), source, read_text(), max_tokens=64, swap_tokens=48)["changes"]
    (cache,) = (s for s in changes["suggestions"] if s["flags"] == "--kv kv16")
    assert 0 < cache["saves"] < changes["total"]


def test_the_wide_cache_has_the_inputs_of_the_bundle(tmp_path, source):
    """Else the cache would be said to save what int8 inputs of matrices cost."""
    made = edgepos.export_bundle(source, tmp_path / "m.edgepos", kv="kv8", activations="a8g32", context=128)
    assert made.program.activation_format == "a8g32" == _wide_cache(made, source).activation_format


def test_the_first_tokens_of_windows():
    windows = [list(range(5)), list(range(4)), list(range(9))]
    assert first_tokens(windows, 7) == [[0, 1, 2, 3, 4], [0, 1]] and first_tokens(windows, 6) == [[0, 1, 2, 3, 4]]
    assert first_tokens(windows, 1) == [[0, 1]] and first_tokens(windows, 100) == windows
    assert np.sum([len(w) for w in first_tokens(windows, 12)]) == 12
