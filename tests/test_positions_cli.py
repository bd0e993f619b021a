"""`edgepos tables` and `edgepos positions` from outside: what they write, check, print and draw, and what bad input gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from edgepos.errors import EdgePosError
from edgepos.positions import Alibi, AngleRope, Learned, LearnedPlan, MRope, RelativeBias, Rope, Sinusoidal, T5Bias, TablePlan
from edgepos.positions.emit import emit
from edgepos.positions.source import read_source, read_table
from edgepos.resources import tiny_model_dir

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def edgepos(*arguments, expect: int = 0, **environment) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "edgepos", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | environment)
    assert result.returncode == expect, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    return result


def spec_of(folder):
    return json.loads((folder / "tables.json").read_text())["spec"]


@pytest.mark.parametrize(
    "arguments, spec, files",
    [
        (
            ("rope", "--head-dim", 16, "--rotary-dim", 8, "--theta", 5e5, "--layout", "interleaved", "--scaling", json.dumps(YARN), "--context", 96),
            Rope(16, 8, 5e5, "interleaved", YARN),
            ("rope_int16", "rope_phase"),
        ),
        (("alibi", "--heads", 3, "--bias-max", 4, "--symmetric", "--context", 50), Alibi(3, 4.0, True), ("alibi_int16", "alibi_slopes")),
        (("alibi", "--heads", 2, "--slopes", "0.5,0"), Alibi(2, user_slopes=(0.5, 0.0)), ("alibi_slopes",)),
        (("t5", "--num-buckets", 16, "--max-distance", 99, "--causal"), T5Bias(16, 99, False), ("t5_bucket",)),
        (
            ("sinusoidal", "--dim", 8, "--convention", "concatenated", "--denominator", "half_minus_one", "--start", 2, "--scale", 0.5, "--first", "cos"),
            Sinusoidal(8, "concatenated", "half_minus_one", 2, 0.5, first="cos"),
            ("sinusoidal_int16",),
        ),
        (("spec", json.dumps(MRope(Rope(8), (2, 1, 1)).to_json()), "--context", 9), MRope(Rope(8), (2, 1, 1)), ("rope_int16",)),
    ],
)
def test_tables_of_every_encoding(arguments, spec, files, tmp_path):
    forms = ("c", "npz", "onnx", "bin")
    printed = edgepos("tables", *arguments, *(() if arguments[0] == "t5" else ("--bits", 16)), "--format", ",".join(forms), "-o", tmp_path / "out").stdout
    assert spec_of(tmp_path / "out") == spec.to_json()
    for name in files:
        assert name in printed and all((tmp_path / "out" / f"{name}.{suffix}").is_file() for suffix in ("c", "h", "npz", "bin", "json"))
    assert not list(tmp_path.glob("out/*int8*")) and [p.name for p in tmp_path.iterdir()] == ["out"]
    assert "are what the proof gives" in edgepos("positions", "check", tmp_path / "out").stdout


def test_one_format_writes_only_what_it_has(tmp_path):
    weights = np.random.default_rng(3).normal(size=(49, 2))
    np.save(tmp_path / "w.npy", weights)
    relative = RelativeBias((3, 3), query_minus_key=True)
    for name, arguments in {"a": ("alibi", "--heads", 2), "r": ("spec", json.dumps(relative.to_json()), "--weights", tmp_path / "w.npy")}.items():
        edgepos("tables", *arguments, "--format", "onnx", "-o", tmp_path / name)
        edgepos("positions", "check", tmp_path / name)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["alibi_int16.onnx", "alibi_int8.onnx", "tables.json"]
    assert sorted(p.name for p in (tmp_path / "r").iterdir()) == sorted(
        ["tables.json", *(f"relative_{name}.{form}" for name in ("bias", "int16", "int8") for form in ("npz", "onnx"))]
    )


def test_learned_biases_of_every_width(tmp_path):
    rng = np.random.default_rng(2)
    np.savez(tmp_path / "w.npz", t5=rng.normal(size=(16, 3)), layers=rng.normal(size=(2, 16, 3)), swin=rng.normal(size=(15, 2)))
    for name, bits, arguments in (
        ("t5", 8, ("t5", "--num-buckets", 16, "--causal", "--weights", f"{tmp_path / 'w.npz'}:t5")),
        ("layers", 8, ("t5", "--num-buckets", 16, "--weights", f"{tmp_path / 'w.npz'}:layers")),
        ("swin", 16, ("relative", "--extents", "1,2", "--no-clip", "--query-minus-key", "--per-tensor", "--weights", f"{tmp_path / 'w.npz'}:swin")),
    ):
        folder, stem = tmp_path / f"{name}{bits}", f"{arguments[0]}_int{bits}"
        printed = edgepos("tables", *arguments, "--bits", bits, "--format", "c,npz,onnx,bin", "-o", folder).stdout
        assert stem in printed and all((folder / f"{stem}.{suffix}").is_file() for suffix in ("c", "h", "npz", "onnx", "bin", "json"))
        assert not list(folder.glob(f"*int{24 - bits}*"))
        edgepos("positions", "check", folder)
    assert spec_of(tmp_path / "layers8") == T5Bias(16, 128, layers=2).to_json()
    assert spec_of(tmp_path / "swin16") == RelativeBias((1, 2), False, True).to_json()
    assert "3.2" in edgepos("tables", "relative", "--extents", "3.2", "--weights", f"{tmp_path / 'w.npz'}:swin", "-o", tmp_path / "x", expect=1).stderr


def test_learned_tables_from_files(tmp_path):
    values = np.random.default_rng(0).normal(size=(12, 4))
    np.save(tmp_path / "table.npy", values)
    np.savez(tmp_path / "all.npz", wpe=values.astype(np.float32), other=values[:2])
    edgepos("tables", "learned", "--weights", tmp_path / "table.npy", "--offset", 2, "--pad-id", 1, "-o", tmp_path / "a", "--bits", 8)
    assert spec_of(tmp_path / "a") == Learned(12, 2, 1).to_json()
    with np.load(tmp_path / "a" / "learned_int8.npz") as archive:
        np.testing.assert_array_equal(archive["rows"], LearnedPlan(Learned(12, 2, 1), values, 8).table)
    edgepos("tables", "learned", "--weights", f"{tmp_path / 'all.npz'}:wpe", "--length", 30, "-o", tmp_path / "b")
    assert spec_of(tmp_path / "b") == Learned(30).to_json()
    for text, named in ((tmp_path / "all.npz", "wpe, other"), (f"{tmp_path / 'all.npz'}:gone", "wpe, other"), (tmp_path / "no.npy", "No such file"), (__file__, "npy")):
        with pytest.raises(EdgePosError, match=named):
            read_table(str(text))


def test_tables_from_models(tmp_path, root):
    edgepos("tables", "--from", tiny_model_dir("tiny-rope"), "-o", tmp_path / "rope", "--bits", "16")
    found = read_source(str(tiny_model_dir("tiny-rope")))
    assert spec_of(tmp_path / "rope") == found.spec.to_json() and isinstance(found.spec, Rope)
    with np.load(tmp_path / "rope" / "rope_int16.npz") as archive:
        np.testing.assert_array_equal(archive["cos"], TablePlan(found.spec, found.context).cos)
    assert isinstance(read_source(str(tiny_model_dir("tiny-alibi"))).spec, Alibi)


def save_model(folder, config, tensors):
    from safetensors.numpy import save_file

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: array.astype(np.float32) for name, array in tensors.items()}, folder / "model.safetensors")
    return folder


def test_learned_tables_of_models(tmp_path):
    rng = np.random.default_rng(1)
    wpe, encoder, decoder = rng.normal(size=(20, 4)), rng.normal(size=(32, 2)), rng.normal(size=(32, 2))
    gpt2 = save_model(tmp_path / "gpt2", {"model_type": "gpt2", "n_positions": 20}, {"transformer.wpe.weight": wpe, "transformer.wte.weight": wpe})
    edgepos("tables", "--from", gpt2, "-o", tmp_path / "a", "--bits", 16)
    with np.load(tmp_path / "a" / "learned_int16.npz") as archive:
        np.testing.assert_array_equal(archive["source"], wpe.astype(np.float32))
    bias = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    t5 = save_model(tmp_path / "t5", {"model_type": "t5"}, {f"encoder.{bias}": encoder, f"decoder.{bias}": decoder})
    edgepos("tables", "--from", t5, "-o", tmp_path / "b", "--context", 64)
    with np.load(tmp_path / "b" / "decoder" / "t5_bias.npz") as archive:
        np.testing.assert_array_equal(archive["source"], decoder.astype(np.float32))
    edgepos("positions", "check", tmp_path / "b")
    bias = "block.{}.layer.0.SelfAttention.relative_attention_bias.weight"
    tables = {f"{stack}.{bias.format(i)}": rng.normal(size=(32, 2)) for i in range(12) for stack in ("encoder", "decoder")}
    umt5 = save_model(tmp_path / "umt5", {"model_type": "umt5", "num_layers": 12}, tables)
    edgepos("tables", "--from", umt5, "-o", tmp_path / "u", "--format", "npz")
    edgepos("positions", "check", tmp_path / "u")
    with np.load(tmp_path / "u" / "decoder" / "t5_int8.npz") as archive:
        np.testing.assert_array_equal(archive["source"][10], tables[f"decoder.{bias.format(10)}"].astype(np.float32))
        assert {"rows_layer0", "rows_layer11", "factors_layer11"} <= set(archive.files)
    del tables[f"decoder.{bias.format(3)}"]
    short = save_model(tmp_path / "short", {"model_type": "umt5", "num_layers": 12}, tables)
    assert "11 bias tables" in edgepos("tables", "--from", short, "-o", tmp_path / "s", expect=1).stderr
    assert "encoder: table" in edgepos("positions", "pareto", tmp_path / "b").stdout
    bare = save_model(tmp_path / "bare", {"model_type": "gpt2", "n_positions": 20}, {"wte": wpe})
    assert "wpe.weight" in edgepos("tables", "--from", bare, "-o", tmp_path / "c", expect=1).stderr


def test_tables_of_text_and_image(tmp_path):
    """CLIP's learned rows for both; BERT's learned rows with the 2-D sinusoids of an MAE."""
    rng = np.random.default_rng(2)
    text, patches = rng.normal(size=(12, 8)), rng.normal(size=(17, 8))
    config = {"model_type": "clip", "text_config": {"max_position_embeddings": 12}, "vision_config": {"image_size": 32, "patch_size": 8}}
    rows = "embeddings.position_embedding.weight"
    clip = save_model(tmp_path / "clip", config, {f"text_model.{rows}": text, f"vision_model.{rows}": patches})
    edgepos("tables", "--from", clip, "-o", tmp_path / "a", "--context", 17, "--format", "npz,onnx")
    for part, table in (("text", text), ("vision", patches)):
        with np.load(tmp_path / "a" / part / "learned_int16.npz") as archive:
            np.testing.assert_array_equal(archive["source"], table.astype(np.float32))
    both = {
        "model_type": "vision-text-dual-encoder",
        "text_config": {"model_type": "bert", "max_position_embeddings": 12},
        "vision_config": {"model_type": "vit_mae", "hidden_size": 16},
    }
    dual = save_model(tmp_path / "dual", both, {"text_model.embeddings.position_embeddings.weight": text})
    edgepos("tables", "--from", dual, "-o", tmp_path / "b", "--context", 12)
    specs = {part: spec_of(tmp_path / "b" / part) for part in ("text", "vision")}
    assert [spec["encoding"] for spec in specs.values()] == ["learned", "sinusoidal_2d"]
    for folder in "ab":
        edgepos("positions", "check", tmp_path / folder)


def test_tables_of_angles_end_where_the_angles_do(tmp_path):
    sizes = {"model_type": "dinov3_vit", "hidden_size": 96, "num_attention_heads": 6, "image_size": 64, "patch_size": 16}
    dino = save_model(tmp_path / "dino", sizes, {})
    edgepos("tables", "--from", dino, "-o", tmp_path / "a", "--format", "npz")
    edgepos("positions", "check", tmp_path / "a")
    assert json.loads((tmp_path / "a" / "tables.json").read_text())["context"] == 16
    assert "methods for 16 positions" in edgepos("positions", "pareto", dino).stdout


def test_rows_of_patches_with_a_batch(tmp_path):
    rows = np.random.default_rng(4).normal(size=(1, 17, 8))
    vit = save_model(tmp_path / "vit", {"model_type": "vit", "image_size": 32, "patch_size": 8}, {"vit.embeddings.position_embeddings": rows})
    np.testing.assert_array_equal(read_source(str(vit)).weights, rows[0].astype(np.float32))


def test_tables_from_gguf(tmp_path):
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("edgepos.export.gguf_file")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "phi3")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_head_count(4)
    writer.add_rope_scaling_orig_ctx_len(16)
    writer.add_rope_scaling_attn_factors(1.25)
    for name in ("long", "short"):
        writer.add_tensor(f"rope_factors_{name}.weight", np.array([1, 2, 3, 4], dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    edgepos("tables", "--from", path, "-o", tmp_path / "out", "--bits", "8")
    scaling = spec_of(tmp_path / "out")["scaling"]
    assert (scaling["rope_type"], scaling["attention_factor"], scaling["long_factor"]) == ("longrope", 1.25, [1.0, 2.0, 3.0, 4.0])


def test_check_names_file_and_entry(tmp_path):
    emit(Rope(8), tmp_path / "t", 16)
    path = tmp_path / "t" / "rope_int8.c"
    path.write_text(path.read_text().replace("127", "126", 1))
    error = edgepos("positions", "check", tmp_path / "t", expect=1).stderr
    assert "rope_int8.c: cos[0, 0]" in error and error.count("\n") == 1
    assert "tables.json" in edgepos("positions", "check", tmp_path, expect=1).stderr


def test_pareto_prints_every_method(tmp_path):
    spec = json.dumps(Rope(64).to_json())
    printed = edgepos("positions", "pareto", spec, "--context", 2048).stdout
    assert all(name in printed for name in ("phase ", "phase-64-linear", "split-32", "piecewise-16", "table"))
    rows = json.loads(edgepos("positions", "pareto", spec, "--context", 2048, "--json").stdout)
    assert {"method", "bits", "bytes", "bound", "operations", "best"} <= set(rows[0])
    assert [r["bytes"] for r in rows if r["method"] == "table"] == [2048 * 64, 2048 * 128]
    for other in (Alibi(8), Sinusoidal(16)):
        assert "slope" in edgepos("positions", "pareto", json.dumps(other.to_json())).stdout or isinstance(other, Sinusoidal)
    assert "no methods" in edgepos("positions", "pareto", '{"encoding": "none"}', expect=1).stderr


@pytest.mark.parametrize("spec", [Rope(16, scaling=YARN), Rope(8, scaling=DYNAMIC), MRope(Rope(8), (2, 1, 1)), Alibi(6), Sinusoidal(8), T5Bias(), T5Bias(16, 64, False)])
def test_show_draws_four_panels(spec, tmp_path):
    pytest.importorskip("matplotlib")
    from edgepos.positions.plots import draw

    draw(spec, tmp_path / "a.png", 300)
    assert (tmp_path / "a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    draw(spec, tmp_path / "a.svg", 300)
    first = (tmp_path / "a.svg").read_bytes()
    draw(spec, tmp_path / "a.svg", 300)
    assert first == (tmp_path / "a.svg").read_bytes() and b"<svg" in first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


TABLE = np.random.default_rng(2).normal(size=(32, 4))
DRAWN = [
    (Rope(64), None),
    (AngleRope(4, np.random.default_rng(3).normal(size=(32, 2))), None),
    (Alibi(8), None),
    (Sinusoidal(16), None),
    (T5Bias(), TABLE),
    (T5Bias(16, 64, layers=2), TABLE.reshape(2, 16, 4)),
    (RelativeBias((15,)), TABLE[:31]),
    (Learned(32), TABLE),
]


@pytest.mark.parametrize("spec, weights", DRAWN, ids=lambda value: getattr(value, "encoding", None))
def test_drawings_have_units_and_labels_apart(spec, weights, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from edgepos.positions import plots
    from edgepos.positions.methods import method_rows

    kept = []
    monkeypatch.setattr(plots, "_save", lambda figure, output: kept.append(figure))
    plots.draw(spec, tmp_path / "a.png", 32, weights)
    (figure,) = kept
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert len(panels) == 4 and all(axis.get_xlabel() and axis.get_ylabel() for axis in panels)
    assert all(axis.get_ylabel() for axis in figure.axes)  # colour bars too
    methods = panels[3]
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in methods.texts]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    numbers = sorted(int(n) for text in methods.texts for n in text.get_text().split(", "))
    names = [text.get_text() for text in methods.get_legend().get_texts()]
    assert numbers == list(range(1, len(names) + 1)) and len(names) == len(method_rows(spec, 32, weights))
    frame = figure.bbox
    assert all(frame.x0 <= box.x0 and box.x1 <= frame.x1 for box in [methods.get_legend().get_window_extent(), *boxes])


def test_show_draws_learned_tables(tmp_path):
    pytest.importorskip("matplotlib")
    values = np.random.default_rng(2).normal(size=(32, 4))
    for spec in (Learned(32), T5Bias()):
        emit(spec, tmp_path / spec.encoding, 32, weights=values)
        edgepos("positions", "show", tmp_path / spec.encoding, "-o", tmp_path / f"{spec.encoding}.png")
        assert (tmp_path / f"{spec.encoding}.png").stat().st_size > 10000


def test_show_without_matplotlib_is_one_line(tmp_path):
    """A module of that name that cannot be imported stands for one that is not installed."""
    (tmp_path / "matplotlib.py").write_text("raise ImportError")
    paths = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    error = edgepos("positions", "show", json.dumps(Rope(8).to_json()), "-o", tmp_path / "a.png", expect=1, PYTHONPATH=paths).stderr
    assert "edgepos[plots]" in error and error.count("\n") == 1 and not (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    "arguments, named",
    [
        (("tables", "rope", "--head-dim", 7, "-o", "x"), "rotary_dim"),
        (("tables", "rope", "--head-dim", 8, "--theta", -1, "-o", "x"), "theta"),
        (("tables", "rope", "--head-dim", 8, "--scaling", "{", "-o", "x"), "--scaling"),
        (("tables", "rope", "--head-dim", 8, "--scaling", "[]", "-o", "x"), "--scaling"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": "magic"}', "-o", "x"), "magic"),
        (("tables", "rope", "--head-dim", 8, "--bits", "4", "-o", "x"), "--bits"),
        (("tables", "rope", "--head-dim", 8, "--format", "c,pdf", "-o", "x"), "pdf"),
        (("tables", "rope", "--head-dim", 8, "--context", 0, "-o", "x"), "context"),
        (("tables", "rope", "--head-dim", 0, "-o", "x"), "head_dim"),
        (("tables", "rope", "--head-dim", 8, "--rotary-dim", 0, "--format", "c", "-o", "x"), "no tables"),
        (("tables", "t5", "--format", "onnx", "-o", "x"), "format onnx"),
        (("tables", "alibi", "--heads", 2, "--slopes", "1,two", "-o", "x"), "--slopes"),
        (("tables", "rope", "--head-dim", 8, "-o", "missing/x"), "missing"),
        (("tables", "spec", '{"encoding": "learned", "count": 4}', "-o", "x"), "weights"),
        (("tables", "spec", '{"encoding": "magic"}', "-o", "x"), "magic"),
        (("tables", "rope", "--head-dim", 8, "--rotary-dim", 10, "-o", "x"), "rotary_dim"),
        (("tables", "rope", "--head-dim", 8, "--theta", "nan", "-o", "x"), "theta"),
        (("tables", "rope", "--head-dim", 8, "--layout", "quarter", "-o", "x"), "layout"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": "linear", "factor": 0}', "-o", "x"), "factor"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": "linear", "factor": NaN}', "-o", "x"), "factor"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": "linear", "type": "ntk", "factor": 2}', "-o", "x"), "must agree"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": ["linear"]}', "-o", "x"), "rope_type"),
        (("tables", "rope", "--head-dim", 8, "--scaling", '{"rope_type": "custom", "inv_freq": [1, 2, NaN, 4]}', "-o", "x"), "inv_freq[2]"),
        (("tables", "alibi", "--heads", 2, "--slopes", "1,nan", "-o", "x"), "slopes[1]"),
        (("tables", "sinusoidal", "--dim", 8, "--denominator", "third", "-o", "x"), "denominator"),
        (("tables", "spec", '{"encoding": ["rope"]}', "-o", "x"), "encoding"),
        (("positions", "pareto", '{"encoding": "rope", "head_dim": 8}', "--context", 0), "context"),
        (("positions", "advise", "--context", 9, "--kv-heads", 3), "--kv-heads"),
        (("tables", "--from", "gone", "-o", "x"), "gone"),
        (("tables", "--bits", "8"), "--from"),
        (("tables", "spec", "y" * 5000, "-o", "x"), "too long"),
        (("positions", "show", '{"encoding": "none"}', "-o", "x.png"), "nothing to draw"),
        (("positions", "show", '{"encoding": "rope", "head_dim": 8}', "-o", "x.gif"), ".png, .svg"),
        (("positions", "show", '{"encoding": "learned", "count": 8}', "-o", "x.png"), "learned table"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(arguments, named, tmp_path, monkeypatch):
    from edgepos.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["edgepos", *map(str, arguments)])
    said = []
    monkeypatch.setattr("edgepos.cli.err.print", lambda text, **_: said.append(text))
    with pytest.raises(SystemExit) as status:
        main()
    assert status.value.code == 1 and len(said) == 1 and named in said[0] and "\n" not in said[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "array, named",
    [
        (np.full((8, 4), np.nan), "NaN or infinity"), (np.full((8, 4), -np.inf), "NaN or infinity"), (np.ones((8, 4), complex), "complex128"),
        (np.ones((8, 4), bool), "bool"), (np.array(["a", "b"]), "<U1"), (np.ones(8), "shape"), (np.zeros((0, 4)), "count"),
    ],
)  # fmt: skip
def test_bad_learned_tables_are_refused_by_name(array, named, tmp_path):
    np.save(tmp_path / "w.npy", array)
    error = edgepos("tables", "learned", "--weights", tmp_path / "w.npy", "-o", tmp_path / "out", expect=1).stderr
    assert named in error and error.count("\n") == 1 and [p.name for p in tmp_path.iterdir()] == ["w.npy"]


def test_contexts_past_a_learned_table(tmp_path):
    """Refused, also 0, which is no default; without one a model's tables go as far as its rows."""
    rows = np.random.default_rng(3).normal(size=(22, 4))
    opt = save_model(tmp_path / "opt", {"model_type": "opt", "max_position_embeddings": 20, "hidden_size": 4}, {"model.decoder.embed_positions.weight": rows})
    for context, named in ((21, "context 21 passes the learned table's 20 positions"), (0, "context is 0"), (-1, "context is -1")):
        for command in (("tables", "--from", opt, "-o", tmp_path / "x"), ("positions", "pareto", opt)):
            error = edgepos(*command, "--context", context, expect=1).stderr
            assert named in error and error.count("\n") == 1 and not (tmp_path / "x").exists()
    edgepos("tables", "--from", opt, "-o", tmp_path / "a", "--per-tensor", "--bits", 8)
    index = json.loads((tmp_path / "a" / "tables.json").read_text())
    assert index["context"] == 20 and index["per_tensor"] is True
    with np.load(tmp_path / "a" / "learned_int8.npz") as archive:
        np.testing.assert_array_equal(archive["rows"], LearnedPlan(Learned.opt(22), rows.astype(np.float32), 8, "tensor").table)
    edgepos("positions", "check", tmp_path / "a")


def test_an_existing_folder_is_kept(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note").write_text("kept")
    make = ("tables", "rope", "--head-dim", 8, "--context", 4, "-o")
    for force in ((), ("--force",)):
        assert "already there" in edgepos(*make, tmp_path / "mine", *force, expect=1).stderr
    assert (tmp_path / "mine" / "note").read_text() == "kept"
    edgepos(*make, tmp_path / "t")
    assert "--force" in edgepos(*make, tmp_path / "t", expect=1).stderr
    edgepos("tables", "alibi", "--heads", 2, "-o", tmp_path / "t", "--force")
    assert not list((tmp_path / "t").glob("rope*")) and sorted(p.name for p in tmp_path.iterdir()) == ["mine", "t"]
