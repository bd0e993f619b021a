"""Every Hugging Face family: float logits beside transformers', integers the same in golden and in C."""

from __future__ import annotations

import copy
import numpy as np
import pytest
from hf_models import VOCAB, _save, random_ids, torch_logits  # skips where PyTorch is missing

import torch
import transformers
from edgepos.compiler import export_bundle
from edgepos.errors import UnsupportedError
from edgepos.export import load
from edgepos.float_session import reference
from edgepos.report.metrics import kl_divergence, log_softmax

SMALL = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=64)
SMALL |= dict(bos_token_id=0, eos_token_id=0, pad_token_id=None, initializer_range=0.15)
GROUPED = SMALL | dict(num_key_value_heads=2)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
SLIDING = ["full_attention", "sliding_attention"]
GEMMA = GROUPED | dict(pad_token_id=0, head_dim=16, query_pre_attn_scalar=24, sliding_window=9)
LOCAL_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
}
MPT = dict(vocab_size=VOCAB, d_model=48, n_layers=2, initializer_range=0.15, max_seq_len=64)

# Half of each head rotates. Copies: a config class may rewrite the dict it is given.
HALF_LONG = LONG | dict(partial_rotary_factor=0.5, short_factor=LONG["short_factor"][:2], long_factor=LONG["long_factor"][:2])
HALF_YARN = YARN | dict(partial_rotary_factor=0.5)
MODELS = {
    "llama_yarn": ("Llama", GROUPED | dict(rope_parameters=YARN)),
    "llama_llama3": ("Llama", GROUPED | dict(rope_parameters=LLAMA3, tie_word_embeddings=True)),
    "llama_linear": ("Llama", GROUPED | dict(rope_parameters={"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0})),
    "llama_dynamic": ("Llama", GROUPED | dict(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})),
    "mistral": ("Mistral", GROUPED | dict(head_dim=16, sliding_window=7)),
    "mistral_full": ("Mistral", GROUPED | dict(sliding_window=None)),
    "qwen2": ("Qwen2", GROUPED | dict(tie_word_embeddings=True)),
    "qwen2_sliding": ("Qwen2", GROUPED | dict(use_sliding_window=True, sliding_window=9, layer_types=SLIDING)),
    "qwen3": ("Qwen3", GROUPED | dict(head_dim=16)),
    "phi3": ("Phi3", GROUPED | dict(pad_token_id=0, sliding_window=11)),
    "phi3_longrope": ("Phi3", GROUPED | dict(pad_token_id=0, rope_parameters=LONG, original_max_position_embeddings=16)),
    "phi3_partial": ("Phi3", GROUPED | dict(pad_token_id=0, rope_parameters=PARTIAL)),
    "phi3_partial_longrope": ("Phi3", GROUPED | dict(pad_token_id=0, rope_parameters=HALF_LONG, original_max_position_embeddings=16)),
    "phi": ("Phi", GROUPED | dict(rope_parameters=PARTIAL)),
    "phi_partial_yarn": ("Phi", GROUPED | dict(rope_parameters=HALF_YARN)),
    "gpt_neox": ("GPTNeoX", SMALL | dict(rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25})),
    "gpt_neox_serial": ("GPTNeoX", SMALL | dict(use_parallel_residual=False, hidden_act="gelu_fast", tie_word_embeddings=True)),
    "gpt2": ("GPT2", dict(vocab_size=VOCAB, n_positions=64, n_embd=48, n_layer=2, n_head=6, bos_token_id=0, eos_token_id=0, initializer_range=0.15)),
    "mpt": ("Mpt", MPT | dict(n_heads=6, attn_config={"alibi": True, "alibi_bias_max": 8})),
    "gemma2": ("Gemma2", GEMMA | dict(attn_logit_softcapping=2.0, final_logit_softcapping=5.0, layer_types=SLIDING[::-1])),
    "gemma2_uncapped": ("Gemma2", GEMMA | dict(attn_logit_softcapping=None, final_logit_softcapping=None, sliding_window=64)),
    "gemma3": ("Gemma3", GEMMA | dict(layer_types=SLIDING[::-1], rope_parameters=LOCAL_GLOBAL)),
}
CLASS = {"GPT2": "GPT2LMHeadModel", "Gemma3": "Gemma3ForCausalLM"}
CONFIG = {"Gemma3": "Gemma3TextConfig"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(folder, transformers model) of a key of MODELS, made once."""
    done = {}

    def make(key):
        if key not in done:
            family, settings = MODELS[key]
            folder = tmp_path_factory.mktemp(key)
            config = getattr(transformers, CONFIG.get(family, f"{family}Config"))(**copy.deepcopy(settings))
            config._attn_implementation = "eager"
            model = getattr(transformers, CLASS.get(family, f"{family}ForCausalLM"))(config)
            done[key] = folder, _save(model, folder, torch.float32, "1GB")
        return done[key]

    return make


@pytest.mark.parametrize("key", MODELS)
def test_float_logits_are_those_of_transformers(key, made):
    folder, model = made(key)
    ids = random_ids(60)
    want = torch_logits(model, ids)
    session = reference(folder)
    np.testing.assert_allclose(session.eval(ids), want, rtol=0, atol=1e-3)
    session.reset()
    parts = [session.eval(part) for part in (ids[:1], ids[1:23], ids[23:])]
    np.testing.assert_allclose(np.concatenate(parts), want, rtol=0, atol=1e-3)


@pytest.mark.parametrize("key", MODELS)
def test_integers_are_close_and_the_same_in_golden_and_c(key, made, tmp_path):
    from edgepos.bundle import Bundle

    folder, model = made(key)
    ids = random_ids(60)
    bundle = Bundle(export_bundle(folder, tmp_path / "m.edgepos", calibration=random_ids(64, 1).tolist()))
    golden = bundle.session(engine="golden").eval_int(ids)
    session = bundle.session()
    pieces = [session.eval_int(ids[a:b]) for a, b in ((0, 17), (17, 18), (18, 60))]
    np.testing.assert_array_equal(np.concatenate(pieces), golden)
    assert session.saturations == 0
    floats = reference(folder, weights_of=bundle).eval(ids)
    kl = kl_divergence(log_softmax(floats), log_softmax(golden * bundle.session().logit_scale))
    assert kl.mean() < 1e-5
    onnx = bundle.session(engine="onnx").eval(ids)
    np.testing.assert_allclose(onnx, floats, rtol=0, atol=2e-3)


def test_a_length_dependent_rotation_keeps_its_context(made, tmp_path):
    from edgepos.compiler import compile_model

    canonical = load(made("phi3_longrope")[0])
    with pytest.raises(UnsupportedError, match="longrope.*load it with context=32"):
        compile_model(canonical, context=32, calibration=[1, 2, 3])
