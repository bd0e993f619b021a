"""Opening bundles, and what engines and files say to bad input: always an EdgePosError of one line."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import edgepos
import edgepos.export
from edgepos import ContextError, EdgePosError, FormatError
from edgepos.report.build import measure
from edgepos.report.files import write
from edgepos.report.windows import Text
from edgepos.resources import tiny_model_dir
from edgepos.whole_file import whole_file

ENGINES = ("c", "golden", "onnx")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return edgepos.export_bundle(tiny_model_dir("tiny-rope"), tmp_path_factory.mktemp("bundle") / "tiny.edgepos", context=64).path


@pytest.fixture
def copy(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "copy.edgepos")
    return tmp_path / "copy.edgepos"


@pytest.fixture(scope="module")
def bundle(exported):
    return edgepos.open(exported)


def test_a_model_alone_runs_without_its_folder(bundle):
    alone = edgepos.open(bundle.model_path)
    assert alone.path is None and alone.manifest == {}
    assert (alone.session().eval_int([1, 2, 3]) == bundle.session().eval_int([1, 2, 3])).all()
    for call in (lambda: alone.report, lambda: alone.session(engine="onnx")):
        with pytest.raises(FormatError, match="bundle folder"):
            call()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_refuses_the_same_arguments(bundle, engine):
    session = bundle.session(engine=engine)
    session.eval([5, 6], positions=[10, 11])
    assert (session.length, session.position) == (2, 12)
    for bad in ([], [1.5], ["1"], [True], [[1, 2]], [2**70], [2**63], None, "abc", [float("nan")], [1024], [-1]):
        with pytest.raises(EdgePosError):
            session.eval(bad)
    for bad in ([5], [11], [12, 12], [12.5], ["12"], [2**31], [-1], [12, 13, 14]):
        with pytest.raises(EdgePosError):
            session.eval([1, 2][: len(bad)], positions=bad)
    for bad in (3, -1, 1.5, "1", None, True):
        with pytest.raises(ContextError, match="rewind"):
            session.rewind(bad)
    for bad in (None, "abc", b"", b"EPST" + bytes(100)):
        with pytest.raises(FormatError, match="saved state"):
            session.restore(bad)
    with pytest.raises(ContextError, match="do not fit"):
        session.eval([1] * 63)
    with pytest.raises(EdgePosError, match="logits"):
        session.eval([1], logits="some")
    assert (session.length, session.position) == (2, 12)
    assert session.eval([7], logits="none").shape == (0, session.vocab)


def test_engines_agree_after_gaps(bundle):
    rows = {}
    for engine in ENGINES:
        session = bundle.session(engine=engine)
        session.eval([5, 6], positions=[10, 20])
        state = session.save()
        session.reset()
        session.restore(state)
        rows[engine] = session.eval([7, 8], logits="last")
        assert session.position == 23
    assert (rows["c"] == rows["golden"]).all()
    assert np.abs(rows["c"] - rows["onnx"]).max() < 0.01


@pytest.mark.parametrize("engine", ENGINES)
def test_contexts_and_threads_are_checked(bundle, engine):
    for context in (0, -1, 65, 2**40, "5", 5.5, True):
        with pytest.raises(ContextError, match="context"):
            bundle.session(context=context, engine=engine)
    for threads in (0, -1, "2", 1.5, 10**6):
        with pytest.raises(EdgePosError, match="threads"):
            bundle.session(threads=threads, engine=engine)


def test_unknown_engines_are_named(bundle):
    with pytest.raises(EdgePosError, match="'gpu' is unknown; allowed: c, golden, onnx"):
        bundle.session(engine="gpu")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_session_is_used_by_one_thread_at_a_time(bundle, engine):
    session = bundle.session(engine=engine)
    done, refused = [], []

    def work():
        for _ in range(5):
            try:
                session.eval([1, 2, 3])
                done.append(1)
            except EdgePosError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) + len(refused) == 15
    assert session.position == 3 * len(done)


def test_reference_generates_with_the_sources_tokenizer(bundle):
    source = tiny_model_dir("tiny-rope")
    text = "".join(edgepos.reference(source).generate("Once upon a time", 12))
    assert text == "".join(bundle.session().generate("Once upon a time", 12))


def edit(folder, name, change):
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.clear(),
        lambda m: m.update(files=[]),
        lambda m: m.update(files={}),
        lambda m: m["files"].update({"model.gguf": 5}),
        lambda m: m["files"].update({"model.gguf": {}}),
        lambda m: m["files"].update({"x\0y": {"sha256": ""}}),
        lambda m: m.update(operators=5),
        lambda m: m.update(operators=["a"]),
        lambda m: m.update(license="MIT"),
        lambda m: m.update(format=99),
        lambda m: m.update(arith=2),
        lambda m: m["selftest"].update(digest="0" * 16),
        lambda m: m.update(source={}),
        lambda m: m.update(calibration=[1]),
        lambda m: m.pop("choices"),
        lambda m: m.update(options=None),
        lambda m: m["options"].pop("weights"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(copy, change):
    edit(copy, "manifest.json", change)
    with pytest.raises(FormatError, match="manifest.json"):
        edgepos.open(copy).check_files()
    with pytest.raises(FormatError, match="manifest.json"):
        edgepos.open(copy).program  # noqa: B018


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, '{"name": NaN}', '{"name": "a", "name": "b"}', "\udcff"])
def test_json_that_is_none_is_refused(copy, text):
    for name in ("manifest.json", "report.json"):
        (copy / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    opened = edgepos.open(copy)
    for read in (lambda: opened.manifest, lambda: opened.report):
        with pytest.raises(FormatError):
            read()


def test_files_outside_the_bundle_are_not_read(copy):
    edit(copy, "manifest.json", lambda m: m["files"].update({"../../secret": {"sha256": "0"}}))
    with pytest.raises(FormatError, match="secret"):
        edgepos.open(copy).check_files()


@pytest.mark.parametrize("damage", [lambda f: f.unlink(), lambda f: f.write_bytes(b""), lambda f: f.write_bytes(b"junk" * 99), lambda f: f.write_bytes(f.read_bytes()[:5000])])
def test_a_damaged_onnx_file_is_refused(copy, damage):
    damage(copy / "model.onnx")
    with pytest.raises(FormatError):
        edgepos.open(copy).session(engine="onnx")


def test_names_that_cannot_be_read_are_refused(copy):
    model = copy / "model.gguf"
    data = model.read_bytes()
    for old, new in ((b"up_proj", b"up_pro\xff"), (b"model.layers.0.mlp.up_proj.weight", b"model.layers.1.mlp.up_proj.weight")):
        assert old in data
        model.write_bytes(data.replace(old, new, 1))
        with pytest.raises(FormatError):
            edgepos.open(copy).program  # noqa: B018


def test_a_report_of_another_source_changes_nothing(copy):
    before = {f.name: f.read_bytes() for f in copy.iterdir() if f.is_file()}
    opened, other = edgepos.open(copy), edgepos.export.load(tiny_model_dir("tiny-alibi"))
    with pytest.raises(EdgePosError, match="not the file that this bundle was made from"):
        measure(opened, edgepos.reference(other), other, Text("t", "Once upon a time", ""))
    assert before == {f.name: f.read_bytes() for f in copy.iterdir() if f.is_file()}


def test_a_report_that_cannot_be_written_is_one_error(copy, monkeypatch):
    opened = edgepos.open(copy)
    report = opened.report
    before = (copy / "report.json").read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(EdgePosError, match="No space left"):
        write(opened, report)
    assert (copy / "report.json").read_bytes() == before
    assert not list(copy.glob(".*.tmp"))


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    file = tmp_path / ("n" * 251 + ".npy")  # the longest name there is
    file.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(file) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert file.read_bytes() == b"old" and list(tmp_path.iterdir()) == [file]
    with whole_file(file) as temporary:
        temporary.write_bytes(b"new")
    assert file.read_bytes() == b"new" and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("place", ["none/a", "file/a", "folder", "n" * 256, "."])
def test_a_place_that_takes_no_file_is_one_error(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(EdgePosError, match="cannot be written"), whole_file(Path(place)) as temporary:
        temporary.write_bytes(b"x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_link_is_never_replaced(copy):
    link = copy.parent / "link.edgepos"
    link.symlink_to(copy)
    with pytest.raises(EdgePosError, match="symbolic link"):
        edgepos.export_bundle(tiny_model_dir("tiny-rope"), link, force=True)
    assert link.is_symlink() and sorted(p.name for p in copy.parent.iterdir()) == ["copy.edgepos", "link.edgepos"]


def test_a_source_whose_name_is_not_utf8(tmp_path):
    import os

    source = os.fsencode(tmp_path) + b"/mod\xff"
    shutil.copytree(os.fsencode(tiny_model_dir("tiny-alibi")), source)
    bundle = edgepos.export_bundle(os.fsdecode(source), tmp_path / "x.edgepos", context=16)
    assert bundle.manifest["name"] == "mod?"
