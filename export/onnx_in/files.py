"""Opening an ONNX file that nobody vouches for: every name, size and place is checked before it is used."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import onnx_ir.passes.common as common

from edgepos.errors import FormatError, UnsupportedError

from ..shorten import shorten
from .looks import label

LARGEST_FILE = 2**31 - 1  # of a protobuf message
LARGEST_TENSOR = 2**40  # bytes
MOST_NODES = 200_000
OLDEST_OPSET = 17
NEWEST_OPSET = onnx.defs.onnx_opset_version()
DOMAINS = ("", "ai.onnx", "com.microsoft")
LOOPS = ("Loop", "Scan", "SequenceMap")
DEEPEST = 8  # branches within branches


def open_onnx(path: Path) -> ir.Model:
    """The model of an .onnx file, weights still in the file.

    Raises FormatError for a damaged file or external data outside the file's folder, UnsupportedError for an opset, operator or domain
    that is not supported.
    """
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise FormatError(f"{path.name}: {size} bytes; an ONNX file has at most {LARGEST_FILE}, weights beyond that are external data")
    try:
        with quiet("onnx_ir", logging.CRITICAL):  # its warnings of a damaged file; the errors say it in one line
            model = ir.load(path)
    except Exception as error:  # what protobuf and onnx_ir raise for a damaged file has no common class
        raise FormatError(f"{path.name}: not a valid ONNX file ({_line(error)}); export the model again") from None
    check_model(model, path.name, path.parent)
    return model


def external_files(model: ir.Model) -> list[str]:
    """The names of the files with external data, sorted."""
    tensors = (value.const_value for graph in graphs_of(model.graph) for value in graph.initializers.values())
    return sorted({str(t.location) for t in tensors if isinstance(t, ir.ExternalTensor)})


def check_model(model: ir.Model, origin: str, folder: Path | None) -> None:
    """Check a model and inline its functions. folder: where external data must be; None allows none.

    Raises FormatError or UnsupportedError naming the node or tensor.
    """
    opset = model.graph.opset_imports.get("", model.graph.opset_imports.get("ai.onnx"))
    if opset is None or not OLDEST_OPSET <= opset <= NEWEST_OPSET:
        raise UnsupportedError(f"{origin}: opset {opset}; supported: {OLDEST_OPSET} to {NEWEST_OPSET}; export the model with one of them")
    if model.ir_version > onnx.IR_VERSION:
        raise UnsupportedError(f"{origin}: IR version {model.ir_version}; supported: up to {onnx.IR_VERSION}; export the model with an older one")
    _check_nodes(model, origin)
    if model.functions:
        _check_calls(model, origin)
        try:
            common.InlinePass()(model)
        except Exception as error:  # a function that calls itself, or with other parameters than it has
            raise FormatError(f"{origin}: its functions cannot be put in place ({_line(error)}); export the model again") from None
        _check_nodes(model, origin)
    for graph in graphs_of(model.graph):
        for name, value in graph.initializers.items():
            if value.const_value is None:
                raise FormatError(f"{origin}: initializer {shorten(name)} has no value; export the model again")
            check_tensor(value.const_value, origin, folder)
    _check_order(model.graph, origin, set())


def graphs_of(graph: ir.Graph) -> Iterator[ir.Graph]:
    """A graph and those of the branches in it."""
    waiting = [graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [a.as_graph() for node in graph for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]


def check_tensor(tensor: ir.TensorProtocol, origin: str, folder: Path | None) -> None:
    """Raise FormatError unless the bytes of a tensor are there, as many as its shape says, and inside `folder`."""
    name = shorten(tensor.name or "?")
    shape = [int(d) for d in tensor.shape]
    if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
        raise UnsupportedError(f"{origin}: tensor {name} is {tensor.dtype.name}; supported: numbers")
    if any(d < 0 for d in shape):
        raise FormatError(f"{origin}: tensor {name} has shape {shape}; sizes are at least 0")
    needed = -(-math.prod(shape) * tensor.dtype.bitwidth // 8)
    if needed > LARGEST_TENSOR:
        raise FormatError(f"{origin}: tensor {name} has shape {shape}; at most {LARGEST_TENSOR} bytes are supported")
    if isinstance(tensor, ir.ExternalTensor):
        _check_place(tensor, needed, name, origin, folder)
    elif isinstance(tensor, ir.TensorProtoTensor):
        _check_stored(tensor.raw if hasattr(tensor, "raw") else None, needed, math.prod(shape), name, origin)


def _check_stored(proto: onnx.TensorProto | None, needed: int, count: int, name: str, origin: str) -> None:
    if not isinstance(proto, onnx.TensorProto):
        return
    if proto.HasField("raw_data"):
        found, wanted = len(proto.raw_data), needed
    else:
        # Typed fields hold one number per entry; some hold several small ones, never fewer entries than bytes need.
        found = max(len(getattr(proto, f)) for f in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"))
        wanted = count if proto.data_type not in (onnx.TensorProto.INT4, onnx.TensorProto.UINT4) else needed
    if found != wanted:
        raise FormatError(f"{origin}: tensor {name} holds {found} bytes or numbers, its shape asks for {wanted}; export the model again")


def _check_place(tensor: ir.ExternalTensor, needed: int, name: str, origin: str, folder: Path | None) -> None:
    location = str(tensor.location)
    parts = Path(location).parts
    if folder is None or not location or os.path.isabs(location) or ".." in parts or "\\" in location or "\0" in location or ":" in location:
        raise FormatError(f"{origin}: tensor {name} is stored in {shorten(location)}; allowed: a file in the model's own folder, without '..'")
    place = folder
    for part in parts:
        place = place / part
        if place.is_symlink():
            raise FormatError(f"{origin}: tensor {name} is stored behind the symbolic link {shorten(location)}; put the file itself there")
    try:
        found = place.stat()
    except OSError:
        raise FormatError(f"{origin}: tensor {name} is stored in {shorten(location)}, which is missing; keep it beside the model") from None
    if not stat.S_ISREG(found.st_mode):
        raise FormatError(f"{origin}: tensor {name} is stored in {shorten(location)}, which is no file")
    offset, length = int(tensor.offset or 0), int(tensor.length if tensor.length is not None else needed)
    if length != needed or offset < 0 or offset + length > found.st_size:
        raise FormatError(
            f"{origin}: tensor {name} needs {needed} bytes, its record says {length} at byte {offset} of {shorten(location)}, which has {found.st_size}"
        )


def _check_nodes(model: ir.Model, origin: str) -> None:
    known = {(f.domain, f.name) for f in model.functions.values()}
    waiting: list[tuple[ir.Graph | ir.Function, int]] = [(graph, 0) for graph in (model.graph, *model.functions.values())]
    count = 0
    while waiting:
        graph, depth = waiting.pop()
        count += len(graph)
        if count > MOST_NODES or depth > DEEPEST:
            raise UnsupportedError(f"{origin}: more than {MOST_NODES} nodes, or branches {depth} deep; supported: up to that, and {DEEPEST} deep")
        for node in graph:
            name = f"{origin}: {label(node)}"
            if not isinstance(node.op_type, str) or not isinstance(node.domain, str):  # bytes, where protobuf finds no UTF-8
                raise FormatError(f"{name}: its operator or domain is no text; export the model again")
            if (node.domain, node.op_type) in known:
                continue
            if node.domain not in DOMAINS:
                raise UnsupportedError(f"{name}: operator of domain {shorten(node.domain)}; supported: standard operators and some of com.microsoft")
            branches = {key: a for key, a in node.attributes.items() if a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)}
            if node.op_type in LOOPS or (branches and (node.op_type != "If" or node.domain == "com.microsoft")):
                raise UnsupportedError(f"{name}: control flow; supported: If, and graphs without loops, so export without it")
            if node.op_type == "If":
                whole = sorted(branches) == ["else_branch", "then_branch"] and all(a.type == ir.AttributeType.GRAPH for a in branches.values())
                if not whole or len(node.inputs) != 1 or node.inputs[0] is None:
                    raise FormatError(f"{name}: needs a condition and the graphs then_branch and else_branch; export the model again")
                waiting += [(a.as_graph(), depth + 1) for a in branches.values()]


def _check_calls(model: ir.Model, origin: str) -> None:
    """Refuse functions that call themselves, or that would be more than MOST_NODES nodes in place: two calls in each double them."""
    calls = {key: [(n.domain, n.op_type, n.overload) for n in ir.traversal.RecursiveGraphIterator(f)] for key, f in model.functions.items()}
    nodes: dict[tuple, int] = {}  # of a function, all calls in place
    for first in calls:
        open_calls, stack = {first}, [(first, iter(calls[first]))]
        while stack:
            key, rest = stack[-1]
            waiting = next((c for c in rest if c in calls and c not in nodes), None)
            if waiting in open_calls and waiting is not None:
                raise FormatError(f"{origin}: its functions cannot be put in place ({shorten(waiting[1])} calls itself); export the model again")
            if waiting is not None:
                open_calls.add(waiting)
                stack.append((waiting, iter(calls[waiting])))
                continue
            nodes[key] = min(MOST_NODES + 1, sum(nodes[c] if c in calls else 1 for c in calls[key]))
            open_calls.discard(key)
            stack.pop()
    whole = sum(nodes.get((n.domain, n.op_type, n.overload), 1) for n in ir.traversal.RecursiveGraphIterator(model.graph))
    if whole > MOST_NODES:
        raise UnsupportedError(f"{origin}: more than {MOST_NODES} nodes with its functions in place; supported: up to that")


def _check_order(graph: ir.Graph, origin: str, outside: set[ir.Value]) -> None:
    """Every input of a node is a graph input, an initializer, or made by an earlier node; in a branch also by one outside, before it."""
    known = outside | set(graph.inputs) | set(graph.initializers.values())
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                raise FormatError(
                    f"{origin}: {label(node)} reads {shorten(value.name or '?')}, which no earlier node makes "
                    "(a missing initializer, a sparse one, or a cycle); export the model again"
                )
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                check_tensor(attribute.value, origin, None)
            elif attribute.type == ir.AttributeType.GRAPH:
                _check_order(attribute.as_graph(), origin, known)
        known.update(node.outputs)
    for value in graph.outputs:
        if value not in known:
            raise FormatError(f"{origin}: output {shorten(value.name or '?')} is made by no node; export the model again")


@contextlib.contextmanager
def quiet(name: str, least: int) -> Iterator[None]:
    """Without what a logger says below a level."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)


def _line(error: BaseException) -> str:
    while error.__cause__ is not None:  # onnx_ir wraps what is wrong in where it is
        error = error.__cause__
    text = " ".join(str(error).split())
    return (text[:200] if text else type(error).__name__).rstrip(".")
