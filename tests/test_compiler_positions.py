"""Every position encoding compiled into integers: golden and C agree, and differ from float only by their rounding."""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest
from decoder_models import EXAMPLES, NAMES, SMALL, folders, make, random_ids
from test_compiler_match import attribute, initializer, metadata, swap
from test_export_positions import SPECS

import edgepos
from edgepos import positions
from edgepos.compiler import compile_model, dequantized_weights
from edgepos.compiler.match import match
from edgepos.compiler.steps import Attend, Place
from edgepos.errors import ContextError, UnsupportedError
from edgepos.export import load
from edgepos.float_session import FloatSession, reference
from edgepos.golden_session import GoldenSession
from edgepos.positions.distances import distance_rows
from edgepos.program import POSITIONS, Op
from edgepos.report.metrics import Comparison


def kl(reference_logits, logits, ids) -> float:
    comparison = Comparison()
    comparison.add(reference_logits, logits, ids[1:])
    return comparison.result()["kl_mean"]


def c_logits(bundle, ids) -> np.ndarray:
    return bundle.session(engine="c").eval_int(ids)


@pytest.fixture(scope="module", params=SPECS)
def random_model(request, tmp_path_factory):
    """(spec, folder) of a random decoder."""
    folder = tmp_path_factory.mktemp(request.param)
    make(folder, SPECS[request.param])
    return SPECS[request.param], folder


def test_golden_is_the_float_model_up_to_rounding(random_model):
    spec, folder = random_model
    ids = random_ids(SMALL.context)
    compiled = compile_model(load(folder), calibration=ids.tolist())
    assert compiled.source.positions() == spec
    session = GoldenSession(compiled.program)
    got = session.eval(ids)
    assert session.saturations == 0
    assert kl(reference(folder, weights_of=dequantized_weights(compiled.program)).eval(ids), got, ids) <= 1e-5


def test_bundles_compute_the_same_everywhere(random_model, tmp_path):
    spec, folder = random_model
    ids = random_ids(SMALL.context, seed=1)
    bundle = edgepos.export_bundle(folder, tmp_path / "m.edgepos", kv="kv8")
    manifest = json.loads((tmp_path / "m.edgepos" / "manifest.json").read_text())
    assert positions.from_json(manifest["positions"]) == spec
    golden = bundle.session(engine="golden").eval_int(ids)
    np.testing.assert_array_equal(golden, c_logits(bundle, ids))
    session = bundle.session(engine="c")
    np.testing.assert_array_equal(np.concatenate([session.eval_int(ids[:29]), session.eval_int(ids[29:])]), golden)
    onnx = FloatSession(ir.load(tmp_path / "m.edgepos" / "model.onnx")).eval(ids)
    same = reference(folder, weights_of=dequantized_weights(bundle.program)).eval(ids)
    np.testing.assert_allclose(onnx, same, rtol=0, atol=2e-3)
    for part in sorted((tmp_path / "m.edgepos" / "tables").rglob("tables.json")):
        positions.emit.check(part.parent)


@pytest.mark.parametrize("name", NAMES)
def test_committed_models_run_in_integers(name, tmp_path):
    bundle = edgepos.export_bundle(EXAMPLES / name, tmp_path / f"{name}.edgepos")
    text = "Once upon a time, there was a little girl named Lily. She loved to play in the park with her big red ball. One day"
    ids = np.array([0, *bundle.tokenizer.encode(text)])
    golden = bundle.session(engine="golden")
    want = golden.eval(ids)
    np.testing.assert_array_equal(c_logits(bundle, ids), bundle.session(engine="golden").eval_int(ids))
    assert kl(reference(EXAMPLES / name, weights_of=bundle).eval(ids), want, ids) <= 1e-5
    assert kl(reference(EXAMPLES / name).eval(ids), want, ids) <= 2e-3
    assert len("".join(bundle.session().generate("Once upon a time", 20))) > 10


def test_rows_are_correctly_rounded(tmp_path):
    """int16 rows of the program against the float table, computed here: half a step of each row's largest entry."""
    make(tmp_path, SPECS["learned_offset"])
    program = compile_model(load(tmp_path), calibration=[1, 2, 3]).program
    op = next(op for op in program.ops if op.code == Op.EMBED and op.params["source"] == POSITIONS)
    assert op.params["offset"] == 2 and program.max_position == SMALL.context - 1
    table = load(tmp_path).model.graph.initializers["model.embed_positions.weight"].const_value.numpy().astype(np.float64)
    rows, factors = program.arrays[op.tensors[0]].astype(np.float64), program.arrays[op.tensors[2]].astype(np.float64)
    assert program.arrays[op.tensors[0]].dtype == np.int16
    values = rows[:, : SMALL.dim] * (factors[:, 0] * 2.0 ** -factors[:, 1])[:, None]
    step = np.abs(table).max(axis=1, keepdims=True) / 32767
    assert (np.abs(values - table) <= 0.5 * step * (1 + 1e-6)).all() and (np.abs(rows).max(axis=1) == 32767).all()


