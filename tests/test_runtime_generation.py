"""How texts go on and end: penalty, stop strings, EOS ids, the loss behind a perplexity; the same in Python and in C."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_programs import Shape, random_program
from test_runtime_session import Script, spec, tokenizer  # noqa: F401 - fixtures
from tokenizer_images import image

from edgepos.errors import EdgePosError
from edgepos.golden_session import GoldenSession
from edgepos.runtime.generate import generate
from edgepos.runtime.native import Image, ffi, lib
from edgepos.runtime.session import CSession
from edgepos.runtime.tokenizer import TextStream
from edgepos.sampling import LARGEST, Rng, Sampling, loss, penalize, sample

INT32 = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1, -1, 0, 1])
LOGITS = st.lists(INT32, min_size=1, max_size=70)
PENALTY = st.integers(65536, 2**32 - 1) | st.sampled_from([65536, 65537, 2**32 - 1, 98304])


def c_array(values):
    return ffi.new("int32_t[]", list(values))


def c_penalize(logits, penalty: int, tokens) -> list[int]:
    row = c_array(logits)
    assert lib.ep_penalize(row, len(logits), penalty, c_array(tokens), len(tokens), ffi.new("uint32_t[]", (len(logits) + 31) // 32)) == lib.EP_OK
    return list(row)


# ---- repetition penalty


@settings(max_examples=1000, deadline=None)
@given(logits=LOGITS, penalty=PENALTY, data=st.data())
def test_penalized_logits_are_exact(logits, penalty, data):
    tokens = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=100))
    found = penalize(np.array(logits, np.int32), penalty, tokens).tolist() if tokens else logits
    assert c_penalize(logits, penalty, tokens) == found
    for i, (before, after) in enumerate(zip(logits, found)):
        if i not in tokens:
            assert after == before
        elif before > 0:
            assert after == (2 * before * 65536 + penalty) // (2 * penalty)
        else:
            assert after == max(-(2**31), (2 * before * penalty + 65536) // 131072)
        assert after <= before


def test_penalty_against_transformers():
    torch = pytest.importorskip("torch")
    processor = pytest.importorskip("transformers").RepetitionPenaltyLogitsProcessor(penalty=1.3)
    rng = np.random.default_rng(1)
    logits, tokens = rng.normal(0, 5, 300), rng.integers(0, 300, 80)
    theirs = processor(torch.tensor(tokens[None]), torch.tensor(logits[None])).numpy()[0]
    ours = penalize(np.rint(logits * 2**20).astype(np.int32), round(1.3 * 65536), tokens.tolist()) / 2**20
    assert np.abs(ours - theirs).max() < 1e-4


def test_penalty_arguments():
    row, scratch = c_array([1, 2]), ffi.new("uint32_t[1]")
    assert lib.ep_penalize(row, 2, 65535, c_array([0]), 1, scratch) == lib.EP_ERR_ARGUMENT
    assert lib.ep_penalize(row, 2, 65536, ffi.NULL, 1, scratch) == lib.EP_ERR_ARGUMENT
    assert lib.ep_penalize(row, 2, 65536, ffi.NULL, 0, ffi.NULL) == lib.EP_OK
    for bad in (-1, 2):
        assert lib.ep_penalize(row, 2, 131072, c_array([0, bad]), 2, scratch) == lib.EP_ERR_TOKEN
    assert list(row) == [1, 2]
    for value in (0.99, float("nan"), 65536.0, "2", True):
        with pytest.raises(EdgePosError, match="repetition_penalty"):
            Sampling.of(repetition_penalty=value)
    assert Sampling.of(repetition_penalty=LARGEST).penalty == 2**32 - 1


@pytest.mark.parametrize("how", [Sampling.of(repetition_penalty=3.0), Sampling.of(0.8, 30, 0.95, 1.7, 25)])
def test_engines_choose_alike_under_a_penalty(how):
    program = random_program(np.random.default_rng(11), Shape())
    golden, c, rngs, free = GoldenSession(program), CSession(Image(image(program))), (Rng(7), Rng(7)), 0
    text, vocab = [1], program.header.vocab
    for _ in range(30):
        logits = golden.eval_int(text[-1:], logits="last")[0]
        c.eval_int(text[-1:], logits="none")
        token = sample(logits, golden.logits_f, how, rngs[0], text)
        assert c.choose(how, rngs[1], text) == token and rngs[0].state == rngs[1].state
        free += token == int(np.argmax(logits))
        text.append(token if len(text) % 3 else int(np.argmax(logits)) % vocab)
    assert free < 30


def test_penalty_counts_the_prompt_and_only_the_last_tokens(tokenizer):  # noqa: F811
    class Fixed(Script):
        def eval_int(self, ids, logits):
            self.length += len(ids)
            return np.array([[0] * 10 + [100, 99, 98, 97] + [0] * 1010], np.int32)

    def chosen(**options):
        generation = generate(Fixed([]), tokenizer, [10, 5], 5, eos=False, **options)
        list(generation)
        return generation.evaluated[2:]

    assert chosen() == [10] * 4
    assert chosen(repetition_penalty=1.5) == [11, 12, 13, 10]
    assert chosen(repetition_penalty=1.5, penalty_last=1) == [10, 11, 10, 11]


# ---- stop strings and EOS


@pytest.mark.parametrize(
    ("stop", "expected", "reason"),
    [
        (" three", " one two", "stop"),
        (["nothing", "o thr"], " one tw", "stop"),
        (("e two", " tw"), " on", "stop"),
        ("five!", " one two three four five", "length"),
        (" one", "", "stop"),
    ],
)
def test_a_stop_string_ends_the_text_before_it(tokenizer, stop, expected, reason):  # noqa: F811
    ids = tokenizer.encode(" one two three four five")
    generation = generate(Script(ids), tokenizer, "Hello", len(ids), stop=stop)
    pieces = list(generation)
    assert "".join(pieces) == expected and all(pieces) and generation.reason == reason


def test_text_that_may_begin_a_stop_string_is_held_back(tokenizer):  # noqa: F811
    stream = TextStream(tokenizer, stops=(b" two three",))
    pieces = [stream.push(i) for i in tokenizer.encode(" one two four")]
    assert "".join(pieces) + stream.end() == " one two four"
    stream = TextStream(tokenizer, stops=(b" two three",))
    assert "".join(stream.push(i) for i in tokenizer.encode(" one two")) == " one" and stream.end() == " two"


STOPS = st.lists(st.text("abé中", min_size=1, max_size=4).map(str.encode) | st.binary(min_size=1, max_size=3), max_size=3)


class Letters:
    """A tokenizer of single bytes."""

    def token_bytes(self, previous, token):
        return bytes([token])

    def _previous(self, previous, token):
        return token


@settings(max_examples=2000, deadline=None)
@given(text=st.text("abé中 ", max_size=12).map(str.encode) | st.binary(max_size=8), stops=STOPS)
def test_c_and_python_hold_back_the_same(text, stops):
    keep = [ffi.from_buffer(stop) for stop in stops]
    given_stops = ffi.new("ep_message[]", [{"text": ffi.cast("char *", k), "bytes": len(s)} for k, s in zip(keep, stops)])
    stream, shown, held, ready = TextStream(Letters(), stops=stops), "", b"", ffi.new("size_t *")
    printed = b""
    for byte in text:
        shown += stream.push(byte)
        held += bytes([byte])
        found = lib.ep_text_ready(held, len(held), given_stops, len(stops), ready)
        assert bool(found) == stream.stopped
        printed, held = printed + held[: ready[0]], held[ready[0] :]
        if found:
            break
    if not stream.stopped:
        assert not any(stop in text for stop in stops)
    assert stream.stopped or b"\xff" in text or len(text) - len(printed) <= 3 + max(map(len, stops), default=0)
    # What C prints never ends inside a code point. Python's decoder waits one byte longer with some that are no UTF-8.
    whole = printed.decode("utf-8", "replace")
    assert whole.startswith(shown) and (whole == shown or "\ufffd" in whole)


def test_eos_ids(tokenizer):  # noqa: F811
    ids = tokenizer.encode(" one two three")
    assert "".join(generate(Script([*ids, 0, *ids]), tokenizer, "x", 99)) == " one two three"
    two = generate(Script(ids), tokenizer, "x", 99, eos=[0, ids[1]])
    assert "".join(two) == tokenizer.decode(ids[:1]) and two.reason == "eos"
    on = Script([*ids, 0, *ids])
    assert "".join(generate(on, tokenizer, "x", 2 * len(ids) + 1, eos=False)) == " one two three one two three"


@pytest.mark.parametrize("bad", [{"stop": ""}, {"stop": [3]}, {"stop": ["a", b""]}, {"eos": [1.5]}, {"penalty_last": -1}, {"repetition_penalty": 0}])
def test_bad_rules_are_refused(tokenizer, bad):  # noqa: F811
    with pytest.raises(EdgePosError, match=next(iter(bad))):
        generate(Script([1]), tokenizer, "x", 1, **bad)


# ---- loss


def c_loss(logits, f: int, token: int) -> int:
    bits = ffi.new("uint64_t *")
    assert lib.ep_loss(c_array(logits), len(logits), f, token, bits) == lib.EP_OK
    return int(bits[0])


@settings(max_examples=1000, deadline=None)
@given(logits=LOGITS, f=st.integers(-16, 30), data=st.data())
def test_losses_are_equal_for_any_logits(logits, f, data):
    token = data.draw(st.integers(0, len(logits) - 1))
    assert c_loss(logits, f, token) == loss(np.array(logits, np.int32), f, token)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), n=st.sampled_from([1, 2, 50, 5000]), f=st.integers(8, 26), spread=st.sampled_from([0.01, 1.0, 8.0]))
def test_losses_against_float64(seed, n, f, spread):
    rng = np.random.default_rng(seed)
    logits = np.clip(np.rint(rng.normal(0, spread, n) * 2.0**f), -(2**31), 2**31 - 1).astype(np.int32)
    token = int(rng.integers(n))
    z = logits.astype(np.float64) / 2**f
    exact = (z.max() - z[token] + math.log(np.exp(z - z.max()).sum())) / math.log(2)
    assert abs(c_loss(logits, f, token) / 2**32 - exact) < 2e-8


def test_loss_arguments():
    bits = ffi.new("uint64_t *")
    assert lib.ep_loss(c_array([1]), 1, 31, 0, bits) == lib.EP_ERR_ARGUMENT
    assert lib.ep_loss(c_array([1]), 0, 0, 0, bits) == lib.EP_ERR_ARGUMENT
    assert lib.ep_loss(c_array([1]), 1, 0, 1, bits) == lib.EP_ERR_TOKEN
