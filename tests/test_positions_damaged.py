"""Files that were damaged: emitted tables, arrays of one's own, manifests and reports give named errors of one line."""

from __future__ import annotations

import io
import json
import shutil

import numpy as np
import pytest
from hostile import change_value, mutate
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edgepos
from edgepos.errors import EdgePosError
from edgepos.positions import Alibi, Learned, Rope, T5Bias
from edgepos.positions.emit import INDEX, check, emit
from edgepos.positions.source import read_table
from edgepos.report.comparison import ranked, row_of
from edgepos.report.describe import describe

SEEDS = st.integers(0, 2**32 - 1)
OFTEN = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FORMATS = ("c", "npz", "bin", "onnx")
TABLES = {
    "rope": (Rope(8, 4), 9, None), "alibi": (Alibi(3), 9, None), "t5": (T5Bias(8, 20), 1, np.linspace(-1, 1, 24).reshape(8, 3)),
    "learned": (Learned(6, offset=2, pad_id=1), 4, np.linspace(-2, 2, 24).reshape(6, 4)),
}  # fmt: skip


@pytest.fixture(scope="module", params=sorted(TABLES))
def tables(request, tmp_path_factory):
    """A folder of tables in every format, which is put back after each change."""
    spec, context, weights = TABLES[request.param]
    folder = tmp_path_factory.mktemp("tables") / request.param
    emit(spec, folder, context, (16, 8), weights, FORMATS)
    assert check(folder)
    return folder


def one_line(error: EdgePosError) -> None:
    assert str(error) and "\n" not in str(error) and len(str(error)) <= 700, str(error)[:2000]


@OFTEN
@given(seed=SEEDS)
def test_no_byte_of_a_table_can_change(tables, seed):
    rng = np.random.default_rng(seed)
    files = sorted(tables.iterdir())
    file = files[rng.integers(len(files))]
    before = file.read_bytes()
    if file.name == INDEX and rng.random() < 0.5:
        data = change_value(json.loads(before), rng)
    else:
        data = mutate(before, rng, len(before))
    try:
        file.write_bytes(data)
        if data == before:
            return
        with pytest.raises(EdgePosError) as raised:
            check(tables)
        one_line(raised.value)
    finally:
        file.write_bytes(before)


@OFTEN
@given(seed=SEEDS, name=st.sampled_from(["a.npy", "a.npz", "b.npz"]))
def test_damaged_arrays_are_read_or_refused(tmp_path, seed, name):
    rng, data, array = np.random.default_rng(seed), io.BytesIO(), np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    {"a.npy": np.save, "a.npz": lambda f, a: np.savez(f, x=a), "b.npz": lambda f, a: np.savez_compressed(f, x=a)}[name](data, array)
    (tmp_path / name).write_bytes(mutate(data.getvalue(), rng, 200))
    try:
        found = read_table(str(tmp_path / name) + ("" if name == "a.npy" else ":x"))
        assert found.dtype == np.float64 and found.size < 10_000
    except EdgePosError as error:
        one_line(error)


@OFTEN
@given(seed=SEEDS, name=st.sampled_from(["manifest.json", "report.json"]))
def test_damaged_manifests_and_reports(damaged, seed, name):
    rng, file = np.random.default_rng(seed), damaged / name
    before = file.read_bytes()
    data = change_value(json.loads(before), rng) if rng.random() < 0.8 else mutate(before, rng, len(before))
    try:
        file.write_bytes(data)
        for use in (lambda b: describe(b), lambda b: b.check_files(), lambda b: ranked([row_of("m", b.report)]), lambda b: b.session(context=2).eval_int([1])):
            try:
                use(edgepos.open(damaged))
            except EdgePosError as error:
                one_line(error)
    finally:
        file.write_bytes(before)


@pytest.fixture(scope="module")
def damaged(bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("damaged") / "m.edgepos"
    shutil.copytree(bundle("tiny-rope").path, folder)
    return folder
