"""What is imported when: help is quick, and extras are extras."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgepos.resources import tiny_model_dir

HEAVY = {"numpy", "mpmath", "onnx", "onnx_ir", "onnxruntime", "gguf", "safetensors", "tokenizers", "cffi", "_cffi_backend", "jinja2", "matplotlib"}
EXTRAS = ("torch", "transformers", "matplotlib")

BLOCK = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in WITHOUT:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
sys.argv = ["edgepos", *ARGUMENTS]
from edgepos.cli import main
"""


def command(*arguments, without=(), then: str = "") -> str:
    """The output of `edgepos` in a process where some modules cannot be imported."""
    code = f"WITHOUT, ARGUMENTS = {without!r}, {[str(part) for part in arguments]!r}\n{BLOCK}try:\n    main()\nfinally:\n    {then or 'pass'}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("words", [[], ["export"], ["run"], ["report"], ["embed"], ["tables"], ["tables", "rope"], ["positions"], ["positions", "advise"], ["verify"]])
def test_help_imports_nothing_heavy(words):
    printed = command(*words, "--help", then="print('\\nimported', *{name.partition('.')[0] for name in sys.modules})")
    text, _, imported = printed.rpartition("\nimported ")
    assert "Usage" in text and "typer" in imported.split()
    assert HEAVY.isdisjoint(imported.split())


def test_importing_edgepos_imports_itself_alone():
    code = "import sys; before = set(sys.modules); import edgepos; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    others = {name for name in done.stdout.split() if name.partition(".")[0] not in sys.stdlib_module_names}
    assert others == {"edgepos", "edgepos.errors"}


def test_export_report_and_run_need_no_extra(tmp_path):
    target = tmp_path / "tiny.edgepos"
    assert "digest b1196b86df2074b0" in command("export", tiny_model_dir("tiny-rope"), "-o", target, without=EXTRAS)
    assert "identical" in command("selftest", target, without=EXTRAS)
    command("report", target, "--source", tiny_model_dir("tiny-rope"), "--max-tokens", 64, "--json", without=EXTRAS)
    for engine in ("c", "golden"):
        assert command("run", target, "-p", "Once upon a time", "-n", 8, "--engine", engine, without=EXTRAS).startswith("Once upon a time")
