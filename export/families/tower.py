"""Blocks with a norm before attention and MLP and none behind, as CLIP's two towers and ViT have them. A family is a table of module names."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from edgepos.errors import FormatError

from ..config import Config
from ..encoder_graph import EncoderGraph
from ..tensor_set import TensorSet
from .layernorm_decoder import read_activation


@dataclass(frozen=True)
class TowerShape:
    """The numbers that decide the blocks. activation: a method of EncoderGraph. causal: tokens do not see those behind them."""

    dim: int
    hidden_dim: int
    layers: int
    heads: int
    epsilon: float
    activation: str
    causal: bool = False


@dataclass(frozen=True)
class TowerNames:
    """Module names, without ".weight" and ".bias"; ``{i}`` is the layer."""

    attn_norm: str
    q: str
    k: str
    v: str
    out: str
    mlp_norm: str
    up: str
    down: str


def read_shape(config: Config, defaults: tuple[int, int, int, int], activation: str, epsilon: float, *, causal: bool, tensors: TensorSet) -> TowerShape:
    """The shape a config says; ``defaults`` are width, MLP width, layers and heads. Raises FormatError or UnsupportedError naming the key."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    dim, hidden_dim, layers, heads = (config.size(key, default=value) for key, value in zip(keys, defaults))
    if dim % heads:
        raise FormatError(f"{config.origin}: hidden_size {dim} is not a multiple of num_attention_heads {heads}; correct one")
    if layers > len(tensors.arrays):
        raise FormatError(f"{config.origin}: num_hidden_layers is {layers}, but the model has {len(tensors.arrays)} tensors")
    activation = read_activation(config.origin, "hidden_act", config.text("hidden_act", activation))
    return TowerShape(dim, hidden_dim, layers, heads, config.epsilon("layer_norm_eps", default=epsilon), activation, causal)


class Tower:
    """Writes norms, linears and blocks of one shape into a graph; takes every tensor it needs from ``tensors``."""

    def __init__(self, graph: EncoderGraph, tensors: TensorSet, shape: TowerShape, names: TowerNames):
        self.graph, self.tensors, self.shape, self.names = graph, tensors, shape, names

    def norm(self, x: ir.Value, node: str, module: str) -> ir.Value:
        """A layer norm over the width."""
        d = self.shape.dim
        return self.graph.layer_norm(x, node, self.tensors.take(f"{module}.weight", (d,)), self.tensors.take(f"{module}.bias", (d,)), self.shape.epsilon)

    def linear(self, x: ir.Value, node: str, module: str, rows: int, *, bias: bool = True, output: str | None = None) -> ir.Value:
        """x times a matrix of ``rows`` rows."""
        weight = self.tensors.take(f"{module}.weight", (rows, int(x.shape[-1])))
        return self.graph.linear(x, node, weight, self.tensors.take(f"{module}.bias", (rows,)) if bias else None, output=output)

    def blocks(self, x: ir.Value, biases: tuple[bool, bool, bool] = (True, True, True)) -> ir.Value:
        """All blocks; biases: of q, k and v."""
        s, graph = self.shape, self.graph
        for i in range(s.layers):
            layer, name = f"layers.{i}.", {part: getattr(self.names, part).format(i=i) for part in self.names.__dataclass_fields__}
            h = self.norm(x, f"{layer}attn_norm", name["attn_norm"])
            q, k, v = (self.linear(h, f"{layer}attn.{part}", name[part], s.dim, bias=bias) for part, bias in zip("qkv", biases))
            y = graph.self_attention(q, k, v, f"{layer}attn", heads=s.heads, causal=s.causal)
            x = graph.add(x, self.linear(y, f"{layer}attn.out", name["out"], s.dim), f"{layer}attn.residual")
            h = self.norm(x, f"{layer}mlp_norm", name["mlp_norm"])
            y = getattr(graph, s.activation)(self.linear(h, f"{layer}mlp.up", name["up"], s.hidden_dim), f"{layer}mlp.act")
            x = graph.add(x, self.linear(y, f"{layer}mlp.down", name["down"], s.dim), f"{layer}mlp.residual")
        return x
