"""Boards and the tools they need, for tests."""

from __future__ import annotations

import os

import pytest

from edgepos.targets import tools


def require(*programs: str) -> None:
    """Skip the test where a program is not installed; fail in CI, where all are."""
    absent = tools.missing(*programs)
    if not absent:
        return
    reason = "; ".join(f"{program} is not installed (Debian: {tools.PACKAGES.get(program, program)})" for program in absent)
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
