"""Images from outside: edgepos embed --image and edgepos-run --image give the rows of the session, also on an emulated board; bad files are errors."""

from __future__ import annotations

import io
import json
import subprocess

import jsonschema
import numpy as np
import pytest
from boards import require
from hostile import mutate
from test_cli import edgepos
from test_runtime_embed import run  # noqa: F401 - a fixture
from tower_models import make, save_image_model  # skips where PyTorch is missing

import edgepos as library
from edgepos import targets
from edgepos.errors import EdgePosError, FormatError
from edgepos.fixedpoint import fnv1a64
from edgepos.image_files import read_images
from edgepos.targets.difference import operator_digests

SHAPE = (24, 32, 3)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_image_model(make("vit_classes"), folder / "model")
    return library.export_bundle(folder / "model", folder / "m.edgepos")


def noise(*shape) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 256, shape).astype(np.uint8)


def ppm(pixels: np.ndarray, kind: str = "P6", comment: str = "") -> bytes:
    return f"{kind}\n{comment}{pixels.shape[1]} {pixels.shape[0]}\n255\n".encode() + pixels.tobytes()


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def rows(text: str) -> np.ndarray:
    return np.array([json.loads(line) for line in text.splitlines() if line.startswith("[")], np.float32)


def test_both_commands_print_the_rows_of_the_session(bundle, run, tmp_path):  # noqa: F811
    pixels, session = noise(*SHAPE), bundle.session()
    want = session.embed_image_int(pixels)
    files = {"a.ppm": ppm(pixels), "b.ppm": ppm(pixels, comment="# a comment\n#\n"), "c.npy": npy(pixels), "d.npy": npy(pixels[None])}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    done = edgepos("embed", bundle.path, *(x for name in files for x in ("--image", tmp_path / name)))
    np.testing.assert_array_equal(rows(done.stdout), np.stack([session.embed_image(pixels)] * 4))
    assert "4 images" in done.stderr and "saturations 0" in done.stderr
    digest = fnv1a64(want.astype("<i4").tobytes())
    for name in ("a.ppm", "b.ppm", "c.npy"):
        for how in ((), ("--generic", "--context", 2, "--threads", 2)):
            status, said, told = run(bundle.model_path, "--image", tmp_path / name, "--digest", *how)
            assert status == 0 and said.splitlines()[-1] == f"digest 0x{digest:016x}"
            exact = np.array(json.loads(said.splitlines()[0])) * 2.0**session.logits_f
            np.testing.assert_array_equal(np.rint(exact), want)  # ten decimals give the integers back
            assert f"class {want.argmax()} has the largest logit" in told


def test_the_self_test_and_the_operators(bundle, run):  # noqa: F811
    for how in ((), ("--copy",)):
        status, said, told = run(bundle.model_path, "--selftest", *how)
        assert status == 0 and f"13 tokens, digest 0x{bundle.program.header.digest:016x}" in said and "arena" in told and "tokens/s" in told
    status, said, _ = run(bundle.model_path, "--operators")
    found = {int(line.split()[1]): int(line.split()[3], 16) for line in said.splitlines() if line.startswith("operator")}
    assert status == 0 and found == operator_digests(bundle.program)


@pytest.mark.parametrize("name", ["host", "qemu:cortex-a53", "qemu:max", "qemu:cortex-m3"])
def test_boards_compute_the_same_row(bundle, name):
    board = targets.board(name)
    require(*board.needs())
    assert f"digest {bundle.program.header.digest:016x}" in targets.verify(bundle, board)


BAD = {
    "empty": b"",
    "text": b"hello, this is no image",
    "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
    "cut": ppm(noise(*SHAPE))[:-1],
    "another size": ppm(noise(24, 24, 3)),
    "gray": ppm(noise(24, 32, 1), "P5"),
    "16 bits": ppm(noise(*SHAPE)).replace(b"255\n", b"65535\n", 1),
    "no largest sample": b"P6\n32 24\n",
    "huge": b"P6\n999999999 999999999\n255\n" + bytes(100),
    "eleven digits": b"P6\n32000000000 24\n255\n" + bytes(100),
    "negative": b"P6\n-32 24\n255\n" + bytes(24 * 32 * 3),
    "zero": b"P6\n0 24\n255\n" + bytes(100),
    "endless comment": b"P6\n#" + b"x" * 9000,
    "floats": npy(noise(*SHAPE).astype(np.float32)),
    "columns first": npy(np.asfortranarray(noise(*SHAPE))),
    "flat": npy(noise(24 * 32 * 3)),
    "cut array": npy(noise(*SHAPE))[:-1],
    "header beyond the file": b"\x93NUMPY\x01\x00\xff\xff{'descr': '|u1'",
    "open bracket": b"\x93NUMPY\x01\x00\x1e\x00{'descr': '|u1', 'shape': (24," + bytes(99),
    "version 9": b"\x93NUMPY\x09\x00" + bytes(64),
    "objects": b"\x93NUMPY\x01\x00\x46\x00{'descr': '|O', 'fortran_order': False, 'shape': (24, 32, 3), }        \n" + bytes(99),
}


