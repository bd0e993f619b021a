"""The same block in the spellings of different exporters: each must come out as one canonical operator.

`load` compares every canonical graph with its source in ONNX Runtime, so a wrong recognition fails here by itself.
"""

from __future__ import annotations

import numpy as np
import pytest
from foreign_graphs import DIM, HEAD_DIM, HEADS, HIDDEN, TABLE, VOCAB, Graph, angles, decoder, inv_freq, plain_attention, save
from onnx import TensorProto, helper

from edgepos.compiler.match import match
from edgepos.compiler.steps import Act, Attend, Linear, Norm
from edgepos.errors import UnsupportedError
from edgepos.export import load
from edgepos.export.onnx_in import rope_rules
from edgepos.positions import Alibi, Learned, NoPosition, RelativeBias, Rope, Sinusoidal, T5Bias

MS = {"com.microsoft": 1}


def steps_of(model, tmp_path, **options):
    canonical = load(save(model, tmp_path), **options)
    return match(canonical.model), canonical


# ---- rotations


def rotate_half(g, x):
    table = angles(g, inv_freq())
    both = g.op("Concat", table, table, axis=-1)
    half = [g.op("Slice", x, g.ints(a), g.ints(b), g.ints(3)) for a, b in ((0, HEAD_DIM // 2), (HEAD_DIM // 2, HEAD_DIM))]
    swapped = g.op("Concat", g.op("Neg", half[1]), half[0], axis=-1)
    return g.op("Add", g.op("Mul", x, g.op("Cos", both)), g.op("Mul", swapped, g.op("Sin", both)))


def _pairs(g, x):
    """Real and imaginary parts [1, heads, n, pairs] of neighbours."""
    cut = g.op("Reshape", x, g.ints(1, HEADS, -1, HEAD_DIM // 2, 2))
    return [g.op("Gather", cut, g.put(np.array(i, np.int64)), axis=4) for i in (0, 1)]


def _complex(g, x):
    a, b = _pairs(g, x)
    table = angles(g, inv_freq())
    c, s = g.op("Cos", table), g.op("Sin", table)
    real = g.op("Sub", g.op("Mul", a, c), g.op("Mul", b, s))
    imaginary = g.op("Add", g.op("Mul", a, s), g.op("Mul", b, c))
    return real, imaginary


def complex_product(g, x):
    parts = [g.op("Unsqueeze", part, g.ints(4)) for part in _complex(g, x)]
    return g.op("Reshape", g.op("Concat", *parts, axis=4), g.ints(1, HEADS, -1, HEAD_DIM))


def stacked_pairs(g, x):
    """Neighbours are turned and left as two halves: the same scores, another order of components."""
    return g.op("Concat", *_complex(g, x), axis=-1)


def cached_tables(g, x):
    positions = np.arange(TABLE)[:, None] * inv_freq()[None]
    rows = [g.op("Gather", g.put(np.tile(f(positions), 2).astype(np.float32)), g.positions()) for f in (np.cos, np.sin)]
    a, b = (g.op("Slice", x, g.ints(i), g.ints(j), g.ints(-1)) for i, j in ((0, HEAD_DIM // 2), (HEAD_DIM // 2, 99)))
    swapped = g.op("Concat", g.op("Neg", b), a, axis=-1)
    return g.op("Add", g.op("Mul", x, rows[0]), g.op("Mul", swapped, rows[1]))


def operator(g, x):
    positions = np.arange(TABLE)[:, None] * inv_freq()[None]
    tables = [g.put(f(positions).astype(np.float32)) for f in (np.cos, np.sin)]
    return g.op("RotaryEmbedding", x, *tables, g.op("Unsqueeze", g.positions(), g.ints(0)))


def operator_interleaved(g, x):
    positions = np.arange(TABLE)[:, None] * inv_freq()[None]
    tables = [g.put(f(positions).astype(np.float32)) for f in (np.cos, np.sin)]
    return g.op("RotaryEmbedding", x, *tables, g.op("Unsqueeze", g.positions(), g.ints(0)), interleaved=1)


def operator_of_ort(g, x):
    """com.microsoft's, whose second input is the positions."""
    positions = np.arange(TABLE)[:, None] * inv_freq()[None]
    tables = [g.put(f(positions).astype(np.float32)) for f in (np.cos, np.sin)]
    return g.op("RotaryEmbedding", x, g.op("Unsqueeze", g.positions(), g.ints(0)), *tables, domain="com.microsoft")


def partial(g, x):
    """The first four components of six, by theta 500 of frequencies divided by 2."""
    table = angles(g, inv_freq(500.0, 2) / 2)
    both = g.op("Concat", table, table, axis=-1)
    turned, rest = (g.op("Slice", x, g.ints(a), g.ints(b), g.ints(3)) for a, b in ((0, 4), (4, HEAD_DIM)))
    a, b = (g.op("Slice", turned, g.ints(i), g.ints(j), g.ints(3)) for i, j in ((0, 2), (2, 4)))
    swapped = g.op("Concat", g.op("Neg", b), a, axis=-1)
    y = g.op("Add", g.op("Mul", turned, g.op("Cos", both)), g.op("Mul", swapped, g.op("Sin", both)))
    return g.op("Concat", y, rest, axis=3)


STRETCHED = np.array([1.0, 0.021, 0.0004], np.float32)  # no rule gives these


def stretched(g, x, factor: float = 1.1, width: int = HEAD_DIM):
    """Frequencies of no rule, and an attention factor on the rotated part."""
    table = angles(g, STRETCHED[: width // 2])
    both = g.op("Concat", table, table, axis=-1)
    cos, sin = (g.op("Mul", g.op(f, both), g.number(factor)) for f in ("Cos", "Sin"))
    g.op("Split", x, g.ints(width // 2, width // 2, *[HEAD_DIM - width] * (width < HEAD_DIM)), outputs=2 + (width < HEAD_DIM), axis=3)
    a, b, *rest = g.outs()
    turned = g.op("Concat", a, b, axis=3)
    y = g.op("Add", g.op("Mul", turned, cos), g.op("Mul", g.op("Concat", g.op("Neg", b), a, axis=3), sin))
    return g.op("Concat", y, *rest, axis=3) if rest else y


def stretched_partly(g, x):
    return stretched(g, x, width=4)


HALF, NEIGHBOURS = Rope(HEAD_DIM), Rope(HEAD_DIM, layout="interleaved")
ROTATIONS = {
    rotate_half: HALF,
    complex_product: NEIGHBOURS,
    stacked_pairs: HALF,
    cached_tables: HALF,
    operator: HALF,
    operator_interleaved: NEIGHBOURS,
    operator_of_ort: HALF,
    stretched: Rope(HEAD_DIM, scaling={"rope_type": "custom", "inv_freq": [float(f) for f in STRETCHED]}),
    stretched_partly: Rope(HEAD_DIM, rotary_dim=4, theta=2267.57),  # two frequencies always have a theta: 0.021^-2
    partial: Rope(HEAD_DIM, rotary_dim=4, theta=500.0, scaling={"rope_type": "linear", "factor": 2.0}),
}


@pytest.mark.parametrize("turn", ROTATIONS, ids=lambda f: f.__name__)
def test_rotations(turn, tmp_path):
    opset = 23 if "operator" in turn.__name__ else 21
    program, canonical = steps_of(decoder(attend=lambda g, x: plain_attention(g, x, turn), opset=opset, domains=MS), tmp_path)
    assert program.positions() == ROTATIONS[turn]
    assert canonical.context == (TABLE if turn in (cached_tables, operator, operator_interleaved, operator_of_ort) else 2048)


@pytest.mark.parametrize(
    ("theta", "scaling"),
    [
        (1e4, None),
        (5e5, None),
        (12345.0, None),
        (1e4, {"rope_type": "linear", "factor": 4.0}),
        (5e5, {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
        (5e5, {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}),
        (1e6, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "attention_factor": 1.0}),
        (15e4, {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False, "attention_factor": 1.0}),
    ],
)
def test_rules_are_recovered_from_frequencies(theta, scaling):
    """From float32 numbers, as a graph has them."""
    wanted = Rope(64, theta=theta, scaling=scaling)
    frequencies = np.array([float(f) for f in wanted.frequencies(None)]).astype(np.float32).astype(np.float64)
    assert rope_rules.named(frequencies, {"head_dim": 64, "rotary_dim": 64, "layout": "half"}) == wanted


def test_frequencies_of_no_rule_are_kept():
    frequencies = np.geomspace(1, 1e-4, 32) * np.linspace(1, 1.5, 32)
    found = rope_rules.named(frequencies, {"head_dim": 64, "rotary_dim": 64, "layout": "half"})
    assert found.scaling.inv_freq == tuple(frequencies)


def test_an_attention_factor_goes_where_the_rotation_is(tmp_path):
    """Into the scale where all components turn, else into the rows of q and k."""
    scales = []
    for turn in (stretched, stretched_partly):
        program, _ = steps_of(decoder(attend=lambda g, x, turn=turn: plain_attention(g, x, turn)), tmp_path)
        scales.append(program.layers()[0].scale * HEAD_DIM**0.5)
    assert scales == pytest.approx([1.21, 1.0], rel=1e-6)


def test_a_table_that_is_not_the_rule_everywhere_is_refused(tmp_path):
    def turn(g, x):
        y = cached_tables(g, x)
        for weight in g.weights:
            if list(weight.dims) == [TABLE, HEAD_DIM]:
                table = np.frombuffer(weight.raw_data, np.float32).copy()
                table[80 * HEAD_DIM : 81 * HEAD_DIM] = 0.5
                weight.raw_data = table.tobytes()
        return y

    with pytest.raises(Exception, match=r"cosine at position 80, pair 0 is 0.5, where theta 10000 \(half\) gives"):
        steps_of(decoder(attend=lambda g, x: plain_attention(g, x, turn)), tmp_path)


# ---- masks and biases


def alibi_added(g):
    slopes = g.put(np.array([2.0 ** -(2 * h + 2) for h in range(HEADS)], np.float32).reshape(HEADS, 1, 1))
    return g.op("Add", g.op("Mul", slopes, g.op("Cast", g.distance(), to=TensorProto.FLOAT)), g.causal())


def alibi_by_key(g):
    """BLOOM's way: slope · key position; a query's own position drops out of the softmax."""
    slopes = g.put(np.array([2.0 ** -(2 * h + 2) for h in range(HEADS)], np.float32).reshape(HEADS, 1, 1))
    keys = g.op("Cast", g.op("Unsqueeze", g.positions(), g.ints(0)), to=TensorProto.FLOAT)
    return g.op("Add", g.op("Mul", slopes, keys), g.causal())


def own_slopes(g):
    slopes = g.put(np.array([0.3, 0.2, 0.05, 0.01], np.float32).reshape(HEADS, 1, 1))
    return g.op("Add", g.op("Mul", slopes, g.op("Cast", g.distance(), to=TensorProto.FLOAT)), g.causal())


def alibi_table(g):
    """The whole mask as a constant: biases by the keys' positions, later keys hidden."""
    slopes = np.array([2.0 ** -(2 * h + 2) for h in range(HEADS)], np.float32).reshape(HEADS, 1, 1)
    queries, keys = np.arange(TABLE)[:, None], np.arange(TABLE)[None, :]
    mask = np.where(keys > queries, np.float32(-np.inf), slopes * (keys - (TABLE - 1)).astype(np.float32))
    n = g.op("Unsqueeze", g.tokens(), g.ints(0))
    return g.op("Slice", g.put(mask.astype(np.float32), "mask"), g.ints(0, 0), g.op("Concat", n, n, axis=0), g.ints(1, 2))



def window(g):
    d = g.distance()
    hidden = g.op("Or", g.op("Greater", d, g.ints(0)), g.op("LessOrEqual", d, g.ints(-70)))
    return g.op("Where", hidden, g.number(-1e9), g.number(0.0))


def triangle(g):
    keep = g.put(np.tril(np.ones((TABLE, TABLE), np.bool_)))
    n = g.op("Unsqueeze", g.tokens(), g.ints(0))
    cut = g.op("Slice", keep, g.ints(0, 0), g.op("Concat", n, n, axis=0), g.ints(0, 1))
    return g.op("Where", cut, g.number(0.0), g.number(-np.inf))


def _buckets(g, spec, rows):
    distance = np.arange(400)
    table = spec.bucket(-distance)
    d = g.op("Clip", g.op("Neg", g.distance()), g.put(np.array(0, np.int64)), g.put(np.array(399, np.int64)))
    values = g.op("Gather", g.random(rows, HEADS), g.op("Gather", g.put(table), d))
    return g.op("Add", g.op("Transpose", values, perm=[2, 0, 1]), g.causal())


def t5(g):
    return _buckets(g, T5Bias(bidirectional=False), 32)


def clipped(g):
    return _buckets(g, RelativeBias((9,)), 19)


MASKS = {
    alibi_added: Alibi(HEADS),
    alibi_by_key: Alibi(HEADS),
    alibi_table: Alibi(HEADS),
    own_slopes: Alibi(HEADS, user_slopes=tuple(float(np.float32(s)) for s in (0.3, 0.2, 0.05, 0.01))),
    Graph.causal: NoPosition(),
    triangle: NoPosition(),
    window: NoPosition(),
    t5: T5Bias(bidirectional=False),
    clipped: RelativeBias((9,)),
}


@pytest.mark.parametrize("mask", MASKS, ids=lambda f: f.__name__)
def test_masks(mask, tmp_path):
    program, canonical = steps_of(decoder(attend=lambda g, x: plain_attention(g, x, None, mask)), tmp_path)
    assert program.positions() == MASKS[mask]
    assert canonical.context == (TABLE if mask in (triangle, alibi_table) else 2048)
    assert [s.window for s in program.layers()] == [70 if mask is window else 0]


def test_a_bias_that_changes_to_the_end_of_the_context(tmp_path):
    """No row is that of all greater distances, but the context ends there."""

    def falling(g):
        d = g.op("Cast", g.distance(), to=TensorProto.FLOAT)
        root = g.op("Neg", g.op("Sqrt", g.op("Neg", g.op("Min", d, g.number(0.0)))))
        return g.op("Add", g.op("Mul", g.put(np.arange(1, HEADS + 1, dtype=np.float32).reshape(HEADS, 1, 1)), root), g.causal())

    model = decoder(attend=lambda g, x: plain_attention(g, x, None, falling))
    assert steps_of(model, tmp_path, context=60)[0].positions() == RelativeBias((59,))
    with pytest.raises(Exception, match="a bias on the scores that still changes at the largest distance looked at"):
        steps_of(model, tmp_path)


# ---- attention


def grouped(g, x):
    """Two KV heads, each repeated for two query heads; an empty cache is joined in front."""
    g.inputs += [helper.make_tensor_value_info(f"past_key_values.0.{w}", TensorProto.FLOAT, [1, 2, "past", HEAD_DIM]) for w in ("key", "value")]
    q = g.split(g.linear(x, DIM, DIM))
    k, v = (g.split(g.linear(x, DIM, 2 * HEAD_DIM), 2) for _ in range(2))
    k, v = (g.op("Concat", f"past_key_values.0.{w}", y, axis=2) for w, y in (("key", k), ("value", v)))

    def repeat(y):
        n = g.op("Unsqueeze", g.tokens(), g.ints(0))
        shape = g.op("Concat", g.ints(1, 2, 2), n, g.ints(HEAD_DIM), axis=0)
        return g.op("Reshape", g.op("Expand", g.op("Unsqueeze", y, g.ints(2)), shape), g.ints(1, HEADS, -1, HEAD_DIM))

    return g.attention(q, repeat(k), repeat(v), g.causal())


def fused(g, x):
    """One matrix for q, k and v with a bias, both operands scaled, a guard against rows without keys."""
    y = g.op("Add", g.linear(x, DIM, 3 * DIM), g.random(3 * DIM))
    g.op("Split", y, g.ints(DIM, DIM, DIM), outputs=3, axis=-1)
    q, k, v = (g.split(part) for part in g.outs())
    root = g.number(HEAD_DIM**-0.25)
    q, k = g.op("Mul", q, root), g.op("Mul", g.op("Transpose", k, perm=[0, 1, 3, 2]), root)
    p = g.op("Softmax", g.op("Add", g.op("MatMul", q, k), g.causal()), axis=-1)
    p = g.op("Where", g.op("IsNaN", p), g.number(0.0), p)
    return g.join(g.op("MatMul", p, v))


def by_head(g, x):
    """Each head on its own, joined at the end."""
    heads = []
    for _ in range(HEADS):
        q, k, v = (g.linear(x, DIM, HEAD_DIM) for _ in range(3))
        scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 1])), g.number(HEAD_DIM**-0.5))
        heads.append(g.op("MatMul", g.op("Softmax", g.op("Add", scores, g.causal()), axis=-1), v))
    return g.op("Concat", *heads, axis=-1)


def capped(g, x):
    q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
    scores = g.op("Mul", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), g.number(0.3))
    scores = g.op("Mul", g.op("Tanh", g.op("Div", scores, g.number(2.5))), g.number(2.5))
    return g.join(g.op("MatMul", g.op("Softmax", g.op("Add", scores, g.causal()), axis=-1), v))


def head_norms(g, x):
    q, k, v = (g.op("Reshape", g.linear(x, DIM, DIM), g.ints(1, -1, HEADS, HEAD_DIM)) for _ in range(3))
    q, k = (g.rms_norm(y, HEAD_DIM) for y in (q, k))
    q, k, v = (g.op("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, k, v))
    return g.attention(rotate_half(g, q), rotate_half(g, k), v, g.causal())


def by_einsum(g, x):
    """Heads as an axis of the weights, scores and results by letters; a floor under the scores."""
    q, k, v = (g.op("Einsum", x, g.random(DIM, HEADS, HEAD_DIM), equation="bsd,dhn->bshn") for _ in range(3))
    scores = g.op("Mul", g.op("Einsum", q, k, equation="bihn,bjhn->bhij"), g.number(HEAD_DIM**-0.5))
    p = g.op("Softmax", g.op("Max", g.op("Add", scores, g.causal()), g.number(-3.4e38)), axis=-1)
    y = g.op("Einsum", p, v, equation="bhij,bjhn->bihn")
    return g.op("Einsum", y, g.random(HEADS, HEAD_DIM, DIM), equation="bshn,hnd->bsd")


def ort_attention(g, x):
    """As ONNX Runtime's optimizer writes it: one matrix, a count of the tokens that are no padding."""
    g.inputs += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "tokens"])]
    count = g.op("Cast", g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=0), to=TensorProto.INT32)
    return g.op("Attention", x, g.random(DIM, 3 * DIM), g.random(3 * DIM), count, domain="com.microsoft", num_heads=HEADS, unidirectional=1)


def attention_operator(g, x):
    q, k, v = g.linear(x, DIM, DIM), g.linear(x, DIM, 2 * HEAD_DIM), g.linear(x, DIM, 2 * HEAD_DIM)
    return g.op("Attention", q, k, v, q_num_heads=HEADS, kv_num_heads=2, is_causal=1)


def attention_operator_masked(g, x):
    q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
    keep = g.op("LessOrEqual", g.distance(), g.put(np.array(0, np.int64)))
    return g.join(g.op("Attention", q, k, v, keep, scale=0.2))


def group_query(g, x):
    """As onnxruntime-genai writes it: rotation and cache inside the operator, lengths from the mask."""
    g.inputs += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "all"])]
    g.inputs += [helper.make_tensor_value_info(f"past_key_values.0.{w}", TensorProto.FLOAT, [1, 2, "past", WIDE]) for w in ("key", "value")]
    q, k, v = g.linear(x, DIM, 4 * WIDE), g.linear(x, DIM, 2 * WIDE), g.linear(x, DIM, 2 * WIDE)
    length = g.op("Cast", g.op("ReduceSum", "attention_mask", g.ints(1), keepdims=1), to=TensorProto.INT32)
    last = g.op("Sub", length, g.put(np.array([1], np.int32)))
    total = g.op("Cast", g.op("Gather", g.op("Shape", "attention_mask"), g.put(np.array(1, np.int64))), to=TensorProto.INT32)
    angles_ = np.arange(TABLE)[:, None] * inv_freq(1e4, WIDE // 2)[None]
    tables = [g.put(f(angles_).astype(np.float32)) for f in (np.cos, np.sin)]
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    y = g.op("GroupQueryAttention", q, k, v, *past, last, total, *tables, outputs=3, domain="com.microsoft", num_heads=4, kv_num_heads=2, do_rotary=1)
    return g.linear(y, 4 * WIDE, DIM)


WIDE = 16  # ONNX Runtime's operator wants whole vectors
ATTENTIONS = {
    grouped: (HEADS, 2, NoPosition()),
    fused: (HEADS, HEADS, NoPosition()),
    by_head: (HEADS, HEADS, NoPosition()),
    by_einsum: (HEADS, HEADS, NoPosition()),
    ort_attention: (HEADS, HEADS, NoPosition()),
    capped: (HEADS, HEADS, NoPosition()),
    head_norms: (HEADS, HEADS, HALF),
    attention_operator: (HEADS, 2, NoPosition()),
    attention_operator_masked: (HEADS, HEADS, NoPosition()),
    group_query: (4, 2, Rope(WIDE)),
}


@pytest.mark.parametrize("attend", ATTENTIONS, ids=lambda f: f.__name__)
def test_attention(attend, tmp_path):
    opset = 23 if "operator" in attend.__name__ else 21
    program, _ = steps_of(decoder(attend=attend, opset=opset, domains=MS), tmp_path)
    (layer,) = program.layers()
    assert (layer.heads, layer.kv_heads, program.positions()) == ATTENTIONS[attend]
    assert layer.softcap == (2.5 if attend is capped else 0)


# ---- norms, activations, positions that are added


def layer_norm(g, x):
    c = g.op("Sub", x, g.op("ReduceMean", x, g.ints(-1)))
    deviation = g.op("Sqrt", g.op("Add", g.op("ReduceMean", g.op("Mul", c, c), g.ints(-1)), g.number(1e-6)))
    return g.op("Add", g.op("Mul", g.op("Div", c, deviation), g.random(DIM, mean=1.0)), g.random(DIM))


def layer_norm_operator(g, x):
    return g.op("LayerNormalization", x, g.random(DIM, mean=1.0), g.random(DIM), epsilon=1e-6)


def rms_plus_one(g, x):
    """Gemma's: the weight is counted from 1, the square is a product, the root is divided by."""
    root = g.op("Sqrt", g.op("Add", g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1)), g.number(1e-6)))
    return g.op("Mul", g.op("Div", x, root), g.op("Add", g.random(DIM), g.number(1.0)))


def simplified(g, x):
    return g.op("SimplifiedLayerNormalization", x, g.random(DIM, mean=1.0), axis=-1, epsilon=1e-6)


@pytest.mark.parametrize("norm", [layer_norm, layer_norm_operator, rms_plus_one, simplified], ids=lambda f: f.__name__)
def test_norms(norm, tmp_path):
    program, _ = steps_of(decoder(norm=norm), tmp_path)
    found = [s for s in program.steps if isinstance(s, Norm)]
    assert [(s.center, np.float32(s.epsilon)) for s in found] == [(norm.__name__.startswith("layer"), np.float32(1e-6))] * 3


def _mlp(function):
    return lambda g, x: g.linear(function(g, g.op("Add", g.linear(x, DIM, HIDDEN), g.random(HIDDEN))), HIDDEN, DIM)


def gelu_erf(g, x):
    e = g.op("Erf", g.op("Div", x, g.number(np.sqrt(2))))
    return g.op("Mul", g.op("Mul", x, g.op("Add", e, g.number(1.0))), g.number(0.5))


def gelu_tanh(g, x):
    cube = g.op("Mul", g.op("Pow", x, g.number(3.0)), g.number(0.044715))
    t = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.number(np.sqrt(2 / np.pi))))
    return g.op("Mul", g.op("Mul", g.number(0.5), x), g.op("Add", g.number(1.0), t))


