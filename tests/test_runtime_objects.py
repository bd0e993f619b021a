"""The compiled runtime library: integers only, no foreign symbols, a small stack, a small text section, no warnings."""

from __future__ import annotations

import re

import pytest
from boards import require
from object_files import TARGETS, CallGraph, compile_library, instructions, link_all, output, symbols, text_bytes

from edgepos.resources import c_runtime_dir
from edgepos.targets import build

MOST_TEXT = 56 * 1024
MOST_STACK = 4096
# libgcc's deepest helper, 64-bit division on Thumb, saves fewer registers than this.
HELPER_STACK = 96

# Arithmetic and conversions; moves and logic on SSE registers are how compilers copy and add integers.
X86_FLOAT = re.compile(
    r"v?(add|sub|mul|div|sqrt|min|max|round|rcp|rsqrt|addsub|hadd|hsub|dp|cmp\w*|u?comi)(ss|sd|ps|pd)"
    r"|v?cvt\w+|vfn?m(add|sub)\w+|f(?!s:|rstor|xsave)\w+"
)
AARCH64_FLOAT = re.compile(r"\b[vqdshb]\d{1,2}\b")
INTEGER_HELPERS = {"__aeabi_ldivmod", "__aeabi_uldivmod", "__aeabi_lmul", "__aeabi_llsl", "__aeabi_llsr", "__aeabi_lasr", "__clzdi2"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """library(target name, flags…): the objects, compiled once."""
    known = {}

    def compiled(name: str, *flags: str):
        if (name, flags) not in known:
            require(TARGETS[name].compiler)
            out = tmp_path_factory.mktemp("objects")
            known[name, flags] = out, compile_library(TARGETS[name], flags, out)
        return known[name, flags]

    return compiled


@pytest.mark.parametrize("name", ["x86-64 gcc", "x86-64 clang"])
@pytest.mark.parametrize("optimize", ["-O0", "-O3"])
def test_x86_has_no_float_instruction(library, name, optimize):
    _, objects = library(name, optimize)
    found = instructions(TARGETS[name], objects)
    assert len(found) > 2000
    assert [pair for pair in found if X86_FLOAT.fullmatch(pair[0])] == []


def test_the_search_knows_float_instructions(tmp_path):
    require("gcc")
    source = tmp_path / "floats.c"
    source.write_text("float a(float x, int n) { return x * (float)n; }\nlong double b(long double x) { return x + 1; }\n")
    objects = build.compile_objects("gcc", [source], [], ["-O2"], tmp_path)
    names = [pair[0] for pair in instructions(TARGETS["x86-64 gcc"], objects)]
    assert {"mulss", "cvtsi2ss"} <= {name for name in names if X86_FLOAT.fullmatch(name)} and any(name.startswith("fadd") for name in names)


@pytest.mark.parametrize("optimize", ["-O0", "-O3"])
def test_aarch64_uses_general_registers_only(library, optimize):
    _, objects = library("aarch64", optimize)
    found = instructions(TARGETS["aarch64"], objects)
    assert len(found) > 2000
    assert [pair for pair in found if AARCH64_FLOAT.search(pair[1])] == []


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("optimize", ["-O0", "-Os", "-O3"])
def test_foreign_symbols(library, name, optimize):
    out, objects = library(name, optimize)
    whole = link_all(TARGETS[name], objects, out)
    allowed = {"memcpy", "memset"} | (INTEGER_HELPERS if name.startswith("cortex-m") else set())
    assert symbols(TARGETS[name], whole, "-u") <= allowed


def test_public_names_start_with_ep(library):
    out, objects = library("x86-64 gcc", "-O3")
    whole = link_all(TARGETS["x86-64 gcc"], objects, out)
    names = symbols(TARGETS["x86-64 gcc"], whole, "-g", "--defined-only")
    assert names and all(name.startswith("ep_") for name in names)


def test_no_writable_data(library):
    """No global state: sessions share nothing."""
    out, objects = library("x86-64 gcc", "-O3")
    whole = link_all(TARGETS["x86-64 gcc"], objects, out)
    kinds = {line.split()[-2] for line in output("nm", whole).splitlines()}
    assert "T" in kinds and not kinds & set("BbDdCGgSs"), kinds


@pytest.mark.parametrize("name", ["x86-64 gcc", "cortex-m3"])
@pytest.mark.parametrize("optimize", ["-Os", "-O2"])
def test_stack(library, name, optimize, record_property):
    out, _ = library(name, optimize, "-fstack-usage", "-fcallgraph-info=su")
    header = (c_runtime_dir() / "include" / "edgepos.h").read_text()
    public = set(re.findall(r"^[a-z].*?\b(ep_\w+)\(", header, re.M))
    graph = CallGraph.read(sorted(out.glob("*.ci")), public)
    assert len(public) > 25 and public <= set(graph.frames)
    assert graph.dynamic == set()
    depth, chain = max(graph.deepest(function, HELPER_STACK) for function in public)
    record_property("deepest stack", f"{name} {optimize}: {depth} bytes: {' -> '.join(chain)}")
    assert depth <= MOST_STACK, f"{depth} bytes: {' -> '.join(chain)}"


def test_text_stays_small(library, record_property):
    _, objects = library("cortex-m4", "-Os")
    size = text_bytes(TARGETS["cortex-m4"], objects)
    record_property("text", f"cortex-m4 -Os: {size} bytes")
    assert 8 * 1024 < size <= MOST_TEXT


@pytest.mark.parametrize("name", TARGETS)
def test_no_warnings(library, name, tmp_path):
    flags = ["-O2", "-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
    library(name, *flags)
    runtime = c_runtime_dir()
    includes = [runtime / "include", runtime / "ports"]
    if name.startswith("cortex-m"):
        sources = sorted((runtime / "ports" / "baremetal").glob("*.c"))
    else:
        sources = [*sorted((runtime / "cli").glob("*.c")), runtime / "ports" / "threads_pthread.c"]
    own = [flag for flag in TARGETS[name].flags if flag != "-mgeneral-regs-only"]
    build.compile_objects(TARGETS[name].compiler, sources, includes, [*own, *flags], tmp_path)
