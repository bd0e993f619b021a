"""Embedding models as PyTorch modules and ONNX files: rows of all tokens or one row, beside what PyTorch computes."""

from __future__ import annotations

import numpy as np
import pytest
from hf_models import VOCAB, random_ids  # skips where PyTorch is missing
from real_models import minilm_folder

import edgepos
import torch
import transformers
from edgepos.compiler.match import match
from edgepos.export import load
from edgepos.export.onnx_in import load_module
from edgepos.float_session import reference
from edgepos.positions import Learned, T5Bias

SMALL = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=72)
SMALL |= dict(max_position_embeddings=70, initializer_range=0.15)


class Sentence(torch.nn.Module):
    """What a sentence-transformers pipeline computes: the mean of the rows that are no padding, over its norm."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[:, :, None].expand(rows.shape).float()
        mean = (rows * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)


def rows_of(model, ids) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(ids)[None]).last_hidden_state[0].numpy()


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(5)
    return transformers.BertModel(transformers.BertConfig(**SMALL), add_pooling_layer=False).eval()


def test_rows_of_all_tokens_become_their_mean(bert, tmp_path):
    canonical = load_module(bert, torch.tensor(random_ids(20))[None])
    ids = random_ids(33, 2)
    assert (canonical.context, canonical.vocab_size, match(canonical.model).positions()) == (70, VOCAB, Learned(70))
    np.testing.assert_allclose(reference(canonical).embed(ids), rows_of(bert, ids).mean(axis=0), rtol=0, atol=1e-4)
    bundle = edgepos.export_bundle(canonical, tmp_path / "b.edgepos", tokenizer=None, calibration=random_ids(60, 1).tolist())
    golden = bundle.session(engine="golden").embed_int(ids)
    np.testing.assert_array_equal(bundle.session().embed_int(ids), golden)


def test_pooling_and_normalization_in_the_graph(bert):
    example = {"input_ids": torch.tensor(random_ids(20))[None], "attention_mask": torch.ones(1, 20, dtype=torch.int64)}
    sentence = Sentence(bert)
    canonical = load_module(sentence, example, context=64)
    assert sentence.training and not bert.training
    ids = random_ids(40, 2)
    mean = rows_of(bert, ids).mean(axis=0)
    np.testing.assert_allclose(reference(canonical).embed(ids), mean / np.linalg.norm(mean), rtol=0, atol=1e-4)


def test_settings_of_batches_are_not_of_a_text(bert, tmp_path):
    """A byte-level tokenizer.json of an encoder cuts and pads batches; a decoder's must not."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    library.enable_truncation(8)
    library.enable_padding(length=8)
    library.save(str(tmp_path / "tokenizer.json"))
    canonical = load_module(bert, torch.tensor(random_ids(20))[None], tokenizer=tmp_path / "tokenizer.json")
    assert len(reference(canonical).make_tokenizer().encode("a text of more than eight bytes")) == 31


class Dense(torch.nn.Module):
    """What sentence-transformers puts behind the pooling: layers with tanh or nothing, then maybe the norm."""

    def __init__(self, model, act, normalize: bool):
        super().__init__()
        self.model, self.act, self.normalize = model, act, normalize
        self.first, self.second = torch.nn.Linear(48, 20), torch.nn.Linear(20, 12, bias=False)

    def forward(self, input_ids):
        row = self.model(input_ids=input_ids).last_hidden_state.mean(1)
        row = self.second(self.act(self.first(row)))
        return torch.nn.functional.normalize(row, p=2, dim=1) if self.normalize else row


@pytest.mark.parametrize("act, normalize", [(torch.nn.Tanh(), True), (torch.nn.Identity(), False)])
def test_dense_layers_behind_the_pooling(bert, act, normalize, tmp_path):
    torch.manual_seed(6)
    model, ids = Dense(bert, act, normalize).eval(), random_ids(30, 2)
    canonical = load_module(model, torch.tensor(random_ids(20))[None])
    with torch.no_grad():
        want = model(torch.tensor(ids)[None])[0].numpy()
    np.testing.assert_allclose(reference(canonical).embed(ids), want, rtol=0, atol=1e-5)
    bundle = edgepos.export_bundle(canonical, tmp_path / "d.edgepos", tokenizer=None, calibration=random_ids(60, 1).tolist())
    np.testing.assert_array_equal(bundle.session().embed_int(ids), bundle.session(engine="golden").embed_int(ids))
    assert np.abs(bundle.session().embed(ids) - want).max() < 0.02 * np.abs(want).max()


