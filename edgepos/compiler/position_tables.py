"""The tables/ folder of a bundle: the position encoding of a program as tables for other runtimes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..positions import Hybrid, NoPosition, Spec, emit
from ..positions.distances import learned_rows
from .steps import FloatProgram, Place


def emit_tables(source: FloatProgram, folder: Path, context: int) -> list[dict]:
    """Write the tables of every encoding in the model; returns what `positions.emit.emit` returns for each.

    Of a hybrid with more than one encoding, each has a sub-folder named after it, with a number where two are of one kind.
    """
    parts = [(spec, weights) for spec, weights in encodings(source) if spec != NoPosition()]
    results = []
    for spec, weights in parts:
        same = [other for other, _ in parts if other.encoding == spec.encoding]
        number = f"-{same.index(spec) + 1}" if len(same) > 1 else ""
        target = folder if len(parts) == 1 else folder / f"{spec.encoding}{number}"
        results += emit.emit(spec, target, context, weights=weights)
    return results


def encodings(source: FloatProgram) -> list[tuple[Spec, np.ndarray | None]]:
    """(spec, the model's learned table or None) of each different encoding."""
    spec = source.positions()
    specs = (spec.embedding, *spec.kinds()) if isinstance(spec, Hybrid) else (spec,)
    learned: dict[Spec, np.ndarray] = {step.spec: source.read(step.table) for step in source.steps if isinstance(step, Place)}
    for bias in dict.fromkeys(step.relative for step in source.layers() if step.relative is not None):
        layers = [step for step in source.layers() if step.relative == bias]
        tables = [learned_rows(bias, source.read(step.bias), step.both) for step in (layers if bias.layers is not None else layers[:1])]
        learned[bias] = tables[0] if bias.layers is None else np.stack(tables)
    return [(part, learned.get(part)) for part in dict.fromkeys(specs)]
