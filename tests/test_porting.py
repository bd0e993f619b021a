"""The program of docs/porting.md, with the model in its flash, on an emulated Cortex-M3: the text that edgepos-run gives."""

from __future__ import annotations

import re

import pytest
from boards import require

from edgepos.resources import c_runtime_dir
from edgepos.targets import BOARDS, build, tools

GLUE = """
#include <stddef.h>
#include "semihosting.h"
void uart_write(const char *bytes, size_t n);
void uart_write(const char *bytes, size_t n) {
  char text[2] = {0, 0};
  for (size_t i = 0; i < n; i++) {
    text[0] = bytes[i];
    semihosting_put(text);
  }
}
"""


@pytest.mark.parametrize(("name", "kv"), [("stories260K", "kv16"), ("tiny-rope", "kv8")])
def test_the_example_runs_on_a_bare_board(bundle, root, tmp_path, name, kv):
    board = BOARDS["qemu:cortex-m3"]
    require(*board.needs())
    guide = (root / "docs" / "porting.md").read_text("utf-8")
    (program,) = re.findall(r"^```c\n(.*?)^```", guide, re.M | re.S)
    (assembly,) = re.findall(r"^```asm\n(.*?)^```", guide, re.M | re.S)
    opened = bundle(name, kv)
    (tmp_path / "main.c").write_text(program)
    (tmp_path / "model.S").write_text(assembly)
    (tmp_path / "glue.c").write_text(GLUE)
    (tmp_path / "model.gguf").write_bytes(opened.model_path.read_bytes())

    runtime = c_runtime_dir()
    port = runtime / "ports" / "baremetal"
    flags = [*board.flags, "-O2", "-ffreestanding", "-fno-tree-loop-distribute-patterns", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    sources = [*build.library_sources(runtime), port / "start.c", port / "semihosting.c", tmp_path / "main.c", tmp_path / "glue.c", tmp_path / "model.S"]
    objects = build.compile_objects(board.compiler, sources, [runtime / "include", port, tmp_path], [*flags, f"-Wa,-I{tmp_path}"], tmp_path)
    image = tmp_path / "board.elf"
    link = ["-nostdlib", f"-L{port}", "-Tmps2_an385.ld", "-lgcc", "-o", image]
    done = tools.run([tools.find(board.compiler), *board.flags, *objects, *link], 120)
    assert done.returncode == 0, done.stderr

    command = ["qemu-system-arm", "-M", board.machine, "-display", "none", "-monitor", "none", "-serial", "none", "-chardev", "stdio,id=text"]
    ran = tools.run([*command, "-semihosting-config", "enable=on,target=native,chardev=text", "-kernel", image], 300)
    assert ran.returncode == 0, ran.stdout

    run = BOARDS["host"].program(runtime)
    host = tools.run([run, opened.model_path, "-p", "Once upon a time", "-n", "128", "--context", "128"], 120)
    assert len(ran.stdout) > 100
    # The example's loop also prints the token that fills the context.
    assert ran.stdout == host.stdout.removesuffix("\n")
