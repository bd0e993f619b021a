"""What the error consists of, and which change would lower it most: matrices put back to the source's floats, one at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ..compiler.dequantize import dequantized_weights
from ..compiler.source_grid import quantize_w4
from ..compiler.weights import dequantize, quantize
from ..float_session import FloatSession
from ..golden_session import GoldenSession
from ..program import GROUP, NONE, POSITIONS, W4G32, Op, Program
from .layers import sqnr_db
from .metrics import kl_divergence, log_softmax

MOST = 48  # matrices that are swapped
ROWS = 256  # of a matrix that a format is tried on
FINEST = "w8g32"
FORMATS = (FINEST, "w8", "w4g32")


def measure_changes(
    program: Program,
    model: ir.Model,
    ids: list[int],
    layers: list[dict],
    wide_cache: Program | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict:
    """The `changes` section: parts of the error and every matrix, the one whose rounding costs most first.

    `ids` is one window, `layers` its `trace_layers`. Swaps are measured on the float graph with the bundle's dequantized weights, for the
    MOST matrices whose operators have the lowest own SQNR. The measure is the mean KL divergence from the float graph in nats per
    token, of an embedding 1 − cosine. wide_cache: the same program with a 16-bit KV cache, for one that has 8 bits.
    """
    swaps = Swaps(program, model, ids)
    matrices = _matrices(program, layers)
    for entry in matrices:
        entry.update(swaps.formats(entry["matrix"], entry["format"]))
    tried = [entry for entry in matrices if entry["sqnr_db"] is not None][:MOST]
    for done, entry in enumerate(tried):
        entry["without"] = swaps.error({entry["matrix"]: swaps.source(entry["matrix"])})
        entry["saves"] = swaps.base - entry["without"]
        if progress is not None:
            progress(done + 1, len(tried))
    matrices.sort(key=lambda entry: -entry.get("saves", -np.inf))
    return {
        "measure": "1 - cosine" if program.embedding else "KL divergence, nats per token",
        "tokens": len(ids),
        "total": swaps.total,
        "weights": swaps.base,
        "arithmetic": swaps.distance(swaps.rounded, swaps.integers),
        "matrices": matrices,
        "suggestions": _suggestions(swaps, matrices, wide_cache),
    }


class Swaps:
    """The float graph with a bundle's dequantized weights, any of which can be replaced for one run."""

    def __init__(self, program: Program, model: ir.Model, ids: list[int]):
        self.program, self.ids = program, ids
        self.output = "embedding" if program.embedding else "logits"
        self.floats = {name: value.const_value for name, value in model.graph.initializers.items()}
        self.own = {name: array for name, array in dequantized_weights(program).items() if name in self.floats}
        self.reference = self._run(FloatSession(model), {})
        opened = model.clone()
        for name in self.own:
            opened.graph.inputs.append(opened.graph.initializers[name])  # ONNX: an initializer that is an input too may be fed
        self.session = FloatSession(opened, weights=self.own)
        self.rounded = self._run(self.session, {})
        self.base = self.distance(self.reference, self.rounded)
        self.integers = self.run_integers(program)
        self.total = self.distance(self.reference, self.integers)

    def run_integers(self, program: Program) -> np.ndarray:
        """What an integer program gives for the tokens."""
        session = GoldenSession(program, len(self.ids))
        return session.embed(self.ids)[None] if program.embedding else session.eval(self.ids)

    def source(self, name: str) -> np.ndarray:
        """The source's float32 weights."""
        return np.asarray(self.floats[name].numpy(), np.float32)

    def error(self, weights: dict[str, np.ndarray]) -> float:
        """The measure with some weights replaced."""
        return self.distance(self.reference, self._run(self.session, weights))

    def distance(self, reference: np.ndarray, other: np.ndarray) -> float:
        """The measure between two outputs [n, d]."""
        if self.program.embedding:
            a, b = np.float64(reference[0]), np.float64(other[0])
            return float(1 - a @ b / np.sqrt((a @ a) * (b @ b)))
        return float(kl_divergence(log_softmax(reference), log_softmax(other)).mean())

    def _run(self, session: FloatSession, weights: dict[str, np.ndarray]) -> np.ndarray:
        output = session.values(self.ids, [self.output], weights)[self.output]
        return output.reshape(-1, output.shape[-1])

    def formats(self, name: str, used: str) -> dict:
        """{"sqnr_db": of the weights as they are, "alternatives": {format: {sqnr_db, bytes}}}, on at most ROWS rows."""
        if name not in self.own:
            return {"sqnr_db": None, "alternatives": {}}
        rows = np.unique(np.linspace(0, len(self.own[name]) - 1, ROWS).astype(int))
        exact = self.source(name)[rows]
        found = {form: {"sqnr_db": sqnr_db(exact, in_format(exact, form)), "bytes": size_in(form, *self.own[name].shape)} for form in FORMATS if form != used}
        return {"sqnr_db": sqnr_db(exact, self.own[name][rows]), "alternatives": found}


