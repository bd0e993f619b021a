"""Bundle folders: the layout of model.gguf, the same bytes twice, nothing half-written, and model.onnx in ONNX Runtime."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys

import gguf
import numpy as np
import onnx
import pytest
from compiler_models import CONTEXT, VOCAB, bloom, llama

from edgepos import compiler
from edgepos.compiler import assemble, bundle_writer
from edgepos.errors import EdgePosError, UnsupportedError
from edgepos.fixedpoint import fnv1a64
from edgepos.golden_session import GoldenSession
from edgepos.program import decode
from edgepos.float_session import FloatSession, reference

IDS = [0, 4, 11, 30, 8, 2, 17, 22, 60, 3]
MODELS = {"llama": llama, "bloom": bloom}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """Both models as bundles."""
    folder = tmp_path_factory.mktemp("bundles")
    return {name: compiler.export_bundle(make(), folder / f"{name}.edgepos", calibration=IDS) for name, make in MODELS.items()}


def read_program(path):
    tensors = gguf.GGUFReader(path / "model.gguf").tensors
    arrays = [t.data.reshape(tuple(int(n) for n in reversed(t.shape))) for t in tensors]
    return decode(arrays[0], [t.name for t in tensors], [None, *arrays[1:]]), arrays[0]


def all_bytes(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("name", MODELS)
def test_layout_of_model_gguf(bundles, name):
    """The rules of docs/bundle.md, read from the bytes."""
    raw = (bundles[name] / "model.gguf").read_bytes()
    assert raw[:4] == b"GGUF" and struct.unpack_from("<IQQ", raw, 4)[0] == 3
    reader = gguf.GGUFReader(bundles[name] / "model.gguf")
    fields = {key: field.contents() for key, field in reader.fields.items()}
    assert fields["general.architecture"] == "edgepos" and fields["general.alignment"] == 64
    assert fields["edgepos.format"] == 1 and fields["edgepos.arith"] == 1
    assert fields["edgepos.positions"] == ("rope" if name == "llama" else "alibi")
    assert fields["tokenizer.ggml.model"] == "gpt2" and fields["tokenizer.ggml.add_bos_token"] is True
    end = reader.tensors[0].data_offset
    assert end % 64 == 0 and reader.tensors[0].name == "edgepos.program" and reader.tensors[0].tensor_type == gguf.GGMLQuantizationType.I32
    for tensor in reader.tensors:
        assert tensor.data_offset == end and len(tensor.name.encode()) <= 64
        assert not any(raw[tensor.data_offset + tensor.n_bytes : -(-(tensor.data_offset + tensor.n_bytes) // 64) * 64])
        end = -(-(tensor.data_offset + tensor.n_bytes) // 64) * 64
    assert end == len(raw)


@pytest.mark.parametrize("name", MODELS)
def test_the_program_tensor_agrees_with_the_file(bundles, name):
    program, words = read_program(bundles[name])
    assert (program.words() == words).all()
    header = program.header
    manifest = json.loads((bundles[name] / "manifest.json").read_text())
    assert header.vocab == VOCAB and header.context == CONTEXT and header.kv_bits == 16
    assert header.n_tokens == 31 and header.tokenizer == 1 and header.tokenizer_flags == 1 and header.bos == 0
    offsets, data = program.arrays[header.token_offsets], program.arrays[header.token_bytes].tobytes()
    assert len(offsets) == VOCAB + 1 and data[offsets[30] : offsets[31]] == b"th" and offsets[-1] == len(data)
    ids = program.arrays[header.selftest].tolist()
    assert ids == manifest["selftest"]["tokens"] and 16 <= len(ids) <= 32
    logits = GoldenSession(program).eval_int(ids)
    assert f"{fnv1a64(logits.astype('<i4').tobytes()):016x}" == manifest["selftest"]["digest"] == f"{header.digest:016x}"


def test_tied_matrices_are_stored_once(bundles):
    program, _ = read_program(bundles["llama"])
    assert program.ops[0].tensors[:3] == program.ops[-1].tensors[:3]
    assert sum(n.startswith("embed.weight") for n in program.names) == 3


@pytest.mark.parametrize("name", MODELS)
def test_manifest_and_report(bundles, name):
    folder = bundles[name]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == set(all_bytes(folder)) - {"manifest.json"}
    for file, entry in manifest["files"].items():
        content = (folder / file).read_bytes()
        assert entry == {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    assert manifest["license"] == {"license": "Apache-2.0", "training_data": "none"}
    assert manifest["options"] == {"weights": "w8g32", "activations": "a16", "kv": "kv16", "context": CONTEXT}
    heads, layers = (2, 2) if name == "llama" else (6, 2)
    assert manifest["memory"]["kv_bytes_per_token"] == layers * heads * (2 * 4 * 2 + 2)
    report = json.loads((folder / "report.json").read_text())
    assert report["digest"] == manifest["selftest"]["digest"]
    assert report["layers"][-1] == {"name": "head", "op": "LINEAR", "f": manifest["choices"]["logits"]}
    assert all(p["measured_max"] <= p["bound"] for p in report["positions"]) and report["positions"]
    assert "Digest" in (folder / "report.md").read_text()
    for part in ("runtime/CMakeLists.txt", "runtime/include/edgepos.h", "tables/tables.json"):
        assert (folder / part).is_file()
    assert not (folder / "runtime" / "tests").exists()


def test_choices_of_a_manifest_replay(bundles, tmp_path):
    manifest = json.loads((bundles["bloom"] / "manifest.json").read_text())
    again = compiler.export_bundle(bloom(), tmp_path / "again.edgepos", calibration=IDS, choices=manifest["choices"])
    assert (again / "model.gguf").read_bytes() == (bundles["bloom"] / "model.gguf").read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bytes_twice(bundles, tmp_path, name):
    again = compiler.export_bundle(MODELS[name](), tmp_path / "other-name.edgepos", calibration=IDS)
    assert all_bytes(again) == all_bytes(bundles[name])


def test_the_same_bytes_for_any_number_of_blas_threads(tmp_path, root):
    """The whole bundle from new processes, as files."""
    code = "import sys, compiler_models as m; from edgepos.compiler import export_bundle; export_bundle(m.llama(), sys.argv[1])"
    found = []
    for threads in ("1", "2"):
        env = os.environ | {
            "OPENBLAS_NUM_THREADS": threads,
            "OMP_NUM_THREADS": threads,
            "PYTHONHASHSEED": threads,
            "PYTHONPATH": os.pathsep.join([str(root / "tests"), *sys.path]),
        }
        out = tmp_path / threads / "toy.edgepos"
        subprocess.run([sys.executable, "-c", code, str(out)], env=env, check=True)
        found.append(all_bytes(out))
    assert found[0] == found[1]


@pytest.mark.parametrize("weights", ["w8g32", "w8"])
@pytest.mark.parametrize("name", MODELS)
def test_model_onnx_is_the_same_model(tmp_path, name, weights):
    out = compiler.export_bundle(MODELS[name](), tmp_path / "toy.edgepos", weights=weights, calibration=IDS)
    onnx.checker.check_model(str(out / "model.onnx"), full_check=True)
    program, _ = read_program(out)
    stored = onnx.load(out / "model.onnx", load_external_data=False).graph.initializer
    inside = {t.name for t in stored if t.data_location == onnx.TensorProto.EXTERNAL}
    assert all(e.value == "model.gguf" for t in stored for e in t.external_data if e.key == "location")
    assert "embed.weight.int8" in inside and sum(t.ByteSize() for t in stored if t.name not in inside) < 20000
    golden = GoldenSession(program).eval(IDS)
    session = FloatSession(out / "model.onnx")
    # In two pieces, through the cache.
    found = np.concatenate([session.eval(IDS[:4]), session.eval(IDS[4:])])
    assert np.abs(found - golden).max() <= 1e-3 * np.abs(golden).max()


def test_model_onnx_holds_the_rows_of_a_shorter_context(tmp_path):
    """The rotation tables are int16, correctly rounded, and end with the context of the bundle."""
    out = compiler.export_bundle(llama(), tmp_path / "toy.edgepos", context=12, calibration=IDS)
    stored = {t.name: t for t in onnx.load(out / "model.onnx", load_external_data=False).graph.initializer}
    cos = onnx.numpy_helper.to_array(stored["rope.cos.int16"])
    angle = np.outer(np.arange(12), [1.0, 0.01])
    assert cos.dtype == np.int16 and (cos == np.floor(32767 * np.cos(angle) + 0.5)).all()
    session = FloatSession(out / "model.onnx")
    assert session.context == 12
    golden = GoldenSession(read_program(out)[0]).eval(IDS)
    assert np.abs(session.eval(IDS) - golden).max() <= 1e-3 * np.abs(golden).max()


@pytest.mark.parametrize("name", MODELS)
def test_dequantized_weights_give_the_integer_model(bundles, name):
    program, _ = read_program(bundles[name])
    canonical = MODELS[name]()
    weights = compiler.dequantized_weights(program)
    assert set(weights) == {n for n in canonical.model.graph.initializers if "rope." not in n and "alibi." not in n}
    for key, array in weights.items():
        original = canonical.model.graph.initializers[key].const_value.numpy()
        assert array.dtype == np.float32 and array.shape == original.shape
        assert np.abs(array - original).max() <= np.abs(original).max() / 200
    found, want = GoldenSession(program).eval(IDS), reference(canonical, weights_of=weights).eval(IDS)
    assert np.abs(found - want).max() <= 1e-3 * np.abs(want).max()


def test_names_longer_than_gguf_allows():
    name = "transformer." + "x" * 70 + ".weight"
    short = assemble.tensor_name(name)
    assert len(short) <= 63 and short.endswith(".weight") and short != assemble.tensor_name("other" + name)
    assert assemble.tensor_name("a" * 63) == "a" * 63
    taken = [short]
    other = assemble.unique_name(short, taken)
    assert other != short and len(other) <= 63


# ---- what stands at the target, and failures


def leftovers(folder):
    return [p.name for p in folder.iterdir()]


def test_an_existing_bundle_needs_force(tmp_path):
    out = compiler.export_bundle(llama(), tmp_path / "toy.edgepos", calibration=IDS)
    before = all_bytes(out)
    with pytest.raises(EdgePosError, match="toy.edgepos: exists already.*force"):
        compiler.export_bundle(bloom(), out, calibration=IDS)
    assert all_bytes(out) == before
    compiler.export_bundle(bloom(), out, calibration=IDS, force=True)
    assert json.loads((out / "manifest.json").read_text())["family"] == "bloom" and leftovers(tmp_path) == ["toy.edgepos"]


def test_what_is_no_bundle_is_never_replaced(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.txt").write_text("x")
    (tmp_path / "file").write_text("x")
    for name in ("work", "file"):
        with pytest.raises(EdgePosError, match="not a bundle"):
            compiler.export_bundle(llama(), tmp_path / name, force=True, calibration=IDS)
    assert (tmp_path / "work" / "thesis.txt").read_text() == "x" and len(leftovers(tmp_path)) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, OSError(28, "No space left on device")])
@pytest.mark.parametrize("force", [False, True])
def test_nothing_stays_after_a_failure(tmp_path, monkeypatch, error, force):
    before = {}
    if force:
        before = all_bytes(compiler.export_bundle(bloom(), tmp_path / "toy.edgepos", calibration=IDS))

    def fail(*_):
        raise error

    monkeypatch.setattr(bundle_writer, "_copy_runtime", fail)
    expected = EdgePosError if isinstance(error, OSError) else error
    with pytest.raises(expected, match="No space" if isinstance(error, OSError) else None):
        compiler.export_bundle(llama(), tmp_path / "toy.edgepos", calibration=IDS, force=force)
    assert leftovers(tmp_path) == (["toy.edgepos"] if force else [])
    if force:
        assert all_bytes(tmp_path / "toy.edgepos") == before


def test_a_failed_rename_puts_the_old_bundle_back(tmp_path, monkeypatch):
    out = compiler.export_bundle(llama(), tmp_path / "toy.edgepos", calibration=IDS)
    before, rename = all_bytes(out), os.rename

    def fail(source, target):
        if str(source).endswith(".tmp"):
            raise OSError(13, "Permission denied")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(EdgePosError, match="Permission denied"):
        compiler.export_bundle(bloom(), out, calibration=IDS, force=True)
    assert all_bytes(out) == before and leftovers(tmp_path) == ["toy.edgepos"]


def test_bad_options_leave_nothing(tmp_path):
    with pytest.raises(UnsupportedError, match="weights is 'q4'"):
        compiler.export_bundle(llama(), tmp_path / "toy.edgepos", weights="q4")
    assert leftovers(tmp_path) == []


def test_progress_is_told(tmp_path):
    seen = []
    compiler.export_bundle(llama(), tmp_path / "toy.edgepos", calibration=IDS, progress=lambda *event: seen.append(event))
    whats = list(dict.fromkeys(what for what, _, _ in seen))
    assert whats == ["read", "quantize", "calibrate", "self-test", "write"]
    assert all(0 <= done <= total for _, done, total in seen)
