"""The bindings for phones: a Java program writes the same text as Python through JNI, and the parts for Apple are compiled as far as they go here."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from boards import require
from test_cli import edgepos as edgepos_command

import edgepos
from edgepos.runtime.native import make_config
from edgepos.targets.build import compile_objects
from edgepos.targets.processors import ZIG

PROMPT = "Once upon a time"
STRICT = ["-Wall", "-Wextra", "-Werror", "-Wconversion"]


@pytest.fixture(scope="module")
def mobile(root) -> Path:
    return root / "c_runtime" / "mobile"


def includes_of_java() -> list[Path]:
    folder = Path(shutil.which("javac")).resolve().parent.parent / "include"
    return [folder, folder / "linux"]


def run(*command, **options) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, encoding="utf-8", timeout=300, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def exported(bundle):
    return edgepos.open(bundle("tiny-rope").path)


@pytest.fixture(scope="module")
def facts(exported, mobile, root, tmp_path_factory) -> dict[str, str]:
    """What tests/mobile/Main.java printed, with the library built by its own CMake file and JNI's checks on."""
    require("javac", "java", "cmake")
    folder = tmp_path_factory.mktemp("mobile")
    headers = ";".join(map(str, includes_of_java()))
    run("cmake", "-S", mobile / "android", "-B", folder / "build", f"-DJNI_INCLUDE={headers}", "-DEDGEPOS_WERROR=ON", "-DEDGEPOS_GENERIC_ONLY=ON")
    run("cmake", "--build", folder / "build", "--parallel", "2")
    sources = sorted((mobile / "android" / "org" / "edgepos").glob("*.java"))
    run("javac", "-Xlint:all", "-Werror", "-d", folder / "classes", *sources, root / "tests" / "mobile" / "Main.java")
    damaged = folder / "damaged.gguf"
    damaged.write_bytes(exported.model_path.read_bytes()[:5000])
    (folder / "empty.gguf").touch()
    embedding = folder / "tokenizer.gguf"
    edgepos_command("tokenizer", root / "examples" / "tiny" / "tiny-rope", "-o", embedding)
    printed = run(
        "java", "-Xcheck:jni", f"-Djava.library.path={folder / 'build'}", "-cp", folder / "classes", "Main",
        exported.model_path, PROMPT, damaged, folder / "empty.gguf", embedding,
    )  # fmt: skip
    assert "WARNING" not in printed
    return dict(line.split("\t", 1) for line in printed.splitlines())


def written(exported, most: int, **how) -> str:
    return "".join(exported.session(context=128).generate(PROMPT, max_new_tokens=most, **how)).replace("\\", "\\\\").replace("\n", "\\n")


def test_java_writes_the_text_of_python(facts, exported):
    end, pieces, text = facts["greedy"].split("|", 2)
    assert (end, text) == ("1", written(exported, 40)) and 20 < int(pieces) <= 40
    assert facts["after"].split("|", 2)[2] == text
    # A second call goes on behind the first one's last token.
    assert text + facts["on"].split("|", 2)[2] == written(exported, 60)
    assert facts["sampled"].split("|", 2)[2] == written(exported, 40, temperature=0.75, top_k=20, top_p=0.875, seed=2**64 - 7)
    end, _, text = facts["full"].split("|", 2)
    assert (end, text) == ("2", written(exported, 1000))
    emoji = "".join(exported.session().generate("a \U0001f642 b\0c", max_new_tokens=8)).replace("\n", "\\n")
    assert facts["emoji"].split("|", 2)[2] == emoji


def test_the_device_proves_its_bits(facts, exported):
    assert facts["selftest"] == exported.manifest["selftest"]["digest"]


def test_memory_is_counted(facts, exported):
    model, arena, token, tokens, context = ast.literal_eval(facts["fresh"])
    assert (model, tokens, context) == (exported.model_path.stat().st_size, 0, 128)
    assert token == exported.report["memory"]["kv_bytes_per_token"] and arena >= exported.image.arena_size(config=make_config(128, 64, "generic"))
    assert ast.literal_eval(facts["held"])[3] == len(exported.tokenizer.encode(PROMPT)) + 39  # the last token is not evaluated yet


