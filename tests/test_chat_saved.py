"""--save and --restore: files of sessions and conversations, the same bytes from both languages, and checked before they are believed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys

import numpy as np
import pytest
from hostile import mutate
from test_chat import SYSTEM_LAST, spec  # noqa: F401 - a fixture
from test_chat_sessions import LINES, talker  # noqa: F401 - a fixture

from edgepos.errors import EdgePosError, FormatError

RULES = {"temperature": 0.8, "top_p": 0.95, "seed": 5, "repetition_penalty": 1.2}
OPTIONS = [part for name, value in RULES.items() for part in (f"--{name.replace('_', '-')}", value)]


@pytest.fixture(params=["c", "python"])
def call(request, sanitized_edgepos_run, talker):  # noqa: F811
    """Either program on the model that talks; returns (exit status, output, errors)."""
    front = [sanitized_edgepos_run, talker().model_path] if request.param == "c" else [sys.executable, "-m", "edgepos", "run", talker().path]

    def run(*options, lines=()):
        text = b"".join(line + b"\n" for line in lines)
        done = subprocess.run([*front, *map(str, options)], input=text, capture_output=True, timeout=300)
        return done.returncode, done.stdout, done.stderr.decode()

    return run


@pytest.mark.parametrize("kv", ["kv16", "kv8"])
def test_a_saved_prompt_is_the_session_of_every_engine(sanitized_edgepos_run, bundle, kv, tmp_path):
    opened, file = bundle("tiny-rope", kv), tmp_path / "state"
    ids = opened.tokenizer.encode("Once upon a time")
    for context in ([], ["--context", "100"]):
        subprocess.run([sanitized_edgepos_run, opened.model_path, "-p", "Once upon a time", "-n", "0", "--save", file, *context], check=True, timeout=300)
        for engine in ("c", "golden"):
            session = opened.session(engine=engine)
            session.eval(ids)
            assert session.save() == file.read_bytes()
            session.reset()
            session.restore(file.read_bytes())
            assert session.length == len(ids)


def test_a_text_goes_on_behind_what_was_saved(call, talker, tmp_path):  # noqa: F811
    opened, prefix, text, more = talker(), tmp_path / "prefix", tmp_path / "text", " there was a big"
    code, said, errors = call("-p", "Once upon a time", "-n", 0, "--save", prefix)
    assert code == 0 and f"saved: {prefix}, {len(opened.tokenizer.encode('Once upon a time'))} tokens" in errors
    session = opened.session()
    session.eval(opened.tokenizer.encode("Once upon a time"))
    assert session.save() == prefix.read_bytes() and stat.S_ISREG(prefix.stat().st_mode)
    for _ in range(2):  # a state may be used again
        code, said, _ = call("-p", more, "-n", 12, "--restore", prefix, "--save", text, "--no-eos", *OPTIONS)
        session.restore(prefix.read_bytes())
        expected = "".join(session.generate(more, 12, eos=False, **RULES))
        assert (code, said.decode().replace(more, "")) == (0, expected + "\n")
        last = np.frombuffer(text.read_bytes(), "<u4", 1, 24)[0] - session.length
        assert last == 1  # the token that Python chose last is in the file, too
    assert sorted(file.name for file in tmp_path.iterdir()) == ["prefix", "text"]


TALK = [*(line.encode() for line in LINES), b"caf\xe9 \xff", b"And then?"]


@pytest.mark.parametrize("context", [512, 96])
def test_a_conversation_goes_on_where_it_was_saved(call, talker, context, tmp_path):  # noqa: F811
    options, file = ["--chat", "-n", 15, "--context", context, *OPTIONS], tmp_path / "talk"
    chat = talker().chat("Be kind.", context=context, max_new_tokens=15, **RULES)

    def said(lines) -> str:
        return "".join("".join(chat.send(line.decode("utf-8", "surrogateescape"))) + "\n" for line in lines)

    for lines in (TALK[:2], TALK[2:]):
        before = ["--restore", file] if file.exists() else ["--system", "Be kind."]
        expected = said(lines)
        code, output, errors = call(*options, *before, "--save", file, lines=lines)
        assert (code, output.decode()) == (0, expected), errors
        assert file.read_bytes() == chat.save()
    assert (chat.dropped > 0) == (context == 96) and len(list(tmp_path.iterdir())) == 1
    other = talker().chat(context=context, engine="golden")
    other.restore(file.read_bytes())
    assert (other.messages, other.dropped, other.save()) == (chat.messages, chat.dropped, chat.save())


def test_answers_that_are_not_utf8_are_kept_as_they_are(call, talker, tmp_path):  # noqa: F811
    """Both languages remember the bytes: they are what the next turn reads."""
    rules, file = {"temperature": 9.0, "seed": 3, "max_new_tokens": 60}, tmp_path / "talk"
    chat = talker().chat(**rules)
    expected = "".join("".join(chat.send(line)) + "\n" for line in LINES[:2])
    assert "\ufffd" in expected and any("\udc80" <= c <= "\udcff" for c in chat.messages[1]["content"])
    code, output, errors = call("--chat", "-n", 60, "--temperature", 9, "--seed", 3, "--save", file, lines=TALK[:2])
    assert (code, output.decode(errors="replace")) == (0, expected), errors
    assert file.read_bytes() == chat.save()


def test_changed_conversations_are_taken_or_refused_alike(sanitized_edgepos_run, talker, tmp_path):  # noqa: F811
    chat, file = talker().chat("Be kind.", max_new_tokens=8, context=128), tmp_path / "talk"
    list(chat.send("Tell me a story"))
    state, taken = chat.save(), 0
    head = 32 + 8 * len(chat.messages) + 4 * len(chat._ids)
    for seed in range(150):
        changed = mutate(state, np.random.default_rng(seed), head + 100)
        file.write_bytes(changed)
        other = talker().chat(context=128)
        try:
            other.restore(changed)
        except FormatError as error:
            assert "saved" in str(error) and other.messages == [] and other.session.length == 0
            expected = 1
        else:
            taken, expected = taken + 1, 0
        done = subprocess.run([sanitized_edgepos_run, talker().model_path, "--chat", "--context", "128", "--restore", file], input=b"", capture_output=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (expected, b"", expected), (seed, done.stderr)
    assert 4 < taken < 100


@pytest.mark.parametrize("kv", ["kv16", "kv8"])
def test_changed_sessions_are_taken_or_refused_alike(sanitized_edgepos_run, bundle, kv, tmp_path):
    opened, file = bundle("tiny-rope", kv), tmp_path / "state"
    session = opened.session(context=40)
    session.eval(opened.tokenizer.encode("Once upon a time"))
    state, taken = session.save(), 0
    golden, fresh = (opened.session(context=40, engine=engine) for engine in ("golden", "c"))
    for seed in range(80):
        changed = mutate(state, np.random.default_rng(seed), 60)
        file.write_bytes(changed)
        verdicts = set()
        for one in (golden, fresh):
            one.reset()
            try:
                one.restore(changed)
                verdicts.add(0)
            except FormatError:
                verdicts.add(1)
                assert one.length == 0
        done = subprocess.run([sanitized_edgepos_run, opened.model_path, "-p", "a", "-n", "0", "--context", "40", "--restore", file], capture_output=True, timeout=60)
        taken += verdicts == {0}
        assert verdicts == {done.returncode}, (seed, done.stderr)
    assert 2 < taken < 60


def test_places_that_no_file_can_take(call, tmp_path):
    (tmp_path / "folder").mkdir()
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for place, said in (("folder", "no regular file"), ("pipe", "no regular file"), ("absent/x", "No such file"), ("x" * 300, "name too long")):
        code, output, errors = call("-p", "x", "-n", 1, "--save", tmp_path / place)
        assert code == 1 and said in errors and errors.count("\n") == 1 and output == b""
    assert stat.S_ISFIFO(fifo.stat().st_mode) and len(list(tmp_path.iterdir())) == 2
    (tmp_path / "small").write_bytes(b"EP")
    (tmp_path / "talk").write_bytes(b"EPCH" + bytes(60))
    (tmp_path / "huge").write_bytes(b"EPST")
    os.truncate(tmp_path / "huge", 1 << 28)
    for place, options, said in (
        ("absent", ["-p", "x"], "absent"), ("folder", ["-p", "x"], "folder"), ("small", ["-p", "x"], "saved"), ("huge", ["-p", "x"], "huge: more "), ("talk", ["-p", "x"], "--chat"), ("small", ["--chat"], "--restore"),
        ("talk", ["--chat", "--system", "x"], "--system"),
    ):  # fmt: skip
        code, output, errors = call(*options, "--restore", tmp_path / place)
        assert code in (1, 2) and said in errors and errors.count("\n") == 1 and output == b"", (place, errors)


def test_a_form_without_a_place_for_the_system(sanitized_edgepos_run, talker):  # noqa: F811
    """Python renders by Jinja what the form has not; the program says what to do. Without it both give the same."""
    with pytest.warns(UserWarning, match="no place of their own"):
        model = talker(SYSTEM_LAST.replace("bos_token", "'<|endoftext|>'").replace("eos_token", "'<|endoftext|>'"))
    command, lines = [sanitized_edgepos_run, model.model_path, "--chat", "-n", "6"], b"Hello\nAgain\n"
    alone = subprocess.run(command, input=lines, capture_output=True, timeout=120)
    chat = model.chat(max_new_tokens=6)
    assert alone.stdout.decode() == "".join("".join(chat.send(text)) + "\n" for text in ("Hello", "Again"))
    done = subprocess.run([*command, "--system", "Be kind."], input=lines, capture_output=True, timeout=120)
    assert done.returncode == 1 and b"--system" in done.stderr and b"edgepos run --chat" in done.stderr and done.stderr.count(b"\n") == 1
    told = model.chat("Be kind.", max_new_tokens=6)
    assert "".join(told.send("Hello")) and b"Be kind.\n\nHello" in told.template.render([*told.messages[:2]])[0]


def test_restore_takes_bytes_alone(talker):  # noqa: F811
    for bad in ("text", None, 5, [1]):
        with pytest.raises(FormatError, match="bytes are needed"):
            talker().chat().restore(bad)
    with pytest.raises(EdgePosError, match="seed"):
        talker().chat(seed=-1)
