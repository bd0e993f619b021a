"""ONNX files that are damaged, hostile or ask for what is not there: one line naming the thing, nothing read from elsewhere."""

from __future__ import annotations

import json
import os

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from foreign_graphs import DIM, Graph, decoder, plain_attention, save, swiglu
from onnx import TensorProto, helper, version_converter
from test_export_onnx_spellings import rotate_half

import edgepos
from edgepos.errors import EdgePosError, FormatError, UnsupportedError
from edgepos.export import load
from edgepos.export.onnx_in import constants


def refused(model, tmp_path, error, words, **options):
    path = save(model, tmp_path) if isinstance(model, onnx.ModelProto) else model
    with pytest.raises(error, match=words) as info:
        load(path, **options)
    assert "\n" not in str(info.value)


@pytest.fixture
def external(tmp_path):
    """A model whose weights are in weights.bin beside it, and a function that changes where one of them says it is."""
    folder = tmp_path / "model"
    folder.mkdir()
    path = save(decoder(), folder, save_as_external_data=True, location="weights.bin", size_threshold=0)

    def change(**fields):
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            if entry.key in fields:
                entry.value = str(fields[entry.key])
        path.write_bytes(model.SerializeToString())
        return path

    return change


def test_weights_beside_the_file_are_read_and_hashed(external):
    canonical = load(external())
    assert sorted(canonical.source_sha256) == ["m.onnx", "weights.bin"]


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/hostname", "a/../../secret.bin", "C:\\x", ""])
def test_external_data_outside_the_folder_is_refused(external, tmp_path, place):
    (tmp_path / "secret.bin").write_bytes(bytes(1 << 20))
    refused(external(location=place), tmp_path, FormatError, r"tensor 'c\d+' is stored in .*; allowed: a file in the model's own folder")


def test_external_data_behind_links_is_refused(external, tmp_path):
    path = external(location="link.bin")
    os.symlink(path.parent / "weights.bin", path.parent / "link.bin")
    refused(path, tmp_path, FormatError, "is stored behind the symbolic link 'link.bin'")
    os.symlink(tmp_path, path.parent / "out")
    refused(external(location="out/weights.bin"), tmp_path, FormatError, "symbolic link|is missing")


@pytest.mark.parametrize("fields", [{"offset": 1 << 40}, {"length": 1 << 40}, {"offset": -4}, {"length": 3}])
def test_external_data_beyond_its_file_is_refused(external, tmp_path, fields):
    refused(external(**fields), tmp_path, FormatError, r"needs \d+ bytes, its record says|not a valid ONNX file")


def test_missing_external_data_is_named(external, tmp_path):
    refused(external(location="gone.bin"), tmp_path, FormatError, "'gone.bin', which is missing")


def _with_weight(**fields):
    model = decoder()
    for name, value in fields.items():
        weight = model.graph.initializer[0]
        if name == "dims":
            del weight.dims[:]
            weight.dims.extend(value)
        else:
            setattr(weight, name, value)
    return model


@pytest.mark.parametrize("dims", [[1 << 40, 1 << 20], [(1 << 63) - 1] * 20, [40, 25], [-1, 960], [0]])
def test_a_weight_whose_shape_is_not_its_bytes_is_refused(dims, tmp_path):
    refused(_with_weight(dims=dims), tmp_path, FormatError, r"tensor 'c0' (has shape|holds \d+ bytes)")


def test_a_weight_of_text_is_refused(tmp_path):
    model = _with_weight(data_type=TensorProto.STRING)
    refused(model, tmp_path, UnsupportedError, "tensor 'c0' is STRING")