def gelu_sigmoid(g, x):
    """The tanh approximation by a sigmoid of twice the argument."""
    inner = g.op("Add", x, g.op("Mul", g.op("Mul", g.op("Mul", x, x), x), g.number(0.044715)))
    return g.op("Mul", x, g.op("Sigmoid", g.op("Mul", inner, g.number(2 * np.sqrt(2 / np.pi)))))


def silu_by_exp(g, x):
    return g.op("Div", x, g.op("Add", g.op("Exp", g.op("Neg", x)), g.number(1.0)))


ACTIVATIONS = {
    gelu_erf: "gelu",
    gelu_tanh: "gelu_tanh",
    gelu_sigmoid: "gelu_tanh",
    silu_by_exp: "silu",
    (lambda g, x: g.op("Relu", x)): "relu",
    (lambda g, x: g.op("Pow", g.op("Relu", x), g.number(2.0))): "relu",  # and a product
    (lambda g, x: g.op("Gelu", x, approximate="tanh")): "gelu_tanh",
    (lambda g, x: g.op("FastGelu", x, domain="com.microsoft")): "gelu_tanh",
}


@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
def test_activations(function, tmp_path):
    program, _ = steps_of(decoder(mlp=_mlp(function), domains=MS), tmp_path)
    assert [s.function for s in program.steps if isinstance(s, Act)] == [ACTIVATIONS[function]]


