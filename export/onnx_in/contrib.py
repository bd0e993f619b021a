"""Operators of com.microsoft and of new opsets, in terms of the plain ones."""

from __future__ import annotations

OPERATORS: dict = {}
