"""Tables of models with several encodings, and which entry of which file a check names."""

import json

import numpy as np
import onnx
import pytest

from edgepos.errors import FormatError, UnsupportedError
from edgepos.positions import Alibi, Hybrid, Learned, NoPosition, Rope, Sinusoidal, T5Bias, from_config
from edgepos.positions.emit import check, emit, parts_of

TABLE = np.random.default_rng(8).normal(size=(24, 6))


def test_parts_of_a_hybrid_have_their_own_folders(tmp_path):
    spec = Hybrid(Learned(24, modulo=24), (Rope(8), NoPosition(), Rope(8, theta=1e6), Rope(8)))
    assert list(parts_of(spec)) == ["learned", "rope", "rope_2"] and parts_of(Rope(8)) is None
    results = emit(spec, tmp_path, 16, (16,), {"learned": TABLE}, ("c",))
    assert [(r["part"], r["kind"]) for r in results] == [("learned", "learned"), *[(p, "rope") for p in ("rope", "rope") + ("rope_2",) * 2]]
    for r in results:
        assert all((tmp_path / file).is_file() for file in r["files"])
    assert check(tmp_path) == results
    path = tmp_path / "rope_2" / "rope_int16.c"
    path.write_text(path.read_text().replace("32767", "32766", 1))
    with pytest.raises(FormatError, match=r"rope_2/rope_int16.c: cos\[0, 0\]"):
        check(tmp_path)


def test_parts_of_layer_kinds(tmp_path):
    config = {"model_type": "t5", "relative_attention_num_buckets": 32}
    results = emit(from_config(config), tmp_path, 16, formats=("npz",))
    assert [r["part"] for r in results] == ["encoder", "decoder"] and check(tmp_path) == results
    index = json.loads((tmp_path / "tables.json").read_text())
    index["parts"]["decoder"]["max_distance"] = 100
    (tmp_path / "tables.json").write_text(json.dumps(index))
    with pytest.raises(FormatError, match="decoder/tables.json"):
        check(tmp_path)
    for bad in ({"parts": {"..": {}}}, {"parts": []}, {"parts": {"gone": {}}}):
        (tmp_path / "tables.json").write_text(json.dumps(bad))
        with pytest.raises(FormatError, match="tables.json"):
            check(tmp_path)


def test_one_bad_part_leaves_nothing(tmp_path):
    with pytest.raises(UnsupportedError, match="weights"):
        emit({"a": Rope(8), "b": Learned(24)}, tmp_path / "x", 8)
    assert not (tmp_path / "x").exists()


def test_learned_tables_can_be_checked_in_every_format(tmp_path):
    for form in ("c", "bin", "onnx"):
        results = emit(T5Bias(24, 64), tmp_path / form, 8, weights=TABLE, formats=(form,))
        assert check(tmp_path / form) == results


def altered_onnx(path, name):
    model = onnx.load_model(path)
    tensor = next(t for t in model.graph.initializer if t.name == name)
    values = onnx.numpy_helper.to_array(tensor).copy()
    values[1, 2] += 1
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, name))
    path.write_bytes(model.SerializeToString())


def altered_bin(path, name):
    layout = json.loads(path.with_suffix(".json").read_text())["layout"][name]
    data = bytearray(path.read_bytes())
    data[layout["offset"] + np.dtype(layout["dtype"]).itemsize * (layout["shape"][1] + 2)] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    "spec, file, name", [(Rope(8), "rope_int16", "sin"), (Alibi(4), "alibi_int8", "bias"), (Sinusoidal(8), "sinusoidal_int16", "rows")]
)
def test_the_altered_entry_is_named(spec, file, name, tmp_path):
    for form, alter in (("onnx", altered_onnx), ("bin", altered_bin)):
        emit(spec, tmp_path / form, 12, formats=(form,))
        array = "table" if (form, name) == ("onnx", "bias") else name
        alter(tmp_path / form / f"{file}.{form}", array)
        with pytest.raises(FormatError, match=rf"{file}.{form}: {array}\[1, 2\] is"):
            check(tmp_path / form)


def test_a_foreign_onnx_file_is_refused(tmp_path):
    emit(Rope(8), tmp_path, 12, formats=("onnx",))
    (tmp_path / "rope_int8.onnx").write_bytes(b"\xff\xff\xff")
    with pytest.raises(FormatError, match="rope_int8.onnx is no ONNX file"):
        check(tmp_path)
