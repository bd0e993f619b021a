"""GraphBuilder: writes the canonical float graph, one method per building block.

The compiler matches exactly the patterns written here, so a front end never
adds nodes by hand: it calls these methods. Batch is always 1; ``S`` is the
number of new tokens, ``P`` the number of cached ones. All floats are float32.
"""

from __future__ import annotations

import json
import math

import numpy as np
import onnx_ir as ir

from edgepos.errors import UnsupportedError
from edgepos.positions import AngleRope, Learned, RelativeBias, Rope, Sinusoidal, T5Bias
from edgepos.positions.distances import distance_rows

from .position_tables import alibi_slopes, rope_tables
from .tensor_set import Weight

OPSET = 23
IR_VERSION = 11  # the ONNX release that defined opset 23


def to_tensor(weight: Weight) -> ir.TensorProtocol:
    """``weight`` as a float32 tensor, without reading it now.

    float32 row-major arrays (memory-mapped ones too) are used in place; float16,
    bfloat16, strided views and quantized rows are converted each time the tensor is read.
    """
    array, shape = weight.array, weight.shape
    if isinstance(array, np.ndarray) and array.dtype == np.dtype("<f4") and array.flags.c_contiguous:
        return ir.Tensor(array.reshape(shape), name=weight.name)

    def convert() -> ir.TensorProtocol:
        return ir.Tensor(np.ascontiguousarray(array, dtype=np.float32).reshape(shape), name=weight.name)

    return ir.LazyTensor(convert, ir.DataType.FLOAT, ir.Shape(shape), name=weight.name)


