"""What the error consists of, and which change would lower it most: matrices put back to the source's floats, one at a time."""

from __future__ import annotations

import glob
import shlex
from collections.abc import Callable, Collection

import numpy as np
import onnx_ir as ir

from ..compiler.dequantize import dequantized_weights
from ..compiler.options import SOURCE
from ..compiler.source_grid import quantize_w4
from ..compiler.weights import dequantize, quantize
from ..float_session import FloatSession
from ..golden_session import GoldenSession
from ..program import GROUP, NONE, POSITIONS, Op, Program
from .layers import sqnr_db
from .metrics import kl_divergence, log_softmax

MOST = 48  # matrices that are swapped
ROWS = 256  # of a matrix that a format is tried on
KEPT_DB = 80.0  # the integers of a source lose only by the 16 bits of their scales, w16g32 by its own
FORMATS = ("w16g32", "w8g32", "w8", "w4g32")
FINER = {"w4g32": "w8g32", "w8": "w8g32", "w8g32": "w16g32"}


def measure_changes(
    program: Program,
    model: ir.Model,
    texts: list[list[int]],
    layers: list[dict],
    *,
    reference=None,
    session=None,
    kept: Collection[str] = (),
    globs: bool = False,
    wide_cache: Program | None = None,
    threads: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> dict:
    """The `changes` section: parts of the error and every matrix, the one whose rounding costs most first.

    `texts` are windows of token ids, each from an empty cache, or images; `layers` is the `trace_layers` of one. Swaps are measured on the float
    graph with the bundle's dequantized weights, for the MOST matrices whose operators have the lowest own SQNR. The measure is the mean
    KL divergence from the float graph in nats per token, of embeddings the mean of 1 − cosine. reference, session: sessions of the float
    graph and of the program, where there are some. kept: matrices whose source holds
    integers, which the format "source" keeps. globs: the bundle has formats of single matrices. wide_cache: the same program with a
    16-bit KV cache, for one that has 8 bits. threads: of the float graph; 0: as many as there are cores.
    """
    swaps = Swaps(program, model, texts, reference, session, threads)
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
        "tokens": len(texts) * program.header.context if program.image else sum(map(len, texts)),
        "total": swaps.total,
        "weights": swaps.base,
        "arithmetic": swaps.arithmetic,
        "matrices": matrices,
        "suggestions": _suggestions(swaps, matrices, kept, globs, wide_cache),
    }


class Swaps:
    """The float graph with a bundle's dequantized weights, any of which can be replaced for one run over the texts."""

    def __init__(self, program: Program, model: ir.Model, texts: list[list[int]], reference=None, session=None, threads: int = 0):
        self.program, self.texts = program, texts
        self.output = "embedding" if program.embedding else "logits"
        self.floats = {name: value.const_value for name, value in model.graph.initializers.items()}
        self.own = {name: array for name, array in dequantized_weights(program).items() if name in self.floats}
        self.reference = self._outputs(reference or FloatSession(model, threads=threads))
        opened = model.clone()
        for name in self.own:
            opened.graph.inputs.append(opened.graph.initializers[name])  # ONNX: an initializer that is an input too may be fed
        self.session = FloatSession(opened, weights=self.own, threads=threads)
        rounded = self._run(self.session, {})
        self.base = self.distance(self.reference, rounded)
        integers = self._outputs(session or self._golden(program))
        self.total = self.distance(self.reference, integers)
        self.arithmetic = self.distance(rounded, integers)

    def run_integers(self, program: Program) -> np.ndarray:
        """What an integer program gives for the texts, as `distance` takes it."""
        return self._outputs(self._golden(program))

    def source(self, name: str) -> np.ndarray:
        """The source's float32 weights."""
        return np.asarray(self.floats[name].numpy(), np.float32)

    def error(self, weights: dict[str, np.ndarray]) -> float:
        """The measure with some weights replaced."""
        return self.distance(self.reference, self._run(self.session, weights))

    def distance(self, reference: np.ndarray, other: np.ndarray) -> float:
        """The measure between two outputs [n, d] of `_run`."""
        if self.program.embedding:
            return float(1 - (reference * other).sum(axis=1).mean())
        return float(kl_divergence(reference, other).mean())

    def _golden(self, program: Program) -> GoldenSession:
        return GoldenSession(program, None if program.image else max(map(len, self.texts)))

    def _outputs(self, session) -> np.ndarray:
        embed, found = session.embed_image if self.program.image else session.embed if self.program.embedding else None, []
        for ids in self.texts:
            session.reset()
            found.append(session.eval(ids) if embed is None else embed(ids)[None])
        return self._comparable(found)

    def _run(self, session: FloatSession, weights: dict[str, np.ndarray]) -> np.ndarray:
        outputs = (session.values(ids, [self.output], weights)[self.output] for ids in self.texts)
        return self._comparable([output.reshape(-1, output.shape[-1]) for output in outputs])

    def _comparable(self, outputs: list[np.ndarray]) -> np.ndarray:
        """Log probabilities [tokens, vocab], or embeddings of norm 1 [texts, d]; float64."""
        if not self.program.embedding:
            return log_softmax(outputs[0] if len(outputs) == 1 else np.concatenate(outputs))
        rows = np.float64(np.concatenate(outputs))
        return rows / np.sqrt((rows * rows).sum(axis=1, keepdims=True))

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
    return rows * (8 + groups * {"w8": 32, "w8g32": 34, "w4g32": 20, "w16g32": 68}[form])


