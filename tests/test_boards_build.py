"""`edgepos build`: programs that run and give the digest, sizes that are true, and what is refused."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from boards import require

from edgepos import EdgePosError, UnsupportedError
from edgepos.resources import c_runtime_dir
from edgepos.runtime.native import make_config
from edgepos.targets import BOARDS, build, stack, tools
from edgepos.targets.features import definitions
from edgepos.targets.linux import command_line
from edgepos.targets.make import Wish, make
from edgepos.targets.processors import BARE, TARGETS, WASM, ZIG
from edgepos.targets.wasm import machine


MOST_TEXT, MOST_AARCH64 = 24_000, 150_000  # of a Llama program for Cortex-M4 at -Os by GCC; of the static program that runs any bundle


@pytest.mark.parametrize("cc", [None, "arm-none-eabi-gcc"])
def test_an_image_for_a_small_board(bundle, tmp_path, cc):
    """Flash and RAM of the promise: 512 kB and 192 kB hold stories260K with context 256. The image starts with nothing but its own flash."""
    require(ZIG if cc is None else cc, "qemu-system-arm")
    image = tmp_path / "m4.elf"
    made = make(bundle("stories260K", "kv8"), "m4", image, Wish(context=256, flash=512 << 10, ram=192 << 10, small=True, cc=cc))
    assert made.model >= bundle("stories260K", "kv8").model_path.stat().st_size and 16 << 10 < made.code <= (24 << 10 if cc is None else MOST_TEXT)
    assert made.arena == bundle("stories260K", "kv8").image.arena_size(config=make_config(256, 1, "generic"))
    assert "-M mps2-an386" in made.run and str(image) in made.run
    said = BOARDS["qemu:cortex-m4"].execute(image)
    assert f"digest {bundle('stories260K', 'kv8').program.header.digest:016x}" in said and "self-test passed" in said
    assert "text Once upon a time" in said
    stack = int(re.search(r"^stack (\d+)$", said, re.M)[1])
    assert 1024 < stack <= made.stack <= 4096


def test_a_small_program(bundle, tmp_path, record_property):
    """A Llama program of the runtime, its tokenizer's way back to text and the port. One for another model says what it is."""
    require("arm-none-eabi-gcc", "qemu-system-arm")
    wish = Wish(context=256, small=True, cc="arm-none-eabi-gcc")
    made = make(bundle("stories260K", "kv8"), "m4", tmp_path / "m4.elf", wish)
    record_property("text", made.code)
    assert 16 << 10 < made.code <= MOST_TEXT


@pytest.mark.parametrize("other", ["tiny-alibi", "tiny-rope"])
def test_a_program_refuses_what_it_was_not_built_for(bundle, tmp_path, monkeypatch, other):
    require("arm-none-eabi-gcc", "qemu-system-arm")
    known = definitions(bundle("stories260K", "kv8").program)
    monkeypatch.setattr("edgepos.targets.make.definitions", lambda _program, encodes=True: known)
    for small, said in ((True, "EP_ERR_INCLUDED"), (False, "built for another model and leaves out what this one needs")):
        make(bundle(other), "m4", tmp_path / "m4.elf", Wish(context=64, small=small, cc="arm-none-eabi-gcc"))
        with pytest.raises(EdgePosError, match=f"model: .*{said}"):
            BOARDS["qemu:cortex-m4"].execute(tmp_path / "m4.elf")


@pytest.mark.parametrize("checksum", [False, True])
def test_a_flipped_bit_in_flash_is_found(bundle, tmp_path, checksum):
    """By the self-test where the number matters to the digest, by the checksum wherever it is."""
    require("arm-none-eabi-gcc", "qemu-system-arm")
    opened, image = bundle("stories260K", "kv8"), tmp_path / "m4.elf"
    make(opened, "m4", image, Wish(context=64, small=True, checksum=checksum, cc="arm-none-eabi-gcc"))
    assert "self-test passed" in BOARDS["qemu:cortex-m4"].execute(image)
    program, model = bytearray(image.read_bytes()), opened.model_path.read_bytes()
    start, used = program.index(model), opened.program.ops[-1].tensors[0]
    weights = model.index(opened.program.arrays[used].tobytes())
    program[start + weights + 5] ^= 0x40
    image.write_bytes(program)
    with pytest.raises(EdgePosError, match="checksum of the model in flash" if checksum else "self-test: "):
        BOARDS["qemu:cortex-m4"].execute(image)


