"""Texts, tokenizer and held-out windows: the stories and the held-out rule of `examples/tiny/train.py`."""

import importlib.util
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
FACTORS = (1, 2, 4)


def _tiny():
    """`examples/tiny/train.py` as a module; its name is not importable from here, where `train` is another file."""
    spec = importlib.util.spec_from_file_location("tiny_train", HERE.parent / "tiny" / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tiny = _tiny()
EOT = tiny.EOT


def load_stories():
    """(training stories, held-out stories, {file name: bytes} of the texts they come from)."""
    texts = tiny.read_texts()
    train, _, held_out, _ = tiny.load_documents(texts)
    return train, held_out, {tiny.STORIES: texts[tiny.STORIES]}


def train_tokenizer(stories, vocab):
    """Byte-level BPE over all 256 bytes, no normaliser, no prefix space."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[EOT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(stories, trainer)
    return tokenizer


def held_out_stream(tokenizer, stories, longest):
    """The held-out stories as one stream, token ids [n·longest + 1].

    Its windows of 1, 2 and 4 trained lengths predict exactly the same tokens; they differ in how much text precedes one.
    """
    eot, ids = tokenizer.token_to_id(EOT), []
    for story in stories:
        ids += [eot] + tokenizer.encode(story).ids
    ids.append(eot)
    return torch.tensor(ids[: (len(ids) - 1) // longest * longest + 1])