@pytest.mark.parametrize("data", [b"", b"\x08", b"not an onnx file", bytes(range(256))])
def test_files_that_are_no_onnx_are_refused(data, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    refused(path, tmp_path, EdgePosError, r"m\.onnx: (not a valid ONNX file|opset None)")


def test_truncated_files_are_refused(tmp_path):
    data = decoder().SerializeToString()
    path = tmp_path / "m.onnx"
    for part in (1, 3, 10, 100):
        path.write_bytes(data[: len(data) * part // 101])
        with pytest.raises(EdgePosError):
            load(path)


@pytest.mark.parametrize("opset", [9, 16, 999])
def test_opsets_out_of_range_are_refused(opset, tmp_path):
    refused(decoder(opset=opset), tmp_path, UnsupportedError, rf"m\.onnx: opset {opset}; supported: 17 to \d+")


def _portable(opset: int) -> onnx.ModelProto:
    """Reductions got their axes as an input in opset 18: this graph has none."""

    def norm(g, x):
        return g.op("LayerNormalization", x, g.random(DIM, mean=1.0), g.random(DIM))

    def mask(g):
        later = g.op("Greater", g.distance(), g.put(np.array(0, np.int64)))
        return g.op("Where", later, g.number(-1e9), g.number(0.0))

    return decoder(attend=lambda g, x: plain_attention(g, x, rotate_half, mask), norm=norm, opset=opset)


@pytest.mark.parametrize("opset", range(17, onnx.defs.onnx_opset_version() + 1))
def test_opsets_in_range_are_read(opset, tmp_path):
    """One model, converted from opset 17 by ONNX itself and written anew: the same canonical graph."""
    oldest = _portable(17)
    want = ir.to_proto(load(save(oldest, tmp_path)).model).SerializeToString(deterministic=True)
    for model in (version_converter.convert_version(oldest, opset), _portable(opset)):
        assert next(o.version for o in model.opset_import if not o.domain) == opset
        canonical = load(save(model, tmp_path)).model
        assert ir.to_proto(canonical).SerializeToString(deterministic=True) == want


def test_a_cycle_is_refused(tmp_path):
    model = decoder()
    first = next(n for n in model.graph.node if n.op_type == "Pow")
    first.input[0] = model.graph.node[-2].output[0]
    refused(model, tmp_path, FormatError, r"\(Pow\) reads 'n\d+_0', which no earlier node makes|not a valid ONNX file")


def test_a_missing_weight_is_refused(tmp_path):
    model = decoder()
    del model.graph.initializer[0]
    refused(model, tmp_path, FormatError, r"reads 'c0', which no earlier node makes \(a missing initializer, a sparse one, or a cycle\)|not a valid ONNX file")


def test_loops_are_refused(tmp_path):
    def mlp(g, x):
        body = helper.make_graph([helper.make_node("Identity", ["outer"], ["inner"])], "b", [], [helper.make_tensor_value_info("inner", 1, None)])
        return g.op("Loop", g.put(np.array(3, np.int64)), g.put(np.array(True)), body=body)

    refused(decoder(mlp=mlp), tmp_path, UnsupportedError, r"node 'n\d+_Loop' \(Loop\): control flow; supported: If, and graphs without loops")


def _sink(g, x):
    """A column of its own beside the scores, as models with attention sinks have."""
    q, k, v = (g.split(g.linear(x, DIM, DIM)) for _ in range(3))
    scores = g.op("Add", g.op("MatMul", q, g.op("Transpose", k, perm=[0, 1, 3, 2])), g.causal())
    column = g.op("Expand", g.random(1, 4, 1, 1), g.op("Concat", g.ints(1, 4), g.op("Unsqueeze", g.tokens(), g.ints(0)), g.ints(1), axis=0))
    p = g.op("Slice", g.op("Softmax", g.op("Concat", scores, column, axis=-1), axis=-1), g.ints(0), g.ints(-1), g.ints(-1))
    return g.join(g.op("MatMul", p, v))


def _quantized(g, x):
    scale, zero = g.number(0.05), g.put(np.array(0, np.int8))
    return swiglu(g, g.op("DequantizeLinear", g.op("QuantizeLinear", x, scale, zero), scale, zero))


def _epsilon_outside(g, x):
    deviation = g.op("Add", g.op("Sqrt", g.op("ReduceMean", g.op("Mul", x, x), g.ints(-1))), g.number(1e-3))
    return g.op("Div", x, deviation)


ODD = {
    "sine": ({"mlp": lambda g, x: g.op("Sin", x)}, "Sin", "an activation function Sin, on a tensor .*; supported: silu, gelu"),
    "mish": ({"mlp": lambda g, x: g.linear(g.op("Mul", x, g.op("Tanh", g.op("Softplus", x))), DIM, DIM)}, "MatMul", r"a function of one number with f\(-1\) = -0.303"),
    "dropout": ({"mlp": lambda g, x: g.op("Dropout", x, g.number(0.1), g.put(np.array(True)))}, "Dropout", "a dropout in training"),
    "sequence": ({"mlp": lambda g, x: g.op("SplitToSequence", x, g.ints(8), axis=2)}, "SplitToSequence", "a sequence of tensors"),
    "recurrence": ({"mlp": lambda g, x: g.op("GRU", x, g.random(1, 72, DIM), g.random(1, 72, DIM), hidden_size=DIM)}, "GRU", "a recurrence over tokens"),
    "router": ({"mlp": lambda g, x: g.op("Softmax", g.linear(x, DIM, 4), axis=-1)}, "Softmax", "a softmax of no product of q and k"),
    "quantized": ({"mlp": _quantized}, "QuantizeLinear", "activations that the graph quantizes"),
    "sink": ({"attend": _sink}, "Concat", r"on attention scores .*; supported: one positive scale, a softcap, masks"),
    "epsilon": ({"norm": _epsilon_outside}, "Div", r"a product of a tensor and a function of its mean square that is no norm; supported: x / sqrt\(mean"),
    "bias": ({"norm": lambda g, x: g.op("Add", g.rms_norm(x), g.random(DIM))}, "MatMul", "an RMS norm with a bias"),
}


@pytest.mark.parametrize("key", ODD)
def test_what_is_odd_is_named_with_what_it_looks_like(key, tmp_path):
    parts, op, words = ODD[key]
    refused(decoder(**parts), tmp_path, UnsupportedError, rf"^node 'n\d+_{op}' \({op}\): {words}")


@pytest.mark.parametrize("part", ["Mul", "Dropout"], ids=["half a residual", "a dropout that does nothing"])
def test_what_only_looks_odd_is_read(part, tmp_path):
    arguments = {"Mul": lambda g: [g.number(0.5)], "Dropout": lambda g: [g.number(0.1), g.put(np.array(False))]}[part]
    assert load(save(decoder(mlp=lambda g, x: g.op(part, swiglu(g, x), *arguments(g))), tmp_path)).vocab_size == 40


def test_names_of_operators_are_shown_short_and_in_one_line(tmp_path):
    for name in ("Z" * 100_000, "Z\n\x1b[31m"):
        model = decoder()
        model.graph.node[5].op_type = name
        path = save(model, tmp_path)
        with pytest.raises(EdgePosError) as info:
            load(path)
        assert str(info.value).isprintable() and len(str(info.value)) < 300


def test_names_of_operators_that_are_no_text_are_refused(tmp_path):
    path = save(decoder(mlp=lambda g, x: g.op("Zork", x)), tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"\x04Zork', b'"\x04Z\xffrk'))
    refused(path, tmp_path, FormatError, "its operator or domain is no text|not a valid ONNX file")


def test_weights_in_sparse_form_are_refused(tmp_path):
    model = decoder()
    first = model.graph.initializer[0]
    entries = helper.make_tensor(first.name, TensorProto.FLOAT, [2], [1.0, 2.0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(entries, helper.make_tensor("at", TensorProto.INT64, [2], [0, 3]), first.dims))
    del model.graph.initializer[0]
    refused(model, tmp_path, FormatError, "reads 'c0', which no earlier node makes .*sparse")


def test_ir_versions_of_the_future_are_refused(tmp_path):
    model = decoder()
    model.ir_version = 1 << 40
    refused(model, tmp_path, UnsupportedError, r"m\.onnx: IR version 1099511627776; supported: up to \d+")


def test_external_data_of_a_branch_is_checked(tmp_path):
    weight = helper.make_tensor("inner", TensorProto.FLOAT, [DIM], [0.0] * DIM)
    weight.ClearField("float_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../secret.bin")

    def mlp(g, x):
        def branch(name):
            return helper.make_graph([helper.make_node("Add", [x, "inner"], [name])], name, [], [helper.make_tensor_value_info(name, 1, None)], [weight])

        return g.op("If", g.put(np.array(True)), then_branch=branch("a"), else_branch=branch("b"))

    refused(decoder(mlp=mlp), tmp_path, FormatError, "tensor 'inner' is stored in '../secret.bin'; allowed")


def test_one_name_for_two_sizes_is_refused(tmp_path):
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["tokens", "tokens"]))
    refused(model, tmp_path, UnsupportedError, "input 'attention_mask' and 'input_ids' have 'tokens' for two sizes")


@pytest.mark.parametrize("tokens", [None, 32])
def test_an_output_of_another_length_is_refused(tokens, tmp_path):
    model = decoder()
    if tokens:
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = tokens
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7
    refused(model, tmp_path, UnsupportedError, f"output 'logits' is of 7 tokens, input 'input_ids' of {tokens or 'tokens'}")


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    model = decoder()
    array = onnx.numpy_helper.to_array(model.graph.initializer[0]).copy()
    array[3] = np.nan
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "c0"))
    refused(model, tmp_path, UnsupportedError, "the graph's own output is not finite")


def test_a_length_that_the_exporter_fixed_is_named(tmp_path):
    """As PyTorch's older exporter does with nn.TransformerEncoder."""
    model = decoder(attend=lambda g, x: plain_attention(g, g.op("Reshape", x, g.ints(1, 12, DIM))))
    refused(model, tmp_path, UnsupportedError, r"a tensor \[1, 11, 24\] of 11 tokens as one of \[1, 12, 24\]: the exporter fixed the length of its example; .*dynamo=True")


@pytest.mark.parametrize("name", ["m.pt", "m.pth", "m.ckpt", "m.pkl"])
def test_pickles_alone_are_not_read(name, tmp_path):
    (tmp_path / name).write_bytes(b"\x80\x04N.")
    with pytest.raises(UnsupportedError, match=f"{name}: a pickle without the config of its model"):
        load(tmp_path / name)


def test_foreign_domains_are_refused(tmp_path):
    model = decoder(mlp=lambda g, x: g.op("Mystery", x, domain="com.example"), domains={"com.example": 1})
    refused(model, tmp_path, UnsupportedError, r"\(Mystery\): operator of domain 'com.example'; supported: standard operators")


def test_a_node_without_name_and_outputs_is_refused(tmp_path):
    model = decoder(domains={"com.example": 1})
    model.graph.node.append(helper.make_node("Mystery", [], [], domain="com.example"))
    refused(model, tmp_path, UnsupportedError, r"node '\?' \(Mystery\): operator of domain 'com.example'")


def test_names_of_nodes_on_constants_are_shown_short_and_in_one_line(tmp_path):
    model = decoder(mlp=lambda g, x: g.op("Add", x, g.op("Reshape", g.put(np.zeros(3, np.float32)), g.put(np.array([2], np.int64)))))
    for node in model.graph.node:
        node.name = "a\n" * 1000
    refused(model, tmp_path, FormatError, r"^node 'a[a\\n]{55}\.\.\. \(Reshape\): cannot be computed")


def test_unknown_operators_of_known_domains_are_refused(tmp_path):
    model = decoder(mlp=lambda g, x: g.op("MoE", x, domain="com.microsoft"), domains={"com.microsoft": 1})
    refused(model, tmp_path, UnsupportedError, r"node 'n\d+_MoE' \(MoE\): a choice by values, as in a mixture of experts, on a tensor \[1, 11, 24\]; supported: of com.microsoft: Attention, BiasGelu")


@pytest.mark.parametrize("kind", ["Expand", "ConstantOfShape", "Range", "Tile"])
def test_computed_constants_are_measured_before_they_are_made(kind, tmp_path):
    def start(g, x):
        big = 1 << 40
        if kind == "Expand":
            y = g.op("Expand", g.number(1.0), g.ints(1 << 20, 1 << 20))
        elif kind == "ConstantOfShape":
            y = g.op("ConstantOfShape", g.ints(big))
        elif kind == "Tile":
            y = g.op("Tile", g.put(np.ones(8, np.float32)), g.ints(big))
        else:
            y = g.op("Range", g.number(0.0), g.number(1e12), g.number(1.0))
        return g.op("Add", x, g.op("ReduceSum", y))

    refused(decoder(start=start), tmp_path, UnsupportedError, rf"\({kind}\): a result of \d+ elements; supported: at most {constants.MOST_ELEMENTS}")


def test_what_mixes_tokens_outside_attention_is_named(tmp_path):
    model = decoder(mlp=lambda g, x: g.op("Add", swiglu(g, x), g.op("ReduceMean", x, g.ints(1), keepdims=1)))
    refused(model, tmp_path, UnsupportedError, r"node 'n\d+_Add' \(Add\): one row for a whole text, together with the rows of its tokens; supported: ")


def test_attention_to_later_tokens_is_named(tmp_path):
    model = decoder(attend=lambda g, x: plain_attention(g, x, None, lambda g: g.number(0.0)))
    refused(model, tmp_path, UnsupportedError, r"\(MatMul\): logits of a model whose attention goes in both directions")


def test_a_mask_that_depends_on_the_ids_is_named(tmp_path):
    def mask(g):
        padding = g.op("Equal", "input_ids", g.put(np.array(0, np.int64)))
        return g.op("Where", padding, g.number(-1e9), g.causal())

    refused(decoder(attend=lambda g, x: plain_attention(g, x, None, mask)), tmp_path, UnsupportedError, r"\((Equal|Where)\): ")


def test_inputs_that_are_not_understood_are_named(tmp_path):
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info("pixel_values", TensorProto.FLOAT, [1, 3, 224, 224]))
    refused(model, tmp_path, UnsupportedError, r"input 'pixel_values' \(FLOAT .*\) is not understood; supported: token ids")
    del model.graph.input[0]
    refused(model, tmp_path, EdgePosError, "no input of token ids|no earlier node makes|not a valid ONNX file")


