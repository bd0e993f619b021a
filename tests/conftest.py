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
