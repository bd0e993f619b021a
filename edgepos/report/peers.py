"""The `peers` section: figures of other engines, where they were measured on the same text."""

from __future__ import annotations

from pathlib import Path

from ..errors import FormatError
from ..export.json_files import read_json_object

FIGURES = ("kl_mean", "top1_agreement", "perplexity", "bytes")


def read_peers(file: Path) -> list[dict]:
    """The rows of a .json file: {"rows": [{"format", "text_sha256", "tokens", and of kl_mean, top1_agreement, perplexity, bytes what is known}]}.

    bench/accuracy.py --json writes such a file. Rows without a text_sha256 are left out. Raises FormatError naming the row that has
    not this form.
    """
    rows = read_json_object(file).get("rows")
    if not isinstance(rows, list):
        raise FormatError(f"{file}: no list under 'rows'; give a file that bench/accuracy.py --json wrote")
    found = []
    for number, row in enumerate(rows):
        if not isinstance(row, dict) or not isinstance(row.get("format"), str):
            raise FormatError(f"{file}: row {number} has no text under 'format'")
        for key in FIGURES:
            if isinstance(row.get(key, 0), bool) or not isinstance(row.get(key, 0), (int, float)):
                raise FormatError(f"{file}: row {number} has {key} {row[key]!r}; a number is needed")
        if "text_sha256" in row:
            found.append(row)
    return found


def on_the_same_text(rows: list[dict], accuracy: dict) -> list[dict]:
    """Rows of the text and number of predictions of an accuracy section: name, and what is known of FIGURES."""
    same = (row for row in rows if row["text_sha256"] == accuracy["text_sha256"] and row.get("tokens") == accuracy["tokens"])
    return [{"name": row["format"], **{key: row.get(key) for key in FIGURES}} for row in same]