def test_an_activation_of_no_known_kind_is_refused(tmp_path):
    mlp = _mlp(lambda g, x: g.op("Mul", x, g.op("Sigmoid", g.op("Mul", x, g.number(1.5)))))
    with pytest.raises(Exception, match=r"node 'n\d+_MatMul' \(MatMul\): a function of one number with f\(-1\) = -0.182"):
        steps_of(decoder(mlp=mlp), tmp_path)


def learned(g, x):
    return g.op("Add", x, g.op("Gather", g.random(TABLE, DIM), g.positions()))


def learned_from_two(g, x):
    """Rows from 2 on, and a constant of all tokens beside them."""
    rows = g.op("Gather", g.random(TABLE, DIM), g.op("Add", g.positions(), g.ints(2)))
    return g.op("Add", g.op("Add", x, g.random(1, 1, DIM)), rows)


def learned_behind_padding(g, x):
    """RoBERTa's: rows are counted over the tokens that are no padding, from the padding's own row on."""
    real = g.op("Cast", g.op("Not", g.op("Equal", "input_ids", g.put(np.array(1, np.int64)))), to=TensorProto.INT64)
    counted = g.op("Mul", g.op("CumSum", real, g.put(np.array(1, np.int64))), real)
    return g.op("Add", x, g.op("Gather", g.random(TABLE, DIM), g.op("Add", counted, g.ints(1))))


