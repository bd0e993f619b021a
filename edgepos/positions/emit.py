"""Write a spec's tables into a folder, and check such a folder again.

`tables.json` names the spec, the context and the files; everything else can be derived from it, which is what `check` does.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ..errors import FormatError, UnsupportedError
from . import emit_alibi, emit_rope
from .alibi import Alibi
from .none import NoPosition
from .rope import Rotation
from .spec import Spec, check_context
from .table_file import TableFile, json_text

INDEX = "tables.json"
INDEX_VERSION = 1


def emit(spec: Spec, directory: str | Path, context: int, bits: tuple[int, ...] = (16, 8)) -> list[dict]:
    """Write the tables of `spec` for `context` positions into `directory` (made if missing).

    RoPE: rope_int16, rope_int8 (`bits`), rope_phase; ALiBi: alibi_slopes, alibi_int16, alibi_int8; each as .h, .c and .npz, and
    tables.json. The same spec gives the same bytes everywhere. Returns one dict per table: kind, method, bits, unit, bound
    (proven) and measured_max in that unit, bytes, files. NoPosition writes nothing and returns [].
    Raises FormatError for a bad context, UnsupportedError for a spec or a bit width that has no tables.
    """
    check_context(context)
    results, tables = _tables(spec, context, tuple(bits))
    if not tables:
        return []
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write(directory)
    (directory / INDEX).write_text(_index(spec, context, bits, results), encoding="utf-8")
    return results


def check(directory: str | Path) -> list[dict]:
    """Derive everything again from tables.json and compare it with the files.

    Returns what `emit` returned. Raises FormatError naming the file and, for a table, the first entry that differs.
    """
    from . import from_json

    directory = Path(directory)
    try:
        index = json.loads((directory / INDEX).read_text(encoding="utf-8"))
        spec, context, bits = from_json(index["spec"]), index["context"], tuple(index["bits"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{INDEX}: {error!r}; allowed is what edgepos wrote") from None
    results, tables = _tables(spec, check_context(context), bits)
    for table in tables:
        _compare(directory, table)
    if (directory / INDEX).read_text(encoding="utf-8") != _index(spec, context, bits, results):
        raise FormatError(f"{INDEX} states other bounds or files than the proof gives; emit the tables again")
    return results


def _index(spec: Spec, context: int, bits: tuple[int, ...], results: list[dict]) -> str:
    """The text of tables.json: what is proven, nothing that a libm could change."""
    results = [{key: value for key, value in r.items() if key != "measured_max"} for r in results]
    return json_text({"version": INDEX_VERSION, "spec": spec.to_json(), "context": context, "bits": list(bits), "tables": results})


def _tables(spec: Spec, context: int, bits: tuple[int, ...]) -> tuple[list[dict], list[TableFile]]:
    if isinstance(spec, Rotation):
        pairs = emit_rope.rope_tables(spec, context, bits)
        results = [_result(spec.encoding, p, f"1/{p.full_scale}", p.bound, emit_rope.measured_error(p), t) for p, t in pairs]
    elif isinstance(spec, Alibi):
        pairs = emit_alibi.alibi_tables(spec, context, bits)
        results = [_alibi_result(p, t, context) for p, t in pairs]
    elif isinstance(spec, NoPosition):
        return [], []
    else:
        raise UnsupportedError(f"spec is {type(spec).__name__}; tables are known for the rotary encodings, Alibi and NoPosition")
    return results, [table for _, table in pairs]


def _result(kind: str, plan, unit: str, bound: float, measured: float, table: TableFile) -> dict:
    return {
        "kind": kind,
        "method": plan.method,
        "bits": plan.bits,
        "unit": unit,
        "bound": bound,
        "measured_max": float(f"{measured:.6g}"),
        "bytes": plan.bytes,
        "files": list(table.contents()),
    }


def _alibi_result(plan, table: TableFile, context: int) -> dict:
    slopes = plan.method == "slope"
    unit = "log2" if slopes else f"log2/2^{plan.fraction_bits}"
    result = _result("alibi", plan, unit, plan.bound, emit_alibi.measured_error(plan, context), table)
    result["bound_weight"] = plan.bound_weight
    return result if slopes else result | {"leak": plan.leak()}


def _compare(directory: Path, table: TableFile) -> None:
    for name, expected in table.contents().items():
        try:
            found = (directory / name).read_bytes()
        except OSError as error:
            raise FormatError(f"{name}: {error.strerror}; emit the tables again") from None
        if found == expected:
            continue
        if name.endswith(".npz"):
            _compare_arrays(directory / name, table)
        lines = zip(found.split(b"\n"), expected.split(b"\n"))
        line = next((n for n, (a, b) in enumerate(lines, 1) if a != b), None)
        where = f"line {line}" if line and not name.endswith(".npz") else "its length or its description"
        raise FormatError(f"{name} differs from the derived table at {where}; emit the tables again")


def _compare_arrays(path: Path, table: TableFile) -> None:
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = {name: archive[name] for name in table.arrays}
    except (OSError, ValueError, KeyError) as error:
        raise FormatError(f"{path.name}: {error}; emit the tables again") from None
    for name, expected in table.arrays.items():
        if found[name].shape != expected.shape or found[name].dtype != expected.dtype:
            raise FormatError(f"{path.name}: {name} is {found[name].dtype} {found[name].shape}; allowed is {expected.dtype} {expected.shape}")
        wrong = np.argwhere(found[name] != expected)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise FormatError(f"{path.name}: {name}{list(at)} is {found[name][at]}; the derived value is {expected[at]}")
