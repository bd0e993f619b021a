"""Pass 1: canonical ONNX graph → list of float operators. Whatever is not understood is refused, naming the node."""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir

from ..errors import UnsupportedError
from .activations import QUICK
from .match_attention import caches_of, heads_of, mask_of
from .match_embedding import EMBEDDING, POOL_OPS, attributes_of_unit, pooling_of
from .match_image import IMAGE, PIXELS, labels_of, picture_of, rows_of_image
from .match_positions import WINDOW, rope_of
from .match_tables import is_part, rows_of
from .nodes import MAX_WIDTH, attributes, const_shape, describe, float_initializer, input_count, refuse, reshape_dims, scalar, value_name
from ..positions import Learned
from .steps import Act, Add, Attend, Embed, FloatProgram, Linear, Mul, Norm, Patches, Place, Pool, Rotate, Step, Unit

OPSET = 23
SUPPORTED = (
    "Add, Attention, Div, Gather, Gelu, LayerNormalization, LpNormalization, MatMul, Mul, RMSNormalization, ReduceMax, ReduceMean, Relu, Reshape, "
    "RotaryEmbedding, Sigmoid, Tanh in the forms export/graph.py, export/encoder_graph.py and export/image_graph.py write"
)
INPUT_NAME = re.compile(r"pixels|input_ids|position_ids|key_position_ids|past_(key|value)\.\d+")
PART_OPS = ("ArgMax", "Cast", "Equal", "Squeeze", "Sub", "Unsqueeze")  # of a mask, or of the token that a pooling takes


def match(model: ir.Model) -> FloatProgram:
    """The operators of a canonical graph in execution order.

    Raises UnsupportedError naming the node, input or output that is not of the canonical form.
    """
    return _Matcher(model).run()