def test_a_build_leaves_out_what_the_model_does_not_use(bundle, tmp_path):
    require("arm-none-eabi-gcc")
    images = [make(bundle(name), "cortex-m3", tmp_path / name, Wish(cc="arm-none-eabi-gcc", small=True)) for name in ("stories260K", "tiny-rope")]
    library = build.compile_objects("arm-none-eabi-gcc", build.library_sources(c_runtime_dir()), [c_runtime_dir() / "include"], ["-Os", "-mcpu=cortex-m3", "-mthumb", "-ffreestanding"], tmp_path)
    sizes = tools.run(["arm-none-eabi-size", *library], 60).stdout.splitlines()[1:]
    whole = sum(int(line.split()[0]) for line in sizes)
    assert all(image.code < 0.8 * whole for image in images), (whole, [image.code for image in images])


@pytest.mark.parametrize("target", ["rpi4", "wasm"])
def test_one_file_is_everything(bundle, tmp_path, target):
    """The model in the program; a program without it takes the file."""
    require(ZIG, "qemu-aarch64")
    opened = bundle("stories260K")
    for embed in (True, False):
        program = tmp_path / f"program-{embed}"
        made = make(opened, target, program, Wish(embed=embed, checksum=embed))
        assert program.stat().st_size == made.flash - (0 if embed else made.model)
        words = ["--selftest"] if embed else [opened.model_path, "--selftest"]
        command = ["qemu-aarch64", "-cpu", "cortex-a53", program]
        if target == "wasm":
            words = words if embed else ["/model/model.gguf", "--selftest"]
            command = [*machine(), program, opened.path]
        done = tools.run([*command, *words], 120)
        assert done.returncode == 0 and f"0x{opened.program.header.digest:016x}" in done.stdout, done.stderr
        if target == "rpi4" and not embed:
            assert made.code <= MOST_AARCH64
            used = tools.run([*command, *words, "--ids", "1", "-n", "0"], 120).stderr
            assert 0.9 * made.arena < int(re.search(r"arena (\d+) bytes", used)[1]) <= made.arena
        if target == "rpi4" and embed:  # a bit of the model in it
            damaged = bytearray(program.read_bytes())
            damaged[damaged.index(opened.model_path.read_bytes()) + made.model - 100] ^= 1
            program.with_suffix(".damaged").write_bytes(damaged)
            program.with_suffix(".damaged").chmod(0o755)
            done = tools.run([*command[:-1], program.with_suffix(".damaged"), *words], 120)
            assert done.returncode == 1 and f"expected 0x{opened.image.checksum:016x}: it was changed" in done.stderr
    (tmp_path / "x").symlink_to(opened.model_path)
    if target == "rpi4":
        done = tools.run(["qemu-aarch64", tmp_path / "program-True", tmp_path / "x"], 60)
        assert done.returncode == 2 and "has its model in it" in done.stderr


