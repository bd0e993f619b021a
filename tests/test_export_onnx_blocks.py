"""Graphs as onnxruntime-genai's model builder writes them, and their matrices of codes: what they hold stays, or is read as floats."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from foreign_graphs import TABLE, Graph, inv_freq, save
from onnx import TensorProto, helper

import edgepos
from edgepos.compiler import compile_model
from edgepos.compiler.dequantize import dequantized_weights
from edgepos.compiler.match import match
from edgepos.compiler.steps import Norm
from edgepos.errors import UnsupportedError
from edgepos.export import load
from edgepos.export.block_rows import BlockRows
from edgepos.float_session import reference
from edgepos.positions import Rope
from edgepos.program import W4G32, W8, Op

VOCAB, DIM, HEADS, KV, SIZE, HIDDEN = 48, 64, 4, 2, 16, 96
MS = "com.microsoft"


def codes(rng, n: int, k: int, width: int, size: int, zeros: str | None):
    """(packed uint8 [n, blocks, bytes], scales [n, blocks], zero points as stored, by row, or None, float64 [n, k]) of random codes."""
    blocks = -(-k // size)
    values = rng.integers(0, 2**width, (n, blocks * size), dtype=np.uint8)
    shifts = np.arange(0, 8, width)
    packed = (values.reshape(n, -1, 8 // width).astype(np.uint32) << shifts).sum(axis=2).astype(np.uint8)
    scales = (rng.uniform(0.5, 1.5, (n, blocks)) * 2.0 ** (1 - width) / 8).astype(np.float32)
    points, stored = np.full((n, blocks), 2.0 ** (width - 1)), None
    if zeros == "codes":
        given = rng.integers(0, 2**width, (n, blocks), dtype=np.uint8)
        points, filled = given.astype(np.float64), np.pad(given, ((0, 0), (0, -blocks % (8 // width))))
        stored = (filled.reshape(n, -1, 8 // width).astype(np.uint32) << shifts).sum(axis=2).astype(np.uint8)
    elif zeros == "floats":
        points = rng.uniform(0, 2**width, (n, blocks)).astype(np.float32)
        stored = points
    floats = ((values.reshape(n, blocks, size) - points[..., None]) * scales[..., None]).reshape(n, -1)[:, :k]
    return packed.reshape(n, blocks, -1), scales, stored, floats


class Genai(Graph):
    """One block in the form of the model builder: fused q/k/v, rotation and cache in one operator, sums inside the norms."""

    def __init__(self, width: int = 4, size: int = 32, zeros: str | None = None, opset: int = 21):
        super().__init__(opset=opset, domain_versions={MS: 1})
        self.width, self.size, self.zeros = width, size, zeros
        self.floats: list[np.ndarray] = []  # what the codes of each matrix stand for

    def stored(self, n: int, k: int) -> tuple[list[str], dict]:
        packed, scales, zeros, floats = codes(self.rng, n, k, self.width, self.size, self.zeros)
        self.floats.append(floats)
        inputs = [self.put(packed), self.put(scales), *([] if zeros is None else [self.put(zeros)])]
        return inputs, {"N": n, "K": k, "bits": self.width, "block_size": self.size}

    def linear(self, x: str, n_in: int, n_out: int, **more) -> str:
        inputs, attributes = self.stored(n_out, n_in)
        return self.op("MatMulNBits", x, *inputs, domain=MS, accuracy_level=4, **attributes | more)

    def skip_norm(self, x: str, y: str) -> tuple[str, str]:
        """(norm of the sum, the sum)."""
        self.op("SkipSimplifiedLayerNormalization", x, y, self.random(DIM, mean=1.0, scale=0.2), outputs=4, domain=MS, epsilon=1e-5)
        self.nodes[-1].output[1] = self.nodes[-1].output[2] = ""
        return self.outs()[0], self.outs()[3]

    def attention(self, qkv: str) -> str:
        self.inputs += [helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"])]
        for what in ("key", "value"):  # the size of a head is not said, as builders since 0.17 write it
            self.inputs.append(helper.make_tensor_value_info(f"past_key_values.0.{what}", TensorProto.FLOAT, ["batch", KV, "past", "kv_dim"]))
        length = self.op("ReduceSum", "attention_mask", self.ints(1), keepdims=0)
        last = self.op("Cast", self.op("Sub", length, self.ints(1)), to=TensorProto.INT32)
        total = self.op("Cast", self.op("Gather", self.op("Shape", "attention_mask"), self.put(np.array(1, np.int64)), axis=0), to=TensorProto.INT32)
        angles = np.arange(TABLE)[:, None] * inv_freq(1e4, SIZE // 2)[None]
        tables = [self.put(f(angles).astype(np.float32)) for f in (np.cos, np.sin)]
        past = [f"past_key_values.0.{what}" for what in ("key", "value")]
        self.op("GroupQueryAttention", qkv, "", "", *past, last, total, *tables, outputs=3, domain=MS, num_heads=HEADS, kv_num_heads=KV, do_rotary=1)
        return self.outs()[0]

    def tied(self) -> str:
        """Rows of the head's own codes for the ids."""
        inputs, attributes = self.stored(VOCAB, DIM)
        self.head = inputs, attributes
        flat = self.op("Reshape", inputs[0], self.ints(VOCAB, -1))
        shared = {"bits": self.width, "block_size": self.size, "gather_axis": 0, "quantize_axis": 1}
        return self.op("GatherBlockQuantized", flat, "input_ids", *inputs[1:], domain=MS, **shared)

    def model(self, tied: bool = False) -> onnx.ModelProto:
        x = self.tied() if tied else self.op("Gather", self.random(VOCAB, DIM), "input_ids")
        normed = self.op("SimplifiedLayerNormalization", x, self.random(DIM, mean=1.0, scale=0.2), axis=-1, epsilon=1e-5, stash_type=1)
        y = self.linear(self.attention(self.linear(normed, DIM, (HEADS + 2 * KV) * SIZE)), HEADS * SIZE, DIM)
        normed, x = self.skip_norm(x, y)
        gate, up = self.linear(normed, DIM, HIDDEN), self.linear(normed, DIM, HIDDEN)
        y = self.linear(self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up), HIDDEN, DIM)
        normed, _ = self.skip_norm(x, y)
        if tied:
            inputs, attributes = self.head
            self.op("MatMulNBits", normed, *inputs, domain=MS, accuracy_level=4, **attributes)
        else:
            self.linear(normed, DIM, VOCAB)
        self.nodes[-1].output[0] = "logits"
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "tokens", VOCAB])
        self.inputs[0] = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "tokens"])
        return helper.make_model(helper.make_graph(self.nodes, "genai", self.inputs, [logits], self.weights), opset_imports=self.imports, ir_version=10)


