"""Write a spec's tables into a folder, and check such a folder again.

`tables.json` names the spec, the context and the files; everything else can be derived from it, which is what `check` does.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import ROUND_FLOOR, Context
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..errors import FormatError, UnsupportedError
from . import emit_absolute, emit_alibi, emit_bias, emit_rope
from .alibi import Alibi
from .alibi_plan import BiasTablePlan
from .learned import Learned
from .none import NoPosition
from .plan import TablePlan
from .relative import RelativeBias, T5Bias
from .rope import Rotation
from .sinusoidal import Sinusoidal
from .spec import Spec, check_context
from .table_file import FORMATS, TableFile, json_text

INDEX = "tables.json"
INDEX_VERSION = 1
_SIX_DIGITS = Context(prec=6, rounding=ROUND_FLOOR)  # digits of a measurement that every libm agrees on


def emit(
    spec: Spec,
    directory: str | Path,
    context: int,
    bits: tuple[int, ...] = (16, 8),
    weights=None,
    formats: tuple[str, ...] = ("c", "npz"),
) -> list[dict]:
    """Write the tables of `spec` for `context` positions into `directory` (made if missing).

    Rotary: rope_int16, rope_int8 (`bits`), rope_phase; ALiBi: alibi_slopes, alibi_int16, alibi_int8; sinusoidal: sinusoidal_int16,
    sinusoidal_int8; T5: t5_bucket, with weights also t5_bias; relative_bias and learned_int16, learned_int8 need weights: the
    model's table [rows, heads] or [rows, dim]. formats: "c" (.h and .c), "npz", "bin" (with a .json), "onnx" (rotary and
    ALiBi tables); tables.json comes with each. The same input gives the same bytes everywhere.

    Returns one dict per table: kind, method, bits, unit, bound (proven) and measured_max in that unit, bytes, files;
    NoPosition writes nothing and returns [].
    Raises FormatError for a bad context or table, UnsupportedError for a spec or a bit width that has no tables.
    """
    check_context(context)
    results, tables = _tables(spec, context, tuple(bits), weights, _check_formats(formats))
    if not tables:
        return []
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write(directory)
    (directory / INDEX).write_text(_index(spec, context, bits, formats, results), encoding="utf-8")
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
        formats = _check_formats(index["formats"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{INDEX}: {error!r}; allowed is what edgepos wrote") from None
    results, tables = _tables(spec, check_context(context), bits, _stored_weights(directory), formats)
    for table in tables:
        _compare(directory, table)
    if (directory / INDEX).read_text(encoding="utf-8") != _index(spec, context, bits, formats, results):
        raise FormatError(f"{INDEX} states other bounds or files than the proof gives; emit the tables again")
    return results


def _check_formats(formats) -> tuple[str, ...]:
    """The formats asked for. Raises UnsupportedError for one that is not known or for none."""
    unknown = [f for f in formats if f not in FORMATS]
    if unknown or not formats:
        raise UnsupportedError(f"formats is {list(formats)}; known are {', '.join(FORMATS)}")
    return tuple(formats)


def _index(spec: Spec, context: int, bits: tuple[int, ...], formats: tuple[str, ...], results: list[dict]) -> str:
    """The text of tables.json: what is proven, nothing that a libm could change."""
    results = [{key: value for key, value in r.items() if key != "measured_max"} for r in results]
    head = {"version": INDEX_VERSION, "spec": spec.to_json(), "context": context, "bits": list(bits), "formats": list(formats)}
    return json_text(head | {"tables": results})


def _tables(
    spec: Spec, context: int, bits: tuple[int, ...], weights, formats: tuple[str, ...]
) -> tuple[list[dict], list[TableFile]]:
    """The result and the files of every table of a spec."""
    results, tables = [], []
    for result, table, plan in _rows(spec, context, bits, weights):
        table = replace(table, formats=formats, graph=_graph(plan) if "onnx" in formats else None)
        results.append(result | {"files": list(table.contents)})
        tables.append(table)
    return results, tables


def _graph(plan) -> bytes | None:
    """The ONNX form of a plan, where there is one."""
    from .emit_onnx import alibi_model, rope_model

    if isinstance(plan, TablePlan) and isinstance(plan.spec, Rotation) and plan.spec.axes is None:
        return rope_model(plan)
    return alibi_model(plan) if isinstance(plan, BiasTablePlan) else None


def _rows(spec: Spec, context: int, bits: tuple[int, ...], weights) -> list[tuple[dict, TableFile, object]]:
    """The result, the table and the plan of everything a spec emits."""
    if isinstance(spec, NoPosition):
        rows = []
    elif isinstance(spec, Rotation):
        pairs = emit_rope.rope_tables(spec, context, bits)
        rows = [(_result(spec.encoding, p, f"1/{p.full_scale}", emit_rope.measured_error(p)), t, p) for p, t in pairs]
    elif isinstance(spec, Alibi):
        rows = [(_alibi_result(p, context), t, p) for p, t in emit_alibi.alibi_tables(spec, context, bits)]
    elif isinstance(spec, Sinusoidal):
        pairs = emit_absolute.sinusoidal_tables(spec, context, bits)
        rows = [(_result("sinusoidal", p, f"1/{p.full_scale}", emit_absolute.sinusoidal_error(p)), t, p) for p, t in pairs]
    elif isinstance(spec, T5Bias) and weights is None:
        rows = [_bucket_row(spec)]
    elif isinstance(spec, (T5Bias, RelativeBias)) and weights is not None:
        pairs = emit_bias.bias_tables(spec, weights)
        rows = [_bucket_row(spec)] if isinstance(spec, T5Bias) else []
        rows += [
            (_result(spec.encoding, p, "log2", emit_bias.bias_error(p, weights)) | {"bound_weight": p.bound_weight}, t, p)
            for p, t in pairs
        ]
    elif isinstance(spec, Learned) and weights is not None:
        pairs = emit_absolute.learned_tables(spec, weights, bits)
        rows = [(_result("learned", p, "value", p.bound), t, p) for p, t in pairs]
    elif isinstance(spec, (RelativeBias, Learned)):
        raise UnsupportedError(f"{spec.encoding} tables need the model's learned table; give it as weights")
    else:
        known = "rotary, Alibi, Sinusoidal, T5Bias, RelativeBias, Learned, NoPosition"
        raise UnsupportedError(f"spec is {type(spec).__name__}; tables are known for {known} (of a hybrid, emit each part)")
    return rows


def _stored_weights(directory: Path) -> np.ndarray | None:
    """The learned values that an .npz of the folder carries, if any does."""
    for path in sorted(directory.glob("*.npz")):
        try:
            with np.load(path, allow_pickle=False) as archive:
                if "source" in archive.files:
                    return archive["source"]
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise FormatError(f"{path.name}: {error}; emit the tables again") from None
    return None


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


def _alibi_result(plan, context: int) -> dict:
    slopes = plan.method == "slope"
    unit = "log2" if slopes else f"log2/2^{plan.fraction_bits}"
    result = _result("alibi", plan, unit, emit_alibi.measured_error(plan, context))
    result["bound_weight"] = plan.bound_weight
    return result if slopes else result | {"leak": plan.leak()}


def _compare(directory: Path, table: TableFile) -> None:
    for name, expected in table.contents.items():
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
            found = {name: archive[name] for name in table.npz_arrays()}
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise FormatError(f"{path.name}: {error}; emit the tables again") from None
    for name, expected in table.npz_arrays().items():
        if found[name].shape != expected.shape or found[name].dtype != expected.dtype:
            kind, allowed = (f"{a.dtype} {list(a.shape)}" for a in (found[name], expected))
            raise FormatError(f"{path.name}: {name} is {kind}; allowed is {allowed}")
        wrong = np.argwhere(found[name] != expected)
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise FormatError(f"{path.name}: {name}{list(at)} is {found[name][at]}; the derived value is {expected[at]}")
