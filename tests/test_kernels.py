"""The kernels of this processor and the generic ones give golden's bits; the C test compares them one by one."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy as np
import pytest
from boards import require
from random_programs import Shape, random_program
from tokenizer_images import image

from edgepos.errors import EdgePosError
from edgepos.golden_session import GoldenSession
from edgepos.resources import c_runtime_dir
from edgepos.runtime.native import Image, kernel_sets, lib
from edgepos.runtime.session import CSession
from edgepos.targets import build, tools

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {
    "w8g32 kv16": Shape(),
    "w8 kv8": Shape(grouped=False, kv_bits=8, head_dim=20, v_dim=37, width=290, inner=65),
    "w4g32 kv16": Shape(w4=True, alibi=True, head_dim=64, v_dim=64, pairs=32, width=384, inner=416),
    "w8g32 a8g32": Shape(a8=True, width=384, inner=416, vocab=131),
    "w8 a8g32": Shape(a8=True, grouped=False, width=290, inner=65),
    "w16g32 kv16": Shape(w16=True, a8=True, head_dim=64, v_dim=64, pairs=32, width=352, inner=416, vocab=131),
    "w4g32 a8g32": Shape(a8=True, w4=True, head_dim=64, v_dim=64, pairs=32, width=352, inner=33),
    "w4g32 kv8": Shape(w4=True, kv_bits=8, logit_softcap=True, bias=True, width=33, vocab=131),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("extreme", [False, True])
def test_every_set_gives_the_bits_of_golden(name, extreme):
    program = random_program(np.random.default_rng(list(SHAPES).index(name)), SHAPES[name], extreme)
    ids = np.random.default_rng(1).integers(0, program.header.vocab, program.header.context)
    golden, picture = GoldenSession(program), Image(image(program))
    expected = golden.eval_int(ids)
    for name in kernel_sets():
        for cut in (1, 3, 13, len(ids)):
            s = CSession(picture, kernels=name, n_batch=cut)
            assert (s.eval_int(ids) == expected).all(), (s.kernels, cut)
            assert s.saturations == golden.saturations and s.argmax() == int(expected[-1].argmax())


@pytest.mark.parametrize("kv_bits, window, extreme", [(16, 0, False), (16, 101, True), (8, 101, False), (8, 0, True)])
def test_threads_that_share_the_slots_of_one_token(kv_bits, window, extreme):
    """Enough of them that there is work for three; the cache is saved and restored by another set."""
    shape = Shape(heads=9, kv_heads=3, head_dim=64, v_dim=62, pairs=32, kv_bits=kv_bits, window=window, context=136, layers=1, alibi=True)
    program = random_program(np.random.default_rng(3), shape, extreme)
    ids = np.random.default_rng(4).integers(0, program.header.vocab, program.header.context)
    picture = Image(image(program))
    plain = CSession(picture, kernels="generic")
    expected = plain.eval_int(ids)
    plain.reset()
    plain.eval_int(ids[:120], logits="none")
    for threads in (1, 2, 3):
        s = CSession(picture, threads=threads)
        s.eval_int(ids[:120], logits="none")
        assert s.save() == plain.save()
        s.restore(plain.save())
        rows = [s.eval_int([token], logits="last") for token in ids[120:]]
        assert (np.stack(rows).reshape(expected[120:].shape) == expected[120:]).all()


def test_generic_is_what_it_says():
    picture = Image(image(random_program(np.random.default_rng(0), Shape())))
    assert CSession(picture, kernels="generic").kernels == "generic"
    assert CSession(picture).kernels == kernel_sets()[-1]


def test_a_set_by_name(monkeypatch):
    picture = Image(image(random_program(np.random.default_rng(0), Shape())))
    for name in kernel_sets():
        monkeypatch.setenv("EDGEPOS_KERNELS", name)
        assert CSession(picture).kernels == name
    foreign = "neon" if "avx2" in kernel_sets() or platform.machine() == "x86_64" else "avx2"
    for wrong in (foreign, "fast"):
        monkeypatch.setenv("EDGEPOS_KERNELS", wrong)
        with pytest.raises(EdgePosError, match=f"kernels '{wrong}': this processor runs generic"):
            CSession(picture)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86-64")
def test_avx_vnni_in_the_encoding_of_avx512(tmp_path):
    """No emulator runs AVX-VNNI: its files are compiled for the same operations of AVX-512 VNNI, and what is shipped has only the others."""
    runtime = c_runtime_dir()
    includes, kernels = [runtime / "include", runtime / "src"], sorted((runtime / "src" / "kernels").glob("avxvnni*.c"))
    sources = [*build.library_sources(runtime), ROOT / "c_runtime" / "tests" / "test_kernels.c"]
    objects = build.compile_objects("gcc", sources, includes, ["-O1", "-DEP_TEST_PART=3", "-DEP_VNNI_OF_AVX512"], tmp_path)
    done = tools.run(["gcc", *objects, "-o", tmp_path / "test_kernels"], 60)
    assert done.returncode == 0, done.stderr
    done = tools.run([tmp_path / "test_kernels", "avxvnni"], 300)
    assert done.returncode == 0, done.stdout
    assert ("avxvnni" in done.stdout.split()) == ("avx512" in kernel_sets())
    for source, operation in zip(kernels, ("vpdpwssd", "vpdpbusd"), strict=True):
        shipped = build.compile_objects("gcc", [source], includes, ["-O2"], tmp_path)
        code = tools.run(["objdump", "-d", "--no-show-raw-insn", *shipped], 60).stdout
        assert code.count(operation) == code.count(f"{{vex}} {operation}") > 10
        assert "%zmm" not in code and "%k1" not in code


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a compiler for x86-64")
def test_one_binary_starts_on_every_x86(tmp_path):
    """Emulated, so that it does not depend on this processor: old ones take the generic kernels, new ones AVX2."""
    require("gcc", "qemu-x86_64")
    runtime = c_runtime_dir()
    sources = [*build.library_sources(runtime), ROOT / "c_runtime" / "tests" / "test_kernels.c"]
    # A few of the cases: the program itself runs them all on this processor.
    objects = build.compile_objects("gcc", sources, [runtime / "include", runtime / "src"], ["-O2", "-DEP_TEST_PART=47"], tmp_path)
    done = tools.run(["gcc", "-static", *objects, "-o", tmp_path / "test_kernels"], 60)
    assert done.returncode == 0, done.stderr
    for processor, kernels in (("qemu64", ""), ("Nehalem", ""), ("max", "avx2")):
        done = tools.run(["qemu-x86_64", "-cpu", processor, tmp_path / "test_kernels"], 300)
        assert (done.returncode, done.stdout.strip()) == (0, kernels), processor
    tests = [ROOT / "c_runtime" / "tests" / "test_rotate.c"]
    objects = [o for o in objects if "test_kernels" not in str(o)] + build.compile_objects("gcc", tests, [runtime / "include"], ["-O2"], tmp_path)
    done = tools.run(["gcc", "-static", *objects, "-o", tmp_path / "test_rotate"], 60)
    assert done.returncode == 0, done.stderr
    for processor, cpu in (("qemu64", 0), ("max", 1)):
        done = tools.run(["qemu-x86_64", "-cpu", processor, tmp_path / "test_rotate"], 300)
        assert (done.returncode, done.stdout.strip()) == (0, f"test_rotate: cpu {cpu}, all equal"), processor
