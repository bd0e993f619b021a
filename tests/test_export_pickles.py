"""pytorch_model.bin: PyTorch reads it for nothing but weights, and what it holds besides is refused without being run."""

from __future__ import annotations

import io
import json
import pickle
import sys
import zipfile

import numpy as np
import pytest
from hf_models import make_llama, torch
from safetensors.torch import load_file

from edgepos.errors import FormatError, UnsupportedError
from edgepos.export import load
from edgepos.export.weight_files import open_tensors

BAD, NO = FormatError, UnsupportedError
NAME = "pytorch_model.bin"


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama")
    make_llama(folder, tie_word_embeddings=True)
    return folder


def pickled(llama, folder, dtype=torch.float32, shards=1):
    """The same model, its weights in one pickle or several; returns them."""
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        (folder / name).write_bytes((llama / name).read_bytes())
    weights = {name: tensor.to(dtype) for name, tensor in load_file(llama / "model.safetensors").items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]  # as PyTorch's state_dict has it, in the same storage
    if shards == 1:
        torch.save(weights, folder / NAME)
        return weights
    names = sorted(weights)
    files = {name: f"pytorch_model-{i % shards + 1:05}-of-{shards:05}.bin" for i, name in enumerate(names)}
    for file in sorted(set(files.values())):
        torch.save({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / f"{NAME}.index.json").write_text(json.dumps({"weight_map": files}))
    return weights


@pytest.mark.parametrize(("dtype", "shards"), [(torch.float32, 1), (torch.bfloat16, 3), (torch.float16, 1)])
def test_weights_are_those_that_were_saved(llama, tmp_path, dtype, shards):
    weights = pickled(llama, tmp_path, dtype, shards)
    found, files = open_tensors(tmp_path)
    assert len(files) == (1 if shards == 1 else shards + 1)
    assert set(found.arrays) == set(weights)
    for name, array in found.arrays.items():
        assert array.dtype.name == str(dtype).removeprefix("torch.") and not array.flags.writeable
        np.testing.assert_array_equal(array.astype(np.float32), weights[name].float().numpy())
    if dtype == torch.float32:
        both = [{name: value.const_value.numpy() for name, value in load(f).model.graph.initializers.items()} for f in (tmp_path, llama)]
        assert both[0].keys() == both[1].keys() and all((both[0][name] == both[1][name]).all() for name in both[0])


def test_safetensors_go_first(llama, tmp_path):
    pickled(llama, tmp_path)
    (tmp_path / NAME).write_bytes(b"not looked at")
    (tmp_path / "model.safetensors").write_bytes((llama / "model.safetensors").read_bytes())
    load(tmp_path)


class Runs:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def archive(pickled: bytes, **how) -> bytes:
    """A pickle as torch.save packs it."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", **how) as file:
        file.writestr("model/data.pkl", pickled)
        file.writestr("model/byteorder", "little")
        file.writestr("model/version", "3\n")
    return data.getvalue()


def saved(value) -> bytes:
    data = io.BytesIO()
    torch.save(value, data)
    return data.getvalue()


def test_code_is_not_run(llama, tmp_path):
    pickled(llama, tmp_path)
    made = tmp_path / "made"
    for data in (saved({"w": torch.zeros(2), "x": Runs(made)}), archive(pickle.dumps(Runs(made), 2)), pickle.dumps(Runs(made))):
        (tmp_path / NAME).write_bytes(data)
        with pytest.raises((BAD, NO)) as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value) and not made.exists()
    (tmp_path / NAME).write_bytes(saved({"x": Runs(made)}))
    with pytest.raises(NO, match=r"pytorch_model.bin: holds more than weights \(.*open.*\), which is not loaded; load the model"):
        load(tmp_path)
    torch.load(tmp_path / NAME, weights_only=False)  # what would have happened
    assert made.exists()


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", NO, "not an archive as torch.save"),
        (b"\x80\x02}q\x00.", NO, "not an archive as torch.save"),
        (saved({"w": torch.ones(64)})[:-90], NO, "not an archive"),
        (archive(b"\x80\x02}q\x00.", compression=zipfile.ZIP_DEFLATED), BAD, "entry 'model/data.pkl' is compressed"),
        (archive(b"\x80\x02X" + bytes(17_000_000)), BAD, "17000003 bytes; 16000000 are allowed"),
        (archive(b"\x80\x02no pickle"), NO, r"holds more than weights \('Unsupported operand 110"),
        (saved({}), NO, "holds a dict of 0; a dict of tensors"),
        (saved([torch.ones(2)]), NO, "holds a list of 1; a dict of tensors"),
        (saved({"model": {"w": torch.ones(2)}}), NO, "'model' is a dict of 1; a tensor under a name"),
        (saved({3: torch.ones(2)}), NO, "an entry named by a int is a Tensor; a tensor under a name"),
        (saved({"w": torch.ones(2, dtype=torch.float64)}), NO, "'w' has dtype torch.float64; supported: float32"),
        (saved({"w": torch.ones(2, 2).to_sparse()}), NO, "'w' is torch.sparse_coo"),
        (saved({"w": torch.ones(1).expand(2**20, 2**20)}), BAD, r"'w' has shape \[1048576, 1048576\], of which the file"),
        (saved({"w": torch.ones(0)}), BAD, r"'w' has shape \[0\]"),
        (saved({"position_ids": torch.arange(9), "w": torch.ones(2)}), BAD, "'model.embed_tokens.weight' is missing"),
    ],
)  # fmt: skip
def test_other_contents_are_refused(llama, tmp_path, data, error, message):
    pickled(llama, tmp_path)
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(error, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_without_pytorch(llama, tmp_path, monkeypatch):
    pickled(llama, tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NO, match=r"pytorch_model.bin: a pickled checkpoint, which PyTorch reads: pip install 'edgepos\[torch\]'"):
        load(tmp_path)
