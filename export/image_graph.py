"""ImageGraph: the canonical graph of a model that turns an image into one row of numbers.

Its input is the image as bytes, `pixels` uint8 [1, height, width, channels]. What a model's preprocessing subtracts from a byte and
divides it by is folded into the weights of the patches and the rows that are added to them (docs/arithmetic.md, PATCHES).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import onnx_ir as ir

from edgepos.errors import UnsupportedError
from edgepos.positions import Learned

from .encoder_graph import EncoderGraph
from .tensor_set import Weight

MOST_SIDE, MOST_CHANNELS, MOST_FIRST, MOST_TOKENS = 2**14, 4, 16, 2**18
ZERO = 128  # is subtracted from bytes, so that they are about as large on both sides
BYTES = 255


@dataclass(frozen=True)
class Picture:
    """An image and its patches: sizes in pixels; first: tokens in front of the patches."""

    channels: int
    height: int
    width: int
    patch: int
    first: int
    zero: int = ZERO

    def __post_init__(self):
        """Raises UnsupportedError for sizes that a program cannot have."""
        limits = {"channels": (1, MOST_CHANNELS), "height": (1, MOST_SIDE), "width": (1, MOST_SIDE), "patch": (1, MOST_SIDE), "first": (0, MOST_FIRST)}
        for name, (low, high) in (limits | {"zero": (0, BYTES)}).items():
            value = getattr(self, name)
            if type(value) is not int or not low <= value <= high:
                raise UnsupportedError(f"image: {name} is {value!r}; supported: {low} to {high}")
        if self.height % self.patch or self.width % self.patch:
            raise UnsupportedError(f"image: {self.height} × {self.width} pixels in patches of {self.patch}; supported: whole patches")
        if self.tokens > MOST_TOKENS:
            raise UnsupportedError(f"image: {self.tokens} tokens; supported: at most {MOST_TOKENS}")

    @property
    def grid(self) -> tuple[int, int]:
        """Patches down and across."""
        return self.height // self.patch, self.width // self.patch

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.first + self.grid[0] * self.grid[1]

    @property
    def row(self) -> int:
        """Bytes of a patch."""
        return self.patch**2 * self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.height, self.width, self.channels


@dataclass(frozen=True)
class Preprocessing:
    """What a model is given instead of a byte: (byte − mean) / deviation, both by channel, in bytes."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


def fold(
    picture: Picture, how: Preprocessing, kernel: np.ndarray, bias: np.ndarray | None, first: Sequence[np.ndarray], positions: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(weights float32 [d, bytes of a patch], rows float32 [tokens, d]) for bytes minus the zero, each rounded once.

    kernel: of the convolution that reads patches, [d, channels, patch, patch]; bias [d]; first: a row [d] for each token in front of
    them; positions [tokens, d].
    """
    kernel, rows = np.asarray(kernel, np.float64), np.array(positions, np.float64)
    deviation, mean = (np.array(x, np.float64)[:, None, None] for x in (how.deviation, how.mean))
    weights = (kernel / deviation).transpose(0, 2, 3, 1).reshape(len(kernel), -1)
    shift = (kernel * ((picture.zero - mean) / deviation)).sum(axis=(1, 2, 3))
    rows[picture.first :] += shift if bias is None else shift + np.asarray(bias, np.float64)
    for i, row in enumerate(first):
        rows[i] += np.asarray(row, np.float64)
    return weights.astype(np.float32), rows.astype(np.float32)


class ImageGraph(EncoderGraph):
    """Builds one canonical graph with the input ``pixels`` and the output ``embedding`` [1, d]."""

    def __init__(self, *, name: str, family: str, picture: Picture):
        super().__init__(name=name, family=family, context=picture.tokens)
        self.picture = picture
        self._inputs.clear()
        self.pixels = self._input("pixels", ir.DataType.UINT8, (1, *picture.shape))

    def classes(self, count: int, names: Sequence[str] | None) -> None:
        """The output holds one logit per class; they are LABEL_0, LABEL_1 … where there are not as many ``names``."""
        named = names is not None and len(names) == count
        self._metadata["edgepos.classes"] = json.dumps(list(names) if named else [f"LABEL_{i}" for i in range(count)])

    def patches(self, weight: Weight, rows: Weight) -> ir.Value:
        """The patches times ``weight`` [d, bytes of a patch] plus ``rows`` [tokens, d] -> [1, tokens, d]; both as ``fold`` makes them."""
        p = self.picture
        (down, across), line = p.grid, p.patch * p.channels
        metadata = {"edgepos.image": json.dumps(asdict(p))}
        x = self._op("Cast", [self.pixels], "patches.float", (1, *p.shape), metadata=metadata, to=int(ir.DataType.FLOAT))
        x = self._op("Sub", [x, self._constant("image.zero", np.array(p.zero, np.float32))], "patches.signed", (1, *p.shape))
        grid = np.array([1, down, p.patch, across, line], np.int64)
        x = self._op("Reshape", [x, self._constant("image.grid", grid)], "patches.cut", tuple(grid.tolist()))
        x = self._op("Transpose", [x], "patches.side_by_side", (1, down, across, p.patch, line), perm=[0, 1, 3, 2, 4])
        shape = np.array([1, down * across, p.row], np.int64)
        name = "patches.rows" if p.first else "patches"
        x = self._op("Reshape", [x, self._constant("image.shape", shape)], name, tuple(shape.tolist()))
        if p.first:
            zeros = self._constant("image.first", np.zeros((1, p.first, p.row), np.float32))
            x = self._op("Concat", [zeros, x], "patches", (1, p.tokens, p.row), axis=1)
        x = self.linear(x, "patches.linear", weight)
        metadata = {"edgepos.position": json.dumps(Learned(p.tokens).to_json())}
        table = self._op("Identity", [self._weight(rows)], "positions", tuple(rows.shape), metadata=metadata)
        return self._op("Add", [x, table], "embed.positions", tuple(x.shape))
