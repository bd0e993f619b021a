"""Which encodings fit a budget: the sizes of every form, beside the losses that examples/positions measured.

`measured.json` is written by examples/positions/make_table.py from the training runs; docs/choosing.md shows the same numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from . import costs
from .alibi import Alibi
from .costs import Shape
from .hybrid import in_some
from .learned import MAX_ROWS, Learned
from .none import NoPosition
from .relative import T5Bias
from .rope import Rope
from .sinusoidal import Sinusoidal
from .spec import Spec, check_context, check_count

MEASURED = Path(__file__).with_name("measured.json")
STRETCH = {"rope": "ntk", "learned": "interpolated"}  # how the guide reads beyond the trained length


@dataclass(frozen=True)
class Option:
    """An encoding in one form: what the EdgePos runtime keeps ("runtime") or an "int16" or "int8" table for another one.

    flash: bytes of constants; ram: bytes of values per token; operations: per token at the full context; loss: measured nats per
    token at 1, 2 and 4 times the trained length, None where the encoding has no value; cost: loss added by 16-bit tables, 8-bit ones for "int8".
    """

    encoding: str
    form: str
    flash: int
    ram: int
    operations: int
    loss: tuple[float | None, ...]
    spread: float
    cost: float


@lru_cache(maxsize=1)
def measured() -> dict:
    """The figures of the training runs."""
    return json.loads(MEASURED.read_text(encoding="utf-8"))


def encodings(shape: Shape, context: int) -> dict[str, Spec]:
    """The encodings of the guide for a decoder of this shape."""
    rope, nope = Rope(shape.head_dim), NoPosition()
    specs = {
        "none": nope,
        "rope": rope,
        "hybrid": in_some(rope, [i % 2 == 0 for i in range(shape.layers)]),
        "alibi": Alibi(shape.heads),
        "t5": T5Bias(32, 128, bidirectional=False),
        "sinusoidal": Sinusoidal(shape.dim),
    }
    return specs | ({"learned": Learned(context)} if context <= MAX_ROWS else {})


def options(shape: Shape, context: int) -> list[Option]:
    """Every encoding in every form, best measured loss at the trained length first, then smallest."""
    check_context(context)
    found = []
    for name, spec in encodings(shape, context).items():
        figures = measured()["encodings"][name]
        loss = tuple(_loss(figures["loss"], name, factor) for factor in (1, 2, 4))
        forms = [("runtime", 16, costs.runtime_bytes(spec, shape, context))]
        if name != "none":
            forms += [(f"int{bits}", bits, costs.table_bytes(spec, shape, context, bits)) for bits in (16, 8)]
        for form, bits, flash in forms:
            found.append(
                Option(
                    name,
                    form,
                    flash,
                    costs.value_bytes(spec, shape),
                    costs.operations(spec, shape, context, tables=form != "runtime"),
                    loss,
                    figures["loss"]["1x"]["spread"],
                    figures["integer"][str(bits)]["loss_change"],
                )
            )
    return sorted(found, key=lambda option: (option.loss[0], option.flash))


def advise(shape: Shape, context: int, flash: int | None = None, ram: int | None = None) -> list[Option]:
    """The options that fit: constants up to `flash` bytes, values up to `ram` bytes per token; None means no limit.

    "none" always fits. Raises FormatError for a bad number.
    """
    for name, value in (("flash", flash), ("ram", ram)):
        if value is not None:
            check_count(name, value, 0, 2**63 - 1)
    return [o for o in options(shape, context) if (flash is None or o.flash <= flash) and (ram is None or o.ram <= ram)]


def _loss(losses: dict, name: str, factor: int) -> float | None:
    """The best measured loss at a length, plain or by the encoding's way to stretch."""
    keys = [f"{factor}x", f"{factor}x {STRETCH[name]}"] if name in STRETCH else [f"{factor}x"]
    found = [losses[key]["mean"] for key in keys if losses.get(key)]
    return min(found, default=None)