@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.system != BARE and name not in ("rpi3", "rpi5", "aarch64", "android-arm64")])
def test_every_system_compiles(tmp_path, name):
    """To objects: linking would compile each system's C library first, which takes minutes."""
    require(ZIG)
    runtime, target = c_runtime_dir(), TARGETS[name]
    flags = ["-O1", *target.flags(ZIG), "-Wall", "-Wextra", "-Werror", "-DEDGEPOS_EMBEDDED"]
    build.library_and(runtime, ZIG, flags, command_line(runtime, target.system != WASM), tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    done = tools.run([*tools.command(ZIG), *target.flags(ZIG), "-c", runtime / "ports" / "embed.S", "-o", tmp_path / "model.o"], 60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_what_does_not_fit_is_refused_with_the_numbers(bundle, tmp_path):
    require("arm-none-eabi-gcc")
    opened, image = bundle("stories260K"), tmp_path / "image.elf"
    with pytest.raises(EdgePosError, match=r"cortex-m3: \d+ bytes of flash are needed, there are 262144 \(\d+ code, \d+ model\)"):
        make(opened, "m3", image, Wish(flash=256 << 10, cc="arm-none-eabi-gcc"))
    with pytest.raises(EdgePosError, match=r"bytes of RAM are needed, there are 65536 .* arena, \d+ stack; a smaller --context"):
        make(opened, "m3", image, Wish(ram=64 << 10, cc="arm-none-eabi-gcc"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "wish", "error", "message"),
    [
        ("z80", Wish(), UnsupportedError, "z80.*choose one of rpi3, .*cortex-m55"),
        ("m4", Wish(board="mps9"), UnsupportedError, "mps9.*mps2-an386"),
        ("rpi4", Wish(board="mps2-an386"), UnsupportedError, "leave --board out"),
        ("m4", Wish(context=100000), EdgePosError, "context 100000: the model takes 1 to"),
        ("m4", Wish(cc="no-such-cc"), EdgePosError, "no-such-cc was not found"),
        ("m4", Wish(cc="false"), EdgePosError, "false"),
    ],
)
def test_wishes_that_cannot_be_met(bundle, tmp_path, target, wish, error, message):
    with pytest.raises(error, match=message) as raised:
        make(bundle("stories260K"), target, tmp_path / "x", wish)
    assert "\n" not in str(raised.value) and not list(tmp_path.iterdir())


def test_without_the_package(bundle, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "has_module", lambda _name: False)
    with pytest.raises(EdgePosError, match=r"pip install .edgepos\[boards\].*--cc"):
        make(bundle("stories260K"), "rpi4", tmp_path / "x", Wish())


def test_the_command(bundle, tmp_path):
    require("arm-none-eabi-gcc")

    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "edgepos", "build", *map(str, arguments)], capture_output=True, text=True, timeout=300, cwd=tmp_path)

    listed = run("--list").stdout
    assert all(name in listed for name in TARGETS)
    done = run(bundle("stories260K").path, "--target", "m4", "--cc", "arm-none-eabi-gcc", "-o", "image.elf", "--ram", "4M")
    assert done.returncode == 0 and all(word in done.stdout for word in ("flash", "RAM", "arena", "stack", "run")), done.stderr
    assert (tmp_path / "image.elf").is_file()
    for wrong in ([], ["--target", "m4"], [bundle("stories260K").path, "--target", "m4", "--flash", "much"]):
        done = run(*wrong)
        assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1, done.stderr


@pytest.mark.parametrize("body", ["int down(int n) { return n ? down(n - 1) + 1 : 0; }", "int down(int n) { int all[n]; return use(all, n); }"])
def test_a_stack_without_a_limit_is_refused(tmp_path, body):
    """A function that calls itself, and one whose frame has no fixed size, which clang leaves out of what it tells."""
    require("arm-none-eabi-gcc")
    source = tmp_path / "down.c"
    source.write_text(f"int use(int *, int);\nint down(int n);\n__attribute__((noinline)) int other(int n) {{ return down(n) * n; }}\n{body.replace('down(n - 1)', 'other(n - 1)')}\n")
    flags = ["-Os", *TARGETS["cortex-m4"].flags("arm-none-eabi-gcc"), "-ffunction-sections", "-fno-optimize-sibling-calls", *stack.flags("arm-none-eabi-gcc")]
    objects = build.compile_objects("arm-none-eabi-gcc", [source], [], flags, tmp_path)
    with pytest.raises(EdgePosError, match="no limit of the stack is known"):
        stack.deepest(objects, "down")
