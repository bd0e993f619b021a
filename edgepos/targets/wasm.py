"""WebAssembly: edgepos-run in Node's WASI, or in the wasmtime package where there is no Node."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import EdgePosError
from . import build, tools
from .boards import RUN_SECONDS
from .linux import LinuxBoard, command_line

_NODE = """
const { WASI } = require('node:wasi'), fs = require('node:fs');
const [program, folder, ...rest] = process.argv.slice(1);
const wasi = new WASI({ version: 'preview1', args: ['edgepos-run', ...rest], preopens: { '/model': folder }, returnOnExit: true });
WebAssembly.instantiate(fs.readFileSync(program), wasi.getImportObject())
  .then(({ instance }) => { process.exitCode = wasi.start(instance); });
"""
_WASMTIME = """
import sys
import wasmtime
program, folder, *rest = sys.argv[1:]
engine = wasmtime.Engine()
linker, store, wasi = wasmtime.Linker(engine), wasmtime.Store(engine), wasmtime.WasiConfig()
linker.define_wasi()
wasi.argv = ["edgepos-run", *rest]
wasi.preopen_dir(folder, "/model")
wasi.inherit_stdout()
wasi.inherit_stderr()
store.set_wasi(wasi)
try:
    linker.instantiate(store, wasmtime.Module.from_file(engine, program)).exports(store)["_start"](store)
except wasmtime.ExitTrap as end:
    sys.exit(end.code)
"""


@dataclass(frozen=True)
class WasmBoard(LinuxBoard):
    """Built by zig. It has one thread and no files but the model."""

    def needs(self) -> list[str]:
        return [self.compiler]

    def program(self, runtime: Path, progress=None) -> Path:
        for tool in self.needs():
            tools.require(tool)
        flags = (self.optimize, *self.flags)
        return build.program("edgepos-run.wasm", runtime, self.compiler, flags, command_line(runtime, threads=False), flags, self.link_flags, progress)

    def _execute(self, program: Path, model: Path, arguments: Sequence):
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            copy = Path(folder) / "model.gguf"  # WASI follows no link out of a folder
            shutil.copyfile(model, copy)
            return tools.run([*machine(), program, folder, "/model/model.gguf", *arguments], RUN_SECONDS)


def machine() -> list[str]:
    """The command that runs a program, given its path, a folder that it sees as /model, and its arguments. Raises EdgePosError when there is none."""
    if shutil.which("node"):
        return [tools.find("node"), "--no-warnings", "-e", _NODE, "--"]
    if tools.has_module("wasmtime"):
        return [sys.executable, "-c", _WASMTIME]
    raise EdgePosError('nothing that runs WebAssembly was found: pip install "edgepos[boards]" for wasmtime, or install Node (Debian: apt-get install nodejs)')
