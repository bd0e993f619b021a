"""Bundles: opening one, and the sessions, tokenizer, weights and report it gives."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np

from . import program as programs
from .bundle_json import check_manifest, check_report
from .errors import EdgePosError, FormatError
from .export.json_files import read_json_object
from .file_hash import sha256_of
from .golden_session import GoldenSession
from .program import Program
from .runtime.native import Image
from .runtime.session import MAX_THREADS, CSession
from .runtime.tokenizer import Tokenizer
from .session_rules import whole_number

ENGINES = ("c", "golden", "onnx")


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
    def program(self) -> Program:
        """The integer program with its tensors, memory-mapped."""
        try:
            reader = gguf.GGUFReader(self.model_path)
            names = [tensor.name for tensor in reader.tensors]
        except (ValueError, KeyError, IndexError, OverflowError) as error:  # names and keys, which the runtime does not read
            raise FormatError(f"{self.model_path}: names that cannot be read ({str(error).splitlines()[0]}); export the bundle again") from None
        arrays = [tensor.data.reshape(tuple(int(n) for n in reversed(tensor.shape))) for tensor in reader.tensors]
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
        """A fresh session of an engine: "c" (the runtime), "golden" (its specification in NumPy) or "onnx" (ONNX Runtime).

        `context` is the number of tokens it can hold, by default the model's. Raises EdgePosError for unknown engines and ContextError for contexts that do not fit.
        """
        session = self._new_session(context, threads, engine)
        session.tokenizer = self.tokenizer if self.image.info.tokenizer else None
        return session

    def _new_session(self, context, threads, engine):
        threads = whole_number("threads", threads, 1, MAX_THREADS)
        if engine == "c":
            return CSession(self.image, context=context, threads=threads)
        if engine == "golden":
            return GoldenSession(self.program, context)
        if engine == "onnx":
            if self.path is None:
                raise FormatError(f"{self.model_path}: engine 'onnx' needs the bundle folder with its model.onnx")
            from .float_session import FloatSession

            return FloatSession(self.path / "model.onnx", context=context, threads=threads)
        raise EdgePosError(f"engine {engine!r} is unknown; allowed: {', '.join(ENGINES)}")

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
