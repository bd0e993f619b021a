"""One set of constant tables as a C pair (.h, .c), as .npz and as .bin: the same bytes on every machine.

The C form is C99 and C++, needs nothing but <stdint.h>, and its arrays are const so that they stay in flash. The .npz holds the same
arrays and `description.json`; its entries are stored uncompressed with a fixed date. The .bin is the arrays' little-endian
bytes one after the other, each at a multiple of 64, with the description and the offsets in a .json beside it.
"""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

C_TYPES = {"int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "int32": "int32_t", "uint32": "uint32_t", "uint64": "uint64_t"}
FORMATS = ("c", "npz", "bin", "onnx")
ALIGN = 64
LINE_WIDTH = 120


@dataclass(frozen=True)
class CFunction:
    """A function that goes with the tables: its comment, its declaration without semicolon, its body without braces."""

    comment: str
    declaration: str
    body: str


@dataclass(frozen=True)
class TableFile:
    """What is written under one name.

    stem: file name without suffix; C names are edgepos_<stem>_<array>, macros EDGEPOS_<STEM>_<NAME>. about: lines of the
    header's comment, the usage line last. macros: name → number. shapes: C dimensions of an array as macro names.
    description: JSON data for description.json. learned: the float64 values of a learned table, as `source` in the .npz only, so that the
    integers can be derived again. formats: which files are written. graph: the .onnx file, where there is one.
    """

    stem: str
    about: tuple[str, ...]
    macros: dict[str, int | float]
    arrays: dict[str, np.ndarray]
    shapes: dict[str, tuple[str, ...]]
    description: dict
    functions: tuple[CFunction, ...] = ()
    learned: np.ndarray | None = None
    formats: tuple[str, ...] = ("c", "npz")
    graph: bytes | None = field(default=None, repr=False)

    def macro(self, name: str) -> str:
        """The full name of a macro."""
        return f"EDGEPOS_{self.stem.upper()}_{name}"

    def declare(self, name: str) -> str:
        """The C declaration of an array without `extern` and semicolon."""
        dimensions = "".join(f"[{self.macro(d)}]" for d in self.shapes[name])
        return f"const {C_TYPES[self.arrays[name].dtype.name]} edgepos_{self.stem}_{name}{dimensions}"

    def header(self) -> str:
        """The text of the .h file."""
        guard = f"EDGEPOS_TABLES_{self.stem.upper()}_H"
        lines = ["/* " + "\n * ".join(self.about) + "\n */", f"#ifndef {guard}", f"#define {guard}", "", "#include <stdint.h>", ""]
        lines += [f"#define {self.macro(name)} {_macro_value(value)}" for name, value in self.macros.items()]
        lines += ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
        lines += [f"extern {self.declare(name)};" for name in self.arrays]
        for f in self.functions:
            lines += ["", f"/* {f.comment} */", f"{f.declaration};"]
        lines += ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
        return "\n".join(lines)

    def source(self) -> str:
        """The text of the .c file."""
        parts = [f'#include "{self.stem}.h"\n']
        for name, array in self.arrays.items():
            parts.append(f"\n{self.declare(name)} = {{\n{_initializer(array)}}};\n")
        for f in self.functions:
            parts.append(f"\n{f.declaration} {{\n{f.body}}}\n")
        return "".join(parts)

    def npz(self) -> bytes:
        """The bytes of the .npz file."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
            for name, array in self.npz_arrays().items():
                entry = io.BytesIO()
                little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
                np.lib.format.write_array(entry, little, version=(1, 0), allow_pickle=False)
                archive.writestr(_zip_info(f"{name}.npy"), entry.getvalue())
            archive.writestr(_zip_info("description.json"), json_text(self.description).encode())
        return buffer.getvalue()

    def npz_arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the .npz file."""
        return self.arrays if self.learned is None else self.arrays | {"source": self.learned}

    def binary(self) -> tuple[bytes, dict]:
        """The bytes of the .bin file and the content of its .json."""
        data, arrays = b"", {}
        for name, array in self.arrays.items():
            data += bytes(-len(data) % ALIGN)
            arrays[name] = {"offset": len(data), "dtype": array.dtype.name, "shape": list(array.shape)}
            data += array.astype(array.dtype.newbyteorder("<")).tobytes()
        return data, self.description | {"byte_order": "little", "layout": arrays}

    @cached_property
    def contents(self) -> dict[str, bytes]:
        """File name → bytes."""
        files: dict[str, bytes] = {}
        if "c" in self.formats:
            files |= {f"{self.stem}.h": self.header().encode(), f"{self.stem}.c": self.source().encode()}
        if "npz" in self.formats or self.learned is not None:
            files[f"{self.stem}.npz"] = self.npz()
        if "bin" in self.formats:
            data, description = self.binary()
            files |= {f"{self.stem}.bin": data, f"{self.stem}.json": json_text(description).encode()}
        if self.graph is not None:
            files[f"{self.stem}.onnx"] = self.graph
        return files

    def write(self, directory: Path) -> list[str]:
        """Write the files into an existing directory; returns their names."""
        for name, data in self.contents.items():
            (directory / name).write_bytes(data)
        return list(self.contents)


def _macro_value(value: int | float) -> str:
    return f"({value!r})" if value < 0 else repr(value)


def json_text(data: dict) -> str:
    """JSON as EdgePos writes it: two spaces, keys in their order, one newline at the end."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _zip_info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o644 << 16
    return info


def _initializer(array: np.ndarray) -> str:
    """The lines between the braces of a C initializer; a row of a two-dimensional array in braces of its own."""
    if array.ndim == 1:
        return _wrap([_literal(v, array.dtype) for v in array.tolist()], "  ", ",\n")
    return "".join("  {" + _wrap([str(v) for v in row], "   ", "").lstrip() + "},\n" for row in array.tolist())


def _literal(value: int, dtype: np.dtype) -> str:
    if dtype == np.uint64:
        return f"0x{value:016x}ull"
    return f"{value}u" if dtype == np.uint32 else str(value)


def _wrap(words: list[str], indent: str, end: str) -> str:
    """Words joined by commas, in lines of at most LINE_WIDTH characters."""
    lines, line = [], indent + words[0]
    for word in words[1:]:
        if len(line) + len(word) + 2 > LINE_WIDTH:
            lines.append(line + ",")
            line = indent + word
        else:
            line += ", " + word
    return "\n".join([*lines, line]) + end
