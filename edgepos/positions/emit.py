"""Write a spec's tables into a folder, and check such a folder again.

`tables.json` names the spec, the context and the files; everything else can be derived from it, which is what `check` does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import ROUND_FLOOR, Context
from functools import partial
from pathlib import Path

import numpy as np

from ..bounded_file import read_bounded
from ..errors import FormatError, UnsupportedError
from ..export.shorten import shorten
from ..numpy_files import reading
from . import emit_absolute, emit_alibi, emit_bias, emit_rope
from .alibi import Alibi
from .compare import compare
from .hybrid import of_parts, parts_of
from .learned import Learned
from .none import NoPosition
from .plan import RotationPlan
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import Spec, check_choice, check_context, check_flag
from .table_file import FORMATS, TableFile, json_text

INDEX = "tables.json"
INDEX_VERSION = 1
_SIX_DIGITS = Context(prec=6, rounding=ROUND_FLOOR)  # digits of a measurement that every libm agrees on


def emit(
    spec: Spec | dict[str, Spec],
    directory: str | Path,
    context: int,
    bits: tuple[int, ...] = (16, 8),
    weights=None,
    formats: tuple[str, ...] = ("c", "npz"),
    per_tensor: bool = False,
) -> list[dict]:
    """Write the tables of `spec` for `context` positions into `directory` (made if missing).

    Rotary: rope_int16, rope_int8 (`bits`), rope_phase; ALiBi: alibi_slopes, alibi_int16, alibi_int8; sinusoidal: sinusoidal_int16,
    sinusoidal_int8 (2-D: those of one coordinate); T5: t5_bucket, with weights also t5_bias (int32), t5_int16, t5_int8; relative_bias,
    relative_int16, relative_int8 and learned_int16, learned_int8 need weights: the model's table [rows, heads] ([layers, rows, heads] for a
    spec with a table per layer) or [rows, dim]. per_tensor: one factor for a learned table instead of one per row or head. formats: "c" (.h and .c), "npz", "bin" (with a .json),
    "onnx" (every table but t5_bucket, rope_phase and alibi_slopes); tables.json comes with each, and learned tables always bring
    their .npz, which holds the learned values. A Hybrid or a dict of specs (from_config gives one for models whose layers differ)
    puts each part into a sub-folder, see `parts_of`; weights is then a dict with the parts' names. The same input gives the same
    bytes everywhere. Everything is derived before the first byte is written.

    Returns one dict per table: kind, method, bits, unit, bound (proven) and measured_max in that unit, bytes, files (and part);
    NoPosition and what has none of the formats write nothing and return [].
    Raises FormatError for a bad context or table, ContextError for one past a learned table (a dict's parts end where their tables do, if
    one of them goes on), UnsupportedError for a spec or a bit width that has no tables.
    """
    check_context(context)
    bits, formats, directory = tuple(bits), _check_formats(formats), Path(directory)
    parts = parts_of(spec)
    if parts is None:
        folders = {"": (spec, weights)}
    else:
        given = of_parts("weights", weights, parts)
        folders = {name: (part, given.get(name)) for name, part in parts.items()}
    lengths = _lengths(folders, context) if isinstance(spec, dict) else dict.fromkeys(folders, context)
    derived = {name: (part, *_tables(part, lengths[name], bits, given, formats, per_tensor)) for name, (part, given) in folders.items()}
    for name, (part, results, tables) in derived.items():
        if tables:
            (directory / name).mkdir(parents=True, exist_ok=True)
            for table in tables:
                table.write(directory / name)
            (directory / name / INDEX).write_text(_index(part, lengths[name], bits, formats, per_tensor, results), encoding="utf-8")
    written = {name: results for name, (_, results, tables) in derived.items() if tables}
    if parts is None:
        return written.get("", [])
    if written:
        (directory / INDEX).write_text(_parts_index({name: parts[name] for name in written}), encoding="utf-8")
    return [_in_part(name, result) for name, results in written.items() for result in results]


def _lengths(folders: dict[str, tuple], context: int) -> dict[str, int]:
    """Positions of each part of a dict: `context`, or what its learned table has where that is less and another part has more."""
    reach = {name: part.context if isinstance(part, Learned) else context for name, (part, _) in folders.items()}
    longest = max(reach.values(), default=context)
    return {name: min(context, own) if own < longest else context for name, own in reach.items()}


def check(directory: str | Path) -> list[dict]:
    """Derive everything again from tables.json and compare it with the files.

    Returns what `emit` returned. Raises FormatError naming the file and, for a table, the first entry that differs.
    """
    from . import from_json

    directory = Path(directory)
    index = _read_index(directory)
    if "parts" in index:
        return _check_parts(directory, index)
    try:
        spec, context, bits = from_json(index["spec"]), index["context"], tuple(index["bits"])
        formats, per_tensor = _check_formats(index["formats"]), check_flag("per_tensor", index.get("per_tensor", False))
    except (KeyError, TypeError) as error:
        raise FormatError(f"{INDEX}: {error!r}; allowed is what edgepos wrote") from None
    results, tables = _tables(spec, check_context(context), bits, stored_weights(directory), formats, per_tensor)
    for table in tables:
        compare(table, partial(_read, directory))
    if (directory / INDEX).read_text(encoding="utf-8") != _index(spec, context, bits, formats, per_tensor, results):
        raise FormatError(f"{INDEX} states other bounds or files than the proof gives; emit the tables again")
    return results


def check_parts_index(index: dict) -> dict:
    """Sub-folder → spec of an index with parts. Raises FormatError for names that are not those of sub-folders."""
    parts = index["parts"]
    if not isinstance(parts, dict) or any(not name or Path(name).name != name for name in parts):
        raise FormatError(f"{INDEX}: parts is {parts!r}; allowed is an object of sub-folders")
    return parts


def _check_parts(directory: Path, index: dict) -> list[dict]:
    results = []
    for name, spec in check_parts_index(index).items():
        if _read_index(directory / name, name).get("spec") != spec:
            raise FormatError(f"{name}/{INDEX} is of another spec than {INDEX} says; emit the tables again")
        try:
            results += [_in_part(name, result) for result in check(directory / name)]
        except FormatError as error:
            raise FormatError(f"{name}/{error}") from None
    return results


def _read(directory: Path, name: str) -> bytes:
    try:
        return read_bounded(directory / name, name)
    except OSError as error:
        raise FormatError(f"{name}: {error.strerror}; emit the tables again") from None


def _read_index(directory: Path, part: str = "") -> dict:
    try:
        index = json.loads(read_bounded(directory / INDEX, INDEX).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FormatError(f"{part}{'/' if part else ''}{INDEX}: {reason}; allowed is what edgepos wrote") from None
    if not isinstance(index, dict):
        raise FormatError(f"{INDEX} is no object; allowed is what edgepos wrote")
    return index


def _in_part(name: str, result: dict) -> dict:
    return {"part": name} | result | {"files": [f"{name}/{file}" for file in result["files"]]}


def _check_formats(formats) -> tuple[str, ...]:
    """The formats asked for. Raises UnsupportedError for one that is not known or for none."""
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UnsupportedError(f"formats is {shorten(list(formats))}; known are {', '.join(FORMATS)}")
    return tuple(formats)


def _parts_index(parts: dict[str, Spec]) -> str:
    return json_text({"version": INDEX_VERSION, "parts": {name: part.to_json() for name, part in parts.items()}})


def _index(
    spec: Spec, context: int, bits: tuple[int, ...], formats: tuple[str, ...], per_tensor: bool, results: list[dict]
) -> str:
    """The text of tables.json: what is proven, nothing that a libm could change."""
    results = [{key: value for key, value in r.items() if key != "measured_max"} for r in results]
    head = {"version": INDEX_VERSION, "spec": spec.to_json(), "context": context, "bits": list(bits), "formats": list(formats)}
    return json_text(head | ({"per_tensor": True} if per_tensor else {}) | {"tables": results})


def _tables(
    spec: Spec, context: int, bits: tuple[int, ...], weights, formats: tuple[str, ...], per_tensor: bool
) -> tuple[list[dict], list[TableFile]]:
    """The result and the files of every table of a spec."""
    from .emit_onnx import graph_of

    results, tables = [], []
    for result, table, plan in _rows(spec, context, bits, weights, per_tensor):
        table = replace(table, formats=formats, graph=graph_of(plan) if "onnx" in formats else None)
        if table.contents:  # not every table has an ONNX form
            results.append(result | {"files": list(table.contents)})
            tables.append(table)
    return results, tables


def _rows(spec: Spec, context: int, bits: tuple[int, ...], weights, per_tensor: bool) -> list[tuple[dict, TableFile, object]]:
    """The result, the table and the maker of the ONNX form (None: there is none) of everything a spec emits."""
    if isinstance(spec, NoPosition):
        rows = []
    elif isinstance(spec, Rotation):
        pairs = emit_rope.rope_tables(spec, context, bits)
        rows = [(_result(spec.encoding, p, f"1/{p.full_scale}", emit_rope.measured_error(p)) | _float32(p), t, p) for p, t in pairs]
    elif isinstance(spec, Alibi):
        rows = [(_alibi_result(p, context), t, p) for p, t in emit_alibi.alibi_tables(spec, context, bits)]
    elif isinstance(spec, (Sinusoidal, Sinusoidal2D)):
        pairs = emit_absolute.sinusoidal_tables(spec, context, bits)
        rows = [(_result(spec.encoding, p, f"1/{p.full_scale}", emit_absolute.sinusoidal_error(p)), t, p) for p, t in pairs]
    elif isinstance(spec, T5Bias) and weights is None:
        rows = [_bucket_row(spec)]
    elif isinstance(spec, (T5Bias, RelativeBias)) and weights is not None:
        pairs = emit_bias.bias_tables(spec, weights, _table_bits(bits), per_tensor)
        rows = [_bucket_row(spec)] if isinstance(spec, T5Bias) else []
        rows += [
            (_result(spec.encoding, p, "log2", emit_bias.bias_error(p, weights)) | {"bound_weight": p.bound_weight}, t, p)
            for p, t in pairs
        ]
    elif isinstance(spec, Learned) and weights is not None:
        spec.check_length(context)
        pairs = emit_absolute.learned_tables(spec, weights, bits, per_tensor)
        rows = [(_result("learned", p, "value", p.bound), t, p) for p, t in pairs]
    elif isinstance(spec, (RelativeBias, Learned)):
        raise UnsupportedError(f"{spec.encoding} tables need the model's learned table; give it as weights")
    else:
        raise UnsupportedError(f"spec is {type(spec).__name__}; tables are known for the encodings of positions.from_json")
    return rows


def stored_weights(directory: Path) -> np.ndarray | None:
    """The learned values that an .npz of the folder carries, if any does."""
    for path in sorted(directory.glob("*.npz")):
        with reading(path.name, "emit the tables again"), np.load(path, allow_pickle=False) as archive:
            if "source" in archive.files:
                return archive["source"]
    return None


def _table_bits(bits: tuple[int, ...]) -> tuple[int, ...]:
    """The widths of tables asked for. Raises UnsupportedError for others than 16 and 8."""
    return tuple(check_choice("bits", b, (16, 8)) for b in bits)


def _bucket_row(spec: T5Bias) -> tuple[dict, TableFile, None]:
    table = emit_bias.t5_bucket_file(spec)
    result = {"kind": "t5", "method": "bucket", "bits": 32, "unit": "bucket", "bound": 0.0, "measured_max": 0.0}
    return result | {"bytes": table.arrays["thresholds"].nbytes}, table, None


def _result(kind: str, plan, unit: str, measured: float) -> dict:
    return {
        "kind": kind,
        "method": plan.method,
        "bits": plan.bits,
        "unit": unit,
        "bound": plan.bound,
        "measured_max": float(_SIX_DIGITS.create_decimal(measured)),
        "bytes": plan.bytes,
    }


def _float32(plan: RotationPlan) -> dict:
    """The largest distance from the float32 computation, beside the bound against exact mathematics."""
    distance = plan.float32_distance
    return {} if distance is None else {"float32_bound": distance.bound}


def _alibi_result(plan, context: int) -> dict:
    slopes = plan.method == "slope"
    unit = "log2" if slopes else f"log2/2^{plan.fraction_bits}"
    result = _result("alibi", plan, unit, emit_alibi.measured_error(plan, context))
    result["bound_weight"] = plan.bound_weight
    return result if slopes else result | {"leak": plan.leak()}
