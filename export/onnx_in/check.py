"""The last word: the foreign graph and the canonical one compute the same logits in ONNX Runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edgepos.errors import FormatError, UnsupportedError

from ..shorten import shorten
from .blocks import EXACT
from .constants import CHOICE
from .files import graphs_of
from .frame import Frame
from .looks import label
from .precision import Widened, narrowed, rounding_in

LENGTHS = (1, 2, 33, 100)
LONGEST = 300
FURTHER, LONGEST_FURTHER = 40, 1200
RELATIVE = 5e-4  # of the largest value; float32 sums in another order stay far below
ROUNDINGS = 8  # of the largest value, where constants of 16 bits stand for numbers that are exact in the canonical graph
INLINE_LIMIT = 2**27  # bytes of weights that a session takes from memory; more would be there four times


def lengths_of(frame: Frame, context: int, first: int = 0) -> list[int]:
    """The lengths at which both graphs are run, all at least `first`: then none where even those are long."""
    if frame.fixed is not None:
        return [frame.fixed]
    if first:
        return sorted({n for n in (first, min(first + FURTHER, context)) if n <= LONGEST_FURTHER})
    return sorted({n for n in (*LENGTHS, min(LONGEST, context)) if n <= context})


def check_same(model: ir.Model, frame: Frame, found, context: int, origin: str, first: int = 0) -> None:
    """Run both graphs on random ids at several lengths, none below `first`. Raises UnsupportedError naming the first block that differs."""
    canonical = narrowed(found.model, found.narrow)
    pairs = [(ours, theirs) for ours, theirs in found.foreign.items() if ours.name and theirs.name]
    allowed = max(RELATIVE, ROUNDINGS * rounding_in(model.graph))
    theirs = _session(model, origin)
    ours = _session(canonical, origin, found.output)
    rng = np.random.default_rng(0)
    for length in lengths_of(frame, context, first):
        ids = frame.sample(rng, found.vocab_size, length)
        if found.padding is not None:
            ids[ids == found.padding] = 1 if found.padding == 0 else 0
        if found.zeroed not in (None, found.padding):
            ids[length // 2] = found.zeroed
        want, got = _run(theirs, frame.feed(ids), [frame.logits.name], origin)[0], _run(ours, _feed(canonical, ids), [found.output], origin)[0]
        if frame.last:
            got = got[:, -1:]
            if want.size != got.size:
                raise UnsupportedError(f"{origin}: the row of the last token ({shorten(next(iter(frame.last)))}) meets the rows of all tokens; supported: such a row at the end of a model")
        if not _same(want, got, allowed):
            if not np.isfinite(want).all():
                raise UnsupportedError(f"{origin}: with {length} tokens the graph's own output is not finite; supported: graphs that give numbers")
            where = _first_difference(found.source, frame, canonical, pairs, ids, origin, allowed)
            with np.errstate(invalid="ignore"):
                away = float(np.max(np.abs(want.reshape(got.shape) - got))) if want.size == got.size else float("nan")
            raise UnsupportedError(
                f"{origin}: with {length} tokens the output of the graph and of what was recognised in it differ by {away:.3g}; "
                f"the first difference is at {where}; please report this model"
            )


def _same(want: np.ndarray, got: np.ndarray, allowed: float) -> bool:
    if want.size != got.size:
        return False
    scale = max(float(np.abs(want).max()), 1e-3)
    with np.errstate(invalid="ignore"):  # infinities of a damaged weight are not equal
        return bool(np.all(np.abs(want.reshape(got.shape).astype(np.float64) - got) <= allowed * scale))


def _feed(canonical: ir.Model, ids: np.ndarray) -> dict[str, np.ndarray]:
    positions = np.arange(len(ids), dtype=np.int64)[None]
    feed = {}
    for value in canonical.graph.inputs:
        if value.name == "input_ids":
            feed[value.name] = np.asarray(ids, np.int64)[None]
        elif value.name == "pixels":
            feed[value.name] = ids[None]
        elif value.name in ("position_ids", "key_position_ids"):
            feed[value.name] = positions
        else:
            feed[value.name] = np.zeros([d if isinstance(d, int) else 0 for d in value.shape], np.float32)
    return feed


def _first_difference(model: ir.Model, frame: Frame, canonical: ir.Model, pairs: list, ids: np.ndarray, origin: str, allowed: float) -> str:
    """The node of the foreign graph whose output is the first that differs from its counterpart."""
    for ours, theirs in pairs if all(node.domain != CHOICE for node in model.graph) else ():
        a = _run(_session(model, origin, theirs.name), frame.feed(ids), [theirs.name], origin)[0]
        b = _run(_session(canonical, origin, ours.name), _feed(canonical, ids), [ours.name], origin)[0]
        if not _same(a, b, allowed):
            return label(theirs.producer())
    return label(frame.logits.producer())


def _session(model: ir.Model, origin: str, also: str | None = None) -> ort.InferenceSession:
    """The model in ONNX Runtime, with the output `also` alone if it has not got it."""
    model = model.clone()
    if also is not None:
        wanted = next(v for node in model.graph for v in node.outputs if v.name == also)
        if wanted not in model.graph.outputs:
            model.graph.outputs[:] = [wanted]
    for node in model.graph:
        for name, value in EXACT.get(node.op_type, {}).items():
            node.attributes[name] = ir.AttrInt64(name, value)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.use_deterministic_compute = True
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # as EXACT
    try:
        weights = [value for graph in graphs_of(model.graph) for value in graph.initializers.values()]
        if sum(w.const_value.nbytes for w in weights) <= INLINE_LIMIT:
            for w in weights:
                if isinstance(w.const_value, (ir.ExternalTensor, Widened)):
                    w.const_value = ir.Tensor(np.asarray(w.const_value.numpy()), dtype=w.const_value.dtype, name=w.name)
            return ort.InferenceSession(ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"])
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            path = Path(folder) / "model.onnx"
            ir.save(model, path, external_data="weights.bin")
            return ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's classes share no base but Exception
        raise FormatError(f"{origin}: refused by ONNX Runtime ({' '.join(str(error).split())[:300]})") from None


def _run(session: ort.InferenceSession, feed: dict[str, np.ndarray], outputs: list[str], origin: str) -> list[np.ndarray]:
    known = {i.name for i in session.get_inputs()}
    try:
        return session.run(outputs, {name: array for name, array in feed.items() if name in known})
    except Exception as error:  # as above
        raise FormatError(f"{origin}: ONNX Runtime cannot run it ({' '.join(str(error).split())[:300]})") from None
