"""Showing values from hostile files in one-line messages."""

from __future__ import annotations

from typing import Any


def shorten(value: Any) -> str:
    """repr of ``value``: one line, printable, at most 60 characters."""
    try:
        text = ascii(value)
    except ValueError:  # an integer too long to print
        return "a number too large to print"
    return text if len(text) <= 60 else text[:57] + "..."
