"""Values that do not depend on the token ids, computed at any length of the input, with every size checked before memory is taken."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from edgepos.errors import EdgePosError, FormatError

from .looks import label, refuse
from .precision import CACHED, Widened, rounding_in

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
MOST_ELEMENTS = 2**26  # of a computed constant
MOST_MOVED = 2**23  # of a tensor that depends on the ids, at the length of reading
ELEMENTWISE = frozenset(
    "Abs Add And BitwiseAnd BitwiseOr BitwiseNot Cast CastLike Ceil Clip Cos DequantizeLinear Div Equal Erf Exp Floor Greater GreaterOrEqual "
    "Identity IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid Sign Sin Sqrt Sub Sum Tanh Where Xor".split()
)
SHRINKING = frozenset(
    "ArgMax ArgMin Compress CumSum Dropout Flatten NonZero ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Reshape Shape Size Slice Softmax "
    "Split Squeeze Transpose Trilu Unsqueeze".split()
)
SIZED = frozenset(
    "Concat Constant ConstantOfShape Einsum Expand EyeLike Gather GatherElements GatherND MatMul Gemm OneHot Pad Range ScatterElements ScatterND Tile".split()
)
ASKED = ("Shape", "Size", "Not", "IsInf")  # of a tensor that depends on the ids: its shape, whether ids are no padding, whether it overflows
CHOICE = "edgepos.choice"  # domain of an If whose branches are its inputs
KNOWN = ELEMENTWISE | SHRINKING | SIZED


class Constants:
    """The constants of one graph. `inputs` gives the value of a graph input at a length, or None for the token ids; rounding: what numbers near 1
    among the graph's weights may be off by for being stored in 16 bits, or 0."""

    def __init__(self, graph: ir.Graph, inputs: Sequence[tuple[ir.Value, object]], length: int):
        self.length = length
        self.rounding = rounding_in(graph)
        self._opset = graph.opset_imports.get("", graph.opset_imports.get("ai.onnx", 0))
        self._inputs = dict(inputs)
        self._weights: dict[ir.Value, np.ndarray] = {}
        self._shapes: dict[ir.Value, tuple[int, ...]] = {}
        self._evaluators: dict[ir.Node, ReferenceEvaluator] = {}

    def is_given(self, value: ir.Value) -> bool:
        """Whether a value is an initializer or an input whose value is known."""
        return value.const_value is not None or self._inputs.get(value) is not None

    def given(self, value: ir.Value, length: int) -> np.ndarray:
        """An initializer, or an input at a length."""
        if value.const_value is None:
            return self._inputs[value](length)
        if value not in self._weights:
            self._weights[value] = as_numpy(value.const_value)
        return self._weights[value]

    def note_shape(self, value: ir.Value, shape: tuple[int, ...]) -> None:
        """Record the shape at the length of reading of a tensor that depends on the ids."""
        self._shapes[value] = shape

    def run(self, node: ir.Node, arguments: list[np.ndarray | None]) -> list[np.ndarray]:
        """The outputs of a node for constant inputs. Raises UnsupportedError or FormatError naming the node."""
        if node.domain == CHOICE:
            return [arguments[1] if arguments[0].item() else arguments[2]]
        if node.op_type not in KNOWN or node.domain not in ("", "ai.onnx"):
            found = "random numbers" if node.op_type.startswith("Random") else "an operator on values that do not depend on the token ids"
            raise refuse(node, found, "those that tables, masks and weights are usually computed with")
        _check_count(node, _elements(node, arguments), MOST_ELEMENTS)
        try:
            if node.op_type == "GatherND" and not node.attributes.get_int("batch_dims", 0):
                return [arguments[0][tuple(np.moveaxis(arguments[1], -1, 0))]]
            if node.op_type == "GatherElements":
                return [_gather_elements(arguments[0], arguments[1], node.attributes.get_int("axis", 0))]
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                return self._evaluate(node, arguments)
        except EdgePosError:
            raise
        except Exception as error:  # the reference raises whatever NumPy does
            raise FormatError(f"{label(node)}: cannot be computed ({' '.join(str(error).split())[:200]})") from None

    def _evaluate(self, node: ir.Node, arguments: list[np.ndarray | None]) -> list[np.ndarray]:
        if node not in self._evaluators:
            names = [f"i{i}" if value is not None else "" for i, value in enumerate(node.inputs)]
            outputs = [f"o{i}" for i in range(len(node.outputs))]
            proto = ir.to_proto(node)
            del proto.input[:], proto.output[:]
            proto.input.extend(names)
            proto.output.extend(outputs)
            opset = onnx.helper.make_opsetid("", self._opset)
            function = onnx.helper.make_function("edgepos", "one", [n for n in names if n], outputs, [proto], [opset])
            self._evaluators[node] = ReferenceEvaluator(function)
        feed = {f"i{i}": a for i, a in enumerate(arguments) if a is not None}
        return [np.asarray(y) for y in self._evaluators[node].run(None, feed, attributes={})]

    def move(self, node: ir.Node, array: np.ndarray, rest: list[np.ndarray | None]) -> list[np.ndarray]:
        """What a node that moves elements does to `array` as its first input."""
        _check_count(node, _elements(node, [array, *rest]), MOST_MOVED)
        return self.run(node, [array, *rest])

    def at(self, value: ir.Value, length: int) -> np.ndarray:
        """A constant at another length of the input.

        Shapes of tensors that depend on the ids are those of the reading with its length replaced: that length is a prime that divides
        no other size. Raises UnsupportedError or FormatError when it cannot be computed there.
        """
        return self.given(value, length) if self.is_given(value) else self._computed([value], length)[value]

    def check_sizes(self, values: list[ir.Value], length: int) -> None:
        """Compute constants at a length for the sake of the checks. Raises UnsupportedError for one that is too large there."""
        self._computed([value for value in dict.fromkeys(values) if not self.is_given(value)], length)

    def _computed(self, values: list[ir.Value], length: int) -> dict[ir.Value, np.ndarray]:
        wanted = set(values)
        order, waiting = self.cone(values)
        held: dict[ir.Value, np.ndarray] = {}
        for node in order:
            arguments = []
            for x in node.inputs:
                arguments.append(None if x is None else held[x] if x in held else self.given(x, length) if self.is_given(x) else self._shaped(x, node, length))
            for out, array in zip(node.outputs, self.run(node, arguments)):
                held[out] = array
            for x in node.inputs:
                if x in waiting:
                    waiting[x] -= 1
                    if not waiting[x] and x not in wanted:
                        held.pop(x, None)
        return held

    def cone(self, values: list[ir.Value]) -> tuple[list[ir.Node], dict[ir.Value, int]]:
        """The nodes constants need, in order, and how often each value is read by them."""
        order: dict[ir.Node, None] = {}
        waiting: dict[ir.Value, int] = {}
        stack: list[tuple[ir.Node, bool]] = [(value.producer(), False) for value in values]
        while stack:
            node, ready = stack.pop()
            if node in order:
                continue
            if ready:
                order[node] = None
                for x in node.inputs:
                    if x is not None:
                        waiting[x] = waiting.get(x, 0) + 1
                continue
            stack.append((node, True))
            if node.op_type in ASKED and node.inputs[0] in self._shapes:
                continue
            for x in node.inputs:
                if x is not None and not self.is_given(x) and x.producer() is not None and x.producer() not in order:
                    stack.append((x.producer(), False))
        return list(order), waiting

    def _shaped(self, value: ir.Value, node: ir.Node, length: int) -> np.ndarray:
        """A stand-in for a tensor of which only the shape is asked, or what is the same for all."""
        if node.op_type not in ASKED or value not in self._shapes:
            raise refuse(node, "depends on the token ids", "constants")
        shape = [d // self.length * length if d % self.length == 0 else d for d in self._shapes[value]]
        return np.broadcast_to(np.bool_(False) if node.op_type == "Not" else np.float32(0), shape)


def longest_working(works: Callable[[int], bool], low: int, high: int) -> int:
    """The largest length that works, from one that does to one that does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _elements(node: ir.Node, arguments: list[np.ndarray | None]) -> int:
    """How many elements the first output of a node will have, at most."""
    arrays = [a for a in arguments if a is not None]
    op = node.op_type
    if op in SHRINKING:
        return 0
    try:
        if op in ELEMENTWISE:
            return math.prod(np.broadcast_shapes(*(a.shape for a in arrays if a.ndim))) if op != "DequantizeLinear" else arrays[0].size
        if op == "Einsum":
            letters = node.attributes.get_string("equation", "").split("->")[0].replace(" ", "").split(",")
            sizes = {letter: d for axes, a in zip(letters, arrays, strict=True) for letter, d in zip(axes, a.shape, strict=True)}
            return math.prod(sizes.values())
        if op == "Expand":
            return math.prod(np.broadcast_shapes(arrays[0].shape, tuple(int(d) for d in arrays[1])))
        if op == "ConstantOfShape":
            return math.prod(max(0, int(d)) for d in arrays[0])
        if op == "Range":
            start, limit, step = (float(a) for a in arrays[:3])
            return max(0, math.ceil((limit - start) / step)) if step else 0
        if op == "Tile":
            return arrays[0].size * math.prod(max(0, int(d)) for d in arrays[1])
        if op == "Pad":
            return math.prod(d + abs(int(a)) + abs(int(b)) for d, a, b in zip(arrays[0].shape, arrays[1][: arrays[0].ndim], arrays[1][arrays[0].ndim :]))
        if op == "OneHot":
            return arrays[0].size * int(np.ravel(arrays[1])[0])
        if op in ("MatMul", "Gemm"):
            return arrays[0].size // max(1, arrays[0].shape[-1]) * arrays[1].size
        if op in ("Gather", "GatherND"):
            axis = node.attributes.get_int("axis", 0)
            return arrays[1].size * math.prod(d for i, d in enumerate(arrays[0].shape) if i != axis % max(1, arrays[0].ndim))
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        raise FormatError(f"{label(node)}: its inputs do not fit together ({' '.join(str(error).split())[:160]})") from None
    return sum(a.size for a in arrays)


def check_size(node: ir.Node, arguments: list) -> None:
    """Refuse an operator on a tensor that depends on the ids whose inputs, repeated to fit each other, pass MOST_MOVED.

    A constant that is not repeated is there already, and is not counted.
    """
    if node.op_type not in ELEMENTWISE and node.op_type != "MatMul":
        return
    kept = 2 if node.op_type == "MatMul" else 0  # axes that do not repeat
    shapes = [a.shape[: len(a.shape) - kept] for a in arguments]
    repeated = math.prod(np.broadcast_shapes(*shapes))
    rows = [math.prod(a.shape[len(a.shape) - kept :]) for a, own in zip(arguments, shapes) if not isinstance(a, np.ndarray) or math.prod(own) < repeated]
    _check_count(node, repeated * max(rows), MOST_MOVED)


def _check_count(node: ir.Node, count: int, most: int) -> None:
    if count > most:
        raise refuse(node, f"a result of {count} elements", f"at most {most}")


def _gather_elements(data: np.ndarray, indices: np.ndarray, axis: int) -> np.ndarray:
    """GatherElements; the reference evaluator takes no indices of fewer rows than the data has."""
    axis %= data.ndim
    part = data[tuple(slice(None) if a == axis else slice(n) for a, n in enumerate(indices.shape))]
    return np.take_along_axis(part, np.where(indices < 0, indices + data.shape[axis], indices), axis)


def as_numpy(tensor: ir.TensorProtocol) -> np.ndarray:
    """A tensor as NumPy: bfloat16 and float8 as float32, a large one of float16 as it is stored, the others as they are. Raises FormatError for
    one that cannot be read."""
    try:
        array = (tensor.stored if isinstance(tensor, Widened) and tensor.size > CACHED else tensor).numpy()
        return array.astype(np.float32) if array.dtype.kind == "V" or array.dtype.name.startswith(("bfloat", "float8")) else array
    except Exception as error:  # a damaged tensor fails in many ways
        raise FormatError(f"tensor '{tensor.name}': cannot be read ({' '.join(str(error).split())[:200]})") from None
