"""Pass: float operators → an integer Program whose fractional bits are still to be chosen (calibrate.py does that).

`fit` computes everything of one operator that depends on the F of its input and output values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from ..export.mapped_file import release_pages
from ..export.block_rows import GridRows
from ..program import (
    A16, A8G32, BIDIRECTIONAL, CAUSAL, CLASSES, EMBEDDING, HALF, INTERLEAVED, KV, LOGITS, NONE, PARAMETERS, POOLS, POSITIONS, UNIT_F, Header, Op, Operation, Program, Value,
)  # fmt: skip
from . import activations, constants
from .options import Options
from .plan import head_start
from .source_grid import from_source, quantize_w4
from .steps import Act, Add, Attend, Embed, FloatProgram, Linear, Mul, Norm, Patches, Place, Pool, Rotate, Step, Unit
from .weights import QuantizedMatrix, mantissa_shift_rows, quantize, row_scales

NAME_BYTES = 63  # a GGUF name is at most 64 bytes with its terminator in other readers
LOG2_E = float(np.log2(np.e))
GROUP_SCALES, ROW_SCALES = ".g32", ".row"
UNIT = "edgepos.unit"  # a γ that no initializer stands for


@dataclass
class Piece:
    """An operator with the step it came from and its float facts: γ's bits, β/bias as float32 and their tensor name,
    the largest F of the output."""

    step: Step
    op: Operation
    gamma_bits: int = 0
    added: np.ndarray | None = None
    added_name: str = ""
    limit: int | None = None


class Assembly:
    """A Program being built: `pieces` run parallel to program.ops; `number` maps value names to value numbers."""

    def __init__(self, source: FloatProgram, options: Options, grids: Mapping[str, GridRows] | None = None):
        """grids: initializers whose source holds integers, with those rows."""
        self.source, self.options, self.grids = source, options, grids or {}
        self._embedded = {step.weight for step in source.steps if isinstance(step, Embed)}
        self.program = Program(
            header=Header(source.vocab, options.context, options.kv_bits, 0, 0, 0, NONE, output=CLASSES if source.labels else EMBEDDING if source.pool else LOGITS),
            values=[], kv=[], ops=[], names=["edgepos.program"], arrays=[None],
        )  # fmt: skip
        self.pieces: list[Piece] = []
        self.number: dict[str, int] = {}
        self._shared: dict[object, int] = {}

    def build(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Add every step, in order; progress(done, total) counts them."""
        for index, step in enumerate(self.source.steps):
            _BUILDERS[type(step)](self, step)
            if progress is not None:
                progress(index + 1, len(self.source.steps))
        self.program.header.head_start = head_start(self.program.ops)

    # ---- tensors

    def add_tensor(self, name: str, array: np.ndarray) -> int:
        """Store a tensor under `name`, made unique and short enough; returns its index."""
        name = unique_name(tensor_name(name), self.program.names)
        self.program.names.append(name)
        self.program.arrays.append(np.ascontiguousarray(array))
        return len(self.program.names) - 1

    def _share(self, key: object, name: str, make) -> int:
        """The tensor stored under `key`, made on first use."""
        if key not in self._shared:
            self._shared[key] = self.add_tensor(name, make())
        return self._shared[key]

    def _matrix(self, name: str) -> tuple[tuple[int, int, int], int]:
        """((weights, group scales or NONE, row scales), form) of a matrix, shared by all its users (tied embedding and head)."""
        key = ("matrix", name)
        if key not in self._shared:
            q = self._quantize(name)
            release_pages()
            tensors = (
                self.add_tensor(name, q.w),
                NONE if q.g is None else self.add_tensor(suffixed(name, GROUP_SCALES), q.g),
                self.add_tensor(suffixed(name, ROW_SCALES), q.row),
            )
            self._shared[key] = (tensors, q.form)
        return self._shared[key]

    def _quantize(self, name: str) -> QuantizedMatrix:
        """The matrix in the format asked for. EMBED reads 8-bit rows, so a table of token ids is never w4g32."""
        asked, grid, embedded = self.options.format_of(name), self.grids.get(name), name in self._embedded
        if grid is not None and asked not in ("w8", "w16g32"):
            wide = embedded or asked == "w8g32"
            if not wide and (kept := from_source(grid, 4)) is not None:
                return kept
            # A 4-bit source in w8g32 is quantized again, unless no other form can keep it.
            if (embedded or grid.bits == 8) and (kept := from_source(grid, 8)) is not None:
                return kept
        if asked == "w4g32" and not embedded:
            return quantize_w4(self.source.read(name))
        return quantize(self.source.read(name), asked if asked in ("w8", "w16g32") else "w8g32")

    def _added(self, name: str) -> tuple[int, np.ndarray]:
        """(tensor, float32) of a β or bias: its integers depend on the F of the output, so every operator has its own."""
        values = self.source.read(name)
        return self.add_tensor(name, np.zeros(len(values), np.int32)), values

    # ---- operators

    def _define(self, step: Step) -> int:
        self.program.values.append(Value(step.width, 0))
        self.number[step.out] = len(self.program.values) - 1
        return self.number[step.out]

    def _append(self, step: Step, op: Operation, **facts) -> None:
        for key in PARAMETERS[op.code]:
            op.params.setdefault(key, 0)
        self.program.ops.append(op)
        self.pieces.append(Piece(step, op, **facts))

    def _ins(self, *names: str) -> tuple[int, int]:
        numbers = [self.number[name] for name in names]
        return numbers[0], numbers[1] if len(numbers) > 1 else NONE

    def _patches(self, step: Patches) -> None:
        self._append(step, Operation(Op.PATCHES, self._define(step), params=asdict(step.picture), name=step.name))

    def _embed(self, step: Embed) -> None:
        (w, g, row), form = self._matrix(step.weight)
        if step.scale != 1:
            scaled = mantissa_shift_rows(row_scales(self.program.arrays[row]) * step.scale)
            row = self._share(("scaled", step.weight, step.scale), suffixed(step.weight, ".scaled"), lambda: scaled)
        tensors = (w, g, row, NONE)
        self._append(step, Operation(Op.EMBED, self._define(step), tensors=tensors, params={"form": form}, name=step.name))

    def _place(self, step: Place) -> None:
        rows, factors = constants.position_rows(step.spec, self.source.read(step.table))
        tensors = (self.add_tensor(step.table, rows), NONE, self.add_tensor(suffixed(step.table, ROW_SCALES), factors), NONE)
        params = {"source": POSITIONS, "offset": step.offset, "modulo": step.modulo}
        self._append(step, Operation(Op.EMBED, self._define(step), tensors=tensors, params=params, name=step.name))

    def _norm(self, step: Norm) -> None:
        key = ("gamma", step.gamma)
        if key not in self._shared:
            integers, bits = constants.gamma_integers(self.source.read(step.gamma))
            self._shared[key] = (self.add_tensor(step.gamma, integers), bits)
        gamma, bits = self._shared[key]
        beta, values = (NONE, None) if step.beta is None else self._added(step.beta)
        op = Operation(Op.NORM, self._define(step), self._ins(step.x), (gamma, beta, NONE, NONE), {"center": int(step.center), "groups": step.groups}, step.name)
        self._append(step, op, gamma_bits=bits, added=values, added_name=step.beta or "")

    def _linear(self, step: Linear) -> None:
        matrix, form = self._matrix(step.weight)
        bias, values = (NONE, None) if step.bias is None else self._added(step.bias)
        op = Operation(Op.LINEAR, self._define(step), self._ins(step.x), (*matrix, bias), {"form": form, "inputs": self._inputs(step)}, step.name)
        limit = None
        if step.softcap:
            # Its table's range must fit int32 before the cap.
            limit = 31 - 4 - constants.softcap_exponent(step.softcap)
            op.params["softcap"] = self.add_tensor(f"{step.name}.table", constants.softcap(step.softcap, 1.0, limit, limit))
        self._append(step, op, added=values, added_name=step.bias or "", limit=limit)

    def _inputs(self, step: Linear) -> int:
        """Format of the input of a matrix. a8g32 is not for what reads an activation function or a product (a down projection), whose
        largest number may be most of a row, nor for what is behind a pooling."""
        if self.options.activations == "a16":
            return A16
        made = next(piece.step for piece in reversed(self.pieces) if piece.step.out == step.x)
        pooled = any(isinstance(piece.step, Pool) for piece in self.pieces)
        return A16 if pooled or isinstance(made, (Act, Mul, Patches)) else A8G32

    def _add(self, step: Add) -> None:
        self._append(step, Operation(Op.ADD, self._define(step), self._ins(step.a, step.b), name=step.name))

    def _mul(self, step: Mul) -> None:
        self._append(step, Operation(Op.MUL, self._define(step), self._ins(step.a, step.b), name=step.name))

    def _act(self, step: Act) -> None:
        function = activations.FUNCTIONS[step.function]
        table = self._share(("act", step.function), f"table.{step.function}", lambda: activations.table(step.function))
        params = {"left": function.left, "right": function.right}
        self._append(step, Operation(Op.ACT, self._define(step), self._ins(step.x), (table, NONE, NONE, NONE), params, step.name))

    def _pool(self, step: Pool) -> None:
        self._append(step, Operation(Op.POOL, self._define(step), self._ins(step.x), params={"kind": POOLS.index(step.kind), "id": step.token}, name=step.name))

    def _unit(self, step: Unit) -> None:
        gamma = self._share((UNIT, step.width), UNIT, lambda: np.full(step.width, 1 << UNIT_F, np.int32))
        self._append(step, Operation(Op.NORM, self._define(step), self._ins(step.x), (gamma, NONE, NONE, NONE), name=step.name), gamma_bits=UNIT_F)

    def _rotate(self, step: Rotate) -> None:
        spec = step.spec
        increments = self._share(("rope", spec), "rope.increments", lambda: constants.increments(spec, self.options.context))
        params = {"heads": step.heads, "head_dim": spec.head_dim, "layout": HALF if spec.layout == "half" else INTERLEAVED}
        self._append(step, Operation(Op.ROPE, self._define(step), self._ins(step.x), (increments, NONE, NONE, NONE), params, step.name))

    def _attend(self, step: Attend) -> None:
        self.program.kv.append(KV(step.kv_heads, step.k_dim, step.v_dim, step.window))
        write = Operation(Op.KV_WRITE, ins=self._ins(step.k, step.v), params={"layer": step.layer}, name=f"{step.name}.cache")
        self._append(step, write)
        slopes, bias, shift = NONE, NONE, 0
        if step.slopes is not None:
            integers, shift = constants.alibi_slopes(self.source.read(step.slopes).ravel(), self.options.context)
            slopes = self._share(("slopes", step.slopes), step.slopes, lambda: integers)
        if step.bias is not None:
            bias = self._share(("bias", step.bias), step.bias, lambda: constants.bias_table(self.source.read(step.bias)))
        params = {
            "layer": step.layer,
            "heads": step.heads,
            "w": constants.probability_bits(self.options.context),
            "alibi_shift": shift,
            "mask": BIDIRECTIONAL if step.both else CAUSAL,
        }
        cap = NONE
        if step.softcap:
            table = constants.softcap(step.softcap, LOG2_E, 16, 16)
            cap = self._share(("softcap", step.softcap), "table.score_softcap", lambda: table)
        op = Operation(Op.ATTENTION, self._define(step), self._ins(step.q), (slopes, bias, cap, NONE), params, step.name)
        self._append(step, op)

    # ---- what depends on F

    def f_of(self, name: str) -> int:
        return self.program.values[self.number[name]].f

    def fit(self, piece: Piece) -> None:
        """Set the parameters and the β or bias of an operator from the F of its values."""
        step, op, p = piece.step, piece.op, piece.op.params
        out = NONE if op.out == NONE else self.program.values[op.out].f
        if op.code == Op.EMBED:
            p["shift"] = -out
        elif op.code == Op.NORM:
            if isinstance(step, Norm):
                p["eps_m"], p["eps_shift"] = constants.epsilon(step.epsilon, step.width // step.groups, step.center, self.f_of(step.x))
            p["out_shift"] = piece.gamma_bits - out
        elif op.code == Op.LINEAR:
            p["shift"] = self.f_of(step.x) - out
            if step.softcap:
                self.program.arrays[p["softcap"]] = constants.softcap(step.softcap, 1.0, out, out)
        elif op.code == Op.ADD:
            a, b = self.f_of(step.a), self.f_of(step.b)
            p["la"], p["lb"], p["n"] = max(a, b) - a, max(a, b) - b, max(a, b) - out
        elif op.code == Op.MUL:
            p["n"] = self.f_of(step.a) + self.f_of(step.b) - out
        elif op.code == Op.ACT:
            f = self.f_of(step.x)
            p["in_shift"], p["out_shift"], p["id_shift"] = f - 24, 18 + activations.fraction_bits(step.function) - out, f - out
        elif op.code == Op.ROPE:
            p["amp_m"], p["amp_shift"] = constants.amplitude(step.spec, self.f_of(step.x), out)
        elif op.code == Op.ATTENTION:
            p["score_m"], p["score_shift"] = constants.score(step.scale, self.options.kv_bits, self.f_of(step.q), self.f_of(step.k))
            p["out_shift"] = self.f_of(step.v) - out
        if piece.added is not None:
            index = op.tensors[1] if op.code == Op.NORM else op.tensors[3]
            self.program.arrays[index] = constants.fixed_integers(piece.added, out, piece.added_name)


_BUILDERS = {
    Patches: Assembly._patches,
    Embed: Assembly._embed,
    Place: Assembly._place,
    Norm: Assembly._norm,
    Linear: Assembly._linear,
    Add: Assembly._add,
    Mul: Assembly._mul,
    Act: Assembly._act,
    Pool: Assembly._pool,
    Unit: Assembly._unit,
    Rotate: Assembly._rotate,
    Attend: Assembly._attend,
}


def tensor_name(name: str) -> str:
    """`name`, or where it is longer than 63 bytes its end behind 8 digits of its SHA-256."""
    raw = name.encode("utf-8")
    if len(raw) <= NAME_BYTES:
        return name
    tail = raw[-(NAME_BYTES - 9) :].decode("utf-8", "ignore")
    return hashlib.sha256(raw).hexdigest()[:8] + "~" + tail


def suffixed(name: str, suffix: str) -> str:
    """The tensor name of a part of initializer `name`."""
    return tensor_name(name + suffix)


def unique_name(name: str, taken: list[str]) -> str:
    """`name`, with ~2, ~3, … where it is taken already."""
    result, count = name, 1
    while result in taken:
        count += 1
        end = f"~{count}"
        result = name.encode("utf-8")[: NAME_BYTES - len(end)].decode("utf-8", "ignore") + end
    return result
