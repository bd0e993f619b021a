"""What is in object files of the C runtime: instructions, symbols, sizes, the deepest stack."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edgepos.resources import c_runtime_dir
from edgepos.targets import build, tools


@dataclass(frozen=True)
class Target:
    """A compiler with the flags that name the processor, and the prefix of its binutils."""

    name: str
    compiler: str
    flags: tuple[str, ...] = ()
    prefix: str = ""


_M = ("-mthumb", "-mfloat-abi=soft", "-ffreestanding")
TARGETS = {
    target.name: target
    for target in (
        # Position independent code needs a table of addresses and a linker's symbol for it.
        Target("x86-64 gcc", "gcc", ("-fno-pic",)),
        Target("x86-64 clang", "clang", ("-fno-pic",)),
        Target("aarch64", "aarch64-linux-gnu-gcc", ("-mcpu=cortex-a53", "-mgeneral-regs-only"), "aarch64-linux-gnu-"),
        Target("cortex-m3", "arm-none-eabi-gcc", ("-mcpu=cortex-m3", *_M), "arm-none-eabi-"),
        Target("cortex-m4", "arm-none-eabi-gcc", ("-mcpu=cortex-m4", *_M), "arm-none-eabi-"),
    )
}


def compile_library(target: Target, flags: Sequence[str], out: Path) -> list[Path]:
    """The runtime library's objects in `out`."""
    runtime = c_runtime_dir()
    return build.compile_objects(
        target.compiler, build.library_sources(runtime), [runtime / "include"], [*target.flags, *flags], out
    )


def link_all(target: Target, objects: Sequence[Path], out: Path) -> Path:
    """One relocatable object of all, in which only foreign symbols are undefined."""
    whole = out / "whole.o"
    done = tools.run([target.compiler, *target.flags, "-r", "-nostdlib", *objects, "-o", whole], 60)
    assert done.returncode == 0, done.stderr
    return whole


def output(program: str, *arguments) -> str:
    done = tools.run([tools.find(program), *arguments], 60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def instructions(target: Target, objects: Sequence[Path]) -> list[tuple[str, str]]:
    """(mnemonic, operands) of every instruction, addresses of branches removed."""
    text = output(f"{target.prefix}objdump", "-d", "--no-show-raw-insn", *objects)
    found = []
    for line in text.splitlines():
        match = re.match(r"\s+[0-9a-f]+:\s+(\S+)\s*(.*)", line)
        if match:
            operands = re.sub(r"(//|;|#|@).*$", "", re.sub(r"\b[0-9a-f]+ <[^>]*>", "", match[2]))
            found.append((match[1], operands))
    return found


def symbols(target: Target, whole: Path, *options: str) -> set[str]:
    return {line.split()[-1] for line in output(f"{target.prefix}nm", *options, whole).splitlines()}


def text_bytes(target: Target, objects: Sequence[Path]) -> int:
    """Code and constants of all objects, as `size` counts them."""
    rows = output(f"{target.prefix}size", *objects).splitlines()[1:]
    return sum(int(row.split()[0]) for row in rows)


@dataclass
class CallGraph:
    """Frames and calls from GCC's -fcallgraph-info=su.

    The runtime calls through pointers in three ways, told apart by the line of source: entries of the table `kernels`, tasks,
    functions named task or …_task, and operators on a part of the tokens, named …_tokens. A trace callback is the caller's, and
    so is its stack.
    """

    public: set[str]
    frames: dict[str, int] = field(default_factory=dict)
    dynamic: set[str] = field(default_factory=set)
    calls: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    TASKS, KERNELS, TOKENS = "(tasks)", "(kernels)", "(tokens)"

    @classmethod
    def read(cls, files: Sequence[Path], public: set[str]) -> CallGraph:
        graph = cls(public)
        for file in files:
            text = file.read_text()
            for title, frame, kind in re.findall(r'node: \{ title: "([^"]+)" label: "[^"]*?\\n(\d+) bytes \(([^)]*)\)', text):
                # GCC splits and clones functions: name.part.0 counts as a piece of name.
                graph.frames[_whole(title)] = graph.frames.get(_whole(title), 0) + int(frame)
                if kind == "dynamic":  # and not "dynamic,bounded"
                    graph.dynamic.add(title)
            for source, target, place in re.findall(r'edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"(?: label: "([^"]*)")?', text):
                target = _pointer(place) if target == "__indirect_call" else _whole(target)
                if target and target != _whole(source):
                    graph.calls[_whole(source)].add(target)
        return graph

    def by_pointer(self, kind: str) -> set[str]:
        """What a call of TASKS, KERNELS or TOKENS may reach: functions that are not public and that nobody calls directly."""
        called = {name for targets in self.calls.values() for name in targets}
        reached = {name for name in self.frames if name not in called and name not in self.public}
        return {name for name in reached if _kind(name) == kind}

    def deepest(self, name: str, helper: int, seen: tuple[str, ...] = ()) -> tuple[int, tuple[str, ...]]:
        """Bytes and functions of the deepest chain from a function. A call of anything not in the graph (memcpy, libgcc) counts `helper` bytes."""
        assert name not in seen, f"recursion: {' -> '.join((*seen, name))}"
        if name in (self.TASKS, self.KERNELS, self.TOKENS):
            reached = self.by_pointer(name)
            assert reached, f"no {name} found"
        elif name in self.frames:
            reached = self.calls[name]
        else:
            return helper, (name,)
        depth, chain = max((self.deepest(other, helper, (*seen, name)) for other in reached), default=(0, ()))
        return self.frames.get(name, 0) + depth, (name.rpartition(":")[2], *chain)


def _whole(title: str) -> str:
    return re.sub(r"(\.(part|constprop|isra|cold)(\.\d+)?)+$", "", title)


def _kind(name: str) -> str:
    """How a function that is called by pointer is called."""
    return CallGraph.TASKS if name.endswith("task") else CallGraph.TOKENS if name.endswith("_tokens") else CallGraph.KERNELS


def _pointer(place: str) -> str | None:
    """What kind of function the call at a place, path:line:column, goes to; None for the caller's callbacks."""
    path, line, _column = place.rsplit(":", 2)
    source = Path(path).read_text().splitlines()[int(line) - 1]
    if "trace(" in source:
        return None
    if "kernels" in source:
        return CallGraph.KERNELS
    return CallGraph.TOKENS if "j->op" in source else CallGraph.TASKS
