"""The `peers` section: figures of other engines, where they were measured on the same text. peers.json has those of docs/accuracy.md."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from ..errors import FormatError
from ..export.json_files import read_json_object

MEASURED = Path(__file__).with_name("peers.json")
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


def on_the_same_text(rows: list[dict], accuracy: dict, source_sha256: Collection[str] = ()) -> list[dict]:
    """Rows of the text and number of predictions of an accuracy section, closest first: name, and what is known of FIGURES.

    Rows that say of which source they are (source_sha256) are left out for another one, and of several rows with a name all but the first.
    """
    found = {}
    for row in rows:
        same = row["text_sha256"] == accuracy["text_sha256"] and row.get("tokens") == accuracy["tokens"]
        if same and row.get("source_sha256") in (None, *source_sha256):
            found.setdefault(row["format"], {"name": row["format"], **{key: row.get(key) for key in FIGURES}})
    return sorted(found.values(), key=lambda row: float("inf") if row["kl_mean"] is None else row["kl_mean"])
