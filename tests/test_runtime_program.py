"""edgepos-run, the C program, from outside: the same text as Python, the same digest as golden, errors in one line."""

from __future__ import annotations

import subprocess
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from c_program import compile_program
from random_programs import Shape, random_program
from tokenizer_images import image, tokenizer_program

from edgepos.export.tokenizer_hf import read_tokenizer_json
from edgepos.fixedpoint import fnv1a64
from edgepos.golden_session import GoldenSession
from edgepos.resources import c_runtime_dir
from edgepos.runtime.generate import generate
from edgepos.runtime.native import Image
from edgepos.runtime.session import CSession
from edgepos.runtime.tokenizer import Tokenizer

CONTEXT = 40


@pytest.fixture(scope="module")
def run(edgepos_run):
    """Call the program; returns (exit status, standard output as bytes, standard error)."""

    def call(*arguments, stdout=subprocess.PIPE):
        done = subprocess.run([edgepos_run, *map(str, arguments)], stdout=stdout, stderr=subprocess.PIPE, timeout=120)
        return done.returncode, done.stdout, done.stderr.decode()

    return call


@pytest.fixture(scope="module")
def spec(root):
    return read_tokenizer_json(root / "examples/tiny/tiny-rope/tokenizer.json", vocab_size=1024, bos_id=None, eos_ids=(0,))


@pytest.fixture(scope="module")
def program(spec):
    program = tokenizer_program(spec, seed=9, context=CONTEXT)
    ids = program.arrays[program.header.selftest]
    program.header.digest = fnv1a64(GoldenSession(program).eval_int(ids).astype("<i4").tobytes())
    return program


@pytest.fixture(scope="module")
def model(program, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    path.write_bytes(image(program))
    return path


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": "0.9", "top_k": "50", "top_p": "0.95", "seed": "7"}, {"temperature": "2", "seed": "18446744073709551615"}]
)
def test_text_equals_python(run, model, options, threads):
    picture = Image.open(model)
    numbers = {key: float(value) if key in ("temperature", "top_p") else int(value) for key, value in options.items()}
    expected = "".join(generate(CSession(picture), Tokenizer(picture), "Once upon", 30, **numbers))
    assert len(expected) > 10
    flags = [part for key, value in options.items() for part in (f"--{key.replace('_', '-')}", value)]
    status, out, _ = run(model, "-p", "Once upon", "-n", 30, "--threads", threads, *flags)
    assert status == 0 and out.decode("utf-8", "replace") == expected + "\n"


def test_digest_and_ids_equal_golden(run, model, program):
    golden = GoldenSession(program)
    rows = [golden.eval_int([5, 6, 7])]
    ids = []
    for _ in range(6):
        ids.append(int(rows[-1][-1].argmax()))
        rows.append(golden.eval_int([ids[-1]]))
    assert 0 not in ids
    digest = fnv1a64(np.concatenate(rows[:-1]).astype("<i4").tobytes())
    for batch in (1, 2, 16):
        status, out, _ = run(model, "--ids", "5,6,7", "-n", 6, "--ids-out", "--digest", "--batch", batch)
        assert status == 0
        assert out.decode() == ",".join(map(str, ids)) + f"\ndigest 0x{digest:016x}\n"


def test_a_text_of_both_directions_is_one_call(run, tmp_path):
    """Its logits and their digest, however long it is; a batch that is too short is an error, not another digest."""
    program = random_program(np.random.default_rng(11), Shape(mask=1, bias_columns=5, context=200))
    (tmp_path / "both.gguf").write_bytes(image(program))
    ids = np.random.default_rng(12).integers(0, program.header.vocab, 190)
    digest = fnv1a64(GoldenSession(program).eval_int(ids).astype("<i4").tobytes())
    for options in ([], ["--generic"], ["--batch", 190], ["--threads", 2]):
        status, out, err = run(tmp_path / "both.gguf", "--ids", ",".join(map(str, ids)), "-n", 0, "--ids-out", "--digest", *options)
        assert (status, out.decode()) == (0, f"digest 0x{digest:016x}\n"), err
    status, out, err = run(tmp_path / "both.gguf", "--ids", ",".join(map(str, ids)), "-n", 0, "--ids-out", "--digest", "--batch", 189)
    assert status == 1 and out == b"" and "attention is bidirectional" in err


def test_selftest_passes_and_a_changed_model_fails(run, model, program, tmp_path):
    status, out, _ = run(model, "--selftest")
    assert status == 0 and f"{program.header.digest:016x}" in out.decode()
    data = bytearray(model.read_bytes())
    at = data.find(program.arrays[program.names.index("head")].tobytes())
    data[at] ^= 1
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    status, out, _ = run(changed, "--selftest")
    assert status == 3 and "FAILED" in out.decode()