def _matrices(program: Program, layers: list[dict]) -> list[dict]:
    """One entry per matrix with the operators that read it and its format, the one with the lowest own SQNR first."""
    own = {layer["name"]: layer["own_sqnr_db"] for layer in layers}
    found: dict[int, dict] = {}
    for op in program.ops:
        if op.code not in (Op.LINEAR, Op.EMBED):
            continue
        size = sum(program.arrays[t].nbytes for t in op.tensors[:3] if t != NONE)
        entry = found.setdefault(op.tensors[0], {"matrix": program.names[op.tensors[0]], "operators": [], "format": op.weight_format, "bytes": size})
        entry["operators"].append(op.name)
    least = {id(e): min((own.get(name) or np.inf for name in e["operators"])) for e in found.values()}
    return sorted(found.values(), key=lambda e: least[id(e)])


def _suggestions(swaps: Swaps, matrices: list[dict], kept: Collection[str], globs: bool, wide_cache: Program | None) -> list[dict]:
    """The three changes that lower the measure most, each measured alone, with the options of `edgepos export` that make them.

    bytes: of the model, more (or of the cache or not known before, null). flags, behind those the bundle was exported with, is null where
    no option makes the change: it tells where the error is.
    """
    found = []
    if wide_cache is not None:
        saves = swaps.total - swaps.distance(swaps.reference, swaps.run_integers(wide_cache))
        found.append({"what": "a KV cache of 16 bits", "flags": "--kv kv16", "saves": saves, "bytes": None})
    tokens, places = (
        {swaps.program.names[op.tensors[0]] for op in swaps.program.ops if op.code == Op.EMBED and (op.params["source"] == POSITIONS) == by_position}
        for by_position in (False, True)
    )
    own = set(kept) - tokens  # a table of token ids is kept in any format
    coarse = {e["matrix"]: e for e in matrices if e["matrix"] in swaps.own and e["matrix"] not in places and (e["sqnr_db"] or np.inf) < KEPT_DB}

    def changed(name: str, form: str) -> tuple[np.ndarray, int | None]:
        """The weights of a matrix in another format, and the bytes that it has more."""
        if form == SOURCE and name in own:
            return swaps.source(name), None
        form = FINER["w8"] if form == SOURCE else form
        return in_format(swaps.source(name), form), size_in(form, *swaps.own[name].shape) - coarse[name]["bytes"]

    # In w16g32 a whole model has twice the bytes, so that is for single matrices; where some have it, no format for all is finer.
    form = SOURCE if own else FINER["w8"]
    changes = {name: changed(name, form) for name, entry in coarse.items() if name in own or FINER.get(entry["format"]) == FINER["w8"]}
    if changes and (own or all(entry["format"] != FORMATS[0] for entry in matrices)):
        what = "the source's own integers in all matrices" if own else f"all matrices in {form}"
        saves = swaps.base - swaps.error({name: array for name, (array, _) in changes.items()})
        sizes = [size for _, size in changes.values()]
        flags = f"--weights-for '*={form}'" if globs else f"--weights {form}"
        found.append({"what": what, "flags": flags, "saves": saves, "bytes": None if None in sizes else sum(sizes)})
    del changes  # as large as the model
    for entry in matrices[:3]:
        name = entry["matrix"]
        form = SOURCE if name in own else FINER.get(entry["format"])
        if name in coarse and form:
            array, grows = changed(name, form)
            saves = swaps.base - swaps.error({name: array})
            flags = "--weights-for " + shlex.quote(f"{glob.escape(name)}={form}")
            found.append({"what": f"{name} in {'the integers of the source' if form == SOURCE else form}", "flags": flags, "saves": saves, "bytes": grows})
        else:
            found.append({"what": f"{name} without any rounding", "flags": None, "saves": entry.get("saves", 0.0), "bytes": None})
    return [change for change in sorted(found, key=lambda change: -change["saves"]) if change["saves"] > 0][:3]
