"""PyTorch modules through torch.onnx: random models of transformers beside what PyTorch computes."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hf_models import VOCAB, random_ids, torch_logits  # skips where PyTorch is missing
from test_export_families import CLASS, MODELS

import edgepos
import torch
import transformers
from edgepos.compiler.match import match
from edgepos.errors import UnsupportedError
from edgepos.export import load
from edgepos.export.onnx_in import load_module
from edgepos.float_session import reference
from edgepos.positions import Alibi, Learned, Rope
from edgepos.report.metrics import kl_divergence, log_softmax

SMOLLM = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2)
SMOLLM |= dict(max_position_embeddings=64, initializer_range=0.15, tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 1e5})
BLOOM = dict(vocab_size=VOCAB, hidden_size=48, n_layer=2, n_head=12, initializer_range=0.15)
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
CASES = {
    "llama": (("Llama", SMOLLM), Rope(8, theta=1e5), 64),
    "yarn": (("Llama", SMOLLM | {"rope_parameters": YARN | {"rope_theta": 1e5}}), Rope(8, theta=1e5, scaling=YARN), 64),
    "gpt2": (MODELS["gpt2"], Learned(64), 64),
    "gpt_neox": (MODELS["gpt_neox"], None, 64),
    "phi": (MODELS["phi"], Rope(8, rotary_dim=4), 64),
    "qwen3": (MODELS["qwen3"], Rope(16), 64),
    "bloom": (("Bloom", BLOOM), Alibi(12), 2048),
    "mpt": (MODELS["mpt"], Alibi(6), 64),
}  # (class and config, positions, context) of each; gpt_neox turns one pair per head, which no theta decides


@pytest.fixture(scope="module")
def read():
    """(PyTorch model, canonical model) of a key of CASES, made once."""
    done = {}

    def make(key):
        if key not in done:
            family, settings = CASES[key][0]
            torch.manual_seed(7)
            config = getattr(transformers, f"{family}Config")(**copy.deepcopy(settings))
            model = getattr(transformers, CLASS.get(family, f"{family}ForCausalLM"))(config).eval()
            with torch.no_grad():
                for name, value in model.named_parameters():
                    if name.endswith("bias") or "norm" in name or "ln_f" in name:
                        value.add_(torch.randn_like(value) * 0.2)
            done[key] = model, load_module(model, torch.tensor(random_ids(24))[None])
        return done[key]

    return make


@pytest.mark.parametrize("key", CASES)
def test_a_module_becomes_the_canonical_graph(key, read, tmp_path):
    model, canonical = read(key)
    ids = random_ids(60, 3)
    assert canonical.context == CASES[key][2]
    np.testing.assert_allclose(reference(canonical).eval(ids), torch_logits(model, ids), rtol=0, atol=1e-3)

    bundle = edgepos.export_bundle(canonical, tmp_path / "m.edgepos", tokenizer=None, calibration=random_ids(64, 1).tolist())
    golden = bundle.session(engine="golden").eval_int(ids)
    np.testing.assert_array_equal(bundle.session().eval_int(ids), golden)
    floats = reference(canonical, weights_of=bundle).eval(ids)
    assert kl_divergence(log_softmax(floats), log_softmax(golden * bundle.session().logit_scale)).mean() < 1e-5


@pytest.mark.parametrize("key", [key for key in CASES if CASES[key][1] is not None])
def test_positions_are_recovered(key, read):
    assert match(read(key)[1].model).positions() == CASES[key][1]


def test_a_tied_head_is_kept_once(read):
    assert [n for n in read("llama")[1].model.graph.initializers if "embed" in n or "head" in n] == ["lm_head.weight"]


def test_longrope_is_recovered_and_compared_beyond_its_change():
    torch.manual_seed(7)
    scaling = {"rope_type": "longrope", "short_factor": [1.0, 1.03, 1.25, 2.0], "long_factor": [1.08, 2.5, 6.75, 31.0]}
    settings = SMOLLM | {"rope_parameters": scaling | {"rope_theta": 1e4}, "original_max_position_embeddings": 32, "pad_token_id": 0}
    model = transformers.Phi3ForCausalLM(transformers.Phi3Config(**settings)).eval()
    wanted = {n: torch_logits(model, random_ids(n, 3)) for n in (33, 64)}  # before the export, which leaves traced numbers in the module
    canonical = load_module(model, torch.tensor(random_ids(24))[None])
    factor = float(np.float32((1 + np.log(2) / np.log(32)) ** 0.5))
    (spec,) = {step.spec for step in match(canonical.model).steps if hasattr(step, "spec")}
    assert (spec.scaling.short_factor, spec.scaling.long_factor) == ((1.0, 1.03, 1.25, 2.0), (1.08, 2.5, 6.75, 31.0))
    assert (spec.theta, spec.scaling.original_max_position_embeddings, canonical.context) == (1e4, 32, 64)
    assert spec.attention_factor == pytest.approx(factor, rel=1e-6)
    for n, logits in wanted.items():
        np.testing.assert_allclose(reference(canonical).eval(random_ids(n, 3)), logits, rtol=0, atol=1e-3)


class WithCache(torch.nn.Module):
    """A model as optimum exports it: the cache goes in and out as tensors."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, *past):
        cache = transformers.DynamicCache([(past[i], past[i + 1]) for i in range(0, len(past), 2)])
        out = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return (out.logits, *(x for layer in out.past_key_values.layers for x in (layer.keys, layer.values)))


