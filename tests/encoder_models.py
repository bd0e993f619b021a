"""Tiny random encoders as Hugging Face folders, written by transformers, with a tokenizer and sentence-transformers' files."""

from __future__ import annotations

import json

import numpy as np
from hf_models import TEXT  # skips where PyTorch is missing

import tokenizers
import torch
import transformers
from safetensors.numpy import save_file

VOCAB = 120
SMALL = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=6, max_position_embeddings=64)
SMALL |= dict(initializer_range=0.15, layer_norm_eps=1e-6)
MODELS = {
    "bert": ("Bert", SMALL),
    "bert_tanh": ("Bert", SMALL | dict(hidden_act="gelu_new", type_vocab_size=3)),
    "roberta": ("Roberta", SMALL | dict(type_vocab_size=1, pad_token_id=1)),
    "xlm_roberta": ("XLMRoberta", SMALL | dict(type_vocab_size=1, pad_token_id=1)),
    "mpnet": ("MPNet", SMALL | dict(pad_token_id=1)),
    "mpnet_far": ("MPNet", SMALL | dict(pad_token_id=1, max_position_embeddings=200)),
}


def write_tokenizer(folder) -> tokenizers.Tokenizer:
    """A WordPiece tokenizer trained on TEXT, with a token in front of a text and one behind."""
    piece = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    piece.normalizer = tokenizers.normalizers.BertNormalizer()
    piece.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    piece.decoder = tokenizers.decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    piece.train_from_iterator([TEXT], tokenizers.trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False))
    piece.post_processor = tokenizers.processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    piece.save(str(folder / "tokenizer.json"))
    return piece


def make(folder, key: str, **changes):
    """A random model of MODELS with its tokenizer in `folder`; returns it."""
    family, settings = MODELS[key]
    config = getattr(transformers, f"{family}Config")(**settings | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(7)
    model = getattr(transformers, f"{family}Model")(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias") or "norm" in name.lower():  # would start as 0 and 1, which hides one that is not read
                value.add_(torch.randn_like(value) * 0.2)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def add_sentence_layout(folder, pooling="mean_tokens", *, dense=(), normalize=True, **settings) -> None:
    """sentence-transformers' files around a model; dense: (out_features, activation) of each layer."""
    modules = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]
    paths = ["", *(f"{i}_{kind}" for i, kind in enumerate(modules) if i)]
    write(folder / "modules.json", [dict(idx=i, name=str(i), path=path, type=f"sentence_transformers.models.{kind}") for i, (kind, path) in enumerate(zip(modules, paths))])
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 48, f"pooling_mode_{pooling}": True})
    write(folder / "sentence_bert_config.json", {"max_seq_length": 50, "do_lower_case": False} | settings)
    width, rng = 48, np.random.default_rng(3)
    for i, (rows, activation) in enumerate(dense):
        place = folder / f"{2 + i}_Dense"
        kind = f"torch.nn.modules.activation.{activation}" if activation == "Tanh" else "torch.nn.modules.linear.Identity"
        write(place / "config.json", {"in_features": width, "out_features": rows, "bias": i == 0, "activation_function": kind})
        tensors = {"linear.weight": rng.normal(0, 0.2, (rows, width)).astype(np.float32)}
        save_file(tensors | ({"linear.bias": rng.normal(0, 0.2, rows).astype(np.float32)} if i == 0 else {}), place / "model.safetensors")
        width = rows


def write(path, content) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def edit(path, **changes) -> None:
    """Change keys of a JSON file; ... removes one."""
    content = json.loads(path.read_text()) | changes
    write(path, {key: value for key, value in content.items() if value is not ...})


def random_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, VOCAB, n).tolist()
