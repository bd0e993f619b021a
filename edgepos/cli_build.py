"""`edgepos build` and `edgepos verify`: programs for boards, and proof that boards compute the same bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.table import Table

from .cli_common import BundleArgument, err, out
from .errors import EdgePosError

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def build(
    bundle: Annotated[Optional[Path], typer.Argument(help="A bundle folder (NAME.edgepos) or its model.gguf.")] = None,
    target: Annotated[Optional[str], typer.Option(help="What to build for: see --list.")] = None,
    output: Annotated[Optional[Path], typer.Option("--output", "-o", help="The program; default: NAME-TARGET here.")] = None,
    embed: Annotated[bool, typer.Option("--embed", help="Put the model into the program (always so without an operating system).")] = False,
    context: Annotated[Optional[int], typer.Option(min=1, help="Tokens a session holds, which is most of its RAM; default: the model's.")] = None,
    board: Annotated[Optional[str], typer.Option(help="A board like mps2-an386, or a linker script NAME.ld; default: the emulated one of the target.")] = None,
    flash: Annotated[Optional[str], typer.Option(help="Flash there is, like 512K: what does not fit is refused.")] = None,
    ram: Annotated[Optional[str], typer.Option(help="RAM there is, like 192K.")] = None,
    cc: Annotated[Optional[str], typer.Option("--cc", help="Another compiler than that of the ziglang package.")] = None,
    small: Annotated[bool, typer.Option("--small", help="Less code instead of more speed (-Os).")] = False,
    checksum: Annotated[bool, typer.Option("--checksum", help="The program opens only this model, unchanged to the bit: it compares a checksum first.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Show the targets.")] = False,
) -> None:
    """Make a ready program or image for a board."""
    from .targets.processors import TARGETS
    from .targets.processors import target as target_of

    if show:
        table = Table("target", "what it is", "system")
        for each in TARGETS.values():
            table.add_row(each.name, each.about, each.system)
        out.print(table)
        return
    if bundle is None or target is None:
        raise EdgePosError("a bundle and --target are needed; edgepos build --list shows the targets")
    from .bundle import open as open_bundle
    from .targets.make import Wish, make

    of = target_of(target)
    name = bundle.resolve().name.removesuffix(".edgepos").removesuffix(".gguf")
    place = output or Path(f"{name}-{of.name}{of.suffix}")
    wish = Wish(embed, board, _size("--flash", flash), _size("--ram", ram), context, cc, small, checksum)
    with err.status(f"building for {of.name} …") as status:
        opened = open_bundle(bundle)
        built = make(opened, of.name, place, wish, lambda text: status.update(f"building for {of.name}: {text} …"))
    inside = built.model and (embed or of.system == "no operating system")
    out.print(f"{place}: {of.name}, {of.system}, built by {built.compiler}")
    out.print(f"flash  {built.flash:>10,} bytes: {built.code:,} program, {built.model:,} model ({'in it' if inside else 'model.gguf beside it'})")
    out.print(f"RAM    {built.ram:>10,} bytes: {built.data:,} data, {'at most ' * built.most}{built.arena:,} arena at context {context or 'of the model'}" + (f", {built.stack:,} stack" if built.stack else ""))
    if checksum:
        out.print(f"opens  only the model with the checksum 0x{opened.image.checksum:016x}")
    out.print(f"run    {built.run}")


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    match = re.fullmatch(r"([0-9]{1,12})([KMG]?)(?:i?B)?", text.strip(), re.I)
    if not match:
        raise EdgePosError(f"{option} is {text!r}: a number of bytes is needed, like 524288 or 512K")
    return int(match[1]) * _UNITS[match[2].upper()]


def verify(
    bundle: BundleArgument,
    on: Annotated[str, typer.Option(help="host, qemu:cortex-a53, …-a76, qemu:max, qemu:armv7, qemu:riscv64, wasm, qemu:cortex-m0plus, -m3, -m4, -m7, -m33, -m55, or ssh://user@host:port.")] = "host",
    cc: Annotated[Optional[str], typer.Option("--cc", help="The compiler; zig is that of the ziglang package.")] = None,
    threads: Annotated[int, typer.Option(help="Threads the program uses.")] = 1,
) -> None:
    """Build the runtime for a board, run the self-test there, and compare the digest."""
    from .bundle import open as open_bundle
    from .targets import board
    from .targets import verify as verify_on

    with err.status(f"building and running on {on} …"):
        result = verify_on(open_bundle(bundle), board(on, cc, threads))
    out.print(f"{on}: identical, {result}")
