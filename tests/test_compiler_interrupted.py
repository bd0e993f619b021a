"""An export that is interrupted, killed or short of room leaves nothing behind, at once or with the next export."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgepos.compiler import temporary_folder as folders
from edgepos.resources import tiny_model_dir

# The command line, which sends itself a signal when model.gguf is written.
CHILD = """
import os, signal, sys, time
from edgepos.cli import main
from edgepos.compiler import onnx_out
number, real = int(sys.argv.pop(1)), onnx_out.write
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background inherits that it is ignored
def write(*arguments):
    if number:
        os.kill(os.getpid(), number)
        time.sleep(30)
    return real(*arguments)
onnx_out.write = write
main()
"""


def export(folder: Path, number: int = 0, name: str = "tiny-rope", *options: str, **process) -> subprocess.CompletedProcess:
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))
    command = [sys.executable, "-c", CHILD, str(int(number)), "export", str(tiny_model_dir(name)), "-o", "m.edgepos", *options]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False, **process)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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