def test_the_end_of_the_context_keeps_the_text(run, model):
    status, out, err = run(model, "-p", "Once", "-n", 1000, "--temperature", 3, "--seed", 4, "--ids-out")
    assert status == 0
    assert "the context is full" in err or "end of text" in err
    assert len(out.split(b",")) <= CONTEXT


def test_speed_and_memory_are_told(run, model):
    _, _, err = run(model, "-p", "Once", "-n", 3)
    assert "tokens/s" in err and "memory: arena" in err


@pytest.mark.parametrize(
    "arguments, status, message",
    [
        ((), 2, "no model"),
        (("{model}", "-p", ""), 1, "prompt is empty"),
        (("{model}", "-p", "word " * 200), 1, "context has room for 40"),
        (("{model}", "-p", "a b c", "--context", "2"), 1, "room for 2"),
        (("{model}", "--context", "41"), 2, "at most 40"),
        (("{model}", "--ids", "1,1024"), 2, "character 3"),
        (("{model}", "--ids", "1,,2"), 2, "character 3"),
        (("{model}", "--ids", ""), 2, "character 1"),
        (("{model}", "--ids", "1", "-p", "x"), 2, "use one"),
        (("{model}", "-n", "-1"), 2, "whole number"),
        (("{model}", "-n", "99999999999999999999"), 2, "whole number"),
        (("{model}", "--temperature", "1e3"), 2, "decimal"),
        (("{model}", "--temperature", "65536"), 2, "decimal"),
        (("{model}", "--temperature", "."), 2, "decimal"),
        (("{model}", "--top-p", "1.00001"), 2, "from 0 to 1"),
        (("{model}", "--seed", "18446744073709551616"), 2, "whole number"),
        (("{model}", "--threads"), 2, "needs a value"),
        (("{model}", "--threads", "0"), 2, "--threads is 0: this machine has room for"),
        (("{model}", "--threads", "257"), 2, "--threads is 257: this machine has room for"),
        (("{model}", "--checksum", "0x12g"), 2, "16 hexadecimal digits"),
        (("{model}", "--checksum", "12"), 1, "expected 0x0000000000000012: it was changed"),
        (("{model}", "{model}"), 2, "two models"),
        (("{model}", "--what"), 2, "--help"),
        (("/nowhere/model.gguf",), 1, "No such file"),
        (("/",), 1, "no regular file"),
    ],
)
def test_errors_are_one_line(run, model, arguments, status, message):
    code, out, err = run(*(a.replace("{model}", str(model)) for a in arguments))
    assert code == status and message in err and err.count("\n") == 1 and not out


@pytest.mark.parametrize("arguments", [("-p", "Once", "-n", 3), ("--selftest",), ("--operators",), ("--perplexity", __file__)])
def test_output_that_finds_no_room_is_an_error(run, model, arguments):
    with open("/dev/full", "wb") as full:
        status, _, told = run(model, *arguments, stdout=full)
    assert status == 1 and told.splitlines()[-1] == "edgepos-run: standard output: No space left on device"


def test_damaged_files_name_the_byte(run, model, tmp_path):
    data = model.read_bytes()
    for name, changed in (("cut", data[:-64]), ("magic", b"X" + data[1:]), ("empty", b"")):
        path = tmp_path / name
        path.write_bytes(changed)
        code, _, err = run(path, "-p", "x")
        assert code == 1 and err.count("\n") == 1
        assert name == "empty" or "at byte" in err


DECIMALS = "0 1 0.5 0.1 0.00000762939453125 0.0000076293945312499999999999 0.999999999999999999999 .25 7. 65535.9".split()


def test_decimals_are_rounded_exactly(tmp_path):
    """parse_q16 against exact fractions, by a small program around it."""
    source = (c_runtime_dir() / "cli/edgepos_run.c").read_text("utf-8").replace("int main(", "int program(")
    loop = 'for (int i = 1; i < argc; i++) printf("%u ", (unsigned)parse_q16("x", argv[i], UINT32_MAX));'
    (tmp_path / "q16.c").write_text(source + "\nint main(int argc, char **argv) { " + loop + " }\n")
    compile_program(tmp_path / "q16", main=tmp_path / "q16.c")
    shown = subprocess.run([tmp_path / "q16", *DECIMALS], capture_output=True, check=True).stdout.split()
    exact = [Fraction("0" + text + "0" if "." in text else text) for text in DECIMALS]
    assert list(map(int, shown)) == [floor(x * 65536 + Fraction(1, 2)) for x in exact]