def ort_embeddings(g, x):
    """Words, positions, the type of the tokens and the norm in one operator."""
    ids, kinds = (g.op("Cast", y, to=TensorProto.INT32) for y in ("input_ids", g.op("Mul", g.op("Unsqueeze", g.positions(), g.ints(0)), g.ints(0))))
    tables = [g.random(rows, DIM) for rows in (VOCAB, TABLE, 2)]
    return g.op("EmbedLayerNormalization", ids, kinds, *tables, g.random(DIM, mean=1.0), g.random(DIM), outputs=2, domain="com.microsoft", epsilon=1e-12)


def one_type(g, x):
    """The row of the only type of tokens, and no positions."""
    return g.op("Add", x, g.op("Gather", g.random(1, DIM), g.ints(0)))


def sinusoidal(g, x):
    table = Sinusoidal(DIM).table(np.arange(TABLE)).astype(np.float32)
    n = g.op("Unsqueeze", g.tokens(), g.ints(0))
    return g.op("Add", x, g.op("Slice", g.put(table), g.ints(0), n, g.ints(0)))


def masked_by_product(g, x):
    return g.op("Mul", x, g.op("Unsqueeze", g.op("Cast", g.op("Not", g.op("Equal", "input_ids", g.put(np.array(3)))), to=TensorProto.FLOAT), g.ints(-1)))


