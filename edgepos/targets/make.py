"""`edgepos build`: a program for a target, with the model beside it or in it, and what it needs."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import EdgePosError, UnsupportedError
from ..program import Op
from ..runtime.native import make_config
from ..whole_file import whole_file
from . import BOARDS, baremetal, build, runtime_of, stack, tools
from .elf import section_sizes
from .features import definitions
from .linux import command_line
from .processors import BARE, LINUX, MACOS, WASM, WINDOWS, ZIG, Target, target

# Tokens that programs with vector kernels take at a time, and what these kernels take for themselves at most (EP_MOST_SCRATCH in kernels.h).
VECTOR_BATCH, KERNEL_MEMORY = 128, 32768
MOST_PRODUCTS, ALIGNED = 4 * 128, 64  # EP_GROUP * EP_GROUP_KEYS, and EP_ALIGN


@dataclass(frozen=True)
class Product:
    """A built program. Sizes in bytes: `code` and constants, `model` (in flash, or beside the program), `data` that is written, `arena` of the
    session, `stack` that is reserved (0: the system gives it); `flash` and `ram` are what they add up to. `run` is the command that starts it."""

    file: Path
    compiler: str
    code: int
    model: int
    data: int
    arena: int
    stack: int
    run: str
    most: bool = False  # the arena depends on the processor that runs it

    @property
    def flash(self) -> int:
        return self.code + self.model

    @property
    def ram(self) -> int:
        return self.data + self.arena + self.stack


@dataclass(frozen=True)
class Wish:
    """What is asked for: `board` is an emulated board's machine or a linker script (targets without an operating system), `flash` and `ram`
    limits in bytes, `small` trades speed for size; with `checksum` the program compares the FNV-1a of the model, in it or in a file, with what it
    was at the time of the build, before it opens it."""

    embed: bool = False
    board: str | None = None
    flash: int | None = None
    ram: int | None = None
    context: int | None = None
    cc: str | None = None
    small: bool = False
    checksum: bool = False


def make(bundle, name: str, output: Path, wish: Wish, progress=None) -> Product:
    """Build the bundle's program for a target into the file `output`; `progress(text)` is told what is done.

    Raises UnsupportedError for unknown targets and boards, EdgePosError when the compiler is missing or fails, and when the program needs more
    flash or RAM than there is. Nothing is written then.
    """
    of = target(name)
    context = wish.context or bundle.image.info.context
    if not 1 <= context <= bundle.image.info.context:
        raise EdgePosError(f"context {context}: the model takes 1 to {bundle.image.info.context} tokens")
    if wish.board and of.system != BARE:
        raise UnsupportedError(f"a board is named for targets without an operating system, and {of.name} has {of.system}; leave --board out")
    compiler = ZIG if wish.cc in (None, "zig") else wish.cc
    tools.command(compiler)
    with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
        built = _bare(bundle, of, compiler, context, wish, Path(folder), progress) if of.system == BARE else _hosted(
            bundle, of, compiler, context, wish, Path(folder), progress
        )  # fmt: skip
        _check(of, built, wish)
        _place(built.file, output)
    run = built.run.replace("./OUTPUT", str(output) if output.is_absolute() else f"./{output}").replace("OUTPUT", str(output))
    return replace(built, file=output, run=run)


def _check(of: Target, built: Product, wish: Wish) -> None:
    for what, needed, room in (("flash", built.flash, wish.flash), ("RAM", built.ram, wish.ram)):
        if room is not None and needed > room:
            parts = (
                f"{built.code} code, {built.model} model" if what == "flash"
                else f"{built.data} data, {built.arena} arena{f', {built.stack} stack' * bool(built.stack)}; a smaller --context or a kv8 bundle needs less"
            )  # fmt: skip
            raise EdgePosError(f"{of.name}: {needed} bytes of {what} are needed, there are {room} ({parts})")


def _place(file: Path, output: Path) -> None:
    """Copy a program to its place."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(output) as temporary:
        shutil.copyfile(file, temporary)
        temporary.chmod(0o755)


