"""Bundles: opening one, and the sessions, tokenizer, weights and report it gives."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np

from . import program as programs
from .bundle_json import check_manifest, check_report
from .chat.jinja import ChatTemplate
from .chat.session import Chat
from .chat.template import BundleTemplate
from .embedding import Embedder
from .errors import EdgePosError, FormatError
from .export.json_files import parse_json_object, read_json_object
from .file_hash import sha256_of
from .golden_session import GoldenSession
from .program import Program
from .runtime.native import Image
from .runtime.session import MAX_THREADS, CSession
from .runtime.tokenizer import Tokenizer
from .session_rules import whole_number

ENGINES = ("c", "golden", "onnx", "onnx-int8")
ONNX_FILES = {"onnx": "model.onnx", "onnx-int8": "model.int8.onnx"}


class Bundle:
    """An opened bundle, or the model.gguf of one alone. Make it with `edgepos.open`.

    `path` is the bundle folder (None for a model.gguf alone), `model_path` the model.gguf.
    """

    def __init__(self, path: str | os.PathLike):
        path = Path(path)
        if path.is_dir():
            self.path, self.model_path = path, path / "model.gguf"
            if not self.model_path.is_file():
                raise FormatError(f"{path}: no model.gguf found in this folder; give a bundle that `edgepos export` wrote")
        else:
            self.path, self.model_path = None, path
        self.image = Image.open(self.model_path)  # checks every word of it

    def __repr__(self) -> str:
        return f"Bundle({str(self.path or self.model_path)!r})"

    # ---- what is in it

    @cached_property
    def _reader(self) -> gguf.GGUFReader:
        """Names and keys, which the runtime does not read."""
        try:
            return gguf.GGUFReader(self.model_path)
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise FormatError(f"{self.model_path}: names that cannot be read ({str(error).splitlines()[0]}); export the bundle again") from None

    @cached_property
    def program(self) -> Program:
        """The integer program with its tensors, memory-mapped."""
        tensors = self._reader.tensors
        names = [tensor.name for tensor in tensors]
        arrays = [tensor.data.reshape(tuple(int(n) for n in reversed(tensor.shape))) for tensor in tensors]
        return programs.decode(arrays[0], names, [None, *arrays[1:]], self.manifest.get("operators"))

    @property
    def manifest(self) -> dict:
        """manifest.json, checked against model.gguf, or {} for a model.gguf alone. Raises FormatError when they contradict."""
        if self.path is None:
            return {}
        file = self.path / "manifest.json"
        content = read_json_object(file)
        check_manifest(file, content, self.image.info)
        return content

    @property
    def report(self) -> dict:
        """report.json. Raises FormatError for a model.gguf alone."""
        if self.path is None:
            raise FormatError(f"{self.model_path}: a model.gguf alone has no report; open its bundle folder")
        file = self.path / "report.json"
        content = read_json_object(file)
        check_report(file, content)
        return content

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer the boards use. Raises EdgePosError when the bundle has none."""
        return Tokenizer(self.image)

    @cached_property
    def chat_template(self) -> BundleTemplate:
        """Turns messages into token ids, as the model was trained to read them. Raises EdgePosError when the model has no template."""
        return BundleTemplate(self.image, self.tokenizer, self._jinja(), self._control_texts)

    def _jinja(self) -> ChatTemplate | None:
        """The source's template, in the keys of the image."""
        keys = {name: self._reader.get_field(name) for name in ("tokenizer.chat_template", "edgepos.chat_variables")}
        if keys["tokenizer.chat_template"] is None:
            return None
        origin = f"{self.model_path}: tokenizer.chat_template"
        try:
            source, variables = (field.contents() if field else "{}" for field in keys.values())
            variables = parse_json_object(str(variables).encode("utf-8"), f"{self.model_path}: edgepos.chat_variables")
        except UnicodeDecodeError:
            raise FormatError(f"{origin}: not UTF-8; export the bundle again") from None
        if not isinstance(source, str) or not all(isinstance(value, str) for value in variables.values()):
            raise FormatError(f"{origin}: a text, and texts for its names, are needed; export the bundle again")
        return ChatTemplate(source, variables, origin)

    def _control_texts(self) -> list[str]:
        """The texts of the added tokens that print nothing or end a text."""
        program, header = self.program, self.program.header
        if header.added < 0:
            return []
        offsets, data, types = (program.arrays[i] for i in (header.token_offsets, header.token_bytes, header.token_types))
        ids = (program.arrays[header.added] & 0xFFFFFF).tolist()
        texts = (data[offsets[i] : offsets[i + 1]].tobytes() for i in ids if types[i] == 1 or i in self.tokenizer.eos_ids)
        return [text.decode("utf-8", "replace") for text in texts]

    @property
    def context(self) -> int:
        """The most tokens a session can hold."""
        return self.program.header.context

    def dequantized_weights(self) -> dict[str, np.ndarray]:
        """Float32 weights that the integers stand for, by initializer name of the canonical graph."""
        from .compiler import dequantized_weights

        return dequantized_weights(self.program)

    # ---- running it

    def session(self, context: int | None = None, threads: int = 1, engine: str = "c"):
        """A fresh session of an engine: "c" (the runtime), "golden" (its specification in NumPy), "onnx" (ONNX Runtime) or "onnx-int8" (ONNX
        Runtime on the faster form, where the bundle has it).

        `context` is the number of tokens it can hold, by default the model's. Raises EdgePosError for unknown engines and ContextError for contexts that do not fit.
        """
        session = self._new_session(context, threads, engine)
        session.tokenizer = self.tokenizer if self.image.info.tokenizer else None
        return session

    def chat(
        self, system: str | None = None, *, context: int | None = None, threads: int = 1, engine: str = "c", seed: int = 0, **rules
    ) -> Chat:
        """A conversation by the model's chat template: `for piece in bundle.chat().send("Hello"): …`

        system: a message before all others. rules: max_new_tokens, temperature, top_k, top_p, repetition_penalty, penalty_last,
        stop, eos, as in `generate`. Raises EdgePosError when the model has no template or a parameter is out of range.
        """
        template = self.chat_template
        return Chat(self.session(context, threads, engine), template, system, seed, **rules)

    def _new_session(self, context, threads, engine):
        threads = whole_number("threads", threads, 1, MAX_THREADS)
        if engine == "c":
            return CSession(self.image, context=context, threads=threads)
        if engine == "golden":
            return GoldenSession(self.program, context)
        if engine in ONNX_FILES:
            file = ONNX_FILES[engine]
            if self.path is None:
                raise FormatError(f"{self.model_path}: engine '{engine}' needs the bundle folder with its {file}")
            if engine == "onnx-int8" and not (self.path / file).is_file():
                raise EdgePosError(f"{self.path}: has no {file}; export it with onnx='int8' (--onnx int8)")
            from .float_session import FloatSession

            return FloatSession(self.path / file, context=context, threads=threads)
        raise EdgePosError(f"engine {engine!r} is unknown; allowed: {', '.join(ENGINES)}")

    def embed(self, texts, *, threads: int = 1, engine: str = "c", truncate: bool = True) -> np.ndarray:
        """Embeddings of texts (a list of str) by the model's own pooling, float32 [n, d].

        A text too long for the context is cut as sentence-transformers does it, before the special tokens behind it; with
        truncate=False it raises ContextError. `edgepos.embedding.Embedder` counts them. Raises EdgePosError for a model that gives
        logits, one without a tokenizer, or `texts` that is no list of texts.
        """
        if isinstance(texts, (str, bytes)):
            raise EdgePosError("texts is one text; give a list of them")
        return Embedder(self.session(threads=threads, engine=engine), self.tokenizer).embed(texts, truncate)

    def selftest(self) -> str:
        """Run the self-test in the C runtime; returns the digest in hex. Raises EdgePosError when it is not the bundle's."""
        return f"{self.image.selftest():016x}"

    def check_files(self) -> None:
        """Compare the SHA-256 of every file with the manifest. Raises FormatError naming the first that differs."""
        for name, entry in self.manifest.get("files", {}).items():
            file = (self.path / name).resolve()
            if self.path.resolve() not in file.parents or not file.is_file():
                raise FormatError(f"{self.path}: {name} of the manifest is missing; export the bundle again")
            digest = sha256_of(file)
            if digest != entry["sha256"]:
                raise FormatError(f"{self.path / name}: SHA-256 {digest[:12]}… found, {entry['sha256'][:12]}… in the manifest; the file was changed")


def open(path: str | os.PathLike) -> Bundle:  # noqa: A001 - the public name is edgepos.open
    """Open a bundle folder or a model.gguf, checking all of it.

    Raises FormatError (EdgePosError) when the file is missing, damaged or of an unknown version.
    """
    return Bundle(path)