def masked_by_choice(g, x):
    return g.op("Where", g.op("Unsqueeze", g.op("Equal", "input_ids", g.put(np.array(3))), g.ints(-1)), g.number(0.0), g.op("Mul", x, g.number(2.0)))


def masked_by_other_choice(g, x):
    return g.op("Where", g.op("Unsqueeze", g.op("Not", g.op("Equal", "input_ids", g.put(np.array(3)))), g.ints(-1)), x, g.number(0.0))


@pytest.mark.parametrize("start", [masked_by_product, masked_by_choice, masked_by_other_choice], ids=lambda f: f.__name__)
def test_an_id_whose_embedding_is_zero(start, tmp_path, recwarn):
    canonical = load(save(decoder(start=start), tmp_path))  # which compares texts with that id too
    table = next(v.const_value.numpy() for name, v in canonical.model.graph.initializers.items() if name.endswith("masked.weight"))
    assert not table[3].any() and table[2].any() and not recwarn.list


def test_an_id_that_is_padding_is_warned_of(tmp_path):
    def behind_positions(g, x):
        return masked_by_product(g, learned(g, x))

    def masked_and_unmasked(g, x):
        return g.op("Add", g.linear(masked_by_product(g, x), DIM, DIM), x)

    for start in (learned_behind_padding, behind_positions, masked_and_unmasked):
        with pytest.warns(UserWarning, match=r"m.onnx: the graph takes token id \d for padding; a text of a bundle has none, so that id is read like any other"):
            load(save(decoder(start=start), tmp_path))


