"""The float reference: canonical graphs in ONNX Runtime with a KV cache."""

from __future__ import annotations

import io
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort

from edgepos.embedding import Embeds, check_input, check_output
from edgepos.errors import ContextError, FormatError, temporary_files_error
from edgepos.export import CanonicalModel, load
from edgepos.generation import Generates
from edgepos.program import MAX_POSITION
from edgepos.session_rules import (
    OneAtATime,
    checked_ids,
    checked_image,
    checked_logits,
    checked_positions,
    checked_rewind,
    whole_number,
)

FLOAT_F = 16
SHARED, SHARED_BYTES = "shared", 2**12  # the location that stands for memory; least bytes of a weight there
INLINE_LIMIT = 2**30  # a protobuf message ends at 2 GB; above half of that weights go to a file


class FloatSession(Generates, Embeds):
    """Runs one canonical graph on the CPU and keeps its KV cache; the interface is that of the integer sessions.

    ``model`` is an onnx_ir.Model or the path of an .onnx file. ``weights`` replaces
    initializers: name -> float32 array of the same shape. ``context`` is the number of tokens it can hold, by default the
    model's. Raises FormatError for a graph that is not canonical or a replacement that does not fit, ContextError for a
    context that does not fit. One thread at a time may use a session (EdgePosError otherwise).
    """

    logits_f = FLOAT_F
    saturations = 0

    def __init__(
        self,
        model: ir.Model | str | os.PathLike,
        *,
        weights: Mapping[str, np.ndarray] | None = None,
        context: int | None = None,
        threads: int = 0,
    ):
        if not isinstance(model, ir.Model):
            model = _load(model)
        if weights:
            model = _with_weights(model, weights)
        self._session, self._weights = _open(model, threads)
        shapes = {i.name: i.shape for i in self._session.get_inputs()}
        outputs = {o.name: o.shape for o in self._session.get_outputs()}
        self._output = "embedding" if "embedding" in outputs else "logits"
        self.image: tuple[int, int, int] | None = tuple(shapes["pixels"][1:]) if "pixels" in shapes else None
        if not (self.image or {"input_ids", "position_ids"} <= set(shapes)) or self._output not in outputs:
            raise FormatError(
                f"graph '{model.graph.name}' is not canonical; inputs input_ids and position_ids, or pixels, and the output "
                "logits or embedding are needed; make it with edgepos.export.load"
            )
        self._cache_names = [n for n in shapes if re.fullmatch(r"past_(key|value)\.\d+", n)]
        self._empty = {n: np.zeros((1, shapes[n][1], 0, shapes[n][3]), np.float32) for n in self._cache_names}
        self._present = [n.replace("past", "present", 1) for n in self._cache_names]
        self._keys = "key_position_ids" in shapes
        self.embedding: int = outputs["embedding"][-1] if self._output == "embedding" else 0
        self.vocab: int = int(model.metadata_props.get("edgepos.vocabulary", 0)) if self.embedding else outputs["logits"][-1]
        limit = int(model.metadata_props.get("edgepos.context", MAX_POSITION + 1))
        self.context: int = limit if context is None else whole_number("context", context, 1, limit, ContextError)
        # The tables of the graph have one row per position of its context.
        tabled = any(node.op_type == "RotaryEmbedding" or "edgepos.position" in node.metadata_props for node in model.graph)
        self.max_position = limit - 1 if tabled else MAX_POSITION
        self._alone = OneAtATime()
        self.reset()

    @property
    def logit_scale(self) -> float:
        """A logit of eval_int is its int32 times this."""
        return 2.0**-FLOAT_F

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self._positions)

    @property
    def position(self) -> int:
        """The position the next token gets by default."""
        return min(self._last + 1, MAX_POSITION)

    @property
    def _last(self) -> int:
        return int(self._positions[-1]) if self.length else -1

    def reset(self) -> None:
        """Forget every token."""
        with self._alone():
            self._cache = dict(self._empty)
            self._positions = np.zeros(0, np.int64)

    def rewind(self, n: int) -> None:
        """Keep the first ``n`` tokens. Raises ContextError when there are fewer."""
        with self._alone():
            n = checked_rewind(n, self.length)
            self._cache = {name: array[:, :, :n] for name, array in self._cache.items()}
            self._positions = self._positions[:n]

    def save(self) -> bytes:
        """The cache as bytes (NumPy's npz), for a session of the same graph."""
        with self._alone():
            stream = io.BytesIO()
            np.savez(stream, positions=self._positions, **self._cache)
            return stream.getvalue()

    def restore(self, state: bytes) -> None:
        """Take over a saved cache. Raises FormatError when it is not of this graph; nothing has changed then."""
        with self._alone():
            try:
                with np.load(io.BytesIO(state), allow_pickle=False) as saved:
                    arrays = {name: saved[name] for name in saved.files}
                positions = arrays.pop("positions")
                n = len(positions)
                fits = n <= self.context and positions.dtype == np.int64 and (np.diff(positions, prepend=-1) > 0).all()
                wanted = {name: (*empty.shape[:2], n, empty.shape[3]) for name, empty in self._empty.items()}
                fits &= {name: array.shape for name, array in arrays.items()} == wanted
                fits &= all(array.dtype == np.float32 for array in arrays.values())
            except (TypeError, ValueError, KeyError, OSError, EOFError, MemoryError, zipfile.BadZipFile):
                fits = False
            if not fits:
                raise FormatError("saved state: it is not the cache of a session of this graph; restore it with the model that saved it")
            self._cache, self._positions = arrays, positions

    def eval(self, ids: Sequence[int], positions: Sequence[int] | None = None, logits: str = "all") -> np.ndarray:
        """Append ``ids`` [n] to the cache and return float32 logits, [n, vocab] ("all"), [1, vocab] ("last") or [0, vocab] ("none").

        ``positions`` [n] ascend above the last one; None counts on. Raises EdgePosError for a model that gives an embedding or ids outside the vocabulary,
        ContextError for positions that do not ascend or have no row in the graph's tables, or a full cache; nothing has changed then.
        """
        check_output(self, embedding=False)
        with self._alone():
            checked_logits(logits)
            tokens = checked_ids(ids, self.vocab, self.length, self.context)
            places = checked_positions(positions, len(tokens), self._last, self.max_position)
            keys = np.concatenate([self._positions, places])
            feed = {"input_ids": tokens[None], "position_ids": places[None], **self._cache}
            if self._keys:
                feed["key_position_ids"] = keys[None]
            values = self._session.run(["logits", *self._present], feed)
            self._cache = dict(zip(self._cache_names, values[1:]))
            self._positions = keys
            return values[0][0, {"all": 0, "last": len(tokens) - 1, "none": len(tokens)}[logits] :]

    def eval_int(self, ids: Sequence[int], positions: Sequence[int] | None = None, logits: str = "all") -> np.ndarray:
        """Like eval, the logits rounded to int32 with 16 fractional bits, so that one rule of choice serves all engines."""
        return _fixed(self.eval(ids, positions, logits))

    def embed(self, ids: Sequence[int], positions: Sequence[int] | None = None) -> np.ndarray:
        """The embedding of a text, float32 [d]: see ``Embeds.embed``."""
        check_output(self, embedding=True)
        check_input(self, image=False)
        with self._alone():
            tokens = checked_ids(ids, self.vocab, 0, self.context)
            places = checked_positions(positions, len(tokens), -1, self.max_position)
            return self._session.run(["embedding"], {"input_ids": tokens[None], "position_ids": places[None]})[0][0]

    def embed_int(self, ids: Sequence[int], positions: Sequence[int] | None = None) -> np.ndarray:
        """Like embed, rounded to int32 with 16 fractional bits."""
        return _fixed(self.embed(ids, positions))

    def embed_image(self, pixels) -> np.ndarray:
        """The row of an image, float32 [d]: see ``Embeds.embed_image``."""
        check_input(self, image=True)
        with self._alone():
            return self._session.run(["embedding"], {"pixels": checked_image(pixels, self.image)[None]})[0][0]

    def embed_image_int(self, pixels) -> np.ndarray:
        """Like embed_image, rounded to int32 with 16 fractional bits."""
        return _fixed(self.embed_image(pixels))

    def values(self, ids: Sequence[int], names: Sequence[str], weights: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """The named outputs of the graph for ``ids`` [n] from an empty cache; the session's own cache stays as it is.

        ``weights`` replaces initializers that are inputs of the graph too, for this call.
        """
        if self.image is not None:
            return dict(zip(names, self._session.run(list(names), {"pixels": checked_image(ids, self.image)[None], **(weights or {})})))
        tokens = checked_ids(ids, self.vocab, 0, self.context)
        places = np.arange(len(tokens), dtype=np.int64)
        feed = {"input_ids": tokens[None], "position_ids": places[None], **self._empty, **(weights or {})}
        if self._keys:
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
    session = FloatSession(canonical.model, weights=weights_of, threads=threads)
    if canonical.tokenizer is not None:
        session.make_tokenizer = lambda: _tokenizer(canonical)
    return session


def _fixed(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values.astype(np.float64) * 2.0**FLOAT_F), -(2**31), 2**31 - 1).astype(np.int32)


