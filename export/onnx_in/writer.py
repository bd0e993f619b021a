"""Writer: turns what was read into nodes of the canonical graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from edgepos.errors import EdgePosError, UnsupportedError

from ..block_rows import BlockRows
from ..graph import GraphBuilder
from ..image_graph import Preprocessing
from ..tensor_set import Weight
from . import activations
from .attention import write_attention
from .constants import Constants, longest_working
from .linears import same_rows
from .images import patches_of
from .looks import refuse
from .positions import add_positions
from .sources import Centered, Heads, Linear, Made, Norm
from .values import Form, Function, Source, Sources, pure


class LimitFound(Exception):
    """The graph's tables hold fewer positions than the context asked for."""

    def __init__(self, positions: int):
        super().__init__(positions)
        self.positions = positions


@dataclass(frozen=True, eq=False)
class Cached:
    """A table [positions, pairs], float64, as it is at the length of reading; at(n): in a text of n tokens."""

    array: np.ndarray
    at: Callable[[int], np.ndarray]


class Writer:
    """Materialises tensors of one reading. `at` is the node being read, for messages; `written` says which canonical
    value a tensor became, `foreign` which value of the source holds the same numbers."""

    def __init__(
        self, graph: GraphBuilder, sources: Sources, constants: Constants, context: int, inv_freqs: list[np.ndarray], fixed: int | None, encoder: bool,
        preprocessing: Preprocessing | None,
    ):  # fmt: skip
        self.graph, self.sources, self.constants, self.context = graph, sources, constants, context
        self.inv_freqs = inv_freqs
        self.longest = 2**31 if fixed is None else fixed  # tokens the graph can be asked for
        self.encoder = encoder
        self.preprocessing = preprocessing  # of a graph that reads an image
        self.at: ir.Node | None = None
        self.foreign: dict[ir.Value, ir.Value] = {}
        self.lengthy: dict[ir.Value, np.ndarray] = {}  # constants that differ by token, as they are at the length of reading
        self.caches: list[tuple[Cached, Cached]] = []  # cos and sin of rotation operators
        # Where the rotation depends on the length: the longest text that has that of short ones, the shortest that has the context's.
        self.changes: tuple[int, int] | None = None
        self.padding: int | None = None  # the id that the graph takes for padding
        self.zeroed: int | None = None  # the id whose embedding the graph makes zero
        self.layers = 0
        self.part = ""  # of a linear that is used in parts: q, k or v
        self.placed = False
        self.shifted: ir.Value | None = None  # the embeddings, where a row was added to all of them
        self.embedding: tuple[str, np.ndarray | BlockRows] | None = None  # name and table
        self.grids: dict[str, BlockRows] = {}  # weights that are codes in the graph
        self.narrow: dict[str, float] = {}  # canonical tables of positions that the graph has in 16 bits only: name → what those may be off by
        self.cache: dict[object, object] = {}
        self.written: dict[Form | Function, ir.Value] = {}
        self._names: set[str] = set()
        self._remade: dict[Form | Function, Form] = {}

    @property
    def length(self) -> int:
        return self.sources.length

    def limit(self, positions: int) -> None:
        """Note that a table of the graph ends; raises LimitFound when the context is longer."""
        self.longest = min(self.longest, positions)
        if positions < self.context:
            raise LimitFound(positions)

    def whole(self, value: ir.Value) -> np.ndarray:
        """A constant that differs by token, over the whole context. Raises LimitFound when the graph cannot make it so long."""
        if self.context <= self.length:
            return self.lengthy[value]

        def at(n: int) -> np.ndarray | None:
            try:
                array = self.constants.at(value, n)
            except EdgePosError:
                return None
            return array if array.shape == tuple(n if d == self.length else d for d in self.lengthy[value].shape) else None

        array = at(self.context)
        if array is not None:
            return array
        raise LimitFound(longest_working(lambda n: at(n) is not None, self.length, self.context))

    def cached(self, value: ir.Value, array: np.ndarray) -> Cached:
        """A table of positions that the graph holds as `value`."""

        def at(n: int) -> np.ndarray:
            with np.errstate(all="ignore"):  # what is no number fails in the comparison
                return np.asarray(self.constants.at(value, n), np.float64)

        self.limit(len(at(self.context)))
        return Cached(np.asarray(array, np.float64), at)

    def name(self, wanted: str) -> str:
        """A name no other node, tensor or input has, equal to `wanted` where it is free."""
        name, n = wanted, 1
        while name in self._names:
            n += 1
            name = f"{wanted}.{n}"
        self._names.add(name)
        return name

    def refuse(self, found: str, supported: str) -> UnsupportedError:
        return refuse(self.at, found, supported)

    # ---- tensors

    def made(self, value: ir.Value, shape: tuple[int, ...] | None = None) -> Form:
        """A value of the canonical graph as a tensor of the given shape, [1, S, width] by default."""
        return self.sources.form(self.sources.new(Made(value), int(value.shape[2])), shape)

    def remade(self, tensor: Form | Function) -> Form:
        """A tensor as components of its own; every later reader of `tensor` gets the same ones (see `current`)."""
        if tensor not in self._remade:
            self._remade[tensor] = self.made(self.value(tensor), tensor.shape)
        return self._remade[tensor]

    def as_form(self, tensor: object) -> object:
        """A tensor that functions of its components are made of first."""
        return self.remade(tensor) if isinstance(tensor, Function) else tensor

    def current(self, tensor: object) -> object:
        """What stands for a tensor by now."""
        return self._remade.get(tensor, tensor) if isinstance(tensor, (Form, Function)) else tensor

    def value(self, tensor: Form | Function) -> ir.Value:
        """The canonical value [1, S, width] with the elements of a tensor in their order. Raises UnsupportedError naming the node being read."""
        value = self._function(tensor) if isinstance(tensor, Function) else self._rows_value(tensor)
        self.written[tensor] = value
        return value

    def _rows_value(self, tensor: Form) -> ir.Value:
        image = patches_of(self, tensor) if self.preprocessing is not None else None
        if image is not None:
            return image
        rows = self.rows(tensor)
        key = (rows.codes.tobytes(), rows.coefs.tobytes(), None if rows.const is None else rows.const.tobytes())
        if key not in self.cache:
            self.cache[key] = self._value(rows)
        return self.cache[key]

    def rows(self, tensor: Form) -> Form:
        """A tensor as [S, width]."""
        n = int(np.prod(tensor.shape, dtype=np.int64))
        if not n or n % self.length:
            raise self.refuse(f"a tensor of shape {list(tensor.shape)} for {self.length} tokens", "one row per token")
        shape = (self.length, n // self.length)
        const = None if tensor.const is None else np.ascontiguousarray(tensor.const).reshape(shape)
        return Form(tensor.codes.reshape(-1, *shape), tensor.coefs.reshape(-1, *shape), const)

    def _value(self, rows: Form) -> ir.Value:
        if len(rows.codes) > 1 and all([type(s.what) for s in self.sources.used(term)] == [Linear] for term in rows.codes):
            return self._sum_of_linears(rows)
        if len(rows.codes) != 1 or (rows.codes < 0).any():
            raise self.refuse("a sum of components that is no rotation, or a constant beside components", "residual sums, and rotations of q and k")
        number, token, component = self.sources.decode(rows.codes[0])
        if (token != np.arange(self.length)[:, None]).any():
            raise self.refuse("a tensor that mixes or drops tokens", "all tokens in order, mixed by attention only")
        used = self.sources.used(rows.codes)
        if any((x[1:] != x[:1]).any() for x in (number, component)):
            raise self.refuse("a tensor whose components differ by token", "the same components for every token")
        if (rows.coefs[0] != rows.coefs[0, :1]).any():
            raise self.refuse("components times a factor that differs by token", "rotations of q and k inside attention")
        const, factor = rows.const, rows.coefs[0, 0]
        if const is not None and (const != const[:1]).any():
            return add_positions(self, self.value(Form(rows.codes, rows.coefs)), const)
        const = None if const is None else const[0]
        kinds = {type(source.what) for source in used}
        if kinds == {Linear}:
            return self._linear(used, number[0], component[0], factor, const)
        if kinds == {Heads} and const is None and (factor == 1).all():
            return write_attention(self, used, rows.codes[0, 0])
        if len(used) != 1:
            raise self.refuse("a tensor joined from different results", "the parts of one linear or the heads of one attention")
        return self._single(used[0], component[0], factor, const)

    def _sum_of_linears(self, rows: Form) -> ir.Value:
        """Products of one matrix with results that stood side by side (`linears.joints`)."""
        total = self.value(Form(rows.codes[:1], rows.coefs[:1], rows.const))
        for i in range(1, len(rows.codes)):
            part = self.value(Form(rows.codes[i : i + 1], rows.coefs[i : i + 1]))
            total = self.graph.add(total, part, self.name(f"{total.name}.sum"))
        return total

    def _single(self, source: Source, component: np.ndarray, factor: np.ndarray, const: np.ndarray | None) -> ir.Value:
        what = source.what
        if len(component) != source.width or (component != np.arange(source.width)).any():
            raise self.refuse("a part of a result, or its components in another order", "whole results, except of linears and attention")
        if isinstance(what, Norm):
            n = source.width // what.groups
            parts = factor.reshape(what.groups, n)
            shift = None if const is None else const.reshape(what.groups, n)
            if (parts != parts[:1]).any() or (shift is not None and (shift != shift[:1]).any()):
                raise self.refuse("a norm of heads whose weights differ by head", "one weight vector for all heads")
            return self._norm(what, parts[0], None if shift is None else shift[0])
        if isinstance(what, Made):
            if (factor == 1).all() and const is None and what.value is not self.shifted:
                return what.value
            if (factor == 1).all() and const is not None and self._shift(what.value, const):
                return what.value
            if const is None and (factor == factor[0]).all() and what.value.producer().op_type == "Gather" and factor[0] > 0:
                return self.graph.scaled(what.value, self.name("embed.scaled"), float(factor[0]))
        looks = "centered values that no norm follows" if isinstance(what, Centered) else "a result times or plus a constant"
        raise self.refuse(looks, "constants on embeddings (one factor), linears, norms, and scores")

    def _shift(self, embed: ir.Value, row: np.ndarray) -> bool:
        """Add a row, as that of the one type of tokens, to the table of embeddings that nothing has read yet."""
        if embed.name != "embed" or embed.uses():
            return False
        name, table = self.embedding
        self.shifted = embed
        rows = (np.asarray(table, np.float32) + row).astype(np.float32)
        self.graph.read_instead(embed, Weight(self.name(f"{name.removesuffix('.weight')}.sum.weight"), rows, rows.shape))
        return True

    # ---- nodes

    def weight(self, name: str, array: np.ndarray | BlockRows, stored: str | None = None) -> Weight:
        """A weight with a name of its own, or with the name `stored` under which the graph holds it."""
        key = ("weight", stored)
        if stored is not None and key in self.cache and same_rows(self.cache[key].array, array):
            return self.cache[key]
        readable = stored is not None and stored.endswith(".weight")
        weight = Weight(self.name(stored if readable else name), array, tuple(array.shape))
        if stored is not None:
            self.cache.setdefault(key, weight)
        if isinstance(array, BlockRows) and array.has_grid:
            self.grids[weight.name] = array
        return weight

    def _linear(
        self, used: list[Source], number: np.ndarray, component: np.ndarray, factor: np.ndarray, const: np.ndarray | None, output: str | None = None
    ) -> ir.Value:
        """Rows of one or more linears of the same input."""
        first = used[0].what
        if any(source.what.x is not first.x for source in used):
            raise self.refuse("parts of linears with different inputs side by side", "parts of linears of one input")
        whole = len(used) == 1 and len(component) == used[0].width and (component == np.arange(used[0].width)).all()
        if whole:
            matrix, bias = first.rows, first.bias
        else:
            matrix, bias = self._gathered(used, number, component)
        changed = (factor != 1).any()
        if changed:
            matrix = (np.asarray(matrix) * factor[:, None]).astype(np.float32)
            bias = None if bias is None else bias * factor
        if const is not None:
            bias = const if bias is None else bias + const
        name = first.name if whole or not self.part else f"{first.name}.{self.part}"
        w = self.weight(f"{name}.weight", matrix, first.stored if whole and not changed else None)
        b = None if bias is None else self.weight(f"{name}.bias", np.asarray(bias, np.float32))
        return self.graph.linear(first.x, self.name(f"{name}.linear"), w, b, output=output)

    def linear_row(self, source: Source, x: Form) -> ir.Value:
        """The value [1, width] of a linear of one row, with what was multiplied with it and added to it."""
        order = (x.codes - source.base).ravel()
        if order.size != source.width or (order != np.arange(source.width)).any():
            raise self.refuse("a part of a row, or its components in another order", "whole rows")
        key = (x.codes.tobytes(), x.coefs.tobytes(), None if x.const is None else x.const.tobytes())
        if key not in self.cache:
            self.cache[key] = self._linear([source], np.zeros(source.width, np.int64), order, x.coefs.ravel(), None if x.const is None else x.const.ravel())
        return self.cache[key]

    def head(self, source: Source, rows: Form, softcap: float) -> ir.Value:
        """The linear that makes the logits."""
        factor, const = rows.coefs[0], rows.const
        if (factor != factor[:1]).any() or (const is not None and (const != const[:1]).any()):
            raise self.refuse("logits times or plus a constant that differs by token", "a linear, or a softcap of one")
        order = np.arange(source.width)
        const = None if const is None else const[0]
        logits = self._linear([source], np.zeros(source.width, np.int64), order, factor[0], const, None if softcap else "logits")
        return self.graph.softcap(logits, self.name("softcap"), softcap, output="logits") if softcap else logits

    def _gathered(self, used: list[Source], number: np.ndarray, component: np.ndarray) -> tuple[np.ndarray | BlockRows, np.ndarray | None]:
        if len(used) == 1:
            what, start = used[0].what, int(component[0])
            if (np.diff(component) == 1).all():
                part = slice(start, start + len(component))
                return what.rows[part], None if what.bias is None else what.bias[part]
            rows = what.rows[component]
            rows = np.ascontiguousarray(rows) if isinstance(rows, np.ndarray) else rows
            return rows, None if what.bias is None else what.bias[component]
        rows, biases = [], []
        cuts = np.flatnonzero(np.diff(number)) + 1
        for run, parts in zip(np.split(number, cuts), np.split(component, cuts)):
            what = self.sources.numbered(run[0]).what
            rows.append(np.asarray(what.rows[parts]))
            biases.append(np.zeros(len(parts)) if what.bias is None else what.bias[parts])
        bias = np.concatenate(biases)
        return np.ascontiguousarray(np.concatenate(rows)), bias if any(s.what.bias is not None for s in used) else None

    def _norm(self, norm: Norm, factor: np.ndarray, const: np.ndarray | None) -> ir.Value:
        gamma = norm.gamma * factor
        beta = None if norm.beta is None else norm.beta * factor
        if const is not None:
            beta = const if beta is None else beta + const
        name = self.name(norm.name)
        g = self.weight(f"{name}.weight", np.asarray(gamma, np.float32))
        b = None if beta is None else self.weight(f"{name}.bias", np.asarray(beta, np.float32))
        if norm.groups > 1 or len(gamma) != int(norm.x.shape[2]):
            if norm.center or b is not None:
                raise self.refuse("a layer norm over heads", "an RMS norm over heads without a bias")
            return self.graph.head_norm(norm.x, name, g, norm.epsilon, norm.groups)
        if norm.center:
            return self.graph.layer_norm(norm.x, name, g, b, norm.epsilon)
        if b is not None:
            raise self.refuse("an RMS norm with a bias", "a bias in layer norms only")
        return self.graph.rms_norm(norm.x, name, g, norm.epsilon)

    def _function(self, tensor: Function) -> ir.Value:
        return self.activation(self.value(pure(tensor.codes)), tensor)

    def activation(self, x: ir.Value, tensor: Function) -> ir.Value:
        """The function of a tensor, of x."""
        found = activations.identify(tensor.samples)
        if found is None:
            at = [f"f({n}) = {activations.at(tensor.samples, n):.6g}" for n in (-1, 1)]
            raise self.refuse(f"a function of one number with {', '.join(at)}", activations.SUPPORTED)
        key = ("function", x, found)
        if key not in self.cache:
            self.cache[key] = activations.write(self, x, found, self.name(f"{x.name}.{found}"))
        return self.cache[key]

    def add(self, a: Form | Function, b: Form | Function, name: str) -> ir.Value:
        x, y = self.value(a), self.value(b)
        self._same_width(x, y)
        return self.graph.add(x, y, self.name(name))

    def product(self, a: Form | Function, b: Form | Function, name: str) -> ir.Value:
        x, y = self.value(a), self.value(b)
        self._same_width(x, y)
        return self.graph.product(x, y, self.name(name))

    def _same_width(self, x: ir.Value, y: ir.Value) -> None:
        if x.shape[2] != y.shape[2]:
            raise self.refuse(f"widths {x.shape[2]} and {y.shape[2]}", "equal widths")

    # ---- folding constants into what waits

    def settle(self, tensor: Form) -> Form:
        """A tensor with the per-component factors and constants on a waiting norm, and the bias on a waiting linear, taken into it.

        A factor on the embeddings is written at once, so that all that reads them has it.
        """
        if len(tensor.codes) != 1 or tensor.is_pure or (tensor.codes < 0).any():
            return tensor
        used = self.sources.used(tensor.codes)
        if len(used) == 1 and isinstance(used[0].what, Made) and used[0].what.value.name == "embed" and tensor.const is None:
            return self.remade(tensor)
        if len(used) != 1 or not isinstance(used[0].what, (Norm, Linear)) or tensor.codes.size != self.length * used[0].width:
            return tensor
        source, shape = used[0], (self.length, used[0].width)
        order = (tensor.codes - source.base).ravel()
        if not np.array_equal(np.sort(order), np.arange(order.size)):
            return tensor
        factor, const = np.ones(order.size), np.zeros(order.size)
        factor[order] = tensor.coefs.ravel()
        if tensor.const is not None:
            const[order] = np.broadcast_to(tensor.const, tensor.shape).ravel()
        factor, const = factor.reshape(shape), const.reshape(shape)
        if (factor != factor[0]).any() or (const != const[0]).any():
            return tensor
        what = self._folded(source, factor[0], const[0])
        if what is None:
            return tensor
        new = self.sources.new(what, source.width)
        return pure(new.base + order.reshape(tensor.shape))

    def _folded(self, source: Source, factor: np.ndarray, const: np.ndarray) -> Norm | Linear | None:
        what = source.what
        if isinstance(what, Norm):
            factor, const = factor.reshape(what.groups, -1), const.reshape(what.groups, -1)
            if (factor != factor[0]).any() or (const != const[0]).any():
                return None
            beta = const[0] + (0 if what.beta is None else what.beta * factor[0])
            return replace(what, gamma=what.gamma * factor[0], beta=beta if beta.any() or what.beta is not None else None)
        if (factor != 1).any():
            return None
        return replace(what, bias=const + (0 if what.bias is None else what.bias))