PLACES = {
    learned: (Learned(TABLE), TABLE),
    learned_behind_padding: (Learned(TABLE - 2), TABLE - 2),
    one_type: (NoPosition(), 2048),
    ort_embeddings: (Learned(TABLE), TABLE),
    learned_from_two: (Learned(TABLE - 2), TABLE - 2),
    sinusoidal: (Sinusoidal(DIM), TABLE),
}


@pytest.mark.parametrize("start", PLACES, ids=lambda f: f.__name__)
def test_positions_that_are_added(start, tmp_path):
    program, canonical = steps_of(decoder(start=start, domains=MS), tmp_path)
    assert (program.positions(), canonical.context) == PLACES[start]


def test_scaled_embeddings_and_capped_logits(tmp_path):
    g = Graph()
    x = g.op("Mul", g.embed(), g.number(np.sqrt(DIM)))
    x = g.op("Add", x, g.linear(plain_attention(g, g.rms_norm(x)), DIM, DIM))
    y = g.op("Tanh", g.op("Mul", g.linear(g.rms_norm(x), DIM, VOCAB), g.number(1 / 7.5)))
    g.op("Mul", y, g.number(7.5))
    g.nodes[-1].output[0] = "logits"
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "tokens", VOCAB])
    graph = helper.make_graph(g.nodes, "capped", g.inputs, [output], g.weights)
    program, _ = steps_of(helper.make_model(graph, opset_imports=g.imports, ir_version=10), tmp_path)
    assert program.steps[0].scale == pytest.approx(DIM**0.5, rel=1e-6)
    assert isinstance(program.steps[-1], Linear) and program.steps[-1].softcap == 7.5
    assert any(isinstance(s, Attend) for s in program.steps)