def _stack_object(reserved: int, compiler: str, of: Target, folder: Path) -> Path:
    """The symbol by which the linker script learns what to reserve."""
    (folder / "stack.S").write_text(f".global edgepos_stack\n.set edgepos_stack, {reserved}\n", "ascii")
    done = tools.run([*tools.command(compiler), *of.flags(compiler), "-c", folder / "stack.S", "-o", folder / "stack.o"], build.COMPILE_SECONDS)
    if done.returncode != 0:
        raise EdgePosError(f"{compiler} does not assemble a symbol: {tools.first_error(done.stderr)}")
    return folder / "stack.o"


def _checksum(bundle, wish: Wish) -> list[str]:
    return [f"-DEDGEPOS_CHECKSUM={bundle.image.checksum:#x}ull"] if wish.checksum else []


def _model_object(bundle, runtime: Path, compiler: str, flags, folder: Path) -> Path:
    """The model as an object file."""
    source = runtime / "ports" / "embed.S"
    if not source.is_file():
        raise EdgePosError(f"{runtime}: ports/embed.S is missing from this runtime; export the bundle again")
    (folder / "model.gguf").symlink_to(bundle.model_path.resolve())
    done = tools.run([*tools.command(compiler), *flags, "-c", source, "-o", folder / "model.o"], build.COMPILE_SECONDS, cwd=folder)
    if done.returncode != 0:
        raise EdgePosError(f"{compiler} does not assemble the model: {tools.first_error(done.stderr)}")
    return folder / "model.o"


def _hosted(bundle, of: Target, compiler: str, context: int, wish: Wish, folder: Path, progress) -> Product:
    runtime = runtime_of(bundle)
    threads = of.system != WASM
    least = build.small_code(compiler)
    optimize = build.Optimize(least if wish.small else _fast(of, compiler), least)  # kernels are where the time goes
    flags = [*of.flags(compiler), "-ffunction-sections", "-fdata-sections"]  # nothing is unwound
    flags += [] if of.system == WINDOWS else ["-fno-asynchronous-unwind-tables", "-fno-unwind-tables"]
    flags += ["-pthread"] if threads else []
    flags += ["-flto"] if compiler == ZIG and of.system == LINUX else []  # less code; zig links so for ELF alone
    flags += ["-DEDGEPOS_EMBEDDED", *definitions(bundle.program)] if wish.embed else []
    flags += _checksum(bundle, wish)
    strip = {LINUX: ["-static", "-Wl,--gc-sections"], WINDOWS: ["-Wl,--gc-sections"], MACOS: ["-Wl,-dead_strip"], WASM: []}[of.system]
    strip += ["-s", "-Os"]  # by this zig compiles the C library
    objects = [_model_object(bundle, runtime, compiler, of.flags(compiler), folder)] if wish.embed else []
    name = f"edgepos-run{of.suffix}"
    if objects:  # the cache holds no models
        file = folder / name
        objects += build.library_and(runtime, compiler, flags, command_line(runtime, threads), folder, progress, optimize=optimize)
        build.link(compiler, [*flags, *objects, *strip], file, progress)
    else:
        file = build.program(name, runtime, compiler, flags, command_line(runtime, threads), flags, strip, progress, optimize=optimize)
    size, model = file.stat().st_size, bundle.model_path.stat().st_size
    arena = _most_arena(bundle, of, context)
    runner = {WASM: "wasmtime --dir . ", LINUX: "./", MACOS: "./", WINDOWS: ""}[of.system] + "OUTPUT"
    argument = "" if wish.embed else " model.gguf"
    run = f"{runner}{argument} --context {context} " + _example(bundle.image.info)
    code = size - model if wish.embed else size
    return Product(file, tools.version(compiler), code, model, 0, arena, 0, run, of.vectors)


def _most_arena(bundle, of: Target, context: int) -> int:
    """The session of any processor of the target: measured here in C for a machine of 64 bits, which needs the most."""
    batch = 0 if bundle.program.one_call or not of.vectors else VECTOR_BATCH
    plain = bundle.image.arena_size(config=make_config(context, batch, "generic"))
    return plain + (KERNEL_MEMORY if of.vectors else 0) + (_blocks(bundle.program, context) if of.triple.startswith("x86_64") else 0)


