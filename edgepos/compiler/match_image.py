"""The image in a canonical graph: bytes cut into patches, and the rows that are added to them."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ..errors import EdgePosError, UnsupportedError
from ..export.image_graph import Picture
from ..positions import Learned
from .match_tables import POSITION
from .nodes import attributes, describe, float_initializer, input_count, refuse, reshape_dims, scalar

PIXELS, IMAGE, CLASSES = "pixels", "edgepos.image", "edgepos.classes"
FORM = "Cast(pixels), Sub(zero), Reshape, Transpose, Reshape and Concat behind zeros, as export/image_graph.py writes them"


def picture_of(node: ir.Node, pixels: ir.Value) -> tuple[Picture, ir.Value, list[ir.Node]]:
    """(sizes, the value [1, tokens, bytes of a patch], the nodes that make it) from the Cast of the pixels.

    Raises UnsupportedError naming the node that differs.
    """
    try:
        picture = Picture(**json.loads(node.metadata_props[IMAGE]))
    except (ValueError, TypeError, EdgePosError) as error:
        raise refuse(node, f"metadata {IMAGE}: {error}", "the sizes of an image") from None
    attributes(node, to=int(ir.DataType.FLOAT), saturate=1)
    if pixels is None:
        raise refuse(node, "no graph input pixels", FORM)
    given = [d if isinstance(d, int) else None for d in pixels.shape or ()]
    if node.inputs[0] is not pixels or pixels.dtype != ir.DataType.UINT8 or given != [1, *picture.shape]:
        raise refuse(node, f"input {describe(node.inputs[0])}", f"the graph input {PIXELS}, uint8 {[1, *picture.shape]}")
    (down, across), line = picture.grid, picture.patch * picture.channels
    nodes = [node]

    def behind(op: str, count: int) -> ir.Node:
        uses = list(nodes[-1].outputs[0].uses())
        if len(uses) != 1 or uses[0].node.op_type != op or uses[0].idx != count - 1 and op == "Concat" or uses[0].idx and op != "Concat":
            raise refuse(nodes[-1], "what follows it", FORM)
        nodes.append(uses[0].node)
        input_count(nodes[-1], count)
        return nodes[-1]

    sub = behind("Sub", 2)
    if scalar(sub, 1) != picture.zero:
        raise refuse(sub, f"{describe(sub.inputs[1])} is subtracted", f"{picture.zero}")
    for op, dims in (("Reshape", [1, down, picture.patch, across, line]), ("Transpose", None), ("Reshape", [1, down * across, picture.row])):
        part = behind(op, 1 if dims is None else 2)
        if dims is None:
            attributes(part, perm=[0, 1, 3, 2, 4])
            if not part.attributes.get_ints("perm", []):
                raise refuse(part, "no perm", "perm [0, 1, 3, 2, 4]")
        elif reshape_dims(part) != dims:
            raise refuse(part, f"shape {reshape_dims(part)}", f"{dims}")
    if picture.first:
        part = behind("Concat", 2)
        attributes(part, axis=1)
        zeros = part.inputs[0].const_value if part.inputs[0] is not None else None
        if zeros is None or tuple(zeros.shape) != (1, picture.first, picture.row) or np.any(zeros.numpy()):
            raise refuse(part, f"{describe(part.inputs[0])} in front", f"zeros [1, {picture.first}, {picture.row}]")
    return picture, nodes[-1].outputs[0], nodes


def rows_of_image(node: ir.Node, picture: Picture | None) -> str:
    """The initializer [tokens, d] of an Identity that stands for the rows by position."""
    attributes(node)
    if picture is None or POSITION not in node.metadata_props:
        raise refuse(node, "an Identity", "one of the rows that are added to the patches of an image")
    name = float_initializer(node, 0, rank=2)
    if int(node.inputs[0].const_value.shape[0]) != picture.tokens or node.metadata_props[POSITION] != json.dumps(Learned(picture.tokens).to_json()):
        raise refuse(node, f"table {describe(node.inputs[0])} of {node.metadata_props[POSITION]}", f"a row for each of {picture.tokens} tokens")
    return name


def labels_of(metadata: Mapping[str, str], width: int) -> tuple[str, ...] | None:
    """The names of the classes that the output has logits of; None: it is an embedding. Raises UnsupportedError."""
    if CLASSES not in metadata:
        return None
    try:
        labels = json.loads(metadata[CLASSES])
    except ValueError:
        labels = None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels) or len(labels) != width:
        raise UnsupportedError(f"metadata {CLASSES} is no JSON list of {width} names, one for each number of the output")
    return tuple(labels)
