"""The version of the package that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("edgepos")
except PackageNotFoundError:  # a source tree that was not installed
    VERSION = "0+source"
