"""A plain encoder and decoder over the fields of a TokenizerSpec, as the C runtime reads them."""

from __future__ import annotations

import regex

GPT2 = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def encode(spec, data: bytes) -> list[int]:
    """Token ids of ``data``; bytes, so that broken UTF-8 can be tried on bpe-spm."""
    out = [spec.bos_id] if spec.add_bos else []
    ranks = {(int(a), int(b)): (int(r), int(m)) for a, b, r, m in spec.pairs}
    characters = {int(c) & 0xFFFFFFFF: int(i) for c, i in spec.characters}
    start: list[int] = []
    if spec.add_prefix_space and data:
        # A token of its own: stray continuation bytes that follow never belong to it.
        start = _base(spec, b" ", characters)
    for part in _split_added(spec, data):
        if isinstance(part, int):
            out.append(part)
            continue
        for piece in _pre_tokenize(spec, part):
            out += _join(start + _base(spec, piece, characters), ranks)
            start = []
    return out


def decode(spec, ids) -> bytes:
    """The bytes of ``ids``."""
    out, previous = b"", None
    for i in ids:
        piece = spec.tokens[i] if spec.token_types[i] != 1 else b""
        if spec.strip_space_after_bos and previous == spec.bos_id and piece.startswith(b" "):
            piece = piece[1:]
        out, previous = out + piece, i
    return out


def _split_added(spec, data: bytes):
    """Pieces of text, and ids of added tokens found literally."""
    start = at = 0
    while at < len(data):
        found = next((i for i in spec.added if data.startswith(spec.tokens[i], at)), None)
        if found is None:
            at += 1
            continue
        yield data[start:at]
        yield found
        start = at = at + len(spec.tokens[found])
    yield data[start:]


def _pre_tokenize(spec, data: bytes) -> list[bytes]:
    if spec.pre_tokenizer == "none":
        return [data]
    return [m.group().encode() for m in GPT2.finditer(data.decode())]


def _base(spec, data: bytes, characters: dict[int, int]) -> list[int]:
    """Base tokens: characters where the table knows them, bytes otherwise."""
    ids: list[int] = []
    at = 0
    while at < len(data):
        end = at + 1
        while spec.kind == "bpe-spm" and end < len(data) and end - at < 4 and data[end] & 0xC0 == 0x80:
            end += 1
        group = data[at:end]
        known = characters.get(int.from_bytes(group, "big"))
        ids += [known] if known is not None else [int(spec.byte_ids[b]) for b in group]
        at = end
    return [i for i in ids if i >= 0]


def _join(ids: list[int], ranks: dict) -> list[int]:
    while True:
        found = [(ranks[p][0], at) for at, p in enumerate(zip(ids, ids[1:])) if p in ranks]
        if not found:
            return ids
        _, at = min(found)
        ids[at : at + 2] = [ranks[ids[at], ids[at + 1]][1]]
