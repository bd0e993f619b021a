"""The matcher: what it makes of canonical graphs, and that everything else is refused by the node's name."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from compiler_models import HEADS, VOCAB, WIDTH, bloom, llama, node

from edgepos.compiler.match import match
from edgepos.compiler.steps import Act, Add, Attend, Embed, Linear, Mul, Norm, Rotate
from edgepos.errors import UnsupportedError
from edgepos.positions import Alibi, Rope


def kinds(program) -> list[str]:
    return [type(step).__name__ for step in program.steps]


def test_llama_operators_in_order():
    program = match(llama(layers=1).model)
    assert kinds(program) == (
        "Embed Norm Linear Linear Linear Rotate Rotate Attend Linear Add Norm Linear Linear Act Mul Linear Add Norm Linear".split()
    )
    attend = program.layers()[0]
    assert (attend.heads, attend.kv_heads, attend.k_dim, attend.v_dim, attend.scale) == (6, 2, 4, 4, 0.5)
    assert program.vocab == VOCAB and program.steps[-1].out == "logits"
    assert program.positions() == Rope(4, 4, 10000.0, "interleaved")


def test_bloom_operators_in_order():
    program = match(bloom(layers=1).model)
    assert kinds(program) == "Embed Norm Norm Linear Linear Linear Attend Linear Add Norm Linear Act Linear Add Norm Linear".split()
    assert program.steps[1].center and program.steps[1].beta == "h.embed_norm.bias"
    assert program.steps[3].bias == "h.layers.0.attn.q.bias"
    assert program.positions() == Alibi(HEADS)


def test_the_project_examples_match(root):
    from edgepos.export import load

    for name, embeds in (("tiny-rope", Rotate), ("tiny-alibi", Norm)):
        steps = match(load(root / "examples" / "tiny" / name).model).steps
        assert isinstance(steps[0], Embed) and any(isinstance(step, embeds) for step in steps)
        assert {type(step) for step in steps} <= {Embed, Norm, Linear, Add, Mul, Act, Rotate, Attend}


def attribute(name, key, value):
    def change(c):
        n = node(c, name)
        n.attributes.pop(key, None)
        if value is not None:
            n.attributes.add(ir.convenience.convert_attribute(key, value))

    return change


def metadata(name, key, value):
    def change(c):
        node(c, name).metadata_props[key] = value

    return change


def initializer(name, make):
    def change(c):
        value = c.model.graph.initializers[name]
        value.const_value = ir.Tensor(make(value.const_value.numpy()), name=name)

    return change


def operator(name, op_type):
    def change(c):
        node(c, name).op_type = op_type

    return change


LLAMA_REFUSALS = [
    ("is_causal", attribute("layers.0.attn", "is_causal", 0), "layers.0.attn", "is_causal = 0"),
    ("not causal", attribute("layers.0.attn", "is_causal", None), "layers.0.attn", "is_causal = 0 (its default)"),
    ("softcap", attribute("layers.1.attn", "softcap", -30.0), "layers.1.attn", "softcap = -30.0"),
    ("window", attribute("layers.1.attn", "sliding_window", 8), "layers.1.attn", "sliding_window"),
    ("heads", attribute("layers.0.attn", "q_num_heads", 5), "layers.0.attn", "q_num_heads 5"),
    ("no heads", attribute("layers.0.attn", "kv_num_heads", 0), "layers.0.attn", "kv_num_heads 0"),
    ("negative scale", attribute("layers.0.attn", "scale", -1.0), "layers.0.attn", "scale -1.0"),
    ("axis", attribute("layers.0.attn_norm", "axis", 1), "layers.0.attn_norm", "axis = 1"),
    ("epsilon", attribute("layers.0.attn_norm", "epsilon", float("nan")), "layers.0.attn_norm", "epsilon nan"),
    ("transpose", attribute("layers.0.mlp.up.weight_t", "perm", [0, 1]), "layers.0.mlp.up.weight_t", "perm = [0, 1]"),
    ("gather axis", attribute("embed", "axis", 1), "embed", "axis = 1"),
    ("layout", attribute("layers.0.attn.q.rope", "interleaved", 0), "layers.0.attn.q.rope", "interleaved 0"),
    ("partial", attribute("layers.0.attn.q.rope", "rotary_embedding_dim", 2), "layers.0.attn.q.rope", "rotary_embedding_dim 2"),
    ("rope heads", attribute("layers.0.attn.q.rope", "num_heads", 4), "layers.0.attn.q.rope", "num_heads 4"),
    ("no facts", metadata("layers.0.attn.q.rope", "edgepos.rope", "?"), "layers.0.attn.q.rope", "edgepos.rope"),
    (
        "theta",
        metadata("layers.0.attn.q.rope", "edgepos.rope", '{"layout":"interleaved","theta":500000.0,"head_dim":4,"rotary_dim":4}'),
        "layers.0.attn.q.rope",
        "rope.cos",
    ),
    ("table", initializer("rope.sin", lambda a: np.where(a == a[3, 1], a + 2e-6, a)), "layers.0.attn.q.rope", "rope.sin"),
    ("float16", initializer("layers.0.up.weight", lambda a: a.astype(np.float16)), "layers.0.mlp.up", "FLOAT16"),
    ("columns", initializer("layers.0.up.weight", lambda a: a[:, :-1].copy()), "layers.0.mlp.up", "23 columns"),
    ("gamma", initializer("layers.0.attn_norm.weight", lambda a: a[:-1].copy()), "layers.0.attn_norm", "[23]"),
    ("unknown", operator("layers.0.mlp.residual", "Sub"), "layers.0.mlp.residual", "(Sub)"),
    ("unknown op", operator("layers.0.mlp.residual", "Max"), "layers.0.mlp.residual", "operator not known"),
    ("activation", operator("layers.0.mlp.sigmoid", "HardSigmoid"), "layers.0.mlp.sigmoid", "HardSigmoid"),
]


@pytest.mark.parametrize("change, name, text", [r[1:] for r in LLAMA_REFUSALS], ids=[r[0] for r in LLAMA_REFUSALS])
def test_llama_refusals_name_the_node(change, name, text):
    canonical = llama()
    change(canonical)
    with pytest.raises(UnsupportedError) as error:
        match(canonical.model)
    assert name in str(error.value) and text in str(error.value) and "\n" not in str(error.value)


BLOOM_REFUSALS = [
    ("gelu", attribute("layers.0.mlp.gelu", "approximate", "erf"), "layers.0.mlp.gelu", "approximate"),
    ("heads", metadata("alibi.mask", "edgepos.alibi", '{"heads": 4}'), "alibi.mask", "4 heads"),
    ("slope", initializer("alibi.slopes", lambda a: -a), "alibi.mask", "slopes"),
    ("axes", initializer("alibi.key_axes", lambda a: a[::-1].copy() + 1), "alibi.keys", "axes"),
    ("cast", attribute("alibi.steps", "to", int(ir.DataType.FLOAT16)), "alibi.steps", "to ="),
    ("turned", lambda c: swap(node(c, "alibi.distance")), "alibi.queries", "key_position_ids"),
    ("bias", initializer("h.layers.0.attn.q.bias", lambda a: a[None]), "layers.0.attn.q", "[1, 24]"),
]


def swap(n):
    a, b = n.inputs
    n.replace_input_with(0, b)
    n.replace_input_with(1, a)


@pytest.mark.parametrize("change, name, text", [r[1:] for r in BLOOM_REFUSALS], ids=[r[0] for r in BLOOM_REFUSALS])
def test_bloom_refusals_name_the_node(change, name, text):
    canonical = bloom()
    change(canonical)
    with pytest.raises(UnsupportedError) as error:
        match(canonical.model)
    assert name in str(error.value) and text in str(error.value)


def test_a_missing_scale_is_the_square_root_rule():
    canonical = llama()
    node(canonical, "layers.0.attn").attributes.pop("scale")
    assert match(canonical.model).layers()[0].scale == 0.5


def test_a_name_used_twice_is_refused():
    canonical = llama()
    node(canonical, "layers.1.attn_norm").outputs[0].name = "layers.0.attn_norm"
    with pytest.raises(UnsupportedError, match="node 'layers.1.attn_norm'.*'layers.0.attn_norm' is used twice"):
        match(canonical.model)


def test_weights_that_are_not_stored_are_refused():
    canonical = llama()
    value = canonical.model.graph.initializers.pop("layers.0.up.weight")
    value.const_value = None
    canonical.model.graph.inputs.append(value)
    with pytest.raises(UnsupportedError, match="graph input 'layers.0.up.weight'"):
        match(canonical.model)


def test_unused_operators_are_refused():
    canonical = llama()
    extra = ir.node("Tanh", [node(canonical, "embed").outputs[0]], name="extra")
    extra.outputs[0].name = "extra"
    canonical.model.graph.insert_after(node(canonical, "embed"), extra)
    with pytest.raises(UnsupportedError, match="node 'extra'.*nothing reads"):
        match(canonical.model)


def test_a_cache_that_does_not_leave_is_refused():
    canonical = llama()
    canonical.model.graph.outputs.pop()
    with pytest.raises(UnsupportedError, match="layers.1.attn.*present_value.1"):
        match(canonical.model)


def test_numbers_that_are_not_finite_name_the_tensor():
    canonical = llama()
    initializer("layers.1.down.weight", lambda a: np.where(a == a[2, 5], np.inf, a))(canonical)
    with pytest.raises(UnsupportedError, match=r"'layers.1.down.weight': element \[2, 5\] is inf"):
        match(canonical.model).read("layers.1.down.weight")


def test_opset_and_vocabulary():
    canonical = llama()
    canonical.model.graph.opset_imports[""] = 22
    with pytest.raises(UnsupportedError, match="opset 22"):
        match(canonical.model)
    assert match(llama().model).steps[0].width == WIDTH


def gemma():
    """A small graph with a scaled embedding, norms over heads, a window, and soft caps of scores and logits."""
    from edgepos.export.families import gemma as family
    from edgepos.export.config import Config
    from edgepos.export.tensor_set import TensorSet

    rng = np.random.default_rng(0)
    sizes = dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1, head_dim=8, intermediate_size=40, num_hidden_layers=2)
    settings = sizes | dict(vocab_size=50, max_position_embeddings=32, sliding_window=4, attn_logit_softcapping=3.0, final_logit_softcapping=4.0)

    def draw(*shape):
        return rng.normal(0, 0.3, shape).astype(np.float32)

    arrays = {"model.embed_tokens.weight": draw(50, 24), "model.norm.weight": draw(24)}
    for i in range(2):
        block = f"model.layers.{i}."
        shapes = {"self_attn.q_proj": (24, 24), "self_attn.k_proj": (8, 24), "self_attn.v_proj": (8, 24), "self_attn.o_proj": (24, 24)}
        shapes |= {"self_attn.q_norm": (8,), "self_attn.k_norm": (8,), "mlp.gate_proj": (40, 24), "mlp.up_proj": (40, 24), "mlp.down_proj": (24, 40)}
        for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"):
            shapes[norm] = (24,)
        arrays.update((f"{block}{name}.weight", draw(*shape)) for name, shape in shapes.items())
    return family.GEMMA3.build_hf(Config(settings), TensorSet("made", arrays), None, "gemma")


GEMMA_REFUSALS = [
    ("window", metadata("window.4.mask", "edgepos.window", '{"window": 5}'), "window.4.mask", "window 5"),
    ("window facts", metadata("window.4.mask", "edgepos.window", "{}"), "window.4.mask", "lacks the key"),
    ("window size", initializer("window.4.limit", lambda a: a + 1), "window.4.mask", "window 4"),
    ("window axes", initializer("window.key_axes", lambda a: a[::-1].copy() + 1), "window.4.keys", "axes"),
    ("window turned", lambda c: swap(node(c, "window.4.away")), "window.4.keys", "position_ids"),
    ("heads", initializer("heads.3x8", lambda a: a[[0, 1, 3, 2]].copy()), "layers.0.attn.q.norm.rms", "weight"),
    ("cut", initializer("heads.3x8", lambda a: a + np.array([0, 0, 1, 0])), "layers.0.attn.q.norm.heads", "width 24"),
    ("whole", initializer("width.24", lambda a: a[:2].copy()), "layers.0.attn.q.norm.rms", "follows"),
    ("cap", initializer("head.softcap.cap", lambda a: a * 0), "head.softcap.share", "softcap of 0"),
    ("tanh", operator("head.softcap.tanh", "Sigmoid"), "head.softcap.share", "follows Div"),
    ("factor", initializer("embed.scaled.factor", lambda a: -a), "embed.scaled", "positive factor"),
]


@pytest.mark.parametrize("change, name, text", [r[1:] for r in GEMMA_REFUSALS], ids=[r[0] for r in GEMMA_REFUSALS])
def test_gemma_refusals_name_the_node(change, name, text):
    class Held:
        model = gemma()

    assert any(getattr(step, "softcap", 0) == 4.0 for step in match(Held.model).steps)
    change(Held)
    with pytest.raises(UnsupportedError) as error:
        match(Held.model)
    assert name in str(error.value) and text in str(error.value) and "\n" not in str(error.value)