class _Matcher:
    def __init__(self, model: ir.Model):
        self.model, self.graph = model, model.graph
        self.steps: list[Step] = []
        self.width: dict[ir.Value, int] = {}  # activations [1, S, width] that are computed so far
        self.names: set[str] = set()
        self.used: set[ir.Value] = set()
        self.waiting: dict[ir.Node, None] = {}  # nodes that only make sense as part of a later one
        self.done: set[ir.Node] = set()
        self.transposed: dict[ir.Value, ir.Value] = {}
        self.heads: dict[ir.Value, tuple[ir.Value, int]] = {}  # activations cut into heads [1, S, heads, head_dim], and how many
        self.rows = 0
        self.layers = 0
        self.caches: list[ir.Value] = []
        self.both: bool | None = None  # of every Attention: whether tokens see those behind them
        self.pooled = False
        self.picture = None

    def run(self) -> FloatProgram:
        self._check_frame()
        for node in self.graph:
            if node in self.done:
                continue
            if node.domain not in ("", "ai.onnx"):
                raise refuse(node, f"operator of domain '{node.domain}'", "the standard ONNX operators")
            if IMAGE in node.metadata_props:
                self._patches(node)
            elif node.op_type in PART_OPS or any(key in node.metadata_props for key in ("edgepos.alibi", WINDOW)) or is_part(node, self.inputs):
                self.waiting[node] = None
            elif node.op_type not in _OPERATORS:
                raise refuse(node, "operator not known here", SUPPORTED)
            else:
                _OPERATORS[node.op_type](self, node)
        for node in self.waiting:
            if node not in self.done:
                raise refuse(node, "its output feeds nothing that is understood", SUPPORTED)
        return self._finish()

    def _check_frame(self) -> None:
        opset = self.graph.opset_imports.get("")
        if opset != OPSET:
            raise UnsupportedError(f"graph '{self.graph.name}': opset {opset}; supported: {OPSET}, the canonical one")
        for value in self.graph.inputs:
            if not INPUT_NAME.fullmatch(value.name or ""):
                raise UnsupportedError(
                    f"graph input '{value.name}' is not known; allowed: input_ids, position_ids, key_position_ids, past_key.N, past_value.N, or pixels"
                )
        self.inputs = {value.name: value for value in self.graph.inputs}
        if ("input_ids" in self.inputs) == (PIXELS in self.inputs):
            raise UnsupportedError(f"graph '{self.graph.name}': inputs {', '.join(self.inputs) or 'none'}; the canonical graph has input_ids or pixels, not both")

    def _finish(self) -> FloatProgram:
        outputs = list(self.graph.outputs)
        wanted = EMBEDDING if self.pooled else "logits"
        result = next((v for v in outputs if v.name == wanted), None)
        last = self.steps[-1] if self.steps else None
        if result is None or last is None or last.out != wanted or not (self.pooled or isinstance(last, Linear)):
            found = f"{type(last).__name__} '{last.name}'" if last else "nothing"
            what = f"the one that makes the output {EMBEDDING}" if self.pooled else "the linear that makes the output logits"
            raise UnsupportedError(f"graph '{self.graph.name}': the last operator is {found}; it must be {what}")
        for value in outputs:
            if value is not result and value not in self.caches:
                raise UnsupportedError(f"graph output '{value.name}' is not known; allowed: {wanted}, present_key.N, present_value.N")
        for value in self.caches:
            if value not in outputs:
                raise refuse(value.producer(), f"its output '{value.name}' is no output of the graph", "present_key.N and present_value.N as outputs")
        self._check_used(result)
        if not self.layers:
            raise UnsupportedError(f"graph '{self.graph.name}' has no Attention node; supported: models with at least one")
        if not self.pooled and len(self.caches) != 2 * self.layers:
            raise UnsupportedError(f"graph '{self.graph.name}': output logits of attention without a cache; logits need is_causal 1 with past and present")
        if self.pooled and self.caches:
            raise UnsupportedError(f"graph '{self.graph.name}': output {wanted} of attention with a cache; a text is one call there")
        if not self.pooled and self.rows != last.width:
            raise UnsupportedError(
                f"graph '{self.graph.name}': {last.width} logits for an embedding of {self.rows} rows; one vocabulary is supported"
            )
        names = self.graph.initializers
        weights = {name: value.const_value.numpy for name, value in names.items() if value.const_value is not None}
        shapes = {name: const_shape(value) for name, value in names.items() if value.const_value is not None}
        family = self.model.metadata_props.get("edgepos.family", "")
        labels = labels_of(self.model.metadata_props, last.width) if self.picture is not None else None
        return FloatProgram(self.steps, self.rows or 1, family, weights, shapes, self.picture, labels)

    def _check_used(self, result: ir.Value | None) -> None:
        for value, width in self.width.items():
            if value not in self.used and value is not result:
                raise refuse(value.producer(), f"nothing reads its output '{value.name}' [1, S, {width}]", "graphs without unused operators")

    # ---- helpers

    def _take(self, node: ir.Node, index: int) -> ir.Value:
        """Input `index` as an activation that has been computed."""
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is None or value not in self.width:
            raise refuse(node, f"input {index} is {describe(value)}", "the output of an earlier operator, [1, S, width]")
        self.used.add(value)
        return value

    def _emit(self, step: Step, out: ir.Value) -> None:
        if not 1 <= step.width <= MAX_WIDTH:
            raise UnsupportedError(f"node '{step.name}': width {step.width}; allowed: 1 to {MAX_WIDTH}")
        if step.out in self.names or step.out in self.graph.initializers:
            raise refuse(out.producer(), f"its output's name '{step.out}' is used twice", "a name of its own for every value")
        if self.pooled and not isinstance(step, (Linear, Act, Norm, Unit, Add, Mul)):
            raise refuse(out.producer(), f"{type(step).__name__} behind the pooling", "a linear, an activation, a norm, a sum or a product there")
        self.names.add(step.out)
        self.steps.append(step)
        self.width[out] = step.width

    # ---- one method per operator

    def _patches(self, node: ir.Node) -> None:
        if self.picture is not None:
            raise refuse(node, "a second image", "one")
        self.picture, out, nodes = picture_of(node, self.inputs.get(PIXELS))
        self.done.update(nodes)
        self._emit(Patches(nodes[-1].name, value_name(out), self.picture.row, self.picture), out)

    def _identity(self, node: ir.Node) -> None:
        table, out = rows_of_image(node, self.picture), node.outputs[0]
        self._emit(Place(node.name, value_name(out), const_shape(node.inputs[0])[1], table, Learned(self.picture.tokens), 0), out)

    def _gather(self, node: ir.Node) -> None:
        if node.inputs[0] in self.width:
            self._pool(node)
            return
        attributes(node, axis=0)
        input_count(node, 2)
        weight = float_initializer(node, 0, rank=2)
        add = node.inputs[1].producer() if node.inputs[1] is not None else None
        if add in self.waiting and add.op_type == "Add":
            self._place(node)
            return
        if node.inputs[1] is None or node.inputs[1] is not self.inputs.get("input_ids"):
            raise refuse(node, f"indices are {describe(node.inputs[1])}", "input_ids, or position_ids plus an offset")
        rows, width = const_shape(node.inputs[0])
        if any(isinstance(step, Embed) for step in self.steps):
            raise refuse(node, "a second embedding", "one embedding of input_ids")
        self.rows = rows
        out = node.outputs[0]
        self._emit(Embed(node.name, value_name(out), width, weight), out)

    def _place(self, node: ir.Node) -> None:
        table, spec, offset, parts = rows_of(node, self.inputs)
        if any(isinstance(step, Place) for step in self.steps):
            raise refuse(node, "a second table of positions", "one table of positions")
        self.done.update(parts)
        out = node.outputs[0]
        self._emit(Place(node.name, value_name(out), const_shape(node.inputs[0])[1], table, spec, offset), out)

    def _pool(self, node: ir.Node) -> None:
        kind, token, parts = pooling_of(node, self.inputs, self.rows)
        self.done.update(parts)
        x, out = self._take(node, 0), node.outputs[0]
        self._emit(Pool(node.name, value_name(out), self.width[x], value_name(x), kind, token), out)
        self._check_used(out)
        # From here on there is one row: nothing of before can be read.
        self.width, self.pooled = {out: self.width[out]}, True

    def _lpnormalization(self, node: ir.Node) -> None:
        attributes_of_unit(node)
        if not self.pooled:
            raise refuse(node, "a norm of every token", "the Euclidean norm of a pooled row")
        x, out = self._take(node, 0), node.outputs[0]
        self._emit(Unit(node.name, value_name(out), self.width[x], value_name(x)), out)

    def _rmsnormalization(self, node: ir.Node) -> None:
        self._norm(node, center=False)

    def _layernormalization(self, node: ir.Node) -> None:
        self._norm(node, center=True)

    def _norm(self, node: ir.Node, *, center: bool) -> None:
        found = attributes(node, axis=(-1, 2), epsilon=float, stash_type=1)
        epsilon = found.get("epsilon", 1e-5)
        if not 0 <= epsilon < float("inf"):
            raise refuse(node, f"epsilon {epsilon}", "a finite number of at least 0")
        input_count(node, 2, 3 if center else 2)
        cut = self.heads.get(node.inputs[0])
        x, groups = (self._take(node, 0), 1) if cut is None else cut
        width = self.width[x] // groups
        gamma = float_initializer(node, 1, dims=(width,))
        beta = float_initializer(node, 2, dims=(width,)) if len(node.inputs) > 2 and node.inputs[2] is not None else None
        if any(value is not None and value.uses() for value in node.outputs[1:]):
            raise refuse(node, "its second output is used", "the normalized output only")
        out, name = node.outputs[0], node.name
        if cut is not None:
            uses = list(out.uses())
            if len(uses) != 1 or uses[0].node.op_type != "Reshape" or reshape_dims(uses[0].node) != [1, -1, width * groups]:
                raise refuse(node, f"what follows the norm of {groups} heads", f"one Reshape to [1, -1, {width * groups}]")
            self.done.update((node.inputs[0].producer(), uses[0].node))
            # Named after the Reshape, so that a step and its value in the graph stay side by side.
            out, name = uses[0].node.outputs[0], uses[0].node.name
        self._emit(Norm(name, value_name(out), width * groups, value_name(x), gamma, beta, epsilon, center, groups), out)

    def _reshape(self, node: ir.Node) -> None:
        """The cut of [1, S, width] into heads, for a norm over each."""
        x = self._take(node, 0)
        dims = reshape_dims(node)
        if len(dims) != 4 or dims[:2] != [1, -1] or min(dims[2:]) < 1 or dims[2] * dims[3] != self.width[x]:
            raise refuse(node, f"shape {dims} of width {self.width[x]}", "[1, -1, heads, head_dim] before a norm over heads, with heads · head_dim = width")
        self.heads[node.outputs[0]] = (x, dims[2])
        self.waiting[node] = None

    def _transpose(self, node: ir.Node) -> None:
        attributes(node, perm=[1, 0])  # also the default for two axes
        float_initializer(node, 0, rank=2)
        self.transposed[node.outputs[0]] = node.inputs[0]
        self.waiting[node] = None

    def _matmul(self, node: ir.Node) -> None:
        attributes(node)
        input_count(node, 2)
        x = self._take(node, 0)
        source = self.transposed.get(node.inputs[1])
        if source is None:
            raise refuse(node, f"input 1 is {describe(node.inputs[1])}", "the Transpose of an initializer [out, in]")
        self.done.add(node.inputs[1].producer())
        rows, cols = const_shape(source)
        if cols != self.width[x]:
            raise refuse(node, f"weight '{source.name}' has {cols} columns for an input of width {self.width[x]}", "equal widths")
        out, bias, name = node.outputs[0], None, node.name
        uses = list(out.uses())
        if len(uses) == 1 and uses[0].node.op_type == "Add" and out not in self.graph.outputs:
            add = uses[0].node
            other = add.inputs[1 - uses[0].idx]
            if other is not None and other.const_value is not None:
                attributes(add)
                bias = float_initializer(add, 1 - uses[0].idx, dims=(rows,))
                self.done.add(add)
                # Named after the Add, so that a step and its value in the graph stay side by side.
                out, name = add.outputs[0], add.name
        self._emit(Linear(name, value_name(out), rows, value_name(x), source.name, bias), out)

    def _add(self, node: ir.Node) -> None:
        self._binary(node, Add)

    def _mul(self, node: ir.Node) -> None:
        factor = scalar(node, 1)
        if factor is None:
            self._binary(node, Mul)
            return
        attributes(node)
        sigmoid = next((use.node for use in node.outputs[0].uses()), None)
        if sigmoid is not None and sigmoid.op_type == "Sigmoid":
            self._quick_gelu(node, factor, sigmoid)
            return
        x, last = self._take(node, 0), self.steps[-1] if self.steps else None
        if not isinstance(last, Embed) or last.out != x.name or last.scale != 1 or len(x.uses()) != 1 or not 0 < factor < float("inf"):
            raise refuse(node, f"a product of {describe(x)} with {factor}", "a positive factor on the embeddings only")
        self.steps.pop()
        out = node.outputs[0]
        self._emit(Embed(node.name, value_name(out), last.width, last.weight, factor), out)

    def _quick_gelu(self, node: ir.Node, factor: float, sigmoid: ir.Node) -> None:
        """x · sigmoid(1.702 x): Mul by the constant, Sigmoid, Mul with x."""
        uses = list(sigmoid.outputs[0].uses())
        product = uses[0].node if len(uses) == 1 else None
        alone = len(list(node.outputs[0].uses())) == 1 and product is not None and product.op_type == "Mul"
        if not alone or product.inputs[1 - uses[0].idx] is not node.inputs[0] or factor != float(np.float32(QUICK)):
            raise refuse(node, f"a sigmoid of {factor} times {describe(node.inputs[0])}", f"x · sigmoid({QUICK} · x)")
        for part in (sigmoid, product):
            attributes(part)
        self.done.update((sigmoid, product))
        self._act(node, "quick_gelu", product.outputs[0], product.name, inputs=2)

    def _div(self, node: ir.Node) -> None:
        """The softcap of the logits: Div by a constant, Tanh, Mul with it."""
        attributes(node)
        cap = scalar(node, 1)
        x, last = self._take(node, 0), self.steps[-1] if self.steps else None
        chain = [node]
        for op in ("Tanh", "Mul"):
            uses = list(chain[-1].outputs[0].uses())
            if len(uses) != 1 or uses[0].node.op_type != op or uses[0].idx != 0:
                raise refuse(node, f"what follows {chain[-1].op_type}", "Div, Tanh and Mul by one constant: a softcap of the logits")
            chain.append(uses[0].node)
            attributes(chain[-1])
        out = chain[-1].outputs[0]
        if cap is None or not 1e-3 <= cap <= 1e6 or scalar(chain[-1], 1) != cap or out.name != "logits":
            raise refuse(node, f"a softcap of {cap} that makes '{out.name}'", "a softcap from 0.001 to 1e6 of the logits")
        if not isinstance(last, Linear) or last.out != x.name or len(x.uses()) != 1:
            raise refuse(node, f"input 0 is {describe(x)}", "the linear that makes the logits")
        self.steps.pop()
        self.done.update(chain)
        self._emit(Linear(chain[-1].name, value_name(out), last.width, last.x, last.weight, last.bias, cap), out)

    def _binary(self, node: ir.Node, kind: type) -> None:
        attributes(node)
        a, b = self._take(node, 0), self._take(node, 1)
        if self.width[a] != self.width[b]:
            raise refuse(node, f"widths {self.width[a]} and {self.width[b]}", "equal widths")
        out = node.outputs[0]
        self._emit(kind(node.name, value_name(out), self.width[a], value_name(a), value_name(b)), out)

    def _act(self, node: ir.Node, function: str, out: ir.Value | None = None, name: str | None = None, inputs: int = 1) -> None:
        input_count(node, inputs)
        x = self._take(node, 0)
        out = out or node.outputs[0]
        self._emit(Act(name or node.name, value_name(out), self.width[x], value_name(x), function), out)

    def _sigmoid(self, node: ir.Node) -> None:
        attributes(node)
        uses = list(node.outputs[0].uses())
        if len(uses) == 1 and uses[0].node.op_type == "Mul" and uses[0].node.inputs[1 - uses[0].idx] is node.inputs[0]:
            silu = uses[0].node
            self.done.add(silu)
            self._act(node, "silu", silu.outputs[0], silu.name)
        else:
            self._act(node, "sigmoid")

    def _gelu(self, node: ir.Node) -> None:
        found = attributes(node, approximate=("none", "tanh"))
        self._act(node, "gelu_tanh" if found.get("approximate", "none") == "tanh" else "gelu")

    def _relu(self, node: ir.Node) -> None:
        attributes(node)
        self._act(node, "relu")

    def _tanh(self, node: ir.Node) -> None:
        attributes(node)
        self._act(node, "tanh")

    def _rotaryembedding(self, node: ir.Node) -> None:
        x = self._take(node, 0)
        if node.inputs[-1] is not self.inputs.get("position_ids") or len(node.inputs) != 4:
            raise refuse(node, f"positions are {describe(node.inputs[-1])}", "inputs x, cos, sin, position_ids")
        heads, spec = rope_of(node, self.width[x])
        out = node.outputs[0]
        self._emit(Rotate(node.name, value_name(out), self.width[x], value_name(x), heads, spec), out)

    def _attention(self, node: ir.Node) -> None:
        how = heads_of(node)
        if self.both not in (None, how.both):
            raise refuse(node, f"is_causal {int(not how.both)}", f"is_causal {int(how.both)}, as in the layers before")
        self.both = how.both
        q, k, v = (self._take(node, i) for i in range(3))
        k_dim, v_dim = how.dims(node, *(self.width[value] for value in (q, k, v)))
        if how.cached:
            self.caches += caches_of(node, self.layers, self.inputs)
        mask, parts = mask_of(node, how, {step.out for step in self.steps if isinstance(step, Rotate)}, self.inputs)
        self.done.update(parts)
        out = node.outputs[0]
        self._emit(
            Attend(
                node.name, value_name(out), how.heads * v_dim, value_name(q), value_name(k), value_name(v), self.layers, how.heads, how.kv_heads,
                k_dim, v_dim, how.scale or k_dim**-0.5, **mask, softcap=how.softcap, both=how.both,
            ),
            out,
        )  # fmt: skip
        self.layers += 1


_OPERATORS = {
    "Add": _Matcher._add,
    "Attention": _Matcher._attention,
    "Div": _Matcher._div,
    "Gather": _Matcher._gather,
    "Gelu": _Matcher._gelu,
    "Identity": _Matcher._identity,
    "LayerNormalization": _Matcher._layernormalization,
    "LpNormalization": _Matcher._lpnormalization,
    "MatMul": _Matcher._matmul,
    "Mul": _Matcher._mul,
    "RMSNormalization": _Matcher._rmsnormalization,
    **dict.fromkeys(POOL_OPS, _Matcher._pool),
    "Relu": _Matcher._relu,
    "Reshape": _Matcher._reshape,
    "RotaryEmbedding": _Matcher._rotaryembedding,
    "Sigmoid": _Matcher._sigmoid,
    "Tanh": _Matcher._tanh,
    "Transpose": _Matcher._transpose,
}