def test_a_context_beyond_the_tables_is_refused(tmp_path):
    with pytest.raises(Exception, match=f"m.onnx: context is 100, but a table in the graph has {TABLE} positions"):
        steps_of(decoder(start=learned), tmp_path, context=100)
    assert steps_of(decoder(start=learned), tmp_path, context=50)[1].context == 50


# ---- the logits of the last token alone


def gathered(g, x):
    return g.op("Gather", x, g.put(np.array(-1)), axis=1)


def gathered_beside(g, x):
    return g.op("Gather", x, g.ints(-1), axis=1)


def sliced(g, x):
    return g.op("Slice", x, g.ints(-1), g.ints(2**62), g.ints(1))


def last_of(take, before: bool) -> tuple:
    """(a decoder that takes the last row in front of its head or behind it, the same that gives all rows)."""
    def end(g, x):
        return take(g, x) if before else x

    model, plain = decoder(end=end), decoder()
    shape = [1, 1, VOCAB] if take is not gathered else [1, VOCAB]
    if not before:
        g = Graph()
        g.nodes, g.weights = list(model.graph.node), list(model.graph.initializer)
        g.nodes[-1].output[0] = "all"
        take(g, "all")
        g.nodes[-1].output[0] = "logits"
        model.graph.ClearField("node"), model.graph.ClearField("initializer")
        model.graph.node.extend(g.nodes), model.graph.initializer.extend(g.weights)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
    return model, plain


