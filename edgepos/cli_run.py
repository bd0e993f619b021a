"""`edgepos run` and `edgepos perplexity`: text from a bundle, and how well it predicts one."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Annotated, Optional

import typer

from .cli_common import BundleArgument, Engine, EngineOption, ThreadsOption, err, progress_bar
from .errors import EdgePosError
from .signals import heard
from .whole_file import check_place, whole_file

MOST_TEXTS = 64_000_000  # bytes of a conversation's messages, as of edgepos-run
ContextOption = Annotated[Optional[int], typer.Option(help="Tokens the session can hold.")]


def run(
    bundle: BundleArgument,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="Text to continue.")] = "",
    max_new_tokens: Annotated[int, typer.Option("-n", "--max-new-tokens", min=0, help="Most tokens to generate (of each answer).")] = 128,
    engine: EngineOption = Engine.c,
    context: ContextOption = None,
    threads: ThreadsOption = 1,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 keeps all.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(help="Tokens that were there get so many times less likely; 1: no less.")] = 1.0,
    penalty_last: Annotated[int, typer.Option(help="Those among the last so many tokens; 0: all.")] = 0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text on every target.")] = 0,
    stop: Annotated[Optional[list[str]], typer.Option(help="End before this text; may be given several times.")] = None,
    no_eos: Annotated[bool, typer.Option("--no-eos", help="Go on behind an end of text.")] = False,
    chat: Annotated[bool, typer.Option("--chat", help="A conversation: every line of the input is a message.")] = False,
    system: Annotated[Optional[str], typer.Option(help="What the model is told before a conversation.")] = None,
    save: Annotated[Optional[Path], typer.Option(help="Keep the conversation, or prompt and text, for --restore; with -n 0 the prompt alone.")] = None,
    restore: Annotated[
        Optional[Path], typer.Option(help="Go on from there: with the saved messages and random numbers, or with the prompt behind the saved text.")
    ] = None,
) -> None:
    """Generate text, or talk."""
    from .bundle import open as open_bundle
    from .embedding import check_output
    from .runtime.generate import generate

    if chat and prompt:
        raise EdgePosError("--prompt does not go with --chat: give messages as lines of the input")
    if system is not None and not chat:
        raise EdgePosError("--system goes with --chat")
    if system is not None and restore is not None:
        raise EdgePosError("--system does not go with --restore: what was saved has its own")
    opened = open_bundle(bundle)
    if save is not None:
        check_place(save)
    state = None if restore is None else _read_state(restore, chat, opened.image.arena_size(context))
    place = {"context": context, "threads": threads, "engine": engine.value}
    choice = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "repetition_penalty": repetition_penalty, "penalty_last": penalty_last}
    rules = {"max_new_tokens": max_new_tokens, "stop": stop or (), "eos": not no_eos, "seed": seed, **choice}
    if chat:
        talk = opened.chat(system, **place, **rules)
        if state is not None:
            talk.restore(state)
        _talk(talk)
        if save is not None:
            _write_state(save, talk.save(), talk.session)
        return
    session = opened.session(**place)
    check_output(session, embedding=False)
    if state is not None:
        session.restore(state)
    text = generate(session, session.the_tokenizer(), prompt, **rules)
    started = time.monotonic()
    sys.stdout.write(prompt)
    _show(text)
    elapsed = max(time.monotonic() - started, 1e-9)
    err.print(f"{session.position} tokens in {elapsed:.2f} s, {session.position / elapsed:.0f} tokens/s", style="dim")
    if save is not None:
        if text.reason == "length":  # the prompt, or the last token, which was chosen and not evaluated
            session.eval_int(text.ids, logits="none")
        _write_state(save, session.save(), session)


def _read_state(file: Path, chat: bool, arena: int) -> bytes:
    """What --save wrote: no more than a session of `arena` bytes of memory holds, and texts."""
    from .bounded_file import read_bounded
    from .chat.session import MAGIC

    if not file.is_file():
        raise EdgePosError(f"--restore {file}: no such file; name one that --save wrote")
    state = read_bounded(file, f"--restore {file}", arena + MOST_TEXTS, "name one that --save wrote")
    if state.startswith(MAGIC) != chat:
        raise EdgePosError(f"--restore {file}: " + ("no conversation; go on with a text by -p, without --chat" if chat else "a conversation; go on with it by --chat"))
    return state


def _write_state(file: Path, state: bytes, session) -> None:
    with whole_file(file) as temporary:
        temporary.write_bytes(state)
    err.print(f"saved: {file}, {session.length} tokens", style="dim")


def _show(pieces) -> None:
    for piece in pieces:
        sys.stdout.write(piece)
        sys.stdout.flush()
    sys.stdout.write("\n")
    sys.stdout.flush()


def _answer(chat, text: str) -> None:
    dropped = chat.dropped
    try:
        pieces = chat.send(text)
    except EdgePosError as error:
        if not chat.messages or chat.messages[-1]["role"] == "system":
            raise
        err.print(str(error), style="yellow")
        return
    with contextlib.closing(pieces):
        if chat.dropped > dropped:
            err.print(f"(the context is full: {chat.dropped - dropped} messages left out)", style="dim")
        _show(pieces)


def _talk(chat) -> None:
    """Answer the lines of standard input, one after the other."""
    terminal = sys.stdin.isatty()
    if terminal:
        err.print("One line is one message. Ctrl-C ends an answer, Ctrl-D the conversation.", style="dim")
    while True:
        try:
            if terminal:
                err.print("> ", end="")
            line = sys.stdin.buffer.readline()
        except KeyboardInterrupt:
            heard()
            break
        if not line:
            break
        text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
        if not text:
            continue
        try:
            _answer(chat, text)
        except KeyboardInterrupt:
            heard()
            if chat.messages and chat.messages[-1]["role"] == "user":  # the answer had not begun
                chat.messages.append({"role": "assistant", "content": ""})
            sys.stdout.write(chat.rest + "\n")
    if terminal:
        err.print()


def perplexity(
    bundle: BundleArgument,
    text: Annotated[list[Path], typer.Argument(help="UTF-8 texts.")],
    max_tokens: Annotated[int, typer.Option(min=2, help="Use at most so many tokens of each.")] = 8192,
    engine: EngineOption = Engine.c,
    context: ContextOption = None,
    threads: ThreadsOption = 1,
) -> None:
    """How well the model predicts texts: the windows and the definition of `edgepos report`."""
    from .bundle import open as open_bundle
    from .report.perplexity import measure
    from .report.windows import read_text

    opened = open_bundle(bundle)
    for file in text:
        content = read_text(file)
        with progress_bar("tokens") as progress:
            task = progress.add_task(file.name, total=None)
            result = measure(
                opened, content, max_tokens=max_tokens, context=context, threads=threads, engine=engine.value,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )  # fmt: skip
        sys.stdout.write(f"{file}: perplexity {result.perplexity:.6f}, {result.nats_per_token:.8f} nats per token, {result.tokens} tokens\n")
        sys.stdout.flush()
