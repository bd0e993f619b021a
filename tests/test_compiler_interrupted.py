"""An export that is interrupted, killed or short of room leaves nothing behind, at once or with the next export."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import edgepos
from edgepos.compiler import temporary_folder as folders
from edgepos.compiler import tokenizer_image
from edgepos.errors import EdgePosError
from edgepos.resources import tiny_model_dir

# The command line, which sends itself a signal when model.gguf is written (a number), or dies between the renames of --force ("renames").
CHILD = """
import os, signal, sys, time
from edgepos.cli import main
from edgepos.compiler import onnx_out
what, real, rename = sys.argv.pop(1), onnx_out.write, os.rename
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
def write(*arguments):
    if what.isdigit() and int(what):
        os.kill(os.getpid(), int(what))
        time.sleep(30)
    if what.startswith("swallowed"):
        try:
            os.kill(os.getpid(), int(what.split()[1]))
        except:
            pass
        time.sleep(30)
    return real(*arguments)
def die_after_moving_away(old, new):
    rename(old, new)
    if str(new).endswith(".old"):
        os._exit(9)
onnx_out.write = write
if what == "renames":
    os.rename = die_after_moving_away
main()
"""


def export(folder: Path, number: int | str = 0, name: str = "tiny-rope", *options: str, **process) -> subprocess.CompletedProcess:
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))
    what = number if isinstance(number, str) else str(int(number))
    command = [sys.executable, "-c", CHILD, what, "export", str(tiny_model_dir(name)), "-o", "m.edgepos", *options]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False, **process)


# "swallowed": where a library has a bare except, as mpmath.
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), ("swallowed 2", 130), ("swallowed 15", 143)])
def test_a_signal_leaves_nothing(tmp_path, number, code):
    done = export(tmp_path, number)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_export_leaves_goes_with_the_next(tmp_path):
    assert export(tmp_path, signal.SIGKILL).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert folders.NAME.fullmatch(left.name) and (left / "model.gguf").is_file()
    os.utime(left, (0, 0))
    with folders.temporary_folder(tmp_path) as busy:
        os.utime(busy, (0, 0))
        assert export(tmp_path).returncode == 0
        # The one in use stays, however old.
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([busy.name, "m.edgepos"])
    assert [p.name for p in tmp_path.iterdir()] == ["m.edgepos"]


def test_foreign_and_young_folders_stay(tmp_path):
    names = [".edgepos-0123456789abcdef.tmp", ".edgepos-x.tmp", "edgepos-0123456789abcdef.tmp", ".edgepos-0123456789abcdef.old"]
    for name in names:
        (tmp_path / name).mkdir()
    for name in names[1:]:
        os.utime(tmp_path / name, (0, 0))
    target = tmp_path / "elsewhere"
    target.mkdir()
    (tmp_path / ".edgepos-ffffffffffffffff.tmp").symlink_to(target)
    folders.remove_left(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, "elsewhere", ".edgepos-ffffffffffffffff.tmp"])


@pytest.mark.parametrize("room", [100_000, 300_000])
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, room):
    """A limit on the size of files stands for the disk: writes fail in the same place."""
    done = export(tmp_path, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)))
    assert done.returncode == 1
    lines = [line for line in done.stderr.strip().splitlines() if "error:" in line]
    assert len(lines) == 1 and "m.edgepos" in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_bundle_that_was_there_stays(tmp_path):
    assert export(tmp_path).returncode == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "m.edgepos").iterdir() if p.is_file()}
    done = export(tmp_path, signal.SIGKILL, "tiny-alibi", "--force")
    assert done.returncode == -signal.SIGKILL
    assert {p.name: p.read_bytes() for p in (tmp_path / "m.edgepos").iterdir() if p.is_file()} == before


def files_of(bundle: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in bundle.iterdir() if p.is_file()}


@pytest.mark.parametrize("force", [False, True])
def test_a_bundle_moved_away_by_a_killed_export_comes_back(tmp_path, force):
    assert export(tmp_path).returncode == 0
    before, bundle = files_of(tmp_path / "m.edgepos"), tmp_path / "m.edgepos"
    assert export(tmp_path, "renames", "tiny-alibi", "--force").returncode == 9
    assert not bundle.exists() and files_of(folders.old_folder(bundle)) == before
    if force:
        done = export(tmp_path, 0, "tiny-alibi", "--force")
        assert done.returncode == 0 and files_of(bundle) != before
    else:
        done = export(tmp_path, 0, "tiny-alibi")
        assert done.returncode == 1 and "exists already" in done.stderr and files_of(bundle) == before
    assert "m.edgepos: put back" in done.stderr and "Traceback" not in done.stderr
    assert not folders.old_folder(bundle).exists()


def test_what_is_no_bundle_is_not_put_back(tmp_path):
    path = tmp_path / "m.edgepos"
    old = folders.old_folder(path)
    old.mkdir()
    (old / "manifest.json").write_text("{}")
    assert not folders.put_back(path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("manifest.json", "model.gguf"):
        (elsewhere / name).write_text("{}")
    (old / "manifest.json").unlink()
    old.rmdir()
    old.symlink_to(elsewhere)
    assert not folders.put_back(path) and old.is_symlink()


def test_exports_to_one_name_take_turns(tmp_path):
    """Many threads replace one bundle: each finds a whole one, and nothing else is left."""
    path = tmp_path / "m.edgepos"

    def replace(number: int) -> None:
        for _ in range(20):
            with folders.temporary_folder(tmp_path) as folder:
                (folder / "manifest.json").write_text(str(number))
                (folder / "model.gguf").write_text(str(number))
                folders.move(folder, path, lambda: None)
            folders.put_back(path)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(replace, number) for number in range(8)]:
            done.result()
    assert [p.name for p in tmp_path.iterdir()] == ["m.edgepos"]
    assert (path / "manifest.json").read_text() == (path / "model.gguf").read_text()


def test_a_full_folder_of_temporary_files_names_the_bundle(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tokenizer_image, "write", full)
    with pytest.raises(EdgePosError, match=r"m\.edgepos: a temporary file cannot be written \(No space left.*TMPDIR"):
        edgepos.export_bundle(tiny_model_dir("tiny-rope"), tmp_path / "m.edgepos")
    assert list(tmp_path.iterdir()) == []
