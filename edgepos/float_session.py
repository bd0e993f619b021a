"""The float reference: canonical graphs in ONNX Runtime with a KV cache."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edgepos.errors import ContextError, FormatError
from edgepos.export import CanonicalModel, load
from edgepos.generation import Generates

INLINE_LIMIT = 2**30  # a protobuf message ends at 2 GB; above half of that weights go to a file


class FloatSession(Generates):
    """Runs one canonical graph on the CPU and keeps its KV cache.

    ``model`` is an onnx_ir.Model or the path of an .onnx file. ``weights`` replaces
    initializers: name -> float32 array of the same shape. Raises FormatError for a graph
    that is not canonical or a replacement that does not fit.
    """

    def __init__(
        self,
        model: ir.Model | str | os.PathLike,
        *,
        weights: Mapping[str, np.ndarray] | None = None,
        threads: int = 0,
    ):
        if not isinstance(model, ir.Model):
            model = ir.load(model)
        if weights:
            model = _with_weights(model, weights)
        self._session = _open(model, threads)
        shapes = {i.name: i.shape for i in self._session.get_inputs()}
        outputs = {o.name: o.shape for o in self._session.get_outputs()}
        if not {"input_ids", "position_ids"} <= set(shapes) or "logits" not in outputs:
            raise FormatError(
                f"graph '{model.graph.name}' is not canonical; inputs input_ids and position_ids and the output "
                "logits are needed; make it with edgepos.export.load"
            )
        self._cache_names = [n for n in shapes if re.fullmatch(r"past_(key|value)\.\d+", n)]
        self._empty = {n: np.zeros((1, shapes[n][1], 0, shapes[n][3]), np.float32) for n in self._cache_names}
        self._present = [n.replace("past", "present", 1) for n in self._cache_names]
        self._alibi = "key_position_ids" in shapes
        self.vocab_size: int = outputs["logits"][-1]
        context = model.metadata_props.get("edgepos.context")
        self.context: int | None = None if context is None else int(context)
        self.reset()

    @property
    def position(self) -> int:
        """Tokens in the cache; also the position the next token gets by default."""
        return len(self._positions)

    def reset(self) -> None:
        """Forget every token."""
        self._cache = dict(self._empty)
        self._positions = np.zeros(0, np.int64)

    def rewind(self, n: int) -> None:
        """Keep the first ``n`` tokens of the cache; raises ContextError unless 0 <= n <= position."""
        if not 0 <= n <= self.position:
            raise ContextError(f"rewind to {n} is not possible; the cache holds tokens 0 to {self.position}")
        self._cache = {name: array[:, :, :n] for name, array in self._cache.items()}
        self._positions = self._positions[:n]

    def eval(
        self, ids: Sequence[int], positions: Sequence[int] | None = None, logits: str = "all"
    ) -> np.ndarray:
        """Append ``ids`` [n] to the cache and return float32 logits, [n, vocab] or [1, vocab] for "last".

        ``positions`` [n] defaults to counting on from the tokens in the cache. Raises ContextError
        for no ids, an id outside the vocabulary, a position outside the context, or a full cache.
        """
        if logits not in ("all", "last"):
            raise ContextError(f"logits={logits!r} is not known; allowed: 'all', 'last'")
        tokens = _int64("ids", ids, self.vocab_size)
        n = len(tokens)
        if n == 0:
            raise ContextError("ids is empty; at least one token is needed")
        limit = 2**31 if self.context is None else self.context
        if self.position + n > limit:
            raise ContextError(
                f"{n} tokens after {self.position} do not fit the context of {limit}; rewind or reset first"
            )
        if positions is None:
            positions = range(self.position, self.position + n)
        places = _int64("positions", positions, limit)
        if len(places) != n:
            raise ContextError(f"positions has {len(places)} entries for {n} ids; give one per id")
        keys = np.concatenate([self._positions, places])
        feed = {"input_ids": tokens[None], "position_ids": places[None], **self._cache}
        if self._alibi:
            feed["key_position_ids"] = keys[None]
        values = self._session.run(["logits", *self._present], feed)
        self._cache = dict(zip(self._cache_names, values[1:]))
        self._positions = keys
        return values[0][0] if logits == "all" else values[0][0, -1:]

    def values(self, ids: Sequence[int], names: Sequence[str]) -> dict[str, np.ndarray]:
        """The named outputs of the graph for ``ids`` [n] from an empty cache; the session's own cache stays as it is."""
        tokens = _int64("ids", ids, self.vocab_size)
        places = np.arange(len(tokens), dtype=np.int64)
        feed = {"input_ids": tokens[None], "position_ids": places[None], **self._empty}
        if self._alibi:
            feed["key_position_ids"] = places[None]
        return dict(zip(names, self._session.run(list(names), feed)))


def reference(source, weights_of=None, *, threads: int = 0) -> FloatSession:
    """The float session of ``source``: a path ``edgepos.export.load`` understands, or a CanonicalModel.

    ``weights_of`` replaces weights before running: a mapping initializer name -> float32 array, or
    an object with ``dequantized_weights()`` returning one (a bundle).
    """
    canonical = source if isinstance(source, CanonicalModel) else load(source)
    if hasattr(weights_of, "dequantized_weights"):
        weights_of = weights_of.dequantized_weights()
    return FloatSession(canonical.model, weights=weights_of, threads=threads)


def _int64(name: str, values: Sequence[int], limit: int) -> np.ndarray:
    """``values`` as int64 [n], each in 0..limit-1; ONNX Runtime would wrap negative ids silently."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ContextError(f"{name} has shape {list(array.shape)} of {array.dtype}; a list of whole numbers is needed")
    if array.size and not (0 <= array.min() and array.max() < limit):
        raise ContextError(f"{name} holds {array.min()} to {array.max()}; 0 to {limit - 1} is allowed")
    return array.astype(np.int64)


def _with_weights(model: ir.Model, weights: Mapping[str, np.ndarray]) -> ir.Model:
    """A copy of ``model`` (weights shared) with some initializers replaced."""
    model = model.clone()
    for name, array in weights.items():
        value = model.graph.initializers.get(name)
        if value is None:
            raise FormatError(f"weight '{name}' is not an initializer of graph '{model.graph.name}'; check its name")
        if tuple(array.shape) != tuple(value.const_value.shape):
            raise FormatError(
                f"weight '{name}' has shape {list(array.shape)}, the graph needs {list(value.const_value.shape)}"
            )
        value.const_value = ir.Tensor(np.ascontiguousarray(array, dtype=np.float32), name=name)
    return model


def _open(model: ir.Model, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    # Without this, DequantizeLinear + MatMul is fused and its activations are rounded to int8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
    providers = ["CPUExecutionProvider"]
    try:
        if sum(t.nbytes for t in tensors.values()) <= INLINE_LIMIT:
            proto = ir.to_proto(model)
            for stored in proto.graph.initializer:
                if stored.external_data:
                    del stored.external_data[:]
                    stored.ClearField("data_location")
                    stored.raw_data = tensors[stored.name].tobytes()
            return ort.InferenceSession(proto.SerializeToString(), options, providers)
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            path = Path(folder) / "model.onnx"
            ir.save(model, path, external_data="weights.bin")
            return ort.InferenceSession(str(path), options, providers)
    except (ort.capi.onnxruntime_pybind11_state.Fail, ort.capi.onnxruntime_pybind11_state.InvalidGraph) as error:
        line = str(error).splitlines()[0]
        raise FormatError(f"graph '{model.graph.name}' is refused by ONNX Runtime: {line}") from None