class GraphBuilder:
    """Builds one canonical graph; values carry their shapes and readable names."""

    def __init__(self, *, name: str, family: str, context: int):
        self._name = name
        self._context = context
        self._metadata = {"edgepos.context": str(context), "edgepos.family": family}
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._nodes: list[ir.Node] = []
        self._initializers: dict[str, ir.Value] = {}
        self.input_ids = self._input("input_ids", ir.DataType.INT64, (1, "S"))
        self.position_ids = self._input("position_ids", ir.DataType.INT64, (1, "S"))
        self._rope: dict[Rope | AngleRope, tuple[ir.Value, ir.Value]] = {}
        self._alibi: ir.Value | None = None
        self._key_positions: ir.Value | None = None
        self._biases: dict[str, ir.Value] = {}

    def _input(self, name: str, dtype: ir.DataType, shape: tuple) -> ir.Value:
        value = ir.val(name, dtype, shape)
        self._inputs.append(value)
        return value

    def _node(
        self,
        op: str,
        inputs: list[ir.Value | None],
        name: str,
        outputs: list[ir.Value],
        attributes: dict | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        self._nodes.append(
            ir.node(op, inputs, attributes or {}, outputs=outputs, name=name, metadata_props=metadata)
        )

    def _op(
        self,
        op: str,
        inputs: list[ir.Value | None],
        name: str,
        shape: tuple,
        *,
        dtype: ir.DataType = ir.DataType.FLOAT,
        output: str | None = None,
        metadata: dict[str, str] | None = None,
        **attributes,
    ) -> ir.Value:
        """Add a node of one output, named like the node unless ``output`` is given."""
        value = ir.val(output or name, dtype, shape)
        self._node(op, inputs, name, [value], attributes, metadata)
        return value

    def _initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """The initializer ``name``; made on first use, the same value afterwards."""
        if name not in self._initializers:
            self._initializers[name] = ir.val(name, tensor.dtype, tensor.shape, const_value=tensor)
        return self._initializers[name]

    def _weight(self, weight: Weight) -> ir.Value:
        return self._initializer(weight.name, to_tensor(weight))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        return self._initializer(name, ir.Tensor(array, name=name))

    def embed(self, weight: Weight) -> ir.Value:
        """Rows of ``weight`` [vocab, d] for ``input_ids`` -> [1, S, d]."""
        inputs = [self._weight(weight), self.input_ids]
        return self._op("Gather", inputs, "embed", (1, "S", weight.shape[1]), axis=0)

    def read_instead(self, x: ir.Value, weight: Weight) -> None:
        """Let the embedding ``x`` read its rows from another table."""
        old = x.producer().inputs[0]
        x.producer().replace_input_with(0, self._weight(weight))
        if not old.uses():
            del self._initializers[old.name]

    def rms_norm(self, x: ir.Value, name: str, gamma: Weight, epsilon: float) -> ir.Value:
        """RMS norm over the last axis; ``gamma`` is [d]."""
        return self._op(
            "RMSNormalization", [x, self._weight(gamma)], name, tuple(x.shape), axis=-1, epsilon=epsilon
        )

    def layer_norm(self, x: ir.Value, name: str, gamma: Weight, beta: Weight | None, epsilon: float, *, output: str | None = None) -> ir.Value:
        """Layer norm over the last axis; ``gamma`` and, where there is one, ``beta`` are [d]."""
        return self._op(
            "LayerNormalization",
            [x, self._weight(gamma), *([] if beta is None else [self._weight(beta)])],
            name,
            tuple(x.shape),
            output=output,
            axis=-1,
            epsilon=epsilon,
        )

    def linear(
        self,
        x: ir.Value,
        name: str,
        weight: Weight,
        bias: Weight | None = None,
        *,
        output: str | None = None,
    ) -> ir.Value:
        """x [1, S, in], or a row [1, in], times the transpose of weight [out, in], plus bias [out] -> [1, S, out] or [1, out]."""
        out_features, in_features = weight.shape
        shape = (*x.shape[:-1], out_features)
        transposed = self._op(
            "Transpose",
            [self._weight(weight)],
            f"{name}.weight_t",
            (in_features, out_features),
            perm=[1, 0],
        )
        product = self._op(
            "MatMul", [x, transposed], name, shape, output=None if bias else output
        )
        if bias is None:
            return product
        return self._op(
            "Add", [product, self._weight(bias)], f"{name}.bias", shape, output=output
        )

    def add(self, x: ir.Value, y: ir.Value, name: str) -> ir.Value:
        """The residual sum x + y."""
        return self._op("Add", [x, y], name, tuple(x.shape))

    def scaled(self, x: ir.Value, name: str, factor: float) -> ir.Value:
        """x times a constant; of the embeddings only."""
        return self._op("Mul", [x, self._constant(f"{name}.factor", np.array(factor, np.float32))], name, tuple(x.shape))

    def softcap(self, x: ir.Value, name: str, cap: float, *, output: str) -> ir.Value:
        """cap · tanh(x / cap); of the logits only."""
        value = self._constant(f"{name}.cap", np.array(cap, np.float32))
        turned = self._op("Tanh", [self._op("Div", [x, value], f"{name}.share", tuple(x.shape))], f"{name}.tanh", tuple(x.shape))
        return self._op("Mul", [turned, value], name, tuple(x.shape), output=output)

    def geglu(self, gate: ir.Value, up: ir.Value, prefix: str) -> ir.Value:
        """gelu(gate) * up, with the tanh approximation."""
        return self.product(self.gelu_tanh(gate, f"{prefix}.gelu"), up, f"{prefix}.gated")

    def swiglu(self, gate: ir.Value, up: ir.Value, prefix: str) -> ir.Value:
        """silu(gate) * up."""
        return self.product(self._silu(gate, f"{prefix}.sigmoid", f"{prefix}.silu"), up, f"{prefix}.gated")

    def _silu(self, x: ir.Value, sigmoid: str, name: str) -> ir.Value:
        turned = self._op("Sigmoid", [x], sigmoid, tuple(x.shape))
        return self._op("Mul", [x, turned], name, tuple(x.shape))

    def silu(self, x: ir.Value, name: str) -> ir.Value:
        """x * sigmoid(x)."""
        return self._silu(x, f"{name}.sigmoid", name)

    def product(self, x: ir.Value, y: ir.Value, name: str) -> ir.Value:
        """x * y."""
        return self._op("Mul", [x, y], name, tuple(x.shape))

    def sigmoid(self, x: ir.Value, name: str) -> ir.Value:
        """1 / (1 + exp(-x))."""
        return self._op("Sigmoid", [x], name, tuple(x.shape))

    def tanh(self, x: ir.Value, name: str, *, output: str | None = None) -> ir.Value:
        """The hyperbolic tangent."""
        return self._op("Tanh", [x], name, tuple(x.shape), output=output)

    def gelu_tanh(self, x: ir.Value, name: str) -> ir.Value:
        """The tanh approximation of GELU."""
        return self._op("Gelu", [x], name, tuple(x.shape), approximate="tanh")

    def head_norm(self, x: ir.Value, name: str, gamma: Weight, epsilon: float, heads: int) -> ir.Value:
        """RMS norm over each head of x [1, S, heads*head_dim]; ``gamma`` is [head_dim]."""
        head_dim = gamma.shape[0]
        split = self._constant(f"heads.{heads}x{head_dim}", np.array([1, -1, heads, head_dim], np.int64))
        whole = self._constant(f"width.{heads * head_dim}", np.array([1, -1, heads * head_dim], np.int64))
        cut = self._op("Reshape", [x, split], f"{name}.heads", (1, "S", heads, head_dim))
        normed = self._op("RMSNormalization", [cut, self._weight(gamma)], f"{name}.rms", (1, "S", heads, head_dim), axis=-1, epsilon=epsilon)
        return self._op("Reshape", [normed, whole], name, (1, "S", heads * head_dim))

    def gelu(self, x: ir.Value, name: str) -> ir.Value:
        """GELU by the error function."""
        return self._op("Gelu", [x], name, tuple(x.shape), approximate="none")

    def quick_gelu(self, x: ir.Value, name: str) -> ir.Value:
        """x * sigmoid(1.702 x)."""
        factor = self._constant("quick_gelu.factor", np.array(1.702, np.float32))
        steeper = self._op("Mul", [x, factor], f"{name}.steeper", tuple(x.shape))
        turned = self._op("Sigmoid", [steeper], f"{name}.sigmoid", tuple(x.shape))
        return self._op("Mul", [x, turned], name, tuple(x.shape))

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """max(x, 0)."""
        return self._op("Relu", [x], name, tuple(x.shape))

    def rope(self, x: ir.Value, name: str, *, heads: int, spec: Rope | AngleRope) -> ir.Value:
        """Rotate x [1, S, heads*head_dim] by ``position_ids``.

        The tables are shared by every call with the same rotation; a scaling that depends on the length of the session
        takes the context for it. An attention factor is in the tables, so it is on the rotated components only.
        """
        if spec not in self._rope:
            cos, sin = rope_tables(spec, self._context)
            part = f".{len(self._rope)}" if self._rope else ""
            self._rope[spec] = (self._constant(f"rope{part}.cos", cos), self._constant(f"rope{part}.sin", sin))
        facts = {"head_dim": spec.head_dim, "rotary_dim": spec.rotary_dim, "layout": spec.layout, "angles": list(self._rope[spec][0].shape)}
        if isinstance(spec, Rope):
            facts = {key: value for key, value in spec.to_json().items() if key != "encoding" and value is not None}
        partial = {} if spec.rotary_dim == spec.head_dim else {"rotary_embedding_dim": spec.rotary_dim}
        return self._op(
            "RotaryEmbedding",
            [x, *self._rope[spec], self.position_ids],
            name,
            tuple(x.shape),
            metadata={"edgepos.rope": json.dumps(facts)},
            num_heads=heads,
            interleaved=int(spec.layout == "interleaved"),
            **partial,
        )

    def learned_positions(self, x: ir.Value, table: Weight, spec: Learned) -> ir.Value:
        """x plus the rows position + offset of ``table`` [count, d], positions taken modulo ``spec.modulo`` where there is one."""
        return self._add_rows(x, self._weight(table), spec.offset, spec)

    def sinusoidal_positions(self, x: ir.Value, spec: Sinusoidal) -> ir.Value:
        """x plus the rows of a sinusoidal table for every position of the context."""
        table = spec.table(np.arange(self._context)).astype(np.float32)
        return self._add_rows(x, self._constant("positions.table", table), 0, spec)

    def _add_rows(self, x: ir.Value, table: ir.Value, offset: int, spec: Learned | Sinusoidal) -> ir.Value:
        shape = (1, "S", int(table.shape[1]))
        first = self._constant("positions.offset", np.array([offset], np.int64))
        at, modulo = self.position_ids, getattr(spec, "modulo", None)
        if modulo is not None:
            period = self._constant("positions.modulo", np.array(modulo, np.int64))
            at = self._op("Mod", [at, period], "positions.repeated", (1, "S"), dtype=ir.DataType.INT64)
        rows = self._op("Add", [at, first], "positions.row", (1, "S"), dtype=ir.DataType.INT64)
        metadata = {"edgepos.position": json.dumps(spec.to_json())}
        values = self._op("Gather", [table, rows], "positions", shape, metadata=metadata, axis=0)
        return self._op("Add", [x, values], "embed.positions", shape)

    def _keys(self) -> ir.Value:
        """The graph input with the position of every cached and new token; made on first use."""
        if self._key_positions is None:
            self._key_positions = self._input("key_position_ids", ir.DataType.INT64, (1, "P+S"))
        return self._key_positions

    def relative_bias(self, table: Weight, spec: T5Bias | RelativeBias) -> ir.Value:
        """The mask of a learned bias ``table`` [rows, heads], [1, heads, S, P+S]; layers with one table share it.

        The graph holds the table by distance, its last row for every greater one.
        """
        if table.name not in self._biases:
            rows = distance_rows(spec)
            n, heads = len(rows), table.shape[1]
            by_distance = Weight(f"{table.name}.by_distance", table.array[rows], (n, heads))
            int64, prefix, shape = ir.DataType.INT64, f"bias.{len(self._biases)}", (1, "S", "P+S")
            query_axis = self._constant("bias.query_axis", np.array([2], np.int64))
            key_axis = self._constant("bias.key_axis", np.array([1], np.int64))
            column = self._op("Unsqueeze", [self.position_ids, query_axis], f"{prefix}.queries", (1, "S", 1), dtype=int64)
            row = self._op("Unsqueeze", [self._keys(), key_axis], f"{prefix}.keys", (1, 1, "P+S"), dtype=int64)
            away = self._op("Sub", [column, row], f"{prefix}.away", shape, dtype=int64)
            least = self._constant("bias.least", np.array(0, np.int64))
            most = self._constant(f"{prefix}.most", np.array(n - 1, np.int64))
            distance = self._op("Clip", [away, least, most], f"{prefix}.distance", shape, dtype=int64)
            values = self._op("Gather", [self._weight(by_distance), distance], f"{prefix}.values", (*shape, heads), axis=0)
            self._biases[table.name] = self._op(
                "Transpose",
                [values],
                f"{prefix}.mask",
                (1, heads, "S", "P+S"),
                metadata={"edgepos.relative_bias": json.dumps(spec.to_json())},
                perm=[0, 3, 1, 2],
            )
        return self._biases[table.name]

    def alibi(self, heads: int, slopes: np.ndarray | None = None) -> ir.Value:
        """The mask slope * (key position - query position), [1, heads, S, P+S], made once; ``slopes`` [heads] of the paper unless given."""
        if self._alibi is None:
            keys = self._keys()
            values = alibi_slopes(heads) if slopes is None else np.asarray(slopes, np.float32)
            slopes = self._constant("alibi.slopes", values.reshape(1, heads, 1, 1))
            int64 = ir.DataType.INT64
            key_axes = self._constant("alibi.key_axes", np.array([1, 2], np.int64))
            query_axes = self._constant("alibi.query_axes", np.array([1, 3], np.int64))
            row = self._op("Unsqueeze", [keys, key_axes], "alibi.keys", (1, 1, 1, "P+S"), dtype=int64)
            column = self._op(
                "Unsqueeze", [self.position_ids, query_axes], "alibi.queries", (1, 1, "S", 1), dtype=int64
            )
            distance = self._op("Sub", [row, column], "alibi.distance", (1, 1, "S", "P+S"), dtype=int64)
            steps = self._op(
                "Cast", [distance], "alibi.steps", (1, 1, "S", "P+S"), to=int(ir.DataType.FLOAT)
            )
            self._alibi = self._op(
                "Mul",
                [slopes, steps],
                "alibi.mask",
                (1, heads, "S", "P+S"),
                metadata={"edgepos.alibi": json.dumps({"heads": heads})},
            )
        return self._alibi

    def _window(self, n: int) -> ir.Value:
        """The boolean mask query position - key position < n, [1, 1, S, P+S]; layers with one window share it."""
        name = f"window.{n}"
        if name not in self._biases:
            int64, shape = ir.DataType.INT64, (1, 1, "S", "P+S")
            key_axes = self._constant("window.key_axes", np.array([1, 2], np.int64))
            query_axes = self._constant("window.query_axes", np.array([1, 3], np.int64))
            row = self._op("Unsqueeze", [self._keys(), key_axes], f"{name}.keys", (1, 1, 1, "P+S"), dtype=int64)
            column = self._op("Unsqueeze", [self.position_ids, query_axes], f"{name}.queries", (1, 1, "S", 1), dtype=int64)
            away = self._op("Sub", [column, row], f"{name}.away", shape, dtype=int64)
            limit = self._constant(f"{name}.limit", np.array(n, np.int64))
            metadata = {"edgepos.window": json.dumps({"window": n})}
            self._biases[name] = self._op("Less", [away, limit], f"{name}.mask", shape, dtype=ir.DataType.BOOL, metadata=metadata)
        return self._biases[name]

    def attention(
        self,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        layer: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        mask: ir.Value | None = None,
        window: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
    ) -> ir.Value:
        """Causal attention of layer ``layer`` with its KV cache -> [1, S, heads*head_dim].

        ``window``: keys a token sees, its own included, instead of all. ``scale``: of the scores, default 1/sqrt(head_dim).
        ``softcap``: scores become softcap · tanh(score / softcap) before any is masked; 0: they stay.
        """
        if window:
            if mask is not None:
                raise UnsupportedError(f"layer {layer}: a sliding window of {window} and a bias on the scores; supported: one of them")
            mask = self._window(window)
        past_shape = (1, kv_heads, "P", head_dim)
        present_shape = (1, kv_heads, "P+S", head_dim)
        past_key = self._input(f"past_key.{layer}", ir.DataType.FLOAT, past_shape)
        past_value = self._input(f"past_value.{layer}", ir.DataType.FLOAT, past_shape)
        name = f"layers.{layer}.attn"
        y = ir.val(name, ir.DataType.FLOAT, (1, "S", heads * head_dim))
        present = [
            ir.val(f"present_{what}.{layer}", ir.DataType.FLOAT, present_shape) for what in ("key", "value")
        ]
        self._node(
            "Attention",
            [q, k, v, mask, past_key, past_value],
            name,
            [y, *present],
            {
                "q_num_heads": heads,
                "kv_num_heads": kv_heads,
                "scale": 1.0 / math.sqrt(head_dim) if scale is None else scale,
                "is_causal": 1,
            }
            | ({"softcap": softcap} if softcap else {}),
        )
        self._outputs += present
        return y

    def finish(self, output: ir.Value) -> ir.Model:
        """The model with outputs logits (or the embedding), present_key.0, present_value.0, ..."""
        graph = ir.Graph(
            self._inputs,
            [output, *self._outputs],
            nodes=self._nodes,
            initializers=list(self._initializers.values()),
            opset_imports={"": OPSET},
            name=self._name,
        )
        return ir.Model(
            graph,
            ir_version=IR_VERSION,
            producer_name="edgepos",
            metadata_props=self._metadata,
        )
