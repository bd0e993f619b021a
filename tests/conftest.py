"""Fixtures every test may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared models and texts: EDGEPOS_SHARED, or ../shared beside the repository."""
    folder = Path(os.environ.get("EDGEPOS_SHARED", ROOT.parent / "shared"))
    if not (folder / "models").is_dir():
        reason = f"no shared models in {folder.name}/; set EDGEPOS_SHARED to the folder that holds models/ and text/"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def edgepos_run(tmp_path_factory) -> Path:
    """The C program."""
    from c_program import compile_program

    return compile_program(tmp_path_factory.mktemp("program") / "edgepos-run")


@pytest.fixture(scope="session")
def sanitized_edgepos_run(tmp_path_factory) -> Path:
    """The C program with sanitizers, not optimized."""
    from c_program import SANITIZED, compile_program

    return compile_program(tmp_path_factory.mktemp("sanitized") / "edgepos-run", SANITIZED)


@pytest.fixture(scope="session")
def bundle(request, root, tmp_path_factory):
    """bundle(name, kv="kv16", activations="a16"): stories260K or a model of examples/ as an opened bundle, exported once per run of the tests."""
    made = {}
    folder = tmp_path_factory.mktemp("bundles")

    def get(name: str, kv: str = "kv16", activations: str = "a16"):
        key = f"{name}-{activations}-{kv}"
        if key not in made:
            import edgepos

            found = [path for path in (root / "examples" / group / name for group in ("tiny", "positions")) if path.is_dir()]
            source = found[0] if found else request.getfixturevalue("shared") / "models" / name / f"{name}.bin"
            made[key] = edgepos.export_bundle(source, folder / f"{key}.edgepos", kv=kv, activations=activations)
        return made[key]

    return get