def test_a_file_of_the_older_exporter_with_a_cache(read, tmp_path):
    model, _ = read("llama")
    names = [f"past_key_values.{i}.{what}" for i in range(2) for what in ("key", "value")]
    example = (torch.arange(7)[None], torch.ones(1, 12, dtype=torch.int64), *(torch.zeros(1, 2, 5, 8) for _ in names))
    axes = {"input_ids": {0: "batch", 1: "tokens"}, "attention_mask": {0: "batch", 1: "all"}, **{n: {0: "batch", 2: "past"} for n in names}}
    outputs = ["logits", *(n.replace("past_key_values", "present") for n in names)]
    torch.onnx.export(
        WithCache(model).eval(), example, tmp_path / "model.onnx", dynamo=False, opset_version=17, dynamic_axes=axes,
        input_names=["input_ids", "attention_mask", *names], output_names=outputs,
    )  # fmt: skip
    canonical = load(tmp_path / "model.onnx")
    ids = random_ids(40, 5)
    np.testing.assert_allclose(reference(canonical).eval(ids), torch_logits(model, ids), rtol=0, atol=1e-3)
    assert "model.layers.1.mlp.up_proj.weight" in {n.removeprefix("model.") for n in canonical.model.graph.initializers}


class Turned(torch.nn.Module):
    """A decoder of one layer that turns q and k as people write it by hand."""

    def __init__(self, kind: str):
        super().__init__()
        self.kind, linear = kind, torch.nn.Linear
        self.embed, self.qkv, self.out = torch.nn.Embedding(VOCAB, 48), linear(48, 144), linear(48, 48)
        self.norm, self.head = torch.nn.RMSNorm(48, eps=1e-5), linear(48, VOCAB, bias=False)
        self.register_buffer("inverse", 1 / 1e4 ** (torch.arange(0, 12, 2).float() / 12))
        angles = torch.outer(torch.arange(256).float(), self.inverse)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def complex_product(self, x, n):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * self.turns[:n].view(1, n, 1, -1)
        return torch.view_as_real(pairs).flatten(3)

    def by_einsum(self, x, n, inverse=None):
        angles = torch.einsum("i,j->ij", torch.arange(n).float(), self.inverse if inverse is None else inverse)
        cos, sin, (a, b) = angles.cos()[:, None], angles.sin()[:, None], x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)

    def dynamic(self, x, n):
        base = 1e4 * torch.clamp(2.0 * torch.tensor(n * 1.0) / 128 - 1.0, min=1.0) ** (12 / 10)
        return self.by_einsum(x, n, 1 / base ** (torch.arange(0, 12, 2).float() / 12))

    def forward(self, ids):
        n, x = ids.shape[1], self.embed(ids)
        q, k, v = self.qkv(self.norm(x)).view(1, n, 3, 4, 12).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (getattr(self, self.kind)(q, n), getattr(self, self.kind)(k, n), v))
        p = torch.softmax(q @ k.transpose(-1, -2) / 12**0.5 + torch.full((n, n), float("-inf")).triu(1), -1)
        return self.head(self.norm(x + self.out((p @ v).transpose(1, 2).reshape(1, n, 48))))


@pytest.mark.parametrize(
    "kind, spec",
    [
        ("complex_product", Rope(12, layout="interleaved")),
        ("by_einsum", Rope(12)),
        ("dynamic", Rope(12, scaling={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 128})),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_rotations_written_by_hand(kind, spec):
    torch.manual_seed(3)
    module, ids = Turned(kind).eval(), random_ids(256, 3)
    canonical = load_module(module, torch.tensor(random_ids(24))[None], context=256)
    assert match(canonical.model).positions() == spec
    with torch.no_grad():
        want = module(torch.tensor(ids)[None])[0].numpy()
    np.testing.assert_allclose(reference(canonical).eval(ids), want, rtol=0, atol=1e-4 * np.abs(want).max())


class NotCausal(torch.nn.Module):
    """Mean over all tokens, later ones too."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = torch.nn.Embedding(VOCAB, 16), torch.nn.Linear(16, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + x.mean(1, keepdim=True))


class DependsOnIds(NotCausal):
    """Control flow that PyTorch cannot trace."""

    def forward(self, ids):
        return self.head(self.embed(ids) if ids.sum() > 7 else self.embed(ids + 1))


def test_what_is_not_recognised_is_named():
    with pytest.raises(UnsupportedError, match=r"node 'node_add_\d+' \(Add\): one row for a whole text, together with .*supported: "):
        load_module(NotCausal(), torch.tensor([[1, 2, 3]]))


def test_what_pytorch_cannot_export_says_why():
    with pytest.raises(UnsupportedError, match="module DependsOnIds: PyTorch cannot export it to ONNX: .{20}"):
        load_module(DependsOnIds(), torch.tensor([[1, 2, 3]]))


@pytest.mark.parametrize("bad", [None, "text", torch.tensor([[1]]), torch.ones(1, 8), torch.ones(3, 8, dtype=torch.int64)])
def test_examples_that_are_no_token_ids_are_refused(bad, tmp_path):
    with pytest.raises(UnsupportedError, match="example_inputs is .*; give token ids"):
        edgepos.export_bundle(NotCausal(), tmp_path / "m.edgepos", example_inputs=bad)


def test_example_inputs_are_for_modules(root, tmp_path):
    with pytest.raises(UnsupportedError, match="example_inputs is for a torch.nn.Module"):
        edgepos.export_bundle(root / "examples/tiny/tiny-rope", tmp_path / "m.edgepos", example_inputs=torch.tensor([[1, 2]]))