def _tokenizer(canonical: CanonicalModel):
    """The tokenizer that a bundle of the model has, with the same ends of an answer."""
    from edgepos.chat.form import derive
    from edgepos.compiler.chat_tensors import eos_with_answer
    from edgepos.compiler.tokenizer_image import tokenizer

    eos = canonical.eos_ids
    if canonical.chat is not None:
        try:
            eos = eos_with_answer(canonical.tokenizer, eos, derive(canonical.chat))
        except FormatError:
            pass  # such a model is exported without its chat template
    return tokenizer(canonical.tokenizer, canonical.bos_id, eos)


def _load(path: str | os.PathLike) -> ir.Model:
    try:
        return ir.load(path)
    except FileNotFoundError:
        raise FormatError(f"{os.fspath(path)}: no such file; export the bundle again") from None
    except Exception as error:  # what protobuf and onnx_ir raise for a damaged file has no common class
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(f"{os.fspath(path)}: not a valid ONNX file ({line}); export the bundle again") from None


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


def _shared_weights(model: ir.Model) -> tuple[ir.Model, dict[str, ort.OrtValue]]:
    """(a copy of `model` without its larger float32 weights, those): ONNX Runtime takes them where they are, not within the graph's bytes."""
    model = model.clone()
    given = {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor.dtype == ir.DataType.FLOAT and tensor.nbytes >= SHARED_BYTES:
            given[name] = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(tensor.numpy(), np.float32))
            value.const_value = ir.ExternalTensor(SHARED, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name)
    return model, given


