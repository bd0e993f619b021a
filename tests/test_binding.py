"""The cffi declarations say what edgepos.h says, and every call that a user can get wrong is refused in Python's words."""

from __future__ import annotations

import re

import pytest

from edgepos.resources import c_runtime_dir, tiny_model_dir
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.runtime import native


def declarations(text: str) -> dict[str, str]:
    """Function name -> its declaration with blanks made equal."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.M).replace("static inline ", "")
    found = re.findall(r"(?:^|[;}{]\s*)((?:const )?\w+ \*?(ep_\w+)\([^;{}]*\));", text, flags=re.M)
    return {name: re.sub(r"\s+", " ", whole).strip() for whole, name in found}


def structs(text: str) -> dict[str, list[str]]:
    """Struct or enum name -> the names in it, in order."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    out = {}
    for body, name in re.findall(r"typedef (?:struct|enum) \w+ \{(.*?)\} (\w+);", text, flags=re.S):
        body = re.sub(r"=\s*\d+|\[[^\]]*\]", "", body)
        out[name] = re.findall(r"(\w+)\s*(?=[,;]|$)", body.strip())
    return out


@pytest.fixture(scope="module")
def cdef(root) -> str:
    return (root / "edgepos/runtime/native.cdef").read_text("utf-8")


@pytest.fixture(scope="module")
def headers() -> str:
    folder = c_runtime_dir()
    return "".join((folder / name).read_text("utf-8") for name in ("include/edgepos.h", "include/edgepos_cpu.h", "ports/threads_pthread.h"))


def test_cdef_declares_every_function_as_the_headers_do(cdef, headers):
    theirs = declarations(headers)
    assert len(theirs) > 30
    assert declarations(cdef) == theirs


def test_cdef_structs_have_the_fields_of_the_headers(cdef, headers):
    theirs = structs(headers)
    assert {"ep_info", "ep_config", "ep_status", "ep_trace_event"} <= set(theirs)
    assert structs(cdef) == theirs


def test_versions_are_one(root):
    from importlib.metadata import version

    assert native.ffi.string(native.lib.EP_VERSION).decode() == version("edgepos")


@pytest.mark.parametrize("data", [b"", b"x", b"GGUF", bytes(1000), b"GGUF" + b"\xff" * 1000])
def test_foreign_images_are_refused(data, tmp_path):
    with pytest.raises(FormatError, match="thing.gguf"):
        native.Image(data, "thing.gguf")
    path = tmp_path / "thing.gguf"
    path.write_bytes(data)
    with pytest.raises(FormatError, match="thing.gguf"):
        native.Image.open(path)


def test_missing_files_and_folders_are_one_line(tmp_path):
    for path in (tmp_path, tmp_path / "no.gguf"):
        with pytest.raises(FormatError, match="give the model.gguf of a bundle") as error:
            native.Image.open(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [[1.5], [[1]], ["1"], [2**31], [-(2**31) - 1], [2**70], [None]])
def test_numbers_that_would_change_are_refused(values):
    with pytest.raises(EdgePosError, match="ids"):
        native.int32_array("ids", values)


def test_aligned_memory():
    for size in (1, 63, 64, 1000):
        array = native.aligned(size)
        assert array.nbytes == size and array.ctypes.data % native.ALIGN == 0


def test_every_status_has_a_text():
    texts = {native.status_text(status) for status in range(16)}
    assert len(texts) == 16 and all(texts)
    with pytest.raises(EdgePosError):
        native.check(99, "call")


def test_resources_are_complete():
    for name in ("CMakeLists.txt", "include/edgepos.h", "src/tokenizer.c", "cli/edgepos_run.c", "ports/threads_pthread.c", "cmake/edgepos.pc.in"):
        assert (c_runtime_dir() / name).is_file()
    for name in ("tiny-rope", "tiny-alibi"):
        assert (tiny_model_dir(name) / "model.safetensors").is_file()
    with pytest.raises(UnsupportedError, match="tiny-rope, tiny-alibi"):
        tiny_model_dir("../..")
