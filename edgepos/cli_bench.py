"""`edgepos bench`: the speed of a bundle on this machine, whole or operator by operator."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from .cli_common import BundleArgument, ThreadsOption, out
from .errors import EdgePosError

if TYPE_CHECKING:
    from .program import Program
    from .runtime.profile import Cost


def bench(
    bundle: BundleArgument,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens evaluated together.")] = 256,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens generated one by one behind them.")] = 64,
    threads: ThreadsOption = 1,
    profile: Annotated[bool, typer.Option("--profile", help="Time, bytes and integer operations of every kind of operator.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure tokens per second beside the memory bandwidth of this machine."""
    from .bundle import open as open_bundle
    from .runtime.profile import bandwidth
    from .runtime.profile import profile as measure

    opened = open_bundle(bundle)
    if opened.program.embedding:
        raise EdgePosError("bench measures generation; this bundle gives embeddings")
    if prompt + tokens > opened.context:
        raise EdgePosError(f"--prompt {prompt} and --tokens {tokens}: the context has room for {opened.context} together")
    rate = bandwidth(threads)
    session = opened.session(context=prompt + tokens, threads=threads)
    session.eval_int([0], logits="last")  # everything is in memory
    session.reset()
    started = time.perf_counter()
    session.eval_int([7 * i % session.vocab for i in range(prompt)], logits="none")
    between = time.perf_counter()
    for _ in range(tokens):
        session.eval_int([session.argmax()], logits="none")
    prefill, decode = prompt / (between - started), tokens / (time.perf_counter() - between)
    info = opened.image.info
    per_token = info.weight_bytes_per_token + info.kv_bytes_per_token * (prompt + tokens // 2)
    found = {
        "kernels": session.kernels, "threads": threads, "prefill_tps": prefill, "decode_tps": decode, "bytes_per_token": per_token,
        "bandwidth": rate, "of_bound": decode * per_token / rate,
    }  # fmt: skip
    parts = measure(session, opened.program, prompt, tokens) if profile else ()
    rows = {name: _rows(opened.program, costs, rate) for name, costs in zip(("prefill", "decode"), parts)}
    if as_json:
        out.print_json(json.dumps(found | rows))
        return
    out.print(f"{session.kernels} kernels, {threads} thread{'s' * (threads > 1)}, memory reads {rate / 1e9:.1f} GB/s")
    out.print(f"prefill {prefill:.0f} tokens/s, decode {decode:.0f} tokens/s: {found['of_bound']:.0%} of the bandwidth for {per_token / 1e6:.1f} MB a token")
    for name, count in (("prefill", prompt), ("decode", tokens)):
        if profile:
            _show(f"{name}, per token", rows[name], count)


def _rows(program: Program, costs: dict[int, Cost], rate: float) -> list[dict]:
    """One row per kind of operator, the longest first; of_bound: time the bytes need at the measured bandwidth over the time taken."""
    from .program import Op
    from .runtime.profile import Cost

    kinds: dict[str, Cost] = {}
    for index, cost in costs.items():
        op, last = program.ops[index], index == len(program.ops) - 1
        kinds.setdefault("logits" if last else Op(op.code).name, Cost()).add(cost)
    total = sum(cost.seconds for cost in kinds.values())
    ordered = sorted(kinds.items(), key=lambda item: -item[1].seconds)
    return [
        {"operator": name, "seconds": c.seconds, "share": c.seconds / total, "bytes": c.bytes, "operations": c.operations, "of_bound": c.bytes / rate / c.seconds}
        for name, c in ordered
    ]


def _show(title: str, rows: list[dict], count: int) -> None:
    table = Table(title=title, title_justify="left")
    for column in ("operator", "µs", "share", "kB", "operations", "per ns", "of bound"):
        table.add_column(column, justify="right")
    for r in rows:
        table.add_row(
            r["operator"], f"{r['seconds'] / count * 1e6:.1f}", f"{r['share']:.1%}", f"{r['bytes'] / count / 1e3:.1f}", f"{r['operations'] / count:.0f}",
            f"{r['operations'] / r['seconds'] / 1e9:.2f}", f"{r['of_bound']:.0%}" if r["bytes"] else "",
        )  # fmt: skip
    out.print(table)
    out.print("Without LINEAR and ATTENTION an operation is a number written; KV_WRITE counts with ATTENTION.")