def _blocks(program, context: int) -> int:
    """What a KV cache in blocks (src/session.c) adds at most for one thread: whole blocks, and room for the query heads that share a KV head."""
    heads = [op.params["heads"] for op in program.ops if op.code is Op.ATTENTION]
    if not heads:
        return 0
    slots, number = -(-context // 16) * 16, program.header.kv_bits // 8
    cache = sum(
        kv.heads * ((slots * (-(-kv.k_dim // 4) * 4 + kv.v_dim) - context * (kv.k_dim + kv.v_dim)) * number + 8 * (slots - context))
        for kv in program.kv
    )
    group = max(op.params["heads"] // program.kv[op.params["layer"]].heads for op in program.ops if op.code is Op.ATTENTION)
    width = max(max(kv.k_dim, kv.v_dim) for kv in program.kv)
    return cache + 4 * group * (slots + 16 + width) + 8 * (MOST_PRODUCTS + max(heads) * (width + 2)) + ALIGNED * (7 + 4 * len(program.kv))


def _fast(of: Target, compiler: str) -> tuple[str, ...]:
    """Flags of kernels. Those for 64-bit ARM say themselves what is unrolled: of clang's -Os as of its -O2 they become the same instructions."""
    return ("-Os",) if of.triple.startswith("aarch64") and (compiler == ZIG or "clang" in compiler) else ("-O2", "-fno-unroll-loops")


def _example(info) -> str:
    """What to give the program."""
    return "--image IMAGE.ppm" if info.channels else "--embed" if info.embedding else '-p "Once upon a time"'


def _bare(bundle, of: Target, compiler: str, context: int, wish: Wish, folder: Path, progress) -> Product:
    runtime = runtime_of(bundle)
    board, script = _board(of, wish.board, runtime)
    batch = 0 if bundle.program.one_call else 1
    defined = ["-DEDGEPOS_EMBEDDED", "-DEDGEPOS_NATIVE", f"-DEDGEPOS_CONTEXT={context}", f"-DEDGEPOS_BATCH={batch}", *definitions(bundle.program, encodes=False)]
    defined += _checksum(bundle, wish)
    defined += ["-DEDGEPOS_SHORT_TEXTS"] if wish.small else []
    optimize = build.small_code(compiler) if wish.small else ("-O2",)
    flags = [*baremetal.c_flags(compiler, optimize, of.flags(compiler)), *defined]
    objects = [_model_object(bundle, runtime, compiler, of.flags(compiler), folder)]
    objects += build.library_and(runtime, compiler, [*flags, *stack.flags(compiler)], baremetal.board_sources(runtime), folder, progress)
    reserved = stack.deepest(objects, "reset_handler")
    objects.append(_stack_object(reserved, compiler, of, folder))
    file = folder / f"{of.name}.elf"
    build.link(compiler, [*flags, *objects, *baremetal.link_flags(script, compiler), "-s"], file, progress, runtime / "ports" / "baremetal")
    sizes = section_sizes(file)
    # No kernel of a Cortex-M takes memory of its own; those of the processor that builds may.
    arena = bundle.image.arena_size(config=make_config(max(context, len(bundle.image.info.selftest)), batch, "generic"))
    run = f"flash OUTPUT with the board's debugger, which shows its output (semihosting); in qemu: {board.command('OUTPUT')}" if board else "flash OUTPUT with the board's debugger"
    return Product(file, tools.version(compiler), sizes["code"], sizes["model"], sizes["data"], arena, reserved, run)


def _board(of: Target, name: str | None, runtime: Path):
    """The emulated board (None for a script of one's own) and its linker script."""
    known = {board.machine: board for board in BOARDS.values() if isinstance(board, baremetal.BareMetalBoard)}
    if name is None:
        board = BOARDS[f"qemu:{of.name}"]
    elif name in known:
        board = known[name]
    elif name.endswith(".ld") and Path(name).is_file():
        return None, Path(name).resolve()
    else:
        raise UnsupportedError(f"board {name!r} is unknown; choose one of {', '.join(known)}, or give a linker script NAME.ld")
    return board, runtime / "ports" / "baremetal" / board.linker_script