@pytest.mark.parametrize("context", [0, -1, 1 << 40, True])
def test_contexts_out_of_range_are_refused(context, tmp_path):
    refused(decoder(), tmp_path, UnsupportedError, "option context is .*; allowed: 1 to", context=context)


def test_a_graph_for_one_length_has_that_context(tmp_path):
    model = decoder()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = 32
    assert load(save(model, tmp_path)).context == 32
    refused(model, tmp_path, UnsupportedError, "context is 64, but the graph was exported for 32 tokens", context=64)


@pytest.mark.parametrize("tokens", [0, -5, 1 << 31, 1 << 62])
def test_a_graph_for_a_length_out_of_range_is_refused(tokens, tmp_path):
    model = decoder()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = tokens
    refused(model, tmp_path, UnsupportedError, f"exported for {tokens} tokens; supported: 1 to 4200, or any length")


@pytest.mark.parametrize("kind", ["UNDEFINED", "STRING", "COMPLEX64", "FLOAT8E5M2"])
def test_inputs_of_types_that_mean_nothing_here_are_named(kind, tmp_path):
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.DataType.Value(kind), [1, "tokens"]))
    refused(model, tmp_path, UnsupportedError, f"input 'attention_mask' is {kind}; supported: integers, floats and truth values")


def test_a_difference_is_found_and_located(tmp_path, monkeypatch):
    """A recognition that were wrong would be seen: here the norm's epsilon is changed on the way."""
    from edgepos.export.onnx_in import norms

    true = norms._norm

    def wrong(reader, node, codes, center, epsilon, *weights):
        return true(reader, node, codes, center, epsilon + 0.5, *weights)

    monkeypatch.setattr(norms, "_norm", wrong)
    refused(decoder(), tmp_path, UnsupportedError, r"with 1 tokens the output .* differ by .*; the first difference is at node 'n\d+_Mul' \(Mul\)")


