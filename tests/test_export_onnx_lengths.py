"""Graphs that do different things by the length of a text or by a cache: branches, LongRoPE, dynamic NTK."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from foreign_graphs import DIM, HEAD_DIM, HEADS, TABLE, Graph, decoder, inv_freq, plain_attention, save
from onnx import TensorProto, helper, numpy_helper

from edgepos.compiler.match import match
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.export import load
from edgepos.float_session import reference
from edgepos.positions import Rope

PAIRS = HEAD_DIM // 2
SHORT, LONG = np.array([1.0, 1.25, 1.5]), np.array([1.1, 2.5, 7.0])


def read(model, tmp_path, **options):
    canonical = load(save(model, tmp_path), **options)
    return match(canonical.model), canonical


def turned(g: Graph, x: str, frequencies: str, factor: str) -> str:
    """x rotated by positions · frequencies [pairs], times a factor."""
    p = g.op("Cast", g.op("Unsqueeze", g.positions(), g.ints(1)), to=TensorProto.FLOAT)
    table = g.op("Mul", p, frequencies)
    both = g.op("Concat", table, table, axis=-1)
    cos, sin = (g.op("Mul", g.op(f, both), factor) for f in ("Cos", "Sin"))
    a, b = (g.op("Slice", x, g.ints(i), g.ints(j), g.ints(3)) for i, j in ((0, PAIRS), (PAIRS, HEAD_DIM)))
    return g.op("Add", g.op("Mul", x, cos), g.op("Mul", g.op("Concat", g.op("Neg", b), a, axis=3), sin))


def longer(g: Graph, length: int) -> str:
    return g.op("Greater", g.tokens(), g.put(np.array(length, np.int64)))


def by_length(length: int, long_factor: float = 1.2):
    """As transformers writes LongRoPE: all frequencies change where a text is longer than `length`."""

    def turn(g, x):
        plain = inv_freq().astype(np.float64)
        rows = [g.put((plain / divisors).astype(np.float32)) for divisors in (LONG, SHORT)]
        at = longer(g, length)
        factor = g.op("Where", at, g.number(long_factor), g.number(1.2))
        return turned(g, x, g.op("Where", at, *rows), factor)

    return decoder(attend=lambda g, x: plain_attention(g, x, turn))


@pytest.mark.parametrize("long_factor", [1.2, 1.5])
def test_frequencies_that_change_at_a_length_are_longrope(long_factor, tmp_path):
    """A bundle has the frequencies of its context; those of shorter texts are checked with the context up to that length."""
    program, canonical = read(by_length(150, long_factor), tmp_path, context=400)
    found = program.positions()
    assert found.scaling.attention_factor == pytest.approx(long_factor, rel=1e-6)
    assert (found.layout, found.theta, found.scaling.original_max_position_embeddings) == ("half", 1e4, 150)
    np.testing.assert_allclose(found.scaling.short_factor, SHORT, rtol=1e-6)
    np.testing.assert_allclose(found.scaling.long_factor, LONG, rtol=1e-6)
    assert program.layers()[0].scale == pytest.approx(HEAD_DIM**-0.5, rel=1e-6)  # the factor is in the rotation
    assert canonical.context == 400


def test_up_to_that_length_the_frequencies_are_the_short_ones(tmp_path):
    program, _ = read(by_length(150), tmp_path, context=150)
    assert [float(f) for f in program.positions().frequencies(None)] == pytest.approx(inv_freq() / SHORT, rel=4e-6)


def test_a_longer_text_is_compared_with_the_graph(tmp_path):
    """At 200 tokens the graph itself says what a bundle for 400 must give."""
    import onnxruntime as ort

    model = by_length(150, 1.5)
    _, canonical = read(model, tmp_path, context=400)
    ids = np.random.default_rng(0).integers(0, 40, 200)
    (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(["logits"], {"input_ids": ids[None]})
    np.testing.assert_allclose(reference(canonical).eval(ids), want[0], rtol=0, atol=5e-5 * np.abs(want).max())


def dynamic(trained: int, factor: float):
    """theta · (factor·n/trained − (factor − 1))^(d/(d−2)) from trained tokens on."""

    def turn(g, x):
        n = g.op("Cast", g.op("Max", g.tokens(), g.put(np.array(trained, np.int64))), to=TensorProto.DOUBLE)
        put = lambda value: g.put(np.array(value, np.float64))  # noqa: E731
        grown = g.op("Sub", g.op("Mul", n, put(factor / trained)), put(factor - 1))
        theta = g.op("Mul", g.op("Pow", grown, put(HEAD_DIM / (HEAD_DIM - 2))), put(1e4))
        frequencies = g.op("Pow", theta, g.put(-np.arange(PAIRS) / PAIRS))
        return turned(g, x, g.op("Cast", frequencies, to=TensorProto.FLOAT), g.number(1.0))

    return decoder(attend=lambda g, x: plain_attention(g, x, turn))


def test_dynamic_ntk_is_recovered(tmp_path):
    program, _ = read(dynamic(128, 2.0), tmp_path, context=300)
    assert program.positions() == Rope(HEAD_DIM, scaling={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 128})
    program, _ = read(dynamic(128, 2.0), tmp_path, context=128)
    assert program.positions() == Rope(HEAD_DIM)


def test_frequencies_of_no_rule_by_length_are_refused(tmp_path):
    """They shrink with every token, from the first on."""

    def turn(g, x):
        n = g.op("Cast", g.tokens(), to=TensorProto.FLOAT)
        return turned(g, x, g.op("Div", g.put(inv_freq()), n), g.number(1.0))

    with pytest.raises(UnsupportedError, match=r"its (co)?sine at position \d+, pair 0 is .*; supported: a rotation that is the same rule at every position"):
        read(decoder(attend=lambda g, x: plain_attention(g, x, turn)), tmp_path)


def table_branch(length: int, rows: tuple[int, int]):
    """As onnxruntime-genai writes LongRoPE: an If gives the tables of a rotation operator."""

    def attend(g, x):
        branches = {}
        for name, divisors, n in (("then_branch", LONG, rows[1]), ("else_branch", SHORT, rows[0])):
            angles = np.arange(n)[:, None] * (inv_freq().astype(np.float64) / divisors)
            nodes, outputs = [], []
            for f in (np.cos, np.sin):
                out = f"{f.__name__}_{name}"
                nodes.append(helper.make_node("Constant", [], [out], value=numpy_helper.from_array((1.2 * f(angles)).astype(np.float32))))
                outputs.append(helper.make_tensor_value_info(out, TensorProto.FLOAT, None))
            branches[name] = helper.make_graph(nodes, name, [], outputs)
        g.op("If", longer(g, length), outputs=2, **branches)
        tables = g.outs()
        turn = lambda g, y: g.op("RotaryEmbedding", y, *tables, g.op("Unsqueeze", g.positions(), g.ints(0)))  # noqa: E731
        return plain_attention(g, x, turn)

    return decoder(attend=attend, opset=23)


def test_tables_in_branches(tmp_path):
    model = table_branch(50, (50, 300))
    program, canonical = read(model, tmp_path)
    assert canonical.context == 300  # what the long tables hold
    found = program.positions()
    np.testing.assert_allclose(found.scaling.long_factor, LONG, rtol=1e-6)
    np.testing.assert_allclose(found.scaling.short_factor, SHORT, rtol=1e-6)
    assert (found.scaling.original_max_position_embeddings, np.float32(found.attention_factor)) == (50, np.float32(1.2))
    program, _ = read(model, tmp_path, context=50)
    assert [float(f) for f in program.positions().frequencies(None)] == pytest.approx(inv_freq() / SHORT, rel=4e-6)
    with pytest.raises(UnsupportedError, match="context is 301, but a table in the graph has 300 positions"):
        read(model, tmp_path, context=301)


# ---- branches


def merged() -> onnx.ModelProto:
    """A decoder in two forms as optimum merges them: weights outside, an If on use_cache_branch, the form with a cache first."""
    forms = []
    for cached in (True, False):

        def attend(g, x, cached=cached):
            q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
            if cached:
                k, v = (g.op("Concat", f"past_key_values.0.{w}", y, axis=2) for w, y in (("key", k), ("value", v)))
                mask = g.number(0.0)  # one new token sees everything
            else:
                mask = g.causal()
            for what, y in (("key", k), ("value", v)):
                g.op("Identity", y)
                g.nodes[-1].output[0] = f"present.0.{what}"
            return g.attention(q, k, v, mask)

        forms.append(decoder(attend=attend).graph)
    outputs = [forms[1].output[0]]
    outputs += [helper.make_tensor_value_info(f"present.0.{w}", TensorProto.FLOAT, ["batch", HEADS, "all", HEAD_DIM]) for w in ("key", "value")]
    branches, weights = {}, {}
    for name, form in zip(("then_branch", "else_branch"), forms):
        # Both draw the same weights; what only one of them has is put into it.
        mine = {w.name: w for w in form.initializer}
        rename = {n: f"{name}_{n}" for node in form.node for n in node.output}
        rename |= {n: f"{name}_{n}" for n in mine if len(mine[n].dims) < 2}
        nodes = []
        for node in form.node:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.input[:] = [rename.get(n, n) for n in node.input]
            copy.output[:] = [rename[n] for n in node.output]
            nodes.append(copy)
        inside = []
        for n, w in mine.items():
            if n in rename:
                kept = onnx.TensorProto()
                kept.CopyFrom(w)
                kept.name = rename[n]
                inside.append(kept)
            else:
                weights[n] = w
        results = [onnx.ValueInfoProto() for _ in outputs]
        for result, output in zip(results, outputs):
            result.CopyFrom(output)
            result.name = rename[output.name]
        branches[name] = helper.make_graph(nodes, name, [], results, inside)
    node = helper.make_node("If", ["use_cache_branch"], [o.name for o in outputs], name="optimum::if", **branches)
    inputs = [forms[0].input[0], helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])]
    inputs += [helper.make_tensor_value_info(f"past_key_values.0.{w}", TensorProto.FLOAT, ["batch", HEADS, "past", HEAD_DIM]) for w in ("key", "value")]
    graph = helper.make_graph([node], "merged", inputs, outputs, list(weights.values()))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_a_merged_decoder_is_its_branch_without_a_cache(tmp_path):
    model = merged()
    onnx.checker.check_model(model)
    _, canonical = read(model, tmp_path)
    ids = np.random.default_rng(0).integers(0, 40, 30)
    import onnxruntime as ort

    feed = {"input_ids": ids[None], "use_cache_branch": np.array([False])}
    feed |= {f"past_key_values.0.{w}": np.zeros((1, HEADS, 0, HEAD_DIM), np.float32) for w in ("key", "value")}
    (want,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(["logits"], feed)
    np.testing.assert_allclose(reference(canonical).eval(ids), want[0], rtol=0, atol=1e-5 * np.abs(want).max())


def branched(mlp_nodes=None, condition=None) -> onnx.ModelProto:
    """A decoder with an If between two functions of a tensor."""

    def mlp(g, x):
        bodies = {}
        for name, op in (("then_branch", "Neg"), ("else_branch", "Sigmoid")):
            nodes = mlp_nodes(name, x) if mlp_nodes else [helper.make_node(op, [x], [f"{name}_y"])]
            bodies[name] = helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, None)])
        g.op("If", (condition or (lambda g: longer(g, 1 << 20)))(g), **bodies)
        y = g.outs()[0]
        return g.linear(g.linear(y, DIM, 20), 20, DIM) if condition is None else y

    return decoder(mlp=mlp)


def test_a_branch_that_no_length_takes_is_dropped(tmp_path):
    program, _ = read(branched(), tmp_path)
    assert [s.function for s in program.steps if hasattr(s, "function")] == ["sigmoid"]


def test_branches_on_the_ids_and_different_work_by_length_are_named(tmp_path):
    with pytest.raises(UnsupportedError, match=r"\(If\): branches that do different things by the length; supported: branches between tables"):
        read(branched(condition=lambda g: longer(g, 50)), tmp_path)
    on_ids = lambda g: g.op("Equal", g.op("ReduceMax", "input_ids", keepdims=0), g.put(np.array(7, np.int64)))  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"\(If\): a branch on a condition that needs more than the length"):
        read(branched(condition=on_ids), tmp_path)


def test_branches_that_are_damaged_are_named(tmp_path):
    nodes = lambda name, x: [helper.make_node("Neg", ["nowhere"], [f"{name}_y"])]  # noqa: E731
    with pytest.raises(EdgePosError, match="reads 'nowhere', which no earlier node makes|not a valid ONNX file"):
        read(branched(nodes), tmp_path)
    model = branched()
    node = next(n for n in model.graph.node if n.op_type == "If")
    del node.attribute[1]
    with pytest.raises(FormatError, match=r"\(If\): needs a condition and the graphs then_branch and else_branch"):
        read(model, tmp_path)


def test_branches_within_branches_end_somewhere(tmp_path):
    def nest(depth: int, name: str, x: str) -> list:
        if not depth:
            return [helper.make_node("Neg", [x], [f"{name}_y"])]
        bodies = {}
        for which in ("then_branch", "else_branch"):
            inner = nest(depth - 1, f"{name}{which[0]}", x) if which == "then_branch" else nest(0, f"{name}{which[0]}", x)
            bodies[which] = helper.make_graph(inner, which, [], [helper.make_tensor_value_info(f"{name}{which[0]}_y", TensorProto.FLOAT, None)])
        return [helper.make_node("Constant", [], [f"{name}_c"], value=numpy_helper.from_array(np.array(True))),
                helper.make_node("If", [f"{name}_c"], [f"{name}_y"], **bodies)]  # fmt: skip

    with pytest.raises(UnsupportedError, match="branches 9 deep; supported: up to that, and 8 deep"):
        read(branched(lambda name, x: nest(20, name, x)), tmp_path)


def test_the_longest_tables_are_those_of_the_context(tmp_path):
    assert read(table_branch(1 << 20, (TABLE, TABLE)), tmp_path)[1].context == TABLE
