"""Error of every operator: the integer values beside those of the float graph, for the same tokens."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from .. import fixedpoint as fx
from ..float_session import FloatSession
from ..golden import Batch, Machine, image_batch
from ..golden_session import GoldenSession
from ..program import A8G32, GROUP, NONE, Op, Operation, Program


def sqnr_db(reference: np.ndarray, value: np.ndarray) -> float | None:
    """Signal to quantization noise ratio in dB; None when both are zero or the noise is."""
    reference = np.asarray(reference, np.float64)
    noise = float(((reference - value) ** 2).sum())
    signal = float((reference**2).sum())
    if noise == 0 or signal == 0:
        return None
    return float(10 * np.log10(signal / noise))


def trace_layers(program: Program, model: ir.Model, ids: list[int], threads: int = 0) -> list[dict]:
    """One entry per operator with an output, in data-flow order.

    An entry: name, op, format, f, sqnr_db, own_sqnr_db, reads_db, saturations, outlier. `ids` is one window, or an image; the integers are computed by golden,
    whose bits are every engine's. sqnr_db compares with the float graph and holds all errors before; own_sqnr_db is of the operator
    alone, run on the float graph's values rounded to its inputs. Both are None for values that the float graph does not have under
    the same name, or without any error. reads_db: {format: dB} of the float graph's values that a matrix or an attention reads, rounded to
    the activation formats or to those of the KV cache (the worse of keys and values); None for other operators. outlier: the channel with the largest magnitude, and its ratio to the channels' median.
    """
    floats = _floats(program, model, ids, threads)
    session = GoldenSession(program, None if program.image else max(len(ids), 1))
    alone = _Alone(program, floats, ids)
    entries: list[dict] = []
    before = 0

    def trace(index: int, output: np.ndarray) -> None:
        nonlocal before
        op = program.ops[index]
        f = program.values[op.out].f
        reference = floats.get(op.name)
        entries.append(
            {
                "name": op.name,
                "op": op.code.name,
                "format": _format(program, op),
                "f": f,
                "sqnr_db": None if reference is None else sqnr_db(reference, output * 2.0**-f),
                "own_sqnr_db": alone.sqnr_db(index, output),
                "reads_db": alone.reads_db(op),
                "saturations": session.saturations - before,
                "outlier": None if reference is None else _outlier(reference),
            }
        )
        before = session.saturations

    (session.embed_image_int if program.image else session.embed_int if program.embedding else session.eval_int)(ids, trace=trace)
    return entries


def _format(program: Program, op: Operation) -> str | None:
    """What an operator reads in few bits: weights and inputs of a matrix, or the KV cache."""
    if op.code == Op.LINEAR:
        return f"{op.weight_format} {'a8g32' if op.params['inputs'] == A8G32 else 'a16'}"
    return op.weight_format if op.code == Op.EMBED else f"kv{program.header.kv_bits}" if op.code == Op.ATTENTION else None


def _floats(program: Program, model: ir.Model, ids: list[int], threads: int) -> dict[str, np.ndarray]:
    """Operator name → float values [tokens, width], of those that the float graph has."""
    last, output = program.ops[-1].name, "embedding" if program.embedding else "logits"
    floats = float_values(model, [op.name for op in program.ops if op.out != NONE and op.name != last], ids, threads, output)
    floats.setdefault(last, floats[output])
    return floats


def float_values(model: ir.Model, names: list[str], ids: list[int], threads: int, *outputs: str) -> dict[str, np.ndarray]:
    """`outputs` and those of the named values that the float graph computes for ids (or an image), [tokens, width]."""
    computed = {node.outputs[0].name for node in model.graph if node.outputs[0].name is not None}
    wanted = [name for name in dict.fromkeys(names) if name in computed]
    floats = FloatSession(with_outputs(model, wanted), threads=threads).values(ids, [*outputs, *wanted]) if wanted or outputs else {}
    return {name: value.reshape(-1, value.shape[-1]) for name, value in floats.items()}


def _outlier(reference: np.ndarray) -> dict | None:
    """{channel, ratio} of float values [tokens, width]; None where the median channel is zero."""
    largest = np.abs(reference).max(axis=0)
    median = float(np.median(largest))
    channel = int(largest.argmax())
    return {"channel": channel, "ratio": float(largest[channel]) / median} if median > 0 else None


class _Alone:
    """Runs every operator on rounded float inputs, so that only its own error is left."""

    def __init__(self, program: Program, floats: dict[str, np.ndarray], ids: list[int]):
        self.program, self.floats = program, floats
        if program.image:
            self.batch = image_batch(ids, program.header.context)
        else:
            self.batch = Batch(np.asarray(ids, np.int64), np.arange(len(ids), dtype=np.int64), 0)
        self.machine = Machine(program, max(len(self.batch.ids), 1))
        self.values: dict[int, np.ndarray] = {}
        self.done = 0

    def sqnr_db(self, index: int, output: np.ndarray) -> float | None:
        """Of operator `index`, whose output in the running program is `output`; operators come in order."""
        for op in self.program.ops[self.done : index]:  # those without an output, which are not traced
            self.machine.run(op, self.values, self.batch)
        self.done = index + 1
        op, f = self.program.ops[index], self.program.values[self.program.ops[index].out].f
        reference = self.floats.get(op.name)
        result = None
        if reference is not None:
            result = sqnr_db(reference, self.machine.run(op, self.values, self.batch) * 2.0**-f)
            output = np.clip(np.rint(np.float64(reference) * 2.0**f), -(2**31), 2**31 - 1).astype(np.int64)
        self.values[op.out] = output
        return result


    def reads_db(self, op: Operation) -> dict[str, float | None] | None:
        """Of an operator that has run: how well 16 and 8 bits hold what it reads."""
        if op.code == Op.LINEAR:
            x = self.values[op.ins[0]]
            x = np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP)))
            return {"a16": sqnr_db(x, _narrow(x)), "a8g32": sqnr_db(x, _grouped(x))}
        if op.code != Op.ATTENTION:
            return None
        write = next(o for o in self.program.ops if o.code == Op.KV_WRITE and o.params["layer"] == op.params["layer"])
        heads = self.program.kv[op.params["layer"]].heads
        both = [self.values[value].reshape(len(self.batch.ids) * heads, -1) for value in write.ins]
        return {name: min(filter(None, (sqnr_db(x, rounded(x)) for x in both)), default=None) for name, rounded in (("kv16", _narrow), ("kv8", _kv8))}


def _narrow(x: np.ndarray) -> np.ndarray:
    q, s = fx.narrow16(x)
    return q << s[..., None]


def _grouped(x: np.ndarray) -> np.ndarray:
    q, d, s = fx.quant8g32(x)
    return (q * np.repeat(d, GROUP, axis=-1)) << s[..., None]


def _kv8(x: np.ndarray) -> np.ndarray:
    q, a = fx.quant8(x)
    return q * a[..., None] / 127


def with_outputs(model: ir.Model, names: list[str]) -> ir.Model:
    """A copy of the graph (weights shared) that also returns the named values."""
    model = model.clone()
    by_name = {value.name: value for node in model.graph for value in node.outputs}
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(by_name[name] for name in names if name not in present)
    return model
