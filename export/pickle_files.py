"""Checkpoints that PyTorch pickled, by its own reader for nothing but weights: no code of the file is run.

What that reader would take memory for is checked first. The weights stay in the mapped file (`torch.load`, `weights_only` and `mmap`:
pytorch.org/docs/stable/generated/torch.load.html).
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np

from edgepos.errors import FormatError, UnsupportedError

from .safetensor_files import COUNTS
from .shorten import shorten

SAVE_AGAIN = "load the model with transformers in a place you trust and call save_pretrained(folder, safe_serialization=True)"
MAX_PICKLE = 16_000_000  # bytes of names and shapes; those of a million tensors
MIN_TORCH = (2, 6)  # older readers could be made to run code (CVE-2025-32434)


def pickle_error(name: str) -> UnsupportedError:
    """The error for a file that PyTorch pickled and that no config.json explains."""
    return UnsupportedError(
        f"{name}: a pickle without the config of its model; the weights of a folder with config.json and pytorch_model.bin are read, "
        f"and nothing else of a pickle, which could run code; or {SAVE_AGAIN}"
    )


def map_pickle(path: Path) -> dict[str, np.ndarray]:
    """Tensor name -> read-only view [shape] of the mapped file; dtype float32, float16 or bfloat16. Counts (int64) are left out.

    Raises FormatError for a damaged file, UnsupportedError without PyTorch and for anything but a flat dict of such tensors.
    """
    torch = _torch(path.name)
    _check_archive(path)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedError(f"{path.name}: holds more than weights ({_reason(error)}), which is not loaded; {SAVE_AGAIN}") from None
    except Exception as error:  # of the reader's many kinds all mean that the file is not what torch.save writes
        raise FormatError(f"{path.name}: PyTorch cannot read it ({_reason(error)}); the file is damaged, download it again") from None
    if not isinstance(found, dict) or not found:
        raise UnsupportedError(f"{path.name}: holds {_what(found)}; a dict of tensors by name (model.state_dict()) is needed")
    return {name: array for name, tensor in found.items() if (array := _array(torch, path.name, name, tensor)) is not None}


def _torch(name: str):
    try:
        import torch
    except ImportError:
        raise UnsupportedError(f"{name}: a pickled checkpoint, which PyTorch reads: pip install 'edgepos[torch]'; or {SAVE_AGAIN}") from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < MIN_TORCH:
        raise UnsupportedError(f"{name}: PyTorch {torch.__version__} reads pickled checkpoints unsafely; 2.6 or newer is needed")
    return torch


def _check_archive(path: Path) -> None:
    try:
        size = path.stat().st_size
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except OSError as error:
        raise FormatError(f"{path.name}: cannot be read ({error.strerror}) in {path.parent}") from None
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise UnsupportedError(f"{path.name}: not an archive as torch.save has written since 1.6; {SAVE_AGAIN}") from None
    for entry in entries:
        where = f"{path.name}: entry {shorten(entry.filename)}"
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise FormatError(f"{where} is compressed, which torch.save never does; the file is damaged or made up")
        if entry.file_size > size:
            raise FormatError(f"{where} has {entry.file_size} bytes, the file {size}; the file is damaged")
        if entry.filename.endswith(".pkl") and entry.file_size > MAX_PICKLE:
            raise FormatError(f"{where} has {entry.file_size} bytes; {MAX_PICKLE} are allowed for names and shapes")


def _array(torch, file: str, name, tensor) -> np.ndarray | None:
    named = shorten(name) if isinstance(name, str) else f"an entry named by {_what(name)}"
    where = f"{file}: {named}"
    if not isinstance(name, str) or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise UnsupportedError(f"{where} is {_what(tensor)}; a tensor under a name is needed (torch.save(model.state_dict(), …))")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        raise UnsupportedError(f"{where} is {tensor.layout} {tensor.dtype} on {tensor.device}; a dense tensor is needed")
    if tensor.dtype == torch.int64 and name.rpartition(".")[2] in COUNTS:
        return None
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UnsupportedError(f"{where} has dtype {tensor.dtype}; supported: float32, float16, bfloat16")
    if not tensor.numel() or tensor.dim() > 8 or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise FormatError(f"{where} has shape {list(tensor.shape)}, of which the file does not hold every number; save the model again")
    tensor = tensor.detach()
    array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()
    array.flags.writeable = False
    return array


def _what(value) -> str:
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (dict, list, tuple)) else "")


def _reason(error: Exception) -> str:
    """What a reader said, in one short line."""
    text = str(error) or type(error).__name__
    return shorten(" ".join((text.partition("WeightsUnpickler error:")[2] or text).split()))
