"""`python -m edgepos` is the `edgepos` command."""

from .cli import main

main()