def test_a_file_without_tokenizer_becomes_a_bundle_of_ids(tmp_path):
    path = save(decoder(), tmp_path)
    with pytest.raises(UnsupportedError, match="without a tokenizer a text cannot become tokens; pass calibration= a list of token ids"):
        edgepos.export_bundle(path, tmp_path / "m.edgepos")
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(list(range(30))))
    bundle = edgepos.export_bundle(path, tmp_path / "m.edgepos", calibration=ids)
    assert bundle.session().eval_int([1, 2, 3]).shape == (3, 40)
    ids.write_text("{}")
    with pytest.raises(FormatError, match="not a JSON list of token ids"):
        edgepos.export_bundle(path, tmp_path / "n.edgepos", calibration=ids)


def test_a_tokenizer_is_given_beside_the_file(root, tmp_path):
    g = Graph()
    g.rng = np.random.default_rng(1)
    path = save(decoder(), tmp_path)
    folder = root / "examples/tiny/tiny-rope"
    with pytest.raises(EdgePosError, match="token"):  # its ids pass the vocabulary of 40
        load(path, tokenizer=folder)
    with pytest.raises(FormatError, match="no such file or folder"):
        load(path, tokenizer=tmp_path / "none")


def test_the_command_line_exports_a_file(tmp_path, capsys):
    from edgepos.cli import app

    path, ids = save(decoder(), tmp_path), tmp_path / "ids.json"
    ids.write_text(json.dumps(list(range(30))))
    app(["export", str(path), "-o", str(tmp_path / "m.edgepos"), "--calibration", str(ids), "--context", "100"], standalone_mode=False)
    bundle = edgepos.open(tmp_path / "m.edgepos")
    assert f"digest {bundle.selftest()}" in capsys.readouterr().out.replace("\n", "")
    assert (bundle.context, list(bundle.manifest["source"]["sha256"])) == (100, ["m.onnx"])


