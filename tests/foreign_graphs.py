"""Small random decoders as ONNX graphs in many spellings, written by hand: what other exporters might make."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCAB, DIM, HEADS, HEAD_DIM, HIDDEN, TABLE = 40, 24, 4, 6, 20, 96


class Graph:
    """Collects nodes; methods return the name of their first output."""

    def __init__(self, seed: int = 0, opset: int = 21, domain_versions: dict[str, int] | None = None):
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs = [helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "tokens"])]
        self.imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domain_versions or {}).items())]

    def op(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes) -> str:
        name = f"n{len(self.nodes)}"
        outs = [f"{name}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), outs, name=f"{name}_{op}", domain=domain, **attributes))
        return outs[0]

    def outs(self) -> list[str]:
        """All outputs of the last node."""
        return list(self.nodes[-1].output)

    def put(self, array, name: str | None = None) -> str:
        name = name or f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.put(np.array(values, np.int64))

    def number(self, value: float) -> str:
        return self.put(np.array(value, np.float32))

    def random(self, *shape: int, scale: float = 0.4, mean: float = 0.0) -> str:
        return self.put((mean + self.rng.normal(size=shape) * scale).astype(np.float32))

    # ---- what decoders are made of

    def linear(self, x: str, n_in: int, n_out: int) -> str:
        return self.op("MatMul", x, self.random(n_in, n_out))

    def tokens(self) -> str:
        """The number of tokens, a scalar."""
        return self.op("Squeeze", self.op("Slice", self.op("Shape", "input_ids"), self.ints(1), self.ints(2)))

    def positions(self) -> str:
        """0, 1, … [tokens]."""
        return self.op("Range", self.put(np.array(0, np.int64)), self.tokens(), self.put(np.array(1, np.int64)))

    def distance(self) -> str:
        """key − query, int64 [tokens, tokens]."""
        p = self.positions()
        return self.op("Sub", self.op("Unsqueeze", p, self.ints(0)), self.op("Unsqueeze", p, self.ints(1)))

    def causal(self) -> str:
        """0 or a very low number, [tokens, tokens]."""
        later = self.op("Greater", self.distance(), self.put(np.array(0, np.int64)))
        return self.op("Where", later, self.number(-3.4e38), self.number(0.0))

    def split(self, x: str, heads: int = HEADS) -> str:
        """[1, n, heads · d] → [1, heads, n, d]."""
        return self.op("Transpose", self.op("Reshape", x, self.ints(1, -1, heads, HEAD_DIM)), perm=[0, 2, 1, 3])

    def join(self, x: str) -> str:
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.ints(1, -1, DIM))

    def rms_norm(self, x: str, dim: int = DIM) -> str:
        mean = self.op("ReduceMean", self.op("Pow", x, self.number(2.0)), self.ints(-1), keepdims=1)
        inverse = self.op("Reciprocal", self.op("Sqrt", self.op("Add", mean, self.number(1e-5))))
        return self.op("Mul", self.op("Mul", x, inverse), self.random(dim, scale=0.2, mean=1.0))

    def attention(self, q: str, k: str, v: str, mask: str) -> str:
        """Of [1, heads, n, d] each → [1, n, DIM]."""
        scores = self.op("Div", self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2])), self.number(math.sqrt(HEAD_DIM)))
        return self.join(self.op("MatMul", self.op("Softmax", self.op("Add", scores, mask), axis=-1), v))

    def embed(self) -> str:
        return self.op("Gather", self.random(VOCAB, DIM), "input_ids")

    def finish(self, x: str) -> onnx.ModelProto:
        logits = self.linear(x, DIM, VOCAB)
        self.nodes[-1].output[0] = "logits"
        assert logits
        output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "tokens", VOCAB])
        graph = helper.make_graph(self.nodes, "foreign", self.inputs, [output], self.weights)
        return helper.make_model(graph, opset_imports=self.imports, ir_version=10)


def decoder(*, attend=None, mlp=None, norm=None, start=None, end=None, opset: int = 21, domains: dict[str, int] | None = None) -> onnx.ModelProto:
    """One block around the parts given: attend(graph, x) → [1, n, DIM], mlp(graph, x), norm(graph, x), start(graph, embeddings), end(graph, x)."""
    g = Graph(opset=opset, domain_versions=domains)
    norm = norm or Graph.rms_norm
    x = g.embed()
    x = start(g, x) if start else x
    x = g.op("Add", x, g.linear((attend or plain_attention)(g, norm(g, x)), DIM, DIM))
    x = g.op("Add", x, (mlp or swiglu)(g, norm(g, x)))
    x = norm(g, x)
    return g.finish(end(g, x) if end else x)


def plain_attention(g: Graph, x: str, turn=None, mask=None) -> str:
    """turn(graph, q or k [1, heads, n, d]); mask(graph) → what is added to the scores."""
    q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
    if turn:
        q, k = turn(g, q), turn(g, k)
    return g.attention(q, k, v, (mask or Graph.causal)(g))


def swiglu(g: Graph, x: str) -> str:
    gate, up = g.linear(x, DIM, HIDDEN), g.linear(x, DIM, HIDDEN)
    return g.linear(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), HIDDEN, DIM)


def inv_freq(theta: float = 10000.0, pairs: int = HEAD_DIM // 2) -> np.ndarray:
    return (theta ** (-np.arange(pairs) / pairs)).astype(np.float32)


def angles(g: Graph, frequencies: np.ndarray) -> str:
    """position · frequency, [n, pairs]."""
    p = g.op("Cast", g.op("Unsqueeze", g.positions(), g.ints(1)), to=TensorProto.FLOAT)
    return g.op("Mul", p, g.put(frequencies[None]))


def save(model: onnx.ModelProto, folder: Path, name: str = "m.onnx", **external) -> Path:
    path = folder / name
    onnx.save(model, path, **external)
    return path