def test_a_text_can_be_ended(facts, exported):
    """By the sink, from another thread, and by an exception of the app; the session is as good as before."""
    end, text = facts["enough"].split("|", 1)
    whole = written(exported, 60)
    assert end == "3" and len(text) > 12 and whole.startswith(text)
    end, pieces = facts["cancelled"].split("|")
    assert end == "3" and int(pieces) == 4
    assert facts["thrown"] == "from the app"


@pytest.mark.parametrize(
    "name, said",
    [
        ("long", "the context has room for 128 more"), ("topP", "top_p at most 1"), ("most", "at least 0"), ("null prompt", "a text is null"),
        ("null sink", "the sink is null"), ("missing", "No such file"), ("zero", "zero byte"), ("damaged", "damaged.gguf: at byte "),
        ("empty", "empty"), ("folder", "no file"), ("context", "allowed: 0 to 512"), ("threads", "allowed: 1 to 64"), ("embedding", "gives embeddings"),
    ],
)  # fmt: skip
def test_refusals_reach_the_app(facts, name, said):
    assert said in facts[name]


@pytest.mark.parametrize("target", ["aarch64-linux-musl", "arm-linux-musleabihf", "x86_64-linux-musl", "aarch64-macos"])
def test_every_abi_compiles(mobile, tmp_path, target):
    """The layer of the bindings without a warning, JNI's part for Android's processors. The library itself: test_boards_build.py."""
    require("javac", ZIG)
    runtime, jni = mobile.parent, "linux" in target
    sources = [mobile / "edgepos_mobile.c", *([mobile / "android" / "edgepos_jni.c"] if jni else ())]
    includes = [runtime / "include", runtime / "ports", mobile / "include", *(includes_of_java() if jni else ())]
    made = compile_objects(ZIG, sources, includes, ["-target", target, "-O1", "-fPIC", *STRICT], tmp_path)
    assert len(made) == 1 + jni and all(file.stat().st_size > 2000 for file in made)


def test_swift_sees_the_module(mobile, tmp_path):
    """The module map, read by clang as Swift reads it: every function, type and constant that EdgePos.swift names is in it."""
    require("clang")
    used = set(re.findall(r"\b(?:epm_[a-z_]+|EPM_[A-Z_]+)\b", (mobile / "swift" / "EdgePos.swift").read_text("utf-8")))
    functions = sorted(name for name in used if name not in ("epm_sampling", "epm_memory") and name.islower())
    assert len(functions) >= 7
    lines = ["@import CEdgePos;", "epm_sampling s; epm_memory m; int n = EPM_PROBLEM;", *(f"void *use_{name} = (void *){name};" for name in functions)]
    (tmp_path / "use.m").write_text("\n".join(lines) + "\n")
    command = ["clang", "-fmodules", f"-fmodules-cache-path={tmp_path}", f"-fmodule-map-file={mobile / 'include' / 'module.modulemap'}", "-fsyntax-only"]
    run(*command, *STRICT, tmp_path / "use.m")


def test_the_package_names_what_is_there(mobile):
    """Every path of Package.swift exists, and its sources with its search paths compile to all that the app calls."""
    text = (mobile.parent / "Package.swift").read_text("utf-8")
    paths = re.findall(r'"((?:src|ports|mobile|include|cli|cmake|CMakeLists)[\w/.]*)"', text)
    assert len(paths) > 10 and all((mobile.parent / path).exists() for path in paths)
    constants = dict(re.findall(r"(EPM_(?:EOS|LENGTH|CONTEXT|CANCELLED)) = (\d)", (mobile / "include" / "edgepos_mobile.h").read_text("utf-8")))
    order = [name.removeprefix("EPM_") for name, _ in sorted(constants.items(), key=lambda item: item[1])]
    assert re.search(r"enum End: Int32, Sendable \{ case ([\w, ]+) \}", (mobile / "swift" / "EdgePos.swift").read_text())[1].upper() == ", ".join(order)
    assert re.search(r"enum class End \{ ([\w, ]+) \}", (mobile / "android" / "org" / "edgepos" / "EdgePos.kt").read_text())[1] == ", ".join(order)


def test_a_bundle_brings_it(exported):
    for name in ("Package.swift", "mobile/android/CMakeLists.txt", "mobile/android/org/edgepos/EdgePos.kt", "mobile/swift/EdgePos.swift", "mobile/edgepos_mobile.c"):
        assert f"runtime/{name}" in exported.manifest["files"]
