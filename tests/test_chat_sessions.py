"""Conversations: what a turn evaluates, the same in both languages, and what happens when the context is full."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys

import pytest
from test_chat import SMOLLM2, spec, template  # noqa: F401 - a fixture

import edgepos
from edgepos.chat.form import derive
from edgepos.compiler.chat_tensors import end_of_answer
from edgepos.errors import ContextError, EdgePosError, FormatError, UnsupportedError
from edgepos.resources import tiny_model_dir
from edgepos.runtime.generate import Generation
from edgepos.sampling import Rng

STORY = "{% for m in messages %}{{ '<|endoftext|>' + m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}{{ '<|endoftext|>assistant:' }}"


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    """tiny-rope with a chat template, and the same with one that only Jinja can render."""
    folder, made = tmp_path_factory.mktemp("chat"), {}

    def get(source: str = STORY):
        if source not in made:
            model = folder / f"model{len(made)}"
            shutil.copytree(tiny_model_dir("tiny-rope"), model)
            (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
            made[source] = edgepos.export_bundle(model, folder / f"{len(made)}.edgepos")
        return made[source]

    return get


def said(chat, lines) -> list[str]:
    return ["".join(chat.send(line)) for line in lines]


LINES = ["Tell me a story", "and <|endoftext|> another", "What happened then? \u00e9中"]
RULES = [{}, {"temperature": 0.9, "top_p": 0.9, "seed": 7, "repetition_penalty": 1.2, "penalty_last": 30, "stop": ["the ", "."]}]


@pytest.mark.parametrize("rules", RULES)
def test_turns_evaluate_only_what_is_new_and_change_nothing(talker, rules):
    chat = talker().chat("Be kind.", max_new_tokens=20, **rules)
    evaluated, original = [], chat.session.eval_int
    chat.session.eval_int = lambda ids, **how: evaluated.append(len(ids)) or original(ids, **how)
    for number, line in enumerate(LINES):
        before, rng, history = len(chat._ids), chat._rng.state, list(chat.messages)
        evaluated.clear()
        answer = "".join(chat.send(line))
        ids = talker().chat_template.ids([*history, {"role": "user", "content": line}])
        assert ids.count(0) == 2 * number + 3  # one in front of every message, none of them from a content
        assert evaluated[0] <= len(ids) - before + 20
        # The same from an empty cache.
        fresh = talker().session()
        again = Generation(fresh, talker().tokenizer, ids, chat._rules, Rng(0))
        again.rng.state = rng
        assert "".join(again) == answer
        assert chat.messages[-2:] == [{"role": "user", "content": line}, {"role": "assistant", "content": answer}]
    assert evaluated[0] < len(ids) / 2


@pytest.mark.parametrize("rules", RULES)
def test_the_program_in_c_talks_like_python(talker, edgepos_run, rules):
    options = ["--chat", "--system", "Be kind."]
    for key, value in {"temperature": 0.0, **rules}.items():
        for one in value if isinstance(value, list) else [value]:
            options += [f"--{key.replace('_', '-')}", str(one)]
    text = ("\r\n".join(LINES) + "\n\n" + "last, without an end of line " * 3).encode()
    for context in (512, 96):
        place = [*options, "-n", "20", "--context", str(context)]
        ours = subprocess.run([sys.executable, "-m", "edgepos", "run", talker().path, *place], input=text, capture_output=True, timeout=120)
        theirs = subprocess.run([edgepos_run, talker().model_path, *place], input=text, capture_output=True, timeout=120)
        assert ours.returncode == theirs.returncode == 0, (ours.stderr, theirs.stderr)
        assert ours.stdout == theirs.stdout and len(ours.stdout) > 60
        assert (b"left out" in ours.stderr) == (b"left out" in theirs.stderr) == (context == 96)


def test_engines_talk_alike(talker):
    talks = [said(talker().chat(max_new_tokens=6, engine=engine, context=120), LINES[:2]) for engine in ("c", "golden")]
    assert talks[0] == talks[1]


def test_jinja_stands_in_where_there_is_no_form(talker):
    plain = said(talker().chat(max_new_tokens=8), LINES[:2])
    only_jinja = STORY.replace("m['content']", "m['content'].replace('never said', '')")
    bundle = talker(only_jinja)
    assert bundle.image.info.chat == 0 and bundle.manifest["chat"]["template"] == "jinja"
    assert said(bundle.chat(max_new_tokens=8), LINES[:2]) == plain


def test_a_full_context_drops_the_oldest_turns(talker):
    chat = talker().chat("Be kind.", context=80, max_new_tokens=12)
    for _ in range(6):
        list(chat.send("Tell me more about it"))
        assert chat.session.length <= 80
    assert chat.dropped >= 2 and chat.messages[0] == {"role": "system", "content": "Be kind."} and chat.messages[1]["role"] == "user"
    before = list(chat.messages)
    with pytest.raises(ContextError, match="context of 80"):
        chat.send("word " * 100)
    assert chat.messages == before
    list(chat.send("go on"))


def test_an_answer_given_up_stays_as_far_as_it_was_said(talker):
    chat = talker().chat(max_new_tokens=50)
    pieces = chat.send(LINES[0])
    first = next(pieces) + next(pieces)
    pieces.close()
    assert chat.messages[-1] == {"role": "assistant", "content": first}
    assert list(chat.send("go on"))


def test_an_interrupted_answer_keeps_what_a_stop_text_held_back(talker, monkeypatch):
    """Everything is held back, because the stop text begins like the answer; an interrupt ends it in the middle of the tenth choice."""
    (whole,) = said(talker().chat(max_new_tokens=20), ["Tell me a story"])
    chat = talker().chat(max_new_tokens=20, stop=whole + "\x01")
    original, chosen = chat.session.choose, []

    def choose(*arguments):
        if len(chosen) == 9:
            raise KeyboardInterrupt
        chosen.append(original(*arguments))
        return chosen[-1]

    monkeypatch.setattr(chat.session, "choose", choose)
    pieces = []
    with pytest.raises(KeyboardInterrupt):
        pieces.extend(chat.send("Tell me a story"))
    kept = chat.messages[-1]
    assert pieces == [] and kept["role"] == "assistant" and len(kept["content"]) > 8
    assert whole.startswith(kept["content"]) and chat.rest == kept["content"]


def test_a_saved_conversation_goes_on_the_same(talker):
    def start():
        return talker().chat(max_new_tokens=15, temperature=0.8, seed=3)

    chat = start()
    list(chat.send(LINES[0]))
    state = chat.save()
    rest = said(chat, LINES[1:])
    other = start()
    other.restore(state)
    assert said(other, LINES[1:]) == rest and other.messages == chat.messages
    messages, length = struct.unpack_from("<2I", state, 20)
    more, ids = struct.pack("<I", length + 1), 32 + 8 * messages
    for bad in (b"", state[:20], state[:-1], b"XXXX" + state[4:], state[:24] + more + state[28:ids] + bytes(4) + state[ids:]):
        messages = list(other.messages)
        with pytest.raises(FormatError, match="saved"):
            other.restore(bad)
        assert other.messages == messages


def test_messages_that_are_none_are_refused(talker):
    chat_template = talker().chat_template
    for bad in ([], [{"role": "tool", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": ["x"]}], [{"role": "user", "content": "\ud800"}], ["x"], [None]):
        with pytest.raises(EdgePosError, match="message"):
            chat_template.ids(bad)


def test_models_without_a_template_say_so(bundle):
    with pytest.raises(EdgePosError, match="no chat template"):
        bundle("tiny-rope").chat()


def test_the_end_of_an_answer_is_an_eos(spec):  # noqa: F811
    assert end_of_answer(spec, derive(template(STORY.replace("'\n'", "'<|endoftext|>\n'")))) == 0
    assert end_of_answer(spec, derive(template(SMOLLM2))) is None  # not a token of this vocabulary


def test_the_float_reference_ends_answers_where_the_bundle_does(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir("tiny-rope"), model)
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": STORY.replace("'\n'", "'<|endoftext|>\n'")}))
    bundle = edgepos.export_bundle(model, tmp_path / "x.edgepos")
    assert bundle.tokenizer.eos_ids == edgepos.reference(model).make_tokenizer().eos_ids == (5, 0)
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ broken"}))  # exported without it
    assert edgepos.reference(model).make_tokenizer().eos_ids == (5,)


def test_export_without_the_template(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(tiny_model_dir("tiny-rope"), model)
    (model / "chat_template.jinja").write_text("{{ broken")
    with pytest.raises(FormatError, match="chat_template.jinja"):
        edgepos.export_bundle(model, tmp_path / "x.edgepos")
    assert not (tmp_path / "x.edgepos").exists()
    bundle = edgepos.export_bundle(model, tmp_path / "x.edgepos", chat_template=None)
    assert bundle.manifest["chat"] == {"template": "none"}
    with pytest.raises(UnsupportedError, match="chat_template"):
        edgepos.export_bundle(model, tmp_path / "y.edgepos", chat_template="mine")
