"""A thousand damaged files of every kind: refused with a named error or run, never a crash, a hang or a large allocation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import gguf
import pytest
from gguf_models import write_gguf
from hf_models import VOCAB, make_llama
from rich.table import Table

import edgepos
from edgepos.cli_common import SafeConsole

BATCH = 250
TIMEOUT = 600
SIZES = dict(hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=2, vocab_size=VOCAB)
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """kind → folder with the valid files."""
    folder = tmp_path_factory.mktemp("valid")
    model = make_llama(folder / "safetensors", tie_word_embeddings=True, **SIZES)
    for kind in ("gguf", "bundle"):
        (folder / kind).mkdir()
    write_gguf(folder / "gguf" / "model.gguf", model, "llama", lambda name: gguf.GGMLQuantizationType.Q4_1)
    bundle = edgepos.export_bundle(folder / "safetensors", folder / "m.edgepos")
    os.replace(bundle.model_path, folder / "bundle" / "model.gguf")
    return folder


@pytest.mark.parametrize("batch", range(4))
@pytest.mark.parametrize("kind", ["bundle", "gguf", "safetensors"])
def test_damaged_files_give_named_errors(valid, kind, batch):
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, HERE / "hostile.py", kind, valid / kind, str(batch * BATCH), str(BATCH)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == BATCH
    assert outcomes["refused"] > BATCH / 4, "mutations that change nothing test nothing"


def test_errors_do_not_drive_the_terminal(tmp_path):
    """Names come from files: escape sequences, C1 controls and marks that turn the writing direction are printed as escapes."""
    name = "a\x1b[2J\x9b31m\u202e\n.gguf"
    path = os.pathsep.join(os.path.abspath(p) for p in sys.path if p and os.path.isdir(p))
    done = subprocess.run([sys.executable, "-m", "edgepos", "selftest", str(tmp_path / name)], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=TIMEOUT, check=False)  # fmt: skip
    assert done.returncode == 1
    assert r"a\x1b[2J\x9b31m\u202e .gguf" in done.stderr
    assert done.stderr.rstrip("\n").isprintable()


def test_tables_do_not_drive_the_terminal(capsys):
    """What a model calls itself is printed as it is read, neither as control characters nor as markup."""
    table = Table(show_header=False)
    table.add_row("name", "m\x1b]0;title\x07 [red]x[/red]")
    SafeConsole(file=sys.stdout).print(table)
    printed = capsys.readouterr().out
    assert r"m\x1b]0;title\x07 [red]x[/red]" in printed
    assert printed.replace("\n", "").isprintable()
