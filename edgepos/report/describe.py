"""What `edgepos inspect` shows of a bundle."""

from __future__ import annotations

from ..program import POSITIONS, Op


def describe(bundle) -> dict:
    """Facts of an opened bundle: sizes in bytes, formats, positions, memory per context."""
    program, manifest = bundle.program, bundle.manifest
    header, info = program.header, bundle.image.info
    folder = bundle.path or bundle.model_path
    return {
        "name": manifest.get("name", bundle.model_path.stem),
        "model_bytes": bundle.model_path.stat().st_size,
        "bundle_bytes": sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) if bundle.path else bundle.model_path.stat().st_size,
        "formats": f"{program.weight_format} {program.activation_format} kv{header.kv_bits}",
        "positions": _positions(program),
        "vocabulary": header.vocab,
        "context": header.context,
        **({"image": "height {} × width {}, {} channels".format(*program.image)} if program.image else {}),
        "output": _output(info),
        "operators": len(program.ops),
        "kv_bytes_per_token": int(info.kv_bytes_per_token),
        "weight_bytes_per_token": int(info.weight_bytes_per_token),
        "arena_bytes": {f"context {c}": bundle.image.arena_size(context=c) for c in program.contexts},
        "tokenizer": ("none", "byte-level BPE", "SentencePiece BPE", "WordPiece", "Unigram")[header.tokenizer],
        "licence": str((manifest.get("license") or {}).get("license", "not stated")),
        "digest": f"{header.digest:016x}",
    }


def _output(info) -> str:
    if info.classes:
        return f"logits of {info.embedding} classes"
    return f"embedding of {info.embedding} numbers" if info.embedding else "logits"


def _positions(program) -> str:
    rope = next((op for op in program.ops if op.code == Op.ROPE), None)
    if rope is not None:
        layout = ("half", "interleaved")[rope.params["layout"]]
        pairs = len(program.arrays[rope.tensors[0]])
        return f"RoPE, {layout}, {2 * pairs} of {rope.params['head_dim']} components, 64-bit phase, 257-entry quarter wave"
    attention = next((op for op in program.ops if op.code == Op.ATTENTION), None)
    if attention is not None and attention.tensors[0] >= 0:
        fraction = attention.params["alibi_shift"] + 16
        return f"ALiBi, {attention.params['heads']} slopes in Q{32 - fraction}.{fraction}, no table"
    rows = [len(program.arrays[op.tensors[0]]) - op.params["offset"] for op in program.ops if op.code == Op.EMBED and op.params["source"] == POSITIONS]
    if rows:
        return f"rows of a table for {rows[0]} positions"
    return "none"