def test_the_bias_is_correctly_rounded(tmp_path):
    make(tmp_path, SPECS["t5"])
    canonical = load(tmp_path)
    program = compile_model(canonical, calibration=[1, 2, 3]).program
    tensors = {op.tensors[1] for op in program.ops if op.code == Op.ATTENTION}
    assert len(tensors) == 1, "the layers share one table"
    bias = program.arrays[tensors.pop()]
    learned = folders.load(tmp_path).model.relative_attention_bias.weight.detach().double().numpy()
    exact = learned[distance_rows(SPECS["t5"])].T / np.log(2) * 2**16
    assert bias.shape == (SMALL.heads, len(distance_rows(SPECS["t5"]))) and np.abs(bias - exact).max() <= 0.5 + 1e-6


def test_a_position_without_a_row_is_refused(tmp_path):
    make(tmp_path / "m", SPECS["learned"])
    bundle = edgepos.export_bundle(tmp_path / "m", tmp_path / "m.edgepos", context=32)
    for engine in ("golden", "c"):
        session = bundle.session(engine=engine)
        session.eval([1, 2], positions=[62, 63])
        with pytest.raises(ContextError):
            session.eval([3], positions=[64])


def test_steps_say_where_positions_come_from(tmp_path):
    make(tmp_path, SPECS["hybrid_learned_rope"])
    program = match(load(tmp_path).model)
    place = next(step for step in program.steps if isinstance(step, Place))
    assert (place.name, place.table, place.offset) == ("positions", "model.embed_positions.weight", 0)
    assert all(step.bias is None for step in program.steps if isinstance(step, Attend))


LEARNED_REFUSALS = [
    ("offset", initializer("positions.offset", lambda a: a - 1), "positions.row", "offset"),
    ("offset differs", initializer("positions.offset", lambda a: a + 1), "positions", "offset 1"),
    ("two offsets", initializer("positions.offset", lambda a: np.array([0, 0])), "positions.row", "offset"),
    ("no metadata", metadata("positions", "edgepos.position", "{"), "positions", "edgepos.position"),
    ("other spec", metadata("positions", "edgepos.position", '{"encoding":"rope","head_dim":8}'), "positions", "Learned or Sinusoidal"),
    ("rows", metadata("positions", "edgepos.position", '{"encoding":"learned","count":63}'), "positions", "64 rows"),
    ("modulo", metadata("positions", "edgepos.position", '{"encoding":"learned","count":64,"modulo":8}'), "positions", "modulo None"),
    ("axis", attribute("positions", "axis", 1), "positions", "axis"),
]
REPEATED_REFUSALS = [
    ("period", initializer("positions.modulo", lambda a: a - 1), "positions", "modulo 11"),
    ("two periods", initializer("positions.modulo", lambda a: np.array([12, 12])), "positions.repeated", "INT64"),
    ("fmod", attribute("positions.repeated", "fmod", 1), "positions.repeated", "fmod"),
]
SINUSOIDAL_REFUSALS = [
    ("table", initializer("positions.table", lambda a: np.where(a == a[3, 5], a + 1e-5, a)), "positions", "component"),
    ("scale", metadata("positions", "edgepos.position", '{"encoding":"sinusoidal","dim":32,"scale":0.5}'), "positions", "its metadata"),
    ("dim", metadata("positions", "edgepos.position", '{"encoding":"sinusoidal","dim":16}'), "positions", "width 32"),
]
T5_REFUSALS = [
    ("perm", attribute("bias.0.mask", "perm", [0, 3, 2, 1]), "bias.0.mask", "perm"),
    ("limits", initializer("bias.0.most", lambda a: a - 1), "bias.0.distance", "limits"),
    ("turned", lambda c: swap(next(n for n in c.model.graph if n.name == "bias.0.away")), "bias.0.keys", "position_ids"),
    ("bucket", initializer("model.relative_attention_bias.weight.by_distance", lambda a: a + np.arange(len(a), dtype=np.float32)[:, None]), "bias.0.values", "bucket"),
    ("heads", initializer("model.relative_attention_bias.weight.by_distance", lambda a: a[:, :2].copy()), "bias.0.values", "[15, 2]"),
    ("spec", metadata("bias.0.mask", "edgepos.relative_bias", '{"encoding":"relative","extents":[3,3]}'), "bias.0.mask", "one clipped coordinate"),
    ("metadata", metadata("bias.0.mask", "edgepos.relative_bias", "[]"), "bias.0.mask", "T5Bias or RelativeBias"),
]
REFUSALS = [
    (name, *row)
    for name, rows in (
        ("learned", LEARNED_REFUSALS),
        ("hybrid_repeated_rope", REPEATED_REFUSALS),
        ("sinusoidal", SINUSOIDAL_REFUSALS),
        ("t5", T5_REFUSALS),
    )
    for row in rows
]


@pytest.mark.parametrize("model, change, name, text", [(r[0], *r[2:]) for r in REFUSALS], ids=[f"{r[0]}-{r[1]}" for r in REFUSALS])
def test_refusals_name_the_node(tmp_path, model, change, name, text):
    make(tmp_path, SPECS[model])
    canonical = load(tmp_path)
    change(canonical)
    with pytest.raises(UnsupportedError) as error:
        match(canonical.model)
    assert f"node '{name}'" in str(error.value) and text in str(error.value)
