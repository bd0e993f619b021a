"""Activation functions, recognised by what they compute: the values of a scalar function on a grid, however the graph spells it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .values import GRID

SUPPORTED = "silu, gelu (erf, tanh or x · sigmoid(1.702 x)), relu, its square, sigmoid, tanh, and a softcap of the logits or scores"
TOLERANCE = 2e-6  # the constants of a graph are float32

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + e^−x), without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * np.asarray(x, np.float64)))


def gelu(x: np.ndarray, inverse: float = math.sqrt(0.5)) -> np.ndarray:
    """GELU by the error function."""
    return 0.5 * x * (1 + erf(x * inverse))


def gelu_tanh(x: np.ndarray, outer: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> np.ndarray:
    """The tanh approximation of GELU."""
    return 0.5 * x * (1 + np.tanh(outer * (x + cubic * x**3)))


KNOWN = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": sigmoid,
    "tanh": np.tanh,
}


def _samples() -> list[tuple[str, np.ndarray]]:
    """Every known function on the grid, also with its constants rounded as a graph of 16-bit floats has them."""
    found = [(name, f(GRID)) for name, f in KNOWN.items()]
    for kind in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16):
        inverse, root, outer, cubic, quick = np.array([math.sqrt(0.5), math.sqrt(2), math.sqrt(2 / math.pi), 0.044715, 1.702]).astype(kind.numpy()).astype(float)
        found += [("gelu", gelu(GRID, inverse)), ("gelu", gelu(GRID, 1 / root))]
        found += [("gelu_tanh", gelu_tanh(GRID, outer, cubic)), ("quick_gelu", GRID * sigmoid(quick * GRID))]
    return found


_SAMPLES = _samples()

# Operators of ONNX as functions of one number; parameters come from the node.
OPERATORS = {
    "Abs": lambda x, node: np.abs(x),
    "Erf": lambda x, node: erf(x),
    "Exp": lambda x, node: np.exp(x),
    "Gelu": lambda x, node: gelu_tanh(x) if node.attributes.get_string("approximate", "none") == "tanh" else gelu(x),
    "Log": lambda x, node: np.log(x),
    "Neg": lambda x, node: -x,
    "Reciprocal": lambda x, node: 1 / x,
    "Relu": lambda x, node: np.maximum(x, 0),
    "Sigmoid": lambda x, node: sigmoid(x),
    "Softplus": lambda x, node: np.logaddexp(0, x),
    "Sqrt": lambda x, node: np.sqrt(x),
    "Swish": lambda x, node: x * sigmoid(node.attributes.get_float("alpha", 1.0) * x),
    "Tanh": lambda x, node: np.tanh(x),
}


@dataclass(frozen=True)
class Softcap:
    """cap · tanh(scale · x / cap)."""

    cap: float
    scale: float

    def __str__(self) -> str:
        return "softcap"


def at(samples: np.ndarray, x: float) -> float:
    """The sample at a point of the grid."""
    return float(samples[np.searchsorted(GRID, x)])


def identify(samples: np.ndarray) -> str | Softcap | None:
    """The name of the function with these values on the grid, a Softcap, or None."""
    for name, known in _SAMPLES:
        if np.all(np.abs(samples - known) <= TOLERANCE * np.maximum(1, np.abs(known))):
            return name
    cap = identify_softcap(samples)
    return cap if cap is not None and abs(cap.scale - 1) < TOLERANCE else None


def slope_of(samples: np.ndarray) -> float | None:
    """k where the function is k·x, else None."""
    k = at(samples, 12.0) / 12.0
    return k if np.all(np.abs(samples - k * GRID) <= TOLERANCE * abs(k) * np.maximum(1, np.abs(GRID))) else None


def identify_softcap(samples: np.ndarray) -> Softcap | None:
    """The softcap with these values, or None: tanh(2a) = 2t/(1 + t²) gives the cap from two points."""
    if not np.isfinite(samples).all():
        return None
    y1, y2 = at(samples, 6.0), at(samples, 12.0)
    if not 0 < y1 < y2 < 2 * y1:
        return None
    cap = y1 * math.sqrt(y2 / (2 * y1 - y2))
    if not y2 < cap < 1e7:
        return None
    found = Softcap(float(np.float32(cap)) if abs(float(f"{cap:.5g}") / cap - 1) > 1e-5 else float(f"{cap:.5g}"), math.atanh(y1 / cap) * cap / 6)
    exact = found.cap * np.tanh(found.scale * GRID / found.cap)
    return found if np.all(np.abs(samples - exact) <= 1e-5 * np.maximum(1, np.abs(exact))) else None


def write(writer, x: ir.Value, found: str | Softcap, name: str) -> ir.Value:
    """The canonical nodes of an activation of x."""
    if isinstance(found, Softcap):
        raise writer.refuse(f"a softcap of {found.cap:.6g} inside the model", "a softcap of the logits or scores")
    if found == "relu_squared":
        relu = writer.graph.relu(x, name)
        return writer.graph.product(relu, relu, f"{name}.squared")
    return getattr(writer.graph, found)(x, name)