def in_format(weight: np.ndarray, form: str) -> np.ndarray:
    """Float32 weights [rows, cols] as they come back from a format."""
    q = quantize_w4(weight) if form == "w4g32" else quantize(weight, form)
    return dequantize(q.w, q.g, q.row, weight.shape[1], q.form)


def size_in(form: str, rows: int, cols: int) -> int:
    """Bytes of a matrix with its scales."""
    groups = -(-cols // GROUP)
    return rows * (8 + groups * {"w8": 32, "w8g32": 34, "w4g32": 20}[form])


def _matrices(program: Program, layers: list[dict]) -> list[dict]:
    """One entry per matrix with the operators that read it and its format, the one with the lowest own SQNR first."""
    own = {layer["name"]: layer["own_sqnr_db"] for layer in layers}
    found: dict[int, dict] = {}
    for op in program.ops:
        if op.code not in (Op.LINEAR, Op.EMBED):
            continue
        form = "w4g32" if op.params.get("form") == W4G32 else "w8" if op.tensors[1] == NONE else "w8g32"
        size = sum(program.arrays[t].nbytes for t in op.tensors[:3] if t != NONE)
        entry = found.setdefault(op.tensors[0], {"matrix": program.names[op.tensors[0]], "operators": [], "format": form, "bytes": size})
        entry["operators"].append(op.name)
    least = {id(e): min((own.get(name) or np.inf for name in e["operators"])) for e in found.values()}
    return sorted(found.values(), key=lambda e: least[id(e)])


def _suggestions(swaps: Swaps, matrices: list[dict], wide_cache: Program | None) -> list[dict]:
    """The three changes that lower the measure most, each measured alone, with the options of `edgepos export` that make them.

    bytes: of the model, more (or of the cache, null). flags is null where no option makes the change: it tells where the error is.
    """
    found = []
    if wide_cache is not None:
        saves = swaps.total - swaps.distance(swaps.reference, swaps.run_integers(wide_cache))
        found.append({"what": "a KV cache of 16 bits", "flags": "--kv kv16", "saves": saves, "bytes": None})
    places = {swaps.program.names[op.tensors[0]] for op in swaps.program.ops if op.params.get("source") == POSITIONS}
    coarse = [e for e in matrices if e["format"] != FINEST and e["matrix"] in swaps.own and e["matrix"] not in places]
    if coarse:
        finer = {e["matrix"]: in_format(swaps.source(e["matrix"]), FINEST) for e in coarse}
        grows = sum(e["alternatives"][FINEST]["bytes"] - e["bytes"] for e in coarse)
        found.append({"what": f"all matrices in {FINEST}", "flags": f"--weights {FINEST}", "saves": swaps.base - swaps.error(finer), "bytes": grows})
    for entry in matrices[:3]:
        found.append({"what": f"{entry['matrix']} without any rounding", "flags": None, "saves": entry.get("saves", 0.0), "bytes": None})
    return [change for change in sorted(found, key=lambda change: -change["saves"]) if change["saves"] > 0][:3]