def test_damaged_graphs_never_end_in_anything_but_one_line(tmp_path):
    """Random changes of inputs, operators and weights: read, or refused by name."""
    rng = np.random.default_rng(7)
    operators = ["Add", "Softmax", "Reshape", "Transpose", "ReduceMean", "Gather", "Concat", "MatMul", "Where", "Slice", "Expand", "Split", "Attention"]
    base, refusals = decoder(), 0
    for _ in range(60):
        model = onnx.ModelProto()
        model.CopyFrom(base)
        node = model.graph.node[rng.integers(len(model.graph.node))]
        values = [w.name for w in model.graph.initializer] + [o for n in model.graph.node for o in n.output]
        change = rng.integers(3)
        if change == 0 and node.input:
            node.input[rng.integers(len(node.input))] = str(rng.choice(values))
        elif change == 1:
            node.op_type = str(rng.choice(operators))
        elif node.input:
            del node.input[rng.integers(len(node.input))]
        try:
            load(save(model, tmp_path), context=50)
        except EdgePosError as error:
            assert "\n" not in str(error)
            refusals += 1
    assert refusals > 20


def test_constants_that_grow_with_the_length_are_measured_at_the_longest(tmp_path):
    """Small at the length of reading, 15 GB with 300 tokens: refused before ONNX Runtime would make it."""

    def start(g, x):
        n = g.op("Unsqueeze", g.tokens(), g.ints(0))
        large = g.op("Expand", g.number(1.0), g.op("Concat", n, n, n, g.ints(1 << 7), axis=0))
        return g.op("Add", x, g.op("Mul", g.op("ReduceMax", large, keepdims=0), g.number(0.0)))

    refused(decoder(start=start), tmp_path, UnsupportedError, r"\(Expand\): a result of 3456000000 elements; supported: at most")