def _open(model: ir.Model, threads: int) -> tuple[ort.InferenceSession, dict[str, ort.OrtValue]]:
    """(a session of `model`, the weights that it uses in place: they must live as long)."""
    options = ort.SessionOptions()
    options.use_deterministic_compute = True
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: its warnings are of speed
    # Without this, DequantizeLinear + MatMul is fused and its activations are rounded to int8.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    providers = ["CPUExecutionProvider"]
    try:
        tensors = {name: value.const_value for name, value in model.graph.initializers.items()}
        if sum(t.nbytes for t in tensors.values()) <= INLINE_LIMIT:
            model, given = _shared_weights(model)
            if given:
                options.add_external_initializers(list(given), list(given.values()))
            proto = ir.to_proto(model)
            for stored in proto.graph.initializer:
                if stored.external_data and stored.external_data[0].value != SHARED:
                    del stored.external_data[:]
                    stored.ClearField("data_location")
                    stored.raw_data = tensors[stored.name].tobytes()
            return ort.InferenceSession(proto.SerializeToString(), options, providers), given
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            path = Path(folder) / "model.onnx"
            ir.save(model, path, external_data="weights.bin")
            return ort.InferenceSession(str(path), options, providers), {}
    except OSError as error:
        raise temporary_files_error(f"graph '{model.graph.name}'", error) from None
    except Exception as error:  # ONNX Runtime's classes share no base but Exception; a damaged graph fails in many ways
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(f"graph '{model.graph.name}' is refused by ONNX Runtime: {line}") from None
