"""What an encoding costs a decoder in integers: bytes of constants, bytes of values, operations per token.

An operation is one multiplication, addition, shift, comparison or table read of a 32- or 64-bit integer, counted from the formulas of
docs/arithmetic.md; a `requant` is two of them (a product, a rounding shift). Counts are a guide to sizes, not a measurement of time.
"""

from __future__ import annotations

from dataclasses import dataclass

from .alibi import Alibi
from .alibi_plan import BiasTablePlan
from .distances import distance_rows
from .hybrid import Hybrid
from .learned import Learned
from .none import NoPosition
from .plan import PhasePlan, TablePlan
from .relative import RelativeBias, T5Bias
from .rope import Rope
from .sinusoidal import Sinusoidal
from .spec import Spec

ROW = 3  # per component of a row: read, requant
ADD = 3  # per component of a sum: align, add, round
TURN = 10  # per pair and head: four products, two sums, two requants
ALIBI = 3  # per key and head: requant, subtract
BIAS = 2  # per key and head: read, add
FACTOR = 2  # per key and head where the table's entries have a factor: product, shift
DISTANCE = 3  # per key, for all heads: subtract, two clamps
ROW_SCALE_BYTES = 8  # mantissa and shift


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that positions depend on; every query head has its own key head unless kv_heads says otherwise."""

    dim: int
    heads: int
    head_dim: int
    layers: int
    kv_heads: int | None = None

    @property
    def rotated_heads(self) -> int:
        """Query and key heads of one layer."""
        return self.heads + (self.heads if self.kv_heads is None else self.kv_heads)


def parts(spec: Spec, shape: Shape) -> tuple[Spec, list[Spec]]:
    """(what is added to the embeddings, what the attention of each layer does)."""
    if isinstance(spec, Hybrid):
        return spec.embedding, list(spec.layers)
    if isinstance(spec, (Learned, Sinusoidal)):
        return spec, [NoPosition()] * shape.layers
    return NoPosition(), [spec] * shape.layers


def operations(spec: Spec, shape: Shape, keys: int, tables: bool = False) -> int:
    """Integer operations for the positions of one token that sees `keys` keys, in all layers: of the EdgePos runtime, or with the tables of
    `table_bytes` (cos and sin are read, ALiBi's bias is read, a learned bias has a factor to multiply with)."""
    added, layers = parts(spec, shape)
    count = 0 if added == NoPosition() else (ROW + ADD) * shape.dim
    for layer in layers:
        if isinstance(layer, Rope):
            # cos and sin are found anew for q and for k, and shared by the heads of each
            found = TablePlan.operations if tables else PhasePlan.operations
            count += layer.pairs * (2 * found + TURN * shape.rotated_heads)
        elif isinstance(layer, Alibi):
            count += keys * ((BiasTablePlan.operations if tables else ALIBI) * shape.heads + DISTANCE)
        elif isinstance(layer, (T5Bias, RelativeBias)):
            count += keys * ((BIAS + FACTOR * tables) * shape.heads + DISTANCE)
    return count


def value_bytes(spec: Spec, shape: Shape) -> int:
    """int32 values per token that exist only because of positions: the row and the sum, or rotated copies of q and k.

    The plan of a program puts values whose lifetimes do not meet in one place, so this is the most that they can add.
    """
    added, layers = parts(spec, shape)
    rows = 0 if added == NoPosition() else 2 * 4 * shape.dim
    return rows + (4 * shape.rotated_heads * shape.head_dim if any(isinstance(layer, Rope) for layer in layers) else 0)


def runtime_bytes(spec: Spec, shape: Shape, context: int) -> int:
    """Constants that the EdgePos runtime keeps: int16 rows with a scale each, phase increments, slopes, an int32 bias by distance.

    The quarter wave that it always holds is left out.
    """
    added, layers = parts(spec, shape)
    total = 0 if added == NoPosition() else context * (2 * shape.dim + ROW_SCALE_BYTES)
    for layer in dict.fromkeys(layers):
        if isinstance(layer, Rope):
            total += 8 * layer.pairs
        elif isinstance(layer, Alibi):
            total += 4 * shape.heads
        elif isinstance(layer, (T5Bias, RelativeBias)):
            total += 4 * shape.heads * len(distance_rows(layer)) * (layer.layers or 1)
    return total


def table_bytes(spec: Spec, shape: Shape, context: int, bits: int) -> int:
    """The encoding as the tables of 16 or 8 bits that `edgepos tables` emits: a row for every position, an ALiBi bias for every distance, a
    learned bias for every bucket with a factor per head."""
    added, layers = parts(spec, shape)
    total = 0
    if isinstance(added, Learned):
        total += context * (shape.dim * bits // 8 + ROW_SCALE_BYTES)
    elif isinstance(added, Sinusoidal):
        total += context * shape.dim * bits // 8
    for layer in dict.fromkeys(layers):
        if isinstance(layer, Rope):
            total += TablePlan.size(layer, context, bits)
        elif isinstance(layer, Alibi):
            total += BiasTablePlan.size(layer, context, bits)
        elif isinstance(layer, (T5Bias, RelativeBias)):
            total += shape.heads * (layer.rows * bits // 8 + ROW_SCALE_BYTES) * (layer.layers or 1)
    return total