@pytest.fixture
def read_by_both(bundle, sanitized_edgepos_run, tmp_path):
    """Whether edgepos-run, compiled with sanitizers, and Python take an image of these bytes. What is not taken is an error of one line."""
    file, session = tmp_path / "image", bundle.session()

    def read(data: bytes) -> tuple[bool, bool]:
        file.write_bytes(data)
        done = subprocess.run([sanitized_edgepos_run, bundle.model_path, "--image", file], capture_output=True, text=True, timeout=120, check=False)
        taken = done.returncode == 0
        assert taken or (done.returncode == 1 and not done.stdout and done.stderr.count("\n") == 1 and done.stderr.startswith("edgepos-run: ")), done.stderr
        try:
            want = session.embed_image_int(read_images(file)[0])
        except EdgePosError as error:
            assert "\n" not in str(error)
            return taken, False
        if taken:
            np.testing.assert_array_equal(np.rint(np.array(json.loads(done.stdout)) * 2.0**session.logits_f), want)
        return taken, True

    return read


@pytest.mark.parametrize("case", BAD)
def test_files_that_are_no_such_image_are_one_error(case, read_by_both):
    assert read_by_both(BAD[case]) == (False, case == "columns first")  # Python reads these


@pytest.mark.parametrize("form", ["ppm", "npy"])
def test_changed_images_are_taken_or_refused(form, read_by_both):
    """The same PPM files by both; of a .npy header edgepos-run reads only what it needs. What both take gives the same row."""
    image, header = (ppm(noise(*SHAPE), comment="# a comment\n"), 30) if form == "ppm" else (npy(noise(*SHAPE)), 128)
    taken = 0
    for seed in range(100):
        c, python = read_by_both(mutate(image, np.random.default_rng(seed), header if seed % 2 else len(image)))
        taken += c and python
        assert form == "npy" or c == python, seed
    assert 4 < taken < 60, taken


def test_what_does_not_go_together(bundle, run, tmp_path):  # noqa: F811
    file = tmp_path / "image.ppm"
    file.write_bytes(ppm(noise(*SHAPE)))
    assert run(bundle.model_path, "--image", file, "-p", "x")[0] == 2
    for arguments in (("-p", "x"), ("--embed", "--ids", "0"), ("--ids", "0"), ("--image", tmp_path / "absent")):
        status, _, told = run(bundle.model_path, *arguments)
        assert status == 1 and len(told.splitlines()) == 1, arguments
    for arguments in ((), ("a text",), ("a text", "--image", file), ("--image", tmp_path / "absent")):
        done = edgepos("embed", bundle.path, *arguments, expect=1)
        assert len(done.stderr.splitlines()) == 1, arguments
    with pytest.raises(FormatError, match="of another kind"):
        read_images(bundle.model_path)


def test_the_report_compares_rows_of_images(bundle, tmp_path, root):
    source = bundle.path.parent / "model"
    pixels = noise(5, *SHAPE)
    np.save(tmp_path / "five.npy", pixels)
    done = edgepos("report", bundle.path, "--source", source, "--image", tmp_path / "five.npy", "--fail-above", "cosine=0.99")
    assert "same first class" in done.stdout
    report = bundle.report
    jsonschema.validate(report, json.loads((root / "docs" / "report.schema.json").read_text("utf-8")))
    accuracy, floats = report["accuracy"], library.reference(source)
    exact, ours = (np.float64([session.embed_image(p) for p in pixels]) for session in (floats, bundle.session()))
    own = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(exact, ours)]
    assert accuracy["images"] == 5 and abs(accuracy["cosine_mean"] - np.mean(own)) < 1e-12 and accuracy["cosine_min"] == pytest.approx(min(own))
    assert accuracy["same_class"] == np.mean(exact.argmax(axis=1) == ours.argmax(axis=1))
    assert [layer["op"] for layer in report["layers"]][:3] == ["PATCHES", "LINEAR", "EMBED"] and report["layers"][1]["own_sqnr_db"] > 40
    shown = (bundle.path / "report.html").read_text("utf-8")
    for words in ("same first class", "<dd>6 images, SHA-256 of their bytes", "<dt>images</dt><dd>five.npy, SHA-256", "gives one row for an image; it writes nothing"):
        assert words in shown
    assert "logits of 7 classes" in edgepos("inspect", bundle.path).stdout
    np.save(tmp_path / "two.npy", pixels[:2])
    for arguments in ((), ("--image", tmp_path / "two.npy"), ("--text", tmp_path / "five.npy")):
        assert len(edgepos("report", bundle.path, "--source", source, *arguments, expect=1).stderr.splitlines()) == 1
    own_images = library.export_bundle(source, tmp_path / "m.edgepos", calibration=pixels)
    done = edgepos("report", own_images.path, "--source", source, "--image", tmp_path / "five.npy", expect=1)
    assert "calibrated on them" in done.stderr