def matrices(canonical) -> dict[str, np.ndarray]:
    """The float32 matrices of linears by name."""
    return {name: v.const_value.numpy() for name, v in canonical.model.graph.initializers.items() if len(v.shape) == 2 and "rope" not in name}


def test_a_graph_of_the_builder_is_read(tmp_path):
    canonical = load(save(Genai().model(), tmp_path))
    program = match(canonical.model)
    (layer,) = program.layers()
    assert (layer.heads, layer.kv_heads, program.positions(), canonical.context) == (HEADS, KV, Rope(SIZE), TABLE)
    assert [s.center for s in program.steps if isinstance(s, Norm)] == [False] * 3


@pytest.mark.parametrize("width, size, zeros", [(4, 32, None), (4, 32, "codes"), (4, 64, "codes"), (4, 32, "floats"), (8, 32, None), (8, 32, "middle"), (2, 32, None)])
def test_codes_become_the_integers_of_the_program(width, size, zeros, tmp_path):
    g = Genai(width, size, None if zeros == "middle" else zeros)
    model = g.model()
    if zeros == "middle":  # written out, not left out
        for node in model.graph.node:
            if node.op_type == "MatMulNBits":
                n, k = (next(a.i for a in node.attribute if a.name == name) for name in ("N", "K"))
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.full(n * -(-k // 32), 128, np.uint8), f"{node.name}.zeros"))
                node.input.append(f"{node.name}.zeros")
    canonical = load(save(model, tmp_path))
    wide = {name: w for name, w in matrices(canonical).items() if name != "c0"}
    assert set(canonical.grids) == set(wide) and len(wide) == 8  # the fused matrix in three parts
    qkv = np.concatenate(list(wide.values())[:3])
    for want, got in zip(g.floats, [qkv, *list(wide.values())[3:]]):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * np.abs(want).max())
    program = compile_model(canonical, tokenizer=None, calibration=list(range(VOCAB))).program
    assert {op.params["form"] for op in program.ops if op.code == Op.LINEAR} == {W8 if width == 8 else W4G32}
    kept = dequantized_weights(program)
    for name, want in wide.items():
        grid = canonical.grids[name].grid(slice(0, len(want)))
        assert grid.codes.dtype == (np.int8 if width == 8 else np.uint8)
        # Scales and minima are rounded to 16 bits of the largest of their row; a code is not.
        largest = np.maximum(np.abs(grid.scales), 0 if width == 8 else np.abs(grid.minima)).max(axis=1, keepdims=True)
        assert (np.abs(kept[name] - want) <= largest / 32767 * (64.5 if width == 8 else 4.5) + 1e-7).all()


def test_a_table_of_codes_shared_with_the_head_is_stored_once(tmp_path):
    canonical = load(save(Genai().model(tied=True), tmp_path))
    assert sum(w.shape == (VOCAB, DIM) for w in matrices(canonical).values()) == 1
    bundle = edgepos.export_bundle(canonical, tmp_path / "g.edgepos", tokenizer=None, calibration=list(range(VOCAB)))
    ids = np.random.default_rng(0).integers(0, VOCAB, 40).tolist()
    np.testing.assert_array_equal(bundle.session().eval_int(ids), bundle.session(engine="golden").eval_int(ids))
    want = reference(canonical).eval(ids)
    assert np.abs(bundle.session().eval(ids) - want).max() < 0.01 * np.abs(want).max()
    assert json.loads((tmp_path / "g.edgepos/manifest.json").read_text())["options"]["weights"] == "source"


@pytest.mark.parametrize("width, size, zeros", [(4, 16, None), (8, 32, "codes"), (8, 128, None)])
def test_codes_that_no_form_holds_are_read_as_floats(width, size, zeros, tmp_path):
    """Blocks of less than 32 columns, 8 bits around another zero, a last block that is cut: 64 columns of 128."""
    canonical = load(save(Genai(width, size, zeros).model(), tmp_path))
    assert canonical.grids if size == 128 else not canonical.grids
    program = compile_model(canonical, tokenizer=None, calibration=list(range(VOCAB)), weights="w8g32").program
    assert {op.params["form"] for op in program.ops if op.code == Op.LINEAR} == {W8}


@pytest.mark.parametrize(
    "change, words",
    [
        ({"bits": 3}, "codes of 3 bits in blocks of 32; supported: 2, 4, 8 bits"),
        ({"block_size": 24}, "codes of 4 bits in blocks of 24"),
        ({"block_size": 1 << 40}, "in blocks of 1099511627776"),
        ({"N": 1 << 40}, r"codes \(uint8\) for 1099511627776 rows of 64 columns in blocks of 32; supported: \d+ codes"),
        ({"K": 128}, r"8192 codes \(uint8\) for 128 rows of 128 columns"),
        ({"bits": 8}, r"4096 codes \(uint8\) for 128 rows of 64 columns"),
    ],
)
def test_numbers_that_do_not_agree_are_refused(change, words, tmp_path):
    model = Genai().model()
    first = next(n for n in model.graph.node if n.op_type == "MatMulNBits")
    for attribute in first.attribute:
        attribute.i = change.get(attribute.name, attribute.i)
    with pytest.raises(UnsupportedError, match=rf"\(MatMulNBits\): .*{words}"):
        load(save(model, tmp_path))


@pytest.mark.parametrize("place, array, words", [(2, np.ones(7, np.float32), "7 scales"), (3, np.zeros(5, np.uint8), "zero points in 5 bytes")])
def test_scales_of_another_number_are_refused(place, array, words, tmp_path):
    model = Genai(zeros="codes").model()
    name = next(n for n in model.graph.node if n.op_type == "MatMulNBits").input[place]
    next(w for w in model.graph.initializer if w.name == name).CopyFrom(onnx.numpy_helper.from_array(array, name))
    with pytest.raises(UnsupportedError, match=rf"\(MatMulNBits\): {words}"):
        load(save(model, tmp_path))


def test_columns_in_another_order_are_refused(tmp_path):
    model = Genai(zeros="codes").model()
    node = next(n for n in model.graph.node if n.op_type == "MatMulNBits")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(DIM, dtype=np.int32)[::-1] // 32, "order"))
    node.input.append("order")
    with pytest.raises(UnsupportedError, match="columns in another order than their blocks"):
        load(save(model, tmp_path))


def test_rows_of_codes_are_numbers():
    """Against numbers worked out by hand, low bits first."""
    packed = np.array([[0x21, 0x43]], np.uint8)
    np.testing.assert_array_equal(BlockRows(packed, np.array([[0.5]]), None, 4, 4, 3), [[-3.5, -3.0, -2.5]])
    np.testing.assert_array_equal(BlockRows(packed, np.array([[0.5]]), np.array([[1.0]]), 8, 2, 2), [[16.0, 33.0]])
    np.testing.assert_array_equal(BlockRows(packed, np.array([[1.0]]), np.array([[0]]), 2, 8, 8), [[1, 0, 2, 0, 3, 0, 0, 1]])
