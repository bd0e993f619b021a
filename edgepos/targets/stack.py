"""How much stack a program without an operating system needs at most: the frames that the compiler reports, along the calls in the object files.

A node of the graph is a section of code, which is one function (-ffunction-sections). Its calls are its relocations. Calls through pointers go, by the
names that the runtime gives to such functions, to kernels, which make none themselves, to operators on tokens (…_tokens), which call kernels, and to
tasks (…task), which call both; any other function may call all three. The tests compare with what a run used.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import EdgePosError
from .elf import read_sections
from .processors import ZIG

# What is not in the objects are 64-bit divisions and shifts of the compiler's library; an exception of the processor puts its registers below all.
HELPER, EXCEPTION = 256, 128
_SYMTAB, _REL, _CODE = 2, 9, 4
_CALLS = {10, 30, 51, 102, 103}  # R_ARM_THM_CALL, _JUMP24, _JUMP19, _JUMP11, _JUMP8: all others take an address
_FUNCTION, _SECTION = 2, 3


def flags(compiler: str) -> tuple[str, ...]:
    """What makes a compiler report its frames: clang in the object, GCC in a file NAME.su beside it."""
    return ("-fstack-size-section",) if compiler == ZIG or "clang" in compiler else ("-fstack-usage",)


@dataclass
class _Node:
    names: list[str] = field(default_factory=list)
    frame: int = 0
    calls: set = field(default_factory=set)
    by_pointer: bool = False


def deepest(objects: Iterable[Path], root: str) -> int:
    """Bytes from the function `root` down, an exception included. Raises EdgePosError when a function calls itself or has no frame of a fixed size."""
    nodes, globals_, taken = {}, {}, set()
    for file in objects:
        _read(file, nodes, globals_, taken)
    kinds: dict[str, set] = defaultdict(set)
    for key in taken:
        found = globals_.get(key, key)
        if found in nodes and root not in nodes[found].names:  # that is in the table of vectors
            kinds[_kind(nodes[found].names)].add(found)
    memory: dict = {}

    def depth(key, pointers: int, path: tuple = ()) -> int:
        key = globals_.get(key, key)
        if key not in nodes:
            return HELPER
        if (key, pointers) not in memory:
            node = nodes[key]
            if key in path:
                raise EdgePosError(f"{node.names[0]} calls itself: no limit of the stack is known")
            below = [depth(call, pointers, (*path, key)) for call in node.calls]
            memory[key, pointers] = node.frame + max([pointers * node.by_pointer, *below])
        return memory[key, pointers]

    pointers = 0
    for kind in ("kernel", "tokens", "task"):
        pointers = max([pointers, *(depth(key, pointers) for key in kinds[kind])])
    return (depth(root, pointers) + EXCEPTION + 7) // 8 * 8


def _kind(names: list[str]) -> str:
    name = _whole(names[0]) if names else ""
    return "task" if name.endswith("task") else "tokens" if name.endswith("_tokens") else "kernel"


def _whole(name: str) -> str:
    """GCC splits and clones functions: name.part.0 is a piece of name."""
    return re.sub(r"(\.(part|constprop|isra|cold)(\.\d+)?)+$", "", name)


def _read(file: Path, nodes: dict, globals_: dict, taken: set) -> None:
    """Adds the sections of code of an object, its global names, and the functions whose addresses are taken, as keys or names."""
    sections = read_sections(file)
    usage = _usage(file.with_suffix(".su"))
    table = next((i for i, s in enumerate(sections) if s.kind == _SYMTAB), None)
    symbols = list(struct.iter_unpack("<3I2BH", sections[table].data)) if table is not None else []
    texts = sections[sections[table].link].data if table is not None else b""
    for i, section in enumerate(sections):
        if section.flags & _CODE:
            nodes[file, i] = _Node(by_pointer=_has(section.data, _calls_pointer))
    for name_at, _value, _size, info, _other, index in symbols:
        if info & 15 == _FUNCTION and (file, index) in nodes:
            name = texts[name_at : texts.index(b"\0", name_at)].decode()
            nodes[file, index].names.append(name)
            if info >> 4:
                globals_[name] = (file, index)
    for i, section in enumerate(sections):
        if section.name == ".stack_sizes" and (file, section.link) in nodes:
            nodes[file, section.link].frame += sum(_sizes(section.data))
    for key, node in ((key, node) for key, node in nodes.items() if key[0] == file):
        node.frame += sum(usage.get(name, 0) for name in {_whole(name) for name in node.names})

    def target(number: int):
        name_at, _value, _size, info, _other, index = symbols[number]
        return (file, index) if index else texts[name_at : texts.index(b"\0", name_at)].decode()

    jumps = set()
    for section in sections:
        if section.kind != _REL or not section.name.startswith((".rel.text", ".rel.rodata", ".rel.data", ".rel.vectors")):
            continue
        node = nodes.get((file, section.info))
        for _offset, info in struct.iter_unpack("<2I", section.data):
            to = target(info >> 8)
            if node and info & 255 in _CALLS:
                node.calls.add(to)
            elif to != (file, section.info):
                taken.add(to)
            else:  # a jump table
                jumps.add(to)
    for key in nodes:
        if key[0] == file and key not in jumps and _has(sections[key[1]].data, _loads_pc):
            nodes[key].by_pointer = True


def _has(code: bytes, what) -> bool:
    """Whether what(half, next half) holds anywhere in Thumb code: the halves of other instructions may look so too, which only adds to the limit."""
    halves = [half for (half,) in struct.iter_unpack("<H", code[: len(code) // 2 * 2])]
    return any(map(what, halves, [*halves[1:], 0]))


def _calls_pointer(half: int, _after: int) -> bool:
    """BLX or BX of a register but LR, or MOV to PC."""
    return (half & 0xFF00 == 0x4700 and half & 0xFFF8 != 0x4770) or half & 0xFF87 == 0x4687


def _loads_pc(half: int, after: int) -> bool:
    """LDR to PC: a jump table of the function's own, or a call through a pointer at its end."""
    return half & 0xFF70 == 0xF850 and after >> 12 == 15


def _sizes(data: bytes):
    """Frames of a section .stack_sizes: an address and a ULEB128 each."""
    at = 0
    while at + 5 <= len(data):
        at, value, shift = at + 4, 0, 0
        while True:
            byte = data[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                break
        yield value


def _usage(file: Path) -> dict[str, int]:
    """Frames by function of GCC's NAME.su, pieces of one added up; {} where there is none."""
    frames: dict[str, int] = defaultdict(int)
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        place, frame, kind = line.rsplit("\t", 2)
        if kind == "dynamic":
            raise EdgePosError(f"{place.rpartition(':')[2]} has no frame of a fixed size: no limit of the stack is known")
        frames[_whole(place.rpartition(":")[2])] += int(frame)
    return frames