@pytest.mark.parametrize("before", [True, False], ids=["before the head", "behind it"])
@pytest.mark.parametrize("take", [gathered, gathered_beside, sliced], ids=lambda f: f.__name__)
def test_the_last_row_is_read_as_all_rows(take, before, tmp_path):
    last, plain = (load(save(model, tmp_path, name)).model for model, name in zip(last_of(take, before), ("last.onnx", "all.onnx")))
    weights = [sorted(v.const_value.numpy().astype(np.float64).sum() for v in model.graph.initializers.values() if v.const_value.dtype == 1) for model in (last, plain)]
    assert [node.op_type for node in last.graph] == [node.op_type for node in plain.graph] and weights[0] == weights[1]
    assert list(last.graph.outputs[0].shape) == list(plain.graph.outputs[0].shape)


@pytest.mark.parametrize("take", [gathered, gathered_beside, sliced], ids=lambda f: f.__name__)
def test_the_last_row_is_read_as_all_rows_in_front_of_a_norm(take, tmp_path):
    for norm in (Graph.rms_norm, lambda g, x: g.op("LayerNormalization", x, g.random(DIM, mean=1.0), g.random(DIM), axis=-1)):
        last, plain = (steps_of(decoder(end=end), tmp_path)[0] for end in (lambda g, x, norm=norm: norm(g, take(g, x)), norm))
        assert [type(step) for step in last.steps] == [type(step) for step in plain.steps]


def test_another_row_than_the_last_is_refused(tmp_path):
    def before_last(g, x):
        return g.op("Slice", x, g.ints(-2), g.ints(-1), g.ints(1))

    def added(g, x):
        return g.op("Add", x, sliced(g, x))

    for end, found in ((before_last, r"a tensor of shape \[1, 1, 24\] for 11 tokens"), (added, "the row of the last token .* meets the rows of all tokens")):
        with pytest.raises(UnsupportedError, match=found):
            load(save(decoder(end=end), tmp_path))
    model, _ = last_of(sliced, True)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, 9]))
    with pytest.raises(UnsupportedError, match="m.onnx: gives the last of 9 tokens alone, which shows nothing of the others; export it for any length"):
        load(save(model, tmp_path))


# ---- results side by side, caches


@pytest.mark.parametrize("biased", [False, True])
def test_one_matrix_behind_attention_and_mlp(biased, tmp_path):
    def attend(g, x):
        hidden = g.linear(x, DIM, HIDDEN)
        both = g.op("Concat", plain_attention(g, x), g.op("Mul", hidden, g.op("Sigmoid", hidden)), axis=-1)
        y = g.linear(both, DIM + HIDDEN, DIM)
        return g.op("Add", y, g.random(DIM)) if biased else y

    program, _ = steps_of(decoder(attend=attend), tmp_path)
    linears = [step for step in program.steps if isinstance(step, Linear)]
    assert len(linears) == 11 and sum(step.bias is not None for step in linears) == biased  # eight of a block and its head, one more into the MLP, one of two parts


def test_one_matrix_in_front_of_attention_and_mlp(tmp_path):
    def attend(g, x):
        g.op("Split", g.linear(x, DIM, 3 * DIM + HIDDEN), g.ints(DIM, DIM, DIM, HIDDEN), outputs=4, axis=-1)
        *qkv, hidden = g.outs()
        both = g.op("Concat", g.attention(*(g.split(y) for y in qkv), g.causal()), g.op("Relu", hidden), axis=-1)
        return g.linear(both, DIM + HIDDEN, DIM)

    program, _ = steps_of(decoder(attend=attend), tmp_path)
    widths = [step.width for step in program.steps if isinstance(step, Linear)]
    assert sorted(widths[:4]) == [HIDDEN, DIM, DIM, DIM] and len(widths) == 11


@pytest.mark.parametrize("name", ["past_key", "kmem"])
def test_a_cache_is_known_by_what_it_is_joined_to(name, tmp_path):
    def attend(g, x):
        q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
        for i, y in enumerate((k, v)):
            g.inputs.append(helper.make_tensor_value_info(f"{name}{i}", TensorProto.FLOAT, [1, HEADS, "before", HEAD_DIM]))
        return g.attention(q, *(g.op("Concat", f"{name}{i}", y, axis=2) for i, y in enumerate((k, v))), g.causal())

    _, canonical = steps_of(decoder(attend=attend), tmp_path)
    assert {v.name for v in canonical.model.graph.inputs} >= {"input_ids", "position_ids"}


def test_a_prefix_of_embeddings_is_no_cache(tmp_path):
    def start(g, x):
        g.inputs.append(helper.make_tensor_value_info("prompt", TensorProto.FLOAT, [1, "before", DIM]))
        return g.op("Concat", "prompt", x, axis=1)

    with pytest.raises(UnsupportedError, match=r"input 'prompt' \(FLOAT .*\) is not understood"):
        load(save(decoder(start=start), tmp_path))