def test_the_encoder_of_t5(tmp_path):
    torch.manual_seed(5)
    config = transformers.T5Config(
        vocab_size=VOCAB, d_model=48, d_kv=12, d_ff=72, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu", initializer_factor=0.3
    )
    model = transformers.T5EncoderModel(config).eval()
    with torch.no_grad():
        model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.normal_()
    canonical = load_module(model, torch.tensor(random_ids(20))[None], context=300)
    ids = random_ids(200, 2)
    assert match(canonical.model).positions() == T5Bias(32, 128)
    np.testing.assert_allclose(reference(canonical).embed(ids), rows_of(model, ids).mean(axis=0), rtol=0, atol=1e-4)
    bundle = edgepos.export_bundle(canonical, tmp_path / "t.edgepos", tokenizer=None, calibration=random_ids(60, 1).tolist())
    np.testing.assert_array_equal(bundle.session().embed_int(ids), bundle.session(engine="golden").embed_int(ids))


def test_the_text_model_of_clip_as_a_file(tmp_path):
    """Causal, QuickGELU, the row of the first end token: its place depends on the ids."""
    torch.manual_seed(5)
    model = transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**SMALL, projection_dim=20, eos_token_id=9, bos_token_id=1, pad_token_id=0)).eval()
    ids = [1, *(i if i != 9 else 8 for i in random_ids(30, 2)), 9, 4, 9]
    axes = {"input_ids": {0: "batch", 1: "tokens"}}
    torch.onnx.export(
        model, (torch.tensor(ids)[None],), tmp_path / "model.onnx", dynamo=False, opset_version=17, dynamic_axes=axes, input_names=["input_ids"],
        output_names=["text_embeds", "last_hidden_state"],
    )  # fmt: skip
    canonical = load(tmp_path / "model.onnx")
    assert (canonical.context, match(canonical.model).positions()) == (70, Learned(70))
    for n in (len(ids), 20, 2):
        with torch.no_grad():
            want = model(torch.tensor(ids[-n:])[None]).text_embeds[0].numpy()
        np.testing.assert_allclose(reference(canonical).embed(ids[-n:]), want, rtol=0, atol=1e-4)
    bundle = edgepos.export_bundle(canonical, tmp_path / "c.edgepos", tokenizer=None, calibration=random_ids(60, 1).tolist())
    np.testing.assert_array_equal(bundle.session().embed_int(ids), bundle.session(engine="golden").embed_int(ids))


@pytest.mark.parametrize("kind, config", [("XLMRoberta", SMALL | {"pad_token_id": 1}), ("EuroBert", SMALL | {"num_key_value_heads": 2, "pad_token_id": 0})])
def test_encoders_that_count_tokens_or_share_keys(kind, config, tmp_path):
    torch.manual_seed(5)
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**config)).eval()
    canonical = load_module(model, torch.tensor(random_ids(20))[None])
    ids = [i if i > 1 else 2 for i in random_ids(40, 2)]
    np.testing.assert_allclose(reference(canonical).embed(ids), rows_of(model, ids).mean(axis=0), rtol=0, atol=1e-4)
    bundle = edgepos.export_bundle(canonical, tmp_path / "x.edgepos", tokenizer=None, calibration=ids)
    np.testing.assert_array_equal(bundle.session().embed_int(ids), bundle.session(engine="golden").embed_int(ids))


def test_minilm_as_a_file_beside_its_settings(tmp_path, monkeypatch):
    """The file in a sentence-transformers folder: pooling, normalization and tokenizer are the folder's."""
    import shutil

    from edgepos.export.onnx_in.module import to_onnx

    folder = minilm_folder()
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    place = tmp_path / "minilm"
    shutil.copytree(folder, place, ignore=shutil.ignore_patterns("*.safetensors"))
    import onnx_ir as ir

    ir.save(to_onnx(model, torch.arange(1000, 1024)[None], "minilm"), place / "model.onnx")
    canonical = load(place / "model.onnx", context=128, tokenizer=place)
    session = reference(canonical)
    texts = ["A cat sits on the mat.", "Stock markets fell sharply today."]
    ids = [session.make_tokenizer().encode(text) for text in texts]
    for row in ids:
        mean = rows_of(model, row).mean(axis=0)
        np.testing.assert_allclose(session.embed(row), mean / np.linalg.norm(mean), rtol=0, atol=1e-5)
    bundle = edgepos.export_bundle(place / "model.onnx", tmp_path / "m.edgepos", context=128, tokenizer=place)
    for row in ids:
        assert float(bundle.session().embed(row) @ session.embed(row)) > 0.9995


def test_minilm_as_a_module_is_minilm_as_a_folder():
    """Pooling and normalization in the module; the folder is read without ONNX or PyTorch."""
    model = transformers.BertModel.from_pretrained(minilm_folder(), add_pooling_layer=False).eval()
    ids = [101, 1037, 4937, 7719, 2006, 1996, 13523, 1012, 102]
    example = {"input_ids": torch.tensor(ids)[None], "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    canonical = load_module(Sentence(model), example, context=128)
    folder = load(minilm_folder(), context=128)
    np.testing.assert_allclose(reference(canonical).embed(ids), reference(folder).embed(ids), rtol=0, atol=1e-5)
