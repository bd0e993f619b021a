"""Conversations at a terminal: Ctrl-C ends an answer, or the conversation at its prompt; Ctrl-D ends it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time

import pytest
from test_chat import spec  # noqa: F401 - a fixture
from test_chat_sessions import talker  # noqa: F401 - a fixture

CTRL_C, CTRL_D = b"\x03", b"\x04"
TOKENS = 400
SECONDS = 120  # for one answer on a busy machine


class Terminal:
    """A program whose standard input is its terminal; standard output and error are pipes."""

    def __init__(self, command: list):
        self.keys, inside = pty.openpty()

        def own_terminal() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a job in the background inherits that it is ignored
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        pipes = {"stdin": inside, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen([str(part) for part in command], **pipes, preexec_fn=own_terminal, bufsize=0)
        os.close(inside)
        self.said = {self.process.stdout: b"", self.process.stderr: b""}

    def type(self, keys: bytes) -> None:
        os.write(self.keys, keys)

    def wait(self, until) -> None:
        """Read until `until(output, errors)`. Raises EOFError when the program ends before."""
        end, (output, errors) = time.monotonic() + SECONDS, self.said
        while not until(self.said[output], self.said[errors]):
            assert time.monotonic() < end, self.said
            if self.process.poll() is not None:
                raise EOFError(self.said)
            for pipe in select.select([output, errors], [], [], 1)[0]:
                self.said[pipe] += os.read(pipe.fileno(), 4096)

    def prompt(self, number: int) -> None:
        self.wait(lambda _, errors: errors.count(b"> ") == number)

    def end(self) -> int:
        """The exit code; what was printed is in `output`."""
        output, errors = self.process.communicate(timeout=SECONDS)
        self.said = dict(zip(self.said, (old + new for old, new in zip(self.said.values(), (output, errors)))))
        os.close(self.keys)
        return self.process.returncode

    @property
    def output(self) -> bytes:
        return self.said[self.process.stdout]


@pytest.fixture(params=["python", "c"])
def start(request, talker):  # noqa: F811
    """The command that opens the conversation in each language."""
    # Both are slow enough that there is time to interrupt them.
    if request.param == "python":
        return [sys.executable, "-m", "edgepos", "run", talker().path, "--chat", "--engine", "golden", "-n", TOKENS]
    return [request.getfixturevalue("sanitized_edgepos_run"), talker().model_path, "--chat", "-n", TOKENS]


def test_ctrl_d_ends_the_conversation(start):
    terminal = Terminal([*start[:-1], 8])
    terminal.prompt(1)
    terminal.type(b"Tell me a story\n")
    terminal.prompt(2)
    assert b"Ctrl-D" in terminal.said[terminal.process.stderr] and terminal.output.endswith(b"\n")
    terminal.type(CTRL_D)
    assert terminal.end() == 0


def test_ctrl_c_at_the_prompt_ends_the_conversation(start):
    terminal = Terminal(start)
    terminal.prompt(1)
    terminal.type(CTRL_C)
    assert terminal.end() == 0 and terminal.output == b""


def test_ctrl_c_ends_an_answer_and_the_conversation_goes_on(start, talker):  # noqa: F811
    whole = "".join(talker().chat(max_new_tokens=TOKENS).send("Tell me a story")).encode()
    assert any(interrupted(Terminal(start), whole) for _ in range(20)), "no answer was interrupted"


def interrupted(terminal: Terminal, whole: bytes) -> bool:
    """Interrupt the answer that would be `whole`, and one more. False where an answer was at its end before the key was seen."""
    try:
        terminal.prompt(1)
        terminal.type(b"Tell me a story\n")
        terminal.wait(lambda output, _: output)
        terminal.type(CTRL_C)
        terminal.prompt(2)
        terminal.wait(lambda output, _: output.endswith(b"\n"))
        first = terminal.output
        terminal.type(b"And then?\n")
        terminal.wait(lambda output, _: len(output) > len(first))
        terminal.type(CTRL_C)
        terminal.prompt(3)
        terminal.type(CTRL_D)
    except EOFError:  # the key came to the prompt, where it ends the conversation
        assert terminal.end() in (0, 130)
        return False
    assert terminal.end() == 0 and whole.startswith(first.rstrip(b"\n"))
    return len(first) < len(whole)
