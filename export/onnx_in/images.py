"""Graphs that read an image: their input, and the convolution that cuts it into patches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgepos.errors import UnsupportedError

from ..image_graph import MOST_FIRST, Picture, Preprocessing, fold
from ..preprocessing import PREPROCESSOR, read_preprocessing
from ..shorten import shorten
from ..tensor_set import Weight
from .frame import Frame, output_of
from .sources import Patches
from .values import NOTHING, Form, pure

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
PLAIN = ("Cast", "Identity")
FORM = "one convolution whose steps are its kernel's size, on pixels as the image processor gives them"


@dataclass(frozen=True, eq=False)
class Pixels:
    """The input of an image, [1, channels, height, width]."""

    shape: tuple[int, ...]


class FirstFound(Exception):
    """How many tokens stand in front of the patches."""

    def __init__(self, first: int):
        super().__init__(first)
        self.first = first


@dataclass(frozen=True, eq=False)
class ImageFrame(Frame):
    """A Frame whose `ids` is the input of pixels. picture: sizes; how: what the image processor does to a byte; files: that say so;
    labels: names of the classes whose logits the output is, or None."""

    picture: Picture
    how: Preprocessing
    files: tuple[Path, ...] = ()
    labels: tuple[str, ...] | None = None

    def behind(self, first: int) -> ImageFrame:
        """The frame with so many tokens in front of the patches."""
        picture = replace(self.picture, first=first)
        return replace(self, picture=picture, fixed=picture.tokens)

    def sample(self, rng: np.random.Generator, _vocab: int, _length: int) -> np.ndarray:
        return rng.integers(0, 256, self.picture.shape).astype(np.uint8)

    def feed(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """The inputs for pixels uint8 [height, width, channels], by name."""
        x = (ids.astype(np.float64) - self.how.mean) / self.how.deviation
        return {self.ids.name: np.ascontiguousarray(x.transpose(2, 0, 1)[None], self.ids.dtype.numpy())}


def image_frame(graph: ir.Graph, origin: str, processor: Path | None, labels: tuple[str, ...] | None) -> ImageFrame | None:
    """The frame of a graph whose only input is an image; None for any other. Raises UnsupportedError or FormatError for an image that is
    not understood."""
    inputs = [value for value in graph.inputs if value.const_value is None]
    if len(inputs) != 1 or inputs[0].dtype not in FLOATS or inputs[0].shape is None or len(inputs[0].shape) != 4:
        return None
    pixels = inputs[0]
    batch, *sizes = (d if isinstance(d, int) else None for d in pixels.shape)
    if None in sizes or batch not in (1, None):
        raise UnsupportedError(f"{origin}: input {shorten(pixels.name)} {[str(d) for d in pixels.shape]}; supported: one image of a fixed size")
    channels, height, width = sizes
    kernel = _kernel(pixels, origin)
    picture = Picture(channels, height, width, kernel, 0)
    if processor is None:
        raise UnsupportedError(f"{origin}: what is subtracted from a pixel is unknown; give the {PREPROCESSOR} of the model with image_processor= (--image-processor)")
    how, file = read_preprocessing(processor, channels)
    return ImageFrame(pixels, {}, output_of(graph, origin), picture.tokens, picture, how, (file,), labels)


def _kernel(pixels: ir.Value, origin: str) -> int:
    """The size of the patches: of the kernel of the convolution that reads the pixels."""
    value = pixels
    while True:
        users = [use.node for use in value.uses() if use.node.op_type != "Shape"]
        if len(users) == 1 and users[0].op_type in PLAIN:
            value = users[0].outputs[0]
            continue
        weight = users[0].inputs[1] if len(users) == 1 and users[0].op_type == "Conv" and len(users[0].inputs) > 1 else None
        sizes = list(weight.shape) if weight is not None and weight.shape is not None else []
        if len(sizes) != 4 or not isinstance(sizes[3], int):
            what = ", ".join(node.op_type for node in users[:3]) or "nothing"
            raise UnsupportedError(f"{origin}: input {shorten(pixels.name)} is read by {what}; supported: {FORM}")
        return sizes[3]


def _conv(reader, node: ir.Node, arguments: list) -> Form:
    x, kernel, bias = [*arguments, None][:3]
    writer, a = reader.writer, node.attributes
    if not isinstance(x, Pixels) or not isinstance(kernel, np.ndarray) or not (bias is None or isinstance(bias, np.ndarray)):
        raise reader.unknown(node, arguments)
    p = writer.graph.picture
    size = [p.patch, p.patch]
    plain = list(a.get_ints("strides", [1, 1])) == size and not any(a.get_ints("pads", [])) and a.get_int("group", 1) == 1
    plain &= all(d == 1 for d in a.get_ints("dilations", [])) and a.get_string("auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not plain or kernel.shape[1:] != (p.channels, *size) or (bias is not None and bias.shape != kernel.shape[:1]):
        raise writer.refuse(f"a convolution with a kernel {list(kernel.shape)} that is no cut into patches", FORM)
    (down, across), d = p.grid, len(kernel)
    source = reader.sources.new(Patches(kernel, bias), d)
    codes = source.base + p.first * d + np.arange(down * across * d, dtype=np.int64)
    return pure(codes.reshape(1, down, across, d).transpose(0, 3, 1, 2))


def patches_of(writer, tensor: Form) -> ir.Value | None:
    """The value of patches behind learned rows with their positions added, or None for a tensor of other results. Raises FirstFound when
    the number of rows in front of the patches is not the one that the graph is read with."""
    used = writer.sources.used(tensor.codes)
    if not any(isinstance(source.what, Patches) for source in used):
        return None
    p, d = writer.graph.picture, used[0].width
    if len(used) != 1 or len(tensor.shape) != 3 or tensor.shape[0] != 1 or tensor.shape[2] != d or len(tensor.codes) != 1:
        raise writer.refuse("patches that are joined with other results, or parts of them", "all patches in order behind learned rows")
    first = tensor.shape[1] - p.grid[0] * p.grid[1]
    if first != p.first and 0 <= first <= MOST_FIRST:
        raise FirstFound(first)
    codes, coefs = tensor.codes[0, 0], tensor.coefs[0, 0]
    wanted = used[0].base + np.arange(p.tokens * d, dtype=np.int64).reshape(p.tokens, d)
    if len(codes) != p.tokens or (codes[: p.first] != NOTHING).any() or (codes[p.first :] != wanted[p.first :]).any() or (coefs[p.first :] != 1).any():
        raise writer.refuse("patches in another order, or times a factor", "all patches in order behind learned rows")
    rows = np.zeros((p.tokens, d)) if tensor.const is None else np.broadcast_to(tensor.const, tensor.shape)[0]
    weight, table = fold(p, writer.preprocessing, used[0].what.kernel, used[0].what.bias, [], rows)
    return writer.graph.patches(Weight(writer.name("patches.weight"), weight, weight.shape), Weight(writer.name("patches.rows_by_position"), table, table.shape))


OPERATORS = {"Conv": _conv}
