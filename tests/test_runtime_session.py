"""What sessions and generation promise in Python beside the bits, which test_engines.py proves."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from random_programs import Shape, random_program
from tokenizer_images import image, tokenizer_program

from edgepos.errors import ContextError, EdgePosError
from edgepos.export.tokenizer_hf import read_tokenizer_json
from edgepos.golden_session import GoldenSession
from edgepos.runtime.generate import generate
from edgepos.runtime.native import Image
from edgepos.runtime.session import CSession
from edgepos.runtime.tokenizer import Tokenizer
from edgepos.sampling import Rng, Sampling, sample


@pytest.fixture(scope="module")
def program():
    return random_program(np.random.default_rng(11), Shape())


@pytest.fixture
def session(program):
    return CSession(Image(image(program)))


# ---- arguments and lifetimes


@pytest.mark.parametrize("context", [0, -1, 41, 2**31, 2**40])
def test_contexts_outside_the_models_are_refused(program, context):
    with pytest.raises(ContextError, match=str(context)):
        CSession(Image(image(program)), context=context)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 257}, {"n_batch": -1}, {"n_batch": 2**40}])
def test_other_numbers_out_of_range_are_refused(program, options):
    with pytest.raises(EdgePosError):
        CSession(Image(image(program)), **options)


@pytest.mark.parametrize("ids", [[], [1.0], [[1]], "12", [2**32], [2**70], None])
def test_ids_that_are_none_are_refused(session, ids):
    with pytest.raises(EdgePosError):
        session.eval(ids)
    assert session.length == 0


def test_words_and_shapes_of_logits(session):
    assert session.eval_int([1, 2, 3]).shape == (3, session.vocab)
    assert session.eval([4], logits="last").shape == (1, session.vocab)
    assert session.eval_int([5, 6], logits="none").shape == (0, session.vocab)
    assert session.eval([1]).dtype == np.float32 and session.eval_int([1]).dtype == np.int32
    assert session.logit_scale == 2.0**-session.logits_f
    with pytest.raises(EdgePosError, match="'all', 'last' or 'none'"):
        session.eval([1], logits="first")
    with pytest.raises(ContextError, match="give one each"):
        session.eval([1, 2], positions=[100])


def test_nothing_to_choose_from_is_an_error(session):
    with pytest.raises(EdgePosError, match="no token has been evaluated"):
        session.argmax()
    session.eval([1, 2])
    session.rewind(1)
    with pytest.raises(EdgePosError):
        session.sample(temperature=1.0)


def test_sessions_outlive_the_names_of_what_they_point_into(program):
    s = CSession(Image(image(program)), threads=2)
    expected = s.eval_int([1, 2, 3])
    others = [CSession(Image(image(program)), threads=2) for _ in range(20)]
    del others
    s.reset()
    assert (s.eval_int([1, 2, 3]) == expected).all()


def test_unaligned_images_are_copied(program):
    data = image(program)
    shifted = memoryview(b"x" + data)[1:]
    assert (CSession(Image(shifted)).eval_int([1]) == CSession(Image(data)).eval_int([1])).all()


# ---- threads and trace


def test_a_second_thread_is_refused_not_crashed(session):
    inside, leave, errors = threading.Event(), threading.Event(), []

    def wait(event):
        inside.set()
        leave.wait(120)

    session.set_trace(wait)
    worker = threading.Thread(target=session.eval, args=([1],))
    worker.start()
    assert inside.wait(120)
    for call in (lambda: session.eval([1]), session.argmax, session.reset, session.save, lambda: session.rewind(0)):
        try:
            call()
        except EdgePosError as error:
            errors.append(str(error))
    leave.set()
    worker.join()
    assert len(errors) == 5 and all("in use" in text for text in errors)
    session.set_trace(None)
    session.eval([2])
    assert session.length == 2


def test_sessions_of_one_image_run_at_the_same_time(program):
    picture = Image(image(program))
    expected = CSession(picture).eval_int(range(30))
    results: dict[int, np.ndarray] = {}

    def work(i):
        results[i] = CSession(picture, threads=2, n_batch=1).eval_int(range(30))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert all((results[i] == expected).all() for i in range(6))


def test_an_exception_in_a_trace_comes_out_of_the_call(session):
    calls = []

    def trace(event):
        calls.append(event.op)
        raise KeyError("mine")

    session.set_trace(trace)
    with pytest.raises(KeyError, match="mine"):
        session.eval([1])
    assert len(calls) == 1
    session.set_trace(None)
    session.eval([1])


def test_trace_events_say_what_they_hold(session, program):
    events = []
    session.set_trace(events.append)
    session.eval(range(20))
    for event in events:
        value = program.values[event.value]
        assert event.f == value.f and event.data.shape[1] == value.width
        assert program.ops[event.op].code == event.opcode and program.ops[event.op].out == event.value
    rows = {event.op: 0 for event in events}
    for event in events:
        assert event.token == rows[event.op]
        rows[event.op] += len(event.data)
    assert set(rows.values()) == {20}


# ---- choice


@pytest.mark.parametrize("parameters", [(0.7, 0, 1.0), (1.5, 5, 1.0), (1.0, 0, 0.5), (0.001, 0, 0.0), (0.0, 3, 0.1)])
def test_choices_equal_the_specification(session, parameters):
    ours, theirs = Rng(5), Rng(5)
    for token in range(30):
        row = session.eval_int([token], logits="last")[0]
        assert session.sample(*parameters, rng=ours) == sample(row, session.logits_f, Sampling.of(*parameters), theirs)
        assert ours.state == theirs.state


# ---- generation


class Script:
    """A session that wants to say the given tokens, whatever it is told."""

    logits_f, vocab = 0, 1024

    def __init__(self, tokens, context=100):
        self.tokens, self.context, self.length, self.position = list(tokens), context, 0, 0

    def eval_int(self, ids, logits):
        assert logits == "last" and self.length + len(ids) <= self.context
        self.length += len(ids)
        self.position = self.length
        row = np.zeros((1, self.vocab), np.int32)
        row[0, self.tokens.pop(0)] = 1
        return row


@pytest.fixture(scope="module")
def spec(root):
    return read_tokenizer_json(root / "examples/tiny/tiny-rope/tokenizer.json", vocab_size=1024, bos_id=None, eos_ids=(0,))


@pytest.fixture(scope="module")
def tokenizer(spec):
    return Tokenizer(Image(image(tokenizer_program(spec))))


def test_text_comes_in_whole_code_points_and_ends_at_eos(tokenizer):
    text = " né中😀!"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    pieces = list(generate(Script([*ids, 0, *ids]), tokenizer, "Hello", 99))
    assert "".join(pieces) == text and all(pieces)
    cut = list(generate(Script(ids), tokenizer, "Hello", len(ids) - 2))
    assert "".join(cut) == " né中"


def test_a_full_context_ends_the_text(tokenizer):
    prompt, ids = tokenizer.encode("Hello there"), tokenizer.encode(" one two three four five")
    session = Script(ids, context=len(prompt) + 3)
    assert "".join(generate(session, tokenizer, "Hello there", 99)) == tokenizer.decode(ids[:4])
    with pytest.raises(ContextError, match=f"{len(prompt)} tokens.*room for {len(prompt) - 1}"):
        generate(Script(ids, context=len(prompt) - 1), tokenizer, "Hello there", 1)


def test_a_session_goes_on_without_another_bos(spec):
    with_bos = Tokenizer(Image(image(tokenizer_program(replace(spec, add_bos=True, bos_id=0)))))
    session = Script([5] * 9)
    list(generate(session, with_bos, "Hello", 1))
    first = session.length
    list(generate(session, with_bos, "Hello", 1))
    assert session.length == 2 * first - 1


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"prompt": ""}, "prompt is empty"),
        ({"prompt": []}, "prompt is empty"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"),
        ({"temperature": "1"}, "temperature"),
        ({"top_k": 1.5}, "top_k"),
        ({"seed": "x"}, "seed"),
        ({"prompt": [1.7]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**64}, "seed"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(tokenizer, arguments, message):
    session = Script([1])
    with pytest.raises(EdgePosError, match=message):
        generate(session, tokenizer, **{"prompt": "x", "max_new_tokens": 1, **arguments})
    assert session.length == 0


def test_engines_generate_the_same_text(spec):
    program = tokenizer_program(spec, seed=3)
    picture = Image(image(program))
    tokenizer = Tokenizer(picture)
    for options in ({}, {"temperature": 0.9, "top_k": 50, "top_p": 0.9, "seed": 3}):
        texts = ["".join(generate(s, tokenizer, "Once", 12, **options)) for s in (CSession(picture), GoldenSession(program))]
        assert texts[0] == texts[1] and texts[0]