def test_tensors_repeated_without_need_are_refused(tmp_path):
    def start(g, x):
        wide = g.op("Tile", x, g.ints(1, 1, 1 << 17))
        return g.op("Slice", wide, g.ints(0), g.ints(DIM), g.ints(2))

    refused(decoder(start=start), tmp_path, UnsupportedError, rf"\(Tile\): a result of \d+ elements; supported: at most {constants.MOST_MOVED}")


def _with_functions(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    model = decoder(mlp=lambda g, x: g.op("F0", x, domain="local"), domains={"local": 1})
    model.functions.extend(functions)
    return model


def _function(name: str, *nodes: onnx.NodeProto) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    return helper.make_function("local", name, ["x"], ["y"], list(nodes), imports)


def test_functions_within_functions_are_put_in_place(tmp_path):
    call = helper.make_node("F1", ["x"], ["y"], domain="local")
    silu = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    model = _with_functions(_function("F0", call), _function("F1", *silu))
    assert load(save(model, tmp_path)).vocab_size == 40


@pytest.mark.parametrize(
    "functions",
    [
        [_function("F0", helper.make_node("F0", ["x"], ["y"], domain="local"))],
        [_function("F0", helper.make_node("F1", ["x"], ["y"], domain="local")), _function("F1", helper.make_node("F0", ["x"], ["y"], domain="local"))],
        [_function("F0", helper.make_node("Neg", ["z"], ["y"]))],
        [_function("F0", helper.make_node("Missing", ["x"], ["y"], domain="local"))],
    ],
    ids=["itself", "each other", "unknown input", "missing"],
)
def test_functions_that_cannot_be_put_in_place_are_refused(functions, tmp_path):
    words = "its functions cannot be put in place|operator of domain 'local'|no earlier node makes|not a valid ONNX file"
    refused(_with_functions(*functions), tmp_path, EdgePosError, words)


def test_functions_that_double_are_bounded(tmp_path):
    """30 functions of two calls each would be a billion nodes."""
    functions = [
        _function(f"F{i}", helper.make_node(f"F{i + 1}", ["x"], ["z"], domain="local"), helper.make_node(f"F{i + 1}", ["z"], ["y"], domain="local"))
        for i in range(30)
    ]
    functions.append(_function("F30", helper.make_node("Neg", ["x"], ["y"])))
    refused(_with_functions(*functions), tmp_path, UnsupportedError, "more than 200000 nodes")


def test_a_name_given_twice_is_refused(tmp_path):
    model = decoder()
    model.graph.node[5].output[0] = model.graph.node[3].output[0]
    refused(model, tmp_path, EdgePosError, "not a valid ONNX file|no earlier node makes|made twice")
    model = decoder()
    model.graph.initializer[1].name = model.graph.initializer[0].name
    refused(model, tmp_path, EdgePosError, "c[01]|not a valid ONNX file|ONNX Runtime")


def test_a_huge_constant_is_refused_before_it_is_read(tmp_path):
    def mlp(g, x):
        value = onnx.numpy_helper.from_array(np.ones(4, np.float32))
        value.dims[:] = [1 << 20, 1 << 19]
        return g.op("Add", x, g.op("Constant", value=value))

    refused(decoder(mlp=mlp), tmp_path, FormatError, r"tensor '\?' (has shape|holds 16 bytes)")


def test_constants_stored_elsewhere_are_refused(tmp_path):
    def mlp(g, x):
        value = onnx.numpy_helper.from_array(np.ones(DIM, np.float32), "k")
        value.ClearField("raw_data")
        value.data_location = TensorProto.EXTERNAL
        value.external_data.add(key="location", value="secret.bin")
        return g.op("Add", x, g.op("Constant", value=value))

    (tmp_path / "secret.bin").write_bytes(bytes(4 * DIM))
    refused(decoder(mlp=mlp), tmp_path, FormatError, "tensor 'k' is stored in 'secret.bin'; allowed")


def test_shapes_that_contradict_each_other_are_refused(tmp_path):
    """The cache's length is said to be the text's; a mask of a fixed size beside a text of any."""
    model = decoder()
    model.graph.input.append(helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, 7]))
    mask = helper.make_node("ReduceSum", ["attention_mask"], ["count"], keepdims=0)
    cast = helper.make_node("Cast", ["count"], ["scale"], to=TensorProto.FLOAT)
    last = model.graph.node[-1]
    scaled = helper.make_node("Mul", [last.input[0], "scale"], ["scaled"])
    last.input[0] = "scaled"
    for node in (mask, cast, scaled):
        model.graph.node.insert(len(model.graph.node) - 1, node)
    refused(model, tmp_path, EdgePosError, "attention_mask|ONNX Runtime cannot run it|differ by")
