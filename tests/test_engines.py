"""The C runtime gives golden's bits: every operator, any numbers a file may hold, any way to cut the tokens."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from random_programs import Shape, random_program
from tokenizer_images import image

from edgepos.errors import ContextError, EdgePosError, FormatError
from edgepos.fixedpoint import fnv1a64
from edgepos.golden_session import GoldenSession
from edgepos.program import NONE, POOLS, POSITIONS, W16G32, Op
from edgepos.runtime import native
from edgepos.runtime.native import Image
from edgepos.runtime.session import CSession
from edgepos.sampling import Rng, Sampling, sample

SHAPES = {
    "rope-interleaved": Shape(),
    "rope-half-partial": Shape(layout=0, pairs=3, bias=True),
    "rope-per-row": Shape(grouped=False, kv_heads=6, own_increments=True),
    "alibi-layernorm": Shape(pairs=0, alibi=True, center=True, bias=True, kv_heads=1),
    "both, odd sizes": Shape(alibi=True, v_dim=7, width=33, inner=65, heads=4, kv_heads=4, head_dim=6, pairs=2, vocab=131),
    "learned positions, head norms": Shape(pairs=0, table=60, offset=2, head_norm=True, center=True, bias=True),
    "wide learned positions, softcaps": Shape(pairs=0, table=42, table_type=np.int16, softcap=True, logit_softcap=True, grouped=False),
    "4 bits, window": Shape(w4=True, window=7, alibi=True, head_norm=True, bias=True, width=33, inner=97),
    "bias, all in 4 bits and capped": Shape(w4=True, bias_columns=9, softcap=True, logit_softcap=True, pairs=0, window=30, vocab=131),
    "one column, a window of one": Shape(bias_columns=1, window=1, kv_heads=6, grouped=False),
    "bidirectional, bias": Shape(mask=1, bias_columns=11, pairs=0, head_norm=True, softcap=True),
    "bidirectional, alibi": Shape(mask=1, alibi=True, bias_columns=1, table=41, offset=1, w4=True, v_dim=7, center=True),
    "inputs in groups": Shape(a8=True, bias=True, width=290, inner=65),
    "inputs in groups, 4 bits": Shape(a8=True, w4=True, alibi=True, logit_softcap=True, width=33, inner=97, vocab=131),
    "inputs in groups, per row": Shape(a8=True, grouped=False, mask=1, width=160, inner=352),
    "16 bits": Shape(w16=True, bias=True, width=33, inner=97, vocab=131, logit_softcap=True),
    "16 bits, inputs in groups": Shape(w16=True, a8=True, grouped=False, alibi=True, width=160, inner=65),
    "one head, long": Shape(heads=1, kv_heads=1, head_dim=64, v_dim=64, pairs=32, context=300, layers=1),
    "repeated learned positions, rope": Shape(table=13, offset=3, modulo=7, table_type=np.int16, grouped=False),
}


def every(names) -> dict:
    """Parameters of a fixture: each of the shapes with both KV formats, random and extreme."""
    return {"params": [(name, kv, extreme) for name in names for kv in (16, 8) for extreme in (False, True)], "ids": str}


def build(name: str, kv_bits: int, extreme: bool):
    shape = Shape(**{**vars(SHAPES[name]), "kv_bits": kv_bits})
    return random_program(np.random.default_rng(list(SHAPES).index(name)), shape, extreme)


@pytest.fixture(**every(SHAPES))
def program(request):
    return build(*request.param)


@pytest.fixture(**every(name for name, shape in SHAPES.items() if not shape.mask))
def causal(request):
    """Programs that take their tokens in any number of calls."""
    return build(*request.param)


def spread(program, n: int, seed: int) -> np.ndarray:
    """n ascending positions with gaps, as far apart as the program allows."""
    rng = np.random.default_rng(seed)
    if program.max_position < 2**31 - 1:
        return np.sort(rng.choice(program.max_position + 1, n, replace=False))
    return np.cumsum(rng.integers(1, 2**20 if rng.integers(2) else 3, n))


def sessions(program, context=None):
    return GoldenSession(program, context), CSession(Image(image(program)), context)


def test_every_operator_gives_the_same_bits(program):
    golden, c = sessions(program)
    if program.one_call:
        c = CSession(Image(image(program)), n_batch=program.header.context)
    ids = np.random.default_rng(1).integers(0, program.header.vocab, program.header.context)
    expected: dict[int, np.ndarray] = {}
    logits = golden.eval_int(ids, trace=lambda op, output: expected.setdefault(op, output))
    seen: dict[int, list[np.ndarray]] = {}
    c.set_trace(lambda event: seen.setdefault(event.op, []).append(event.data))
    assert (c.eval_int(ids) == logits).all()
    for index, op in enumerate(program.ops[:-1]):
        if op.out != NONE:
            assert (np.concatenate(seen[index]) == expected[index]).all(), (index, op.code.name)
    assert c.saturations == golden.saturations


def test_cuts_batches_and_threads_change_nothing(program):
    golden, _ = sessions(program)
    picture = Image(image(program))
    n = min(program.header.context, 40)
    ids = np.random.default_rng(2).integers(0, program.header.vocab, n)
    positions = spread(program, n, 3)
    expected = golden.eval_int(ids, positions)
    for threads, batch, cut in itertools.product((1, 3), (1, 5, 64), (1, 17, n)):
        if program.one_call and min(batch, cut) < n:
            continue
        s = CSession(picture, threads=threads, n_batch=batch)
        parts = [s.eval_int(ids[at : at + cut], positions[at : at + cut]) for at in range(0, n, cut)]
        assert (np.concatenate(parts) == expected).all(), (threads, batch, cut)
        assert s.saturations == golden.saturations
        assert s.argmax() == int(expected[-1].argmax())


def test_reset_rewind_and_restore(causal):
    program = causal
    golden, c = sessions(program)
    ids = np.random.default_rng(4).integers(0, program.header.vocab, 30)
    expected = golden.eval_int(ids)
    c.eval_int(ids[:20])
    state = c.save()
    golden.rewind(20)
    golden.reset()
    golden.eval_int(ids[:20])
    assert state == golden.save()
    c.eval_int(ids[20:])
    c.rewind(20)
    assert (c.eval_int(ids[20:]) == expected[20:]).all()
    c.reset()
    assert c.position == 0 and c.length == 0 and c.saturations == 0
    assert (c.eval_int(ids) == expected).all()
    for other in sessions(program, context=30):
        other.restore(state)
        assert other.position == 20
        assert (other.eval_int(ids[20:]) == expected[20:]).all()
    c.restore(state)
    assert c.argmax() == int(expected[19].argmax())


def test_errors_leave_the_state(causal):
    program = causal
    _, c = sessions(program, context=25)
    ids = np.random.default_rng(5).integers(0, program.header.vocab, 25)
    expected = CSession(Image(image(program)), 25).eval_int(ids)
    c.eval_int(ids[:20])
    state = c.save()
    bad = [
        (ContextError, lambda: c.eval_int(ids[:6])),
        (EdgePosError, lambda: c.eval_int([0, program.header.vocab])),
        (EdgePosError, lambda: c.eval_int([0, -1])),
        (ContextError, lambda: c.eval_int([0, 0], positions=[25, 25])),
        (ContextError, lambda: c.eval_int([0], positions=[19])),
        (ContextError, lambda: c.eval_int([0, 0], positions=[30, 2**31 - 1] if program.max_position < 2**31 - 1 else [30, 30])),
        (ContextError, lambda: c.rewind(21)),
        (FormatError, lambda: c.restore(state[:-1])),
        (FormatError, lambda: c.restore(b"")),
        (FormatError, lambda: c.restore(state + b"\0")),
    ]
    for error, call in bad:
        with pytest.raises(error):
            call()
        assert c.save() == state
    assert (c.eval_int(ids[20:]) == expected[20:]).all()
    with pytest.raises(ContextError):
        c.eval_int([0])
    assert c.length == 25


@pytest.mark.parametrize("table_type", [np.int8, np.int16])
@pytest.mark.parametrize("offset", [0, 1, 9])
def test_positions_end_where_the_table_ends(table_type, offset):
    program = random_program(np.random.default_rng(10), Shape(pairs=0, table=30, table_type=table_type, offset=offset, context=25))
    last = 29 - offset
    assert Image(image(program)).info.max_position == program.max_position == last
    golden, c = sessions(program)
    far = [3, last - 1, last]
    assert (golden.eval_int([1, 2, 3], far) == c.eval_int([1, 2, 3], far)).all()
    for s in (golden, c):
        s.rewind(2)
        state = s.save()
        for ids, positions in (([1, 2], None), ([1], [last + 1]), ([1], [2**31 - 1]), ([1, 2], [last, 2**31 - 1])):
            with pytest.raises(ContextError, match=f"at most {last}"):
                s.eval_int(ids, positions)
            assert s.save() == state
        s.eval_int([3])
        with pytest.raises(ContextError):
            s.eval_int([3])


def test_repeated_positions_never_end():
    program = random_program(np.random.default_rng(13), Shape(table=12, offset=2, modulo=10))
    assert Image(image(program)).info.max_position == program.max_position == 2**31 - 1
    golden, c = sessions(program)
    far = [3, 13, 2**31 - 1]
    assert (golden.eval_int([1, 1, 1], far) == c.eval_int([1, 1, 1], far)).all()


@pytest.mark.parametrize("kv_bits", [16, 8])
def test_bidirectional_programs_take_one_call(kv_bits):
    program = random_program(np.random.default_rng(11), Shape(mask=1, bias_columns=5, kv_bits=kv_bits))
    ids = np.random.default_rng(12).integers(0, 97, 20)
    golden, c = sessions(program)
    expected = golden.eval_int(ids)
    assert (c.eval_int(ids) == expected).all()  # by default a batch has room for the context
    assert not (expected[0] == GoldenSession(program).eval_int(ids[:1])[0]).all()
    small = CSession(Image(image(program)), n_batch=19)
    with pytest.raises(ContextError, match="one call"):
        small.eval_int(ids)
    assert small.length == 0
    small.eval_int(ids[:19])
    state = c.save()
    assert state == golden.save()
    for s in (golden, c):
        for again in (s.eval_int, lambda row: s.rewind(5) or s.eval_int(row)):
            with pytest.raises(ContextError, match="one call"):
                again(ids[:1])
        s.rewind(0)
        assert (s.eval_int(ids[:3], logits="last") == GoldenSession(program).eval_int(ids[:3])[-1]).all()
        s.reset()
        s.restore(state)
        with pytest.raises(ContextError):
            s.eval_int(ids[:1])
    assert c.argmax() == int(expected[-1].argmax())


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("kind", POOLS)
def test_embeddings_are_the_same_in_all_engines(kind, extreme):
    mask = int(kind in ("mean", "first", "max"))
    shape = Shape(mask=mask, bias_columns=11, pairs=0, center=True, bias=True, pool=kind, dense=kind in ("mean", "max"), kv_bits=8 if kind == "last" else 16)
    program = random_program(np.random.default_rng(13), shape, extreme)
    picture = Image(image(program))
    ids = np.random.default_rng(14).integers(0, 97, 31)
    ids[[9, 20]] = 97 // 3 if kind == "token" else 96
    golden = GoldenSession(program)
    expected: dict[int, np.ndarray] = {}
    embedding = golden.embed_int(ids, trace=lambda op, output: expected.setdefault(op, output))
    assert embedding.dtype == np.int32 and embedding.shape == (golden.embedding,) == (picture.info.embedding,)
    for threads in (1, 3):
        c = CSession(picture, threads=threads)
        seen = {}
        c.set_trace(lambda event: seen.setdefault(event.op, event.data))
        assert (c.embed_int(ids) == embedding).all() and c.saturations == golden.saturations
        for index, op in enumerate(program.ops):
            assert op.out == NONE or (seen[index] == expected[index]).all(), (index, op.code.name)
        assert c.save() == golden.save()
        c.embed_int(ids[:3])
        np.testing.assert_array_equal(c.embed(ids), (embedding * 2.0**-16).astype(np.float32))
    program.header.selftest = len(program.arrays)
    program.names.append("selftest2")
    program.arrays.append(ids.astype(np.int32))
    program.header.digest = fnv1a64(embedding.astype("<i4").tobytes())
    assert Image(image(program)).selftest() == program.header.digest


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("first", "kind", "kv_bits"), [(0, "mean", 16), (1, "first", 16), (2, "max", 8), (16, "last", 16)])
def test_images_give_the_same_in_all_engines(first, kind, kv_bits, extreme):
    shape = Shape(mask=1, pairs=0, center=True, pool=kind, dense=kind == "first", kv_bits=kv_bits, image=1 + first, table=24)
    program = random_program(np.random.default_rng(16), shape, extreme)
    picture = Image(image(program))
    assert picture.image_shape == program.image == (8, 12, 3) and picture.info.selftest == ()
    rng = np.random.default_rng(17)
    golden = GoldenSession(program, 3)  # an image is all of its tokens, whatever is asked for
    opened = [CSession(picture), CSession(picture, context=2, threads=3)] + [CSession(picture, kernels=name) for name in native.kernel_sets()]
    for pixels in (rng.integers(0, 256, (8, 12, 3)), np.zeros((8, 12, 3)), np.full((8, 12, 3), 255)):
        pixels = pixels.astype(np.uint8)
        expected: dict[int, np.ndarray] = {}
        row = golden.embed_image_int(pixels, trace=lambda op, output: expected.setdefault(op, output))
        patch = pixels[4:8, 8:12].astype(int).ravel() - 128  # the last of two by three
        np.testing.assert_array_equal(expected[0][-1], patch)
        assert expected[0].shape == (first + 6, 48) and not expected[0][:first].any()
        for c in opened:
            seen = {}
            c.set_trace(lambda event: seen.setdefault(event.op, event.data))
            assert (c.embed_image_int(pixels) == row).all() and c.context == golden.context == first + 6
            for index, op in enumerate(program.ops):
                assert op.out == NONE or (seen[index] == expected[index]).all(), (index, op.code.name)
            assert c.save() == golden.save()
    np.testing.assert_array_equal(opened[0].embed_image(pixels), (row * 2.0**-16).astype(np.float32))
    test = program.arrays[program.header.selftest].view(np.uint8).reshape(8, 12, 3)
    program.header.digest = fnv1a64(golden.embed_image_int(test).astype("<i4").tobytes())
    assert Image(image(program)).selftest() == program.header.digest


def test_images_that_do_not_fit_are_refused():
    reads_image = random_program(np.random.default_rng(18), Shape(mask=1, pairs=0, pool="mean", image=1, kv_bits=16))
    reads_text = random_program(np.random.default_rng(18), Shape(mask=1, pairs=0, pool="mean", context=9))
    fits = np.zeros((8, 12, 3), np.uint8)
    for s in sessions(reads_image):
        for wrong in (fits[:7], fits[..., :1], fits[..., 0], fits.transpose(2, 0, 1), fits.astype(int), fits.astype(np.float32), fits.tolist(), None, [[1], [1, 2]], "x"):
            with pytest.raises(EdgePosError, match=r"image: .* found, this model reads uint8 \[8, 12, 3\] \(height, width, channels\)"):
                s.embed_image(wrong)
        with pytest.raises(EdgePosError, match="reads an image of 8 × 12 pixels and 3 channels, not tokens; use embed_image"):
            s.embed([0])
        for call in (lambda: s.eval_int([0]), lambda: s.generate([0])):
            with pytest.raises(EdgePosError, match="not logits"):
                call()
        np.testing.assert_array_equal(s.embed_image(fits[::-1]), s.embed_image(fits))  # strides are fine
    for s in sessions(reads_text):
        with pytest.raises(EdgePosError, match="reads tokens, not an image"):
            s.embed_image(fits)


def test_sessions_of_embeddings_and_of_logits_refuse_each_others_calls():
    embedding, logits = (random_program(np.random.default_rng(15), Shape(mask=1, pairs=0, pool=kind, context=9)) for kind in ("mean", ""))
    for s in sessions(embedding):
        for call in (lambda: s.eval_int([1]), lambda: s.eval([1]), lambda: s.generate([1])):
            with pytest.raises(EdgePosError, match="an embedding of 44 numbers, not logits; use embed"):
                call()
        with pytest.raises(ContextError, match="10 more tokens do not fit"):
            s.embed(range(10))
        for ids in ([], [97], [-1], [0.5]):
            with pytest.raises(EdgePosError):
                s.embed(ids)
        with pytest.raises(ContextError, match="ascend"):
            s.embed([1, 2], [3, 3])
        assert s.embed([1, 2]).shape == (44,)
    for s in sessions(logits):
        with pytest.raises(EdgePosError, match="gives logits, not an embedding"):
            s.embed([1])


@pytest.mark.parametrize("kv_bits", [16, 8])
def test_damaged_states_are_refused_or_run(kv_bits):
    program = random_program(np.random.default_rng(6), Shape(kv_bits=kv_bits))
    golden, c = sessions(program)
    c.eval_int(range(9))
    state = bytearray(c.save())
    rng = np.random.default_rng(7)
    accepted = 0
    for _ in range(100):
        damaged = bytearray(state)
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        outcomes = []
        for session in (golden, c):
            session.reset()
            try:
                session.restore(bytes(damaged))
                outcomes.append(session.eval_int([1, 2]).tolist())
            except FormatError:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]
        accepted += outcomes[0] is not None
    assert accepted > 30


@pytest.mark.parametrize("shape", [Shape(), Shape(logit_softcap=True, w4=True, vocab=300), Shape(mask=1, bias_columns=3, logit_softcap=True)], ids=str)
def test_selftest_digest(shape):
    program = random_program(np.random.default_rng(8), shape)
    ids = program.arrays[program.header.selftest]
    logits = GoldenSession(program).eval_int(ids)
    program.header.digest = fnv1a64(logits.astype("<i4").tobytes())
    assert Image(image(program)).selftest() == program.header.digest
    program.header.digest ^= 1
    with pytest.raises(EdgePosError, match="digest"):
        Image(image(program)).selftest()


def test_weights_in_two_parts_are_checked_before_they_are_read():
    """w16g32 with fewer rows than two parts, without group scales, of positions; and forms that are not known."""

    def opened(change, **shape):
        program = random_program(np.random.default_rng(12), Shape(w16=True, **shape))
        linear = next(op for op in program.ops if op.code is Op.LINEAR and op.params["form"] == W16G32)
        change(program, program.ops[0], linear)
        return Image(image(program))

    def halved(which):
        def change(program, embed, linear):
            index = linear.tensors[which]
            program.arrays[index] = program.arrays[index][: len(program.arrays[index]) // 2].copy()

        return change

    opened(lambda program, embed, linear: None)
    changes = [halved(0), halved(1), lambda program, embed, linear: setattr(linear, "tensors", (linear.tensors[0], -1, *linear.tensors[2:]))]
    changes += [lambda program, embed, linear, form=form: linear.params.update(form=form) for form in (-1, 0, 1, 3)]
    changes += [lambda program, embed, linear, form=form: embed.params.update(form=form) for form in (-1, 0, 1, 3)]
    for change in changes:
        with pytest.raises(EdgePosError, match="program"):
            opened(change)
    with pytest.raises(EdgePosError, match="program"):
        opened(lambda program, embed, linear: next(op for op in program.ops if op.params.get("source") == POSITIONS).params.update(form=W16G32), table=60)


def test_sampling_is_the_same_in_c():
    rng = np.random.default_rng(9)
    for case in range(400):
        vocab, f = int(rng.integers(1, 600)), int(rng.integers(-16, 31))
        spread = 2.0 ** rng.integers(0, 32)
        row = np.clip(rng.normal(0, spread, vocab), -(2**31), 2**31 - 1).astype(np.int32)
        if case % 5 == 0:
            row = rng.choice(np.array([-(2**31), 0, 7, 2**31 - 1], np.int32), vocab)
        how = Sampling(int(rng.choice([0, 1, 300, 52429, 65536, 2**32 - 1])), int(rng.choice([0, 1, 5, vocab, 10**6])), int(rng.choice([0, 1, 30000, 60000, 65536])))
        seed = int(rng.integers(0, 2**63))
        state = native.ffi.new("ep_rng *")
        native.lib.ep_rng_seed(state, seed)
        scratch = np.zeros(vocab, np.uint32)
        parameters = native.ffi.new("ep_sampling *", {"temperature": how.temperature, "top_k": how.top_k, "top_p": how.top_p})
        token = native.ffi.new("int32_t *")
        mine = Rng(seed)
        for _ in range(3):
            status = native.lib.ep_sample(
                native.int32_pointer(row), vocab, f, parameters, state, native.ffi.cast("uint32_t *", native.ffi.from_buffer(scratch)), token
            )
            assert status == 0
            assert token[0] == sample(row, f, how, mine), (case, vocab, f, how)
            assert state.state == mine.state
