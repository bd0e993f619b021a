"""SmolLM2-135M cut to its first layers and tokens, with its own 4-bit integers: small enough for the memory of every board."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

LAYERS, VOCABULARY, CONTEXT = 2, 4096, 64
DIGEST = 0x0255858F56769C1A
KEPT = ("token_embd.", "output_norm.", *(f"blk.{i}." for i in range(LAYERS)))
CHANGED = {"llama.block_count": LAYERS, "llama.vocab_size": VOCABULARY, "llama.context_length": CONTEXT}


def write_cut(source: Path, path: Path) -> None:
    """Write the cut model, without a tokenizer, as GGUF."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for name, entry in reader.fields.items():
        if name.startswith("llama."):
            writer.add_key_value(name, CHANGED.get(name, entry.contents()), entry.types[0])
    for tensor in reader.tensors:
        if tensor.name.startswith(KEPT):
            data = np.asarray(tensor.data)[:VOCABULARY] if tensor.name.startswith("token_embd.") else np.asarray(tensor.data)
            writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def export_cut(source: Path, folder: Path):
    """The bundle of the cut model, calibrated on ids that any generator gives."""
    import edgepos

    cut, ids = folder / "smollm2-cut.gguf", folder / "ids.json"
    write_cut(source, cut)
    ids.write_text(json.dumps(np.random.default_rng(0).integers(VOCABULARY, size=CONTEXT).tolist()))
    return edgepos.export_bundle(cut, folder / "smollm2-cut.edgepos", tokenizer=None, chat_template=None, calibration=ids)
