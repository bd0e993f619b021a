"""An independent float64 reading of llama2.c: forward pass and tokenizer, straight from run.c.

Nothing here uses EdgePos, so that agreement means something.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np


class Llama2c:
    """A version-0 model with every weight in float64."""

    def __init__(self, path: Path):
        raw = path.read_bytes()
        self.dim, self.hidden, self.layers, self.heads, self.kv_heads, vocab, self.seq = struct.unpack("<7i", raw[:28])
        self.vocab = abs(vocab)
        data = np.frombuffer(raw, "<f4", offset=28).astype(np.float64)
        self.head = self.dim // self.heads
        kv = self.kv_heads * self.head
        at = 0

        def read(*shape: int) -> np.ndarray:
            nonlocal at
            count = int(np.prod(shape))
            at += count
            return data[at - count : at].reshape(shape)

        n, d, h = self.layers, self.dim, self.hidden
        self.embedding = read(self.vocab, d)
        self.attention_norm = read(n, d)
        self.wq, self.wk, self.wv, self.wo = read(n, d, d), read(n, kv, d), read(n, kv, d), read(n, d, d)
        self.mlp_norm = read(n, d)
        self.w1, self.w2, self.w3 = read(n, h, d), read(n, d, h), read(n, h, d)
        self.final_norm = read(d)
        read(2, self.seq, self.head // 2)
        self.classifier = self.embedding if vocab > 0 else read(self.vocab, d)
        assert at == len(data)

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits [n, vocab] of a text from position 0, in float64."""
        n = len(ids)
        x = self.embedding[ids]
        # run.c: val = pos / 10000^(head_dim index / head_size); pairs (i, i+1) turn.
        rates = 1.0 / 10000.0 ** (np.arange(0, self.head, 2) / self.head)
        turn = np.exp(1j * np.arange(n)[:, None] * rates)[:, None, :]

        def rotate(y: np.ndarray) -> np.ndarray:
            z = (y[..., 0::2] + 1j * y[..., 1::2]) * turn
            return np.stack([z.real, z.imag], -1).reshape(y.shape)

        for i in range(self.layers):
            h = rms_norm(x, self.attention_norm[i])
            q = rotate((h @ self.wq[i].T).reshape(n, self.heads, self.head))
            k = rotate((h @ self.wk[i].T).reshape(n, self.kv_heads, self.head))
            v = (h @ self.wv[i].T).reshape(n, self.kv_heads, self.head)
            out = np.empty_like(q)
            for a in range(self.heads):
                b = a // (self.heads // self.kv_heads)
                score = q[:, a] @ k[:, b].T / np.sqrt(self.head)
                score[np.triu_indices(n, 1)] = -np.inf
                weight = np.exp(score - score.max(-1, keepdims=True))
                out[:, a] = weight / weight.sum(-1, keepdims=True) @ v[:, b]
            x = x + out.reshape(n, self.dim) @ self.wo[i].T
            h = rms_norm(x, self.mlp_norm[i])
            gate = h @ self.w1[i].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ self.w3[i].T)) @ self.w2[i].T
        return rms_norm(x, self.final_norm) @ self.classifier.T


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """run.c rmsnorm."""
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * weight


class Tokenizer:
    """run.c's tokenizer over the file's strings and scores, without any table."""

    def __init__(self, path: Path, vocab: int):
        raw = path.read_bytes()
        at = 4
        self.strings: list[bytes] = []
        self.scores: list[float] = []
        for _ in range(vocab):
            score, length = struct.unpack_from("<fi", raw, at)
            self.strings.append(raw[at + 8 : at + 8 + length])
            self.scores.append(score)
            at += 8 + length
        self.ids = {s: i for i, s in enumerate(self.strings)}

    def encode(self, text: bytes) -> list[int]:
        """Token ids with BOS."""
        tokens = [1]
        if text:
            tokens.append(self.ids[b" "])
        buffer = b""
        for i, byte in enumerate(text):
            if byte & 0xC0 != 0x80:
                buffer = b""
            buffer += bytes([byte])
            if i + 1 < len(text) and text[i + 1] & 0xC0 == 0x80 and len(buffer) < 4:
                continue
            tokens += [self.ids[buffer]] if buffer in self.ids else [b + 3 for b in buffer]
            buffer = b""
        while True:
            best_score, best_id, best_at = -1e10, -1, -1
            for i in range(len(tokens) - 1):
                joined = self.ids.get(self.strings[tokens[i]] + self.strings[tokens[i + 1]])
                if joined is not None and self.scores[joined] > best_score:
                    best_score, best_id, best_at = self.scores[joined], joined, i
            if best_at < 0:
                return tokens
            tokens[best_at : best_at + 2] = [best_id]

    def decode(self, ids: list[int]) -> bytes:
        """The bytes run.c prints for ``ids`` (BOS first or not)."""
        out = b""
        previous = 0
        for token in ids:
            piece = self.strings[token]
            if previous == 1 and piece.startswith(b" "):
                piece = piece[1:]
            if piece.startswith(b"<0x") and piece.endswith(b">") and len(piece) == 6:
                piece = bytes([int(piece[3:5], 16)])
            out += piece
            previous = token
        return out


def stories(text: str) -> list[str]:
    """The 24 stories of models.md."""
    parts = [p.strip() for p in re.split(r"(?=Once upon a time|One day, )", text)]
    return [p for p in parts if 300 <= len(p) <= 1400][:24]


def write_model(path, *, dim=8, hidden=12, layers=1, heads=2, kv=1, vocab=260, seq=16, tied=True, change=0):
    """A random version-0 file and its tokenizer; ``change`` is the number of bytes added at the end (or removed)."""
    kv_dim = kv * dim // max(heads, 1)
    per_layer = 2 * dim + 2 * dim * dim + 2 * kv_dim * dim + 3 * hidden * dim
    count = vocab * dim * (1 if tied else 2) + layers * per_layer + dim + seq * (dim // max(heads, 1))
    rng = np.random.default_rng(3)
    header = struct.pack("<7i", dim, hidden, layers, heads, kv, vocab if tied else -vocab, seq)
    body = (rng.standard_normal(count) * 0.4).astype("<f4").tobytes()
    data = header + body
    path.write_bytes(data[:change] if change < 0 else data + b"\0" * change)
    strings = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % b for b in range(256)), b" "]
    entries = b"".join(struct.pack("<fi", 0.0, len(s)) + s for s in strings)
    (path.parent / f"tok{vocab}.bin").write_bytes(struct.pack("<i", 8) + entries)
    return path
