"""A Linux machine that answers to ssh: program and model are copied into a folder of its own there, which goes afterwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import EdgePosError, UnsupportedError
from . import tools
from .boards import RUN_SECONDS
from .linux import LinuxBoard
from .processors import is_host, linux_target

_PLACE = re.compile(r"ssh://(?:([A-Za-z0-9_][A-Za-z0-9_.-]*)@)?([A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?/?")
_FOLDER = re.compile(r"/[A-Za-z0-9_./-]+")
# No questions: keys must be set up; a machine that does not answer is one after 15 s.
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=15", "-o", "ServerAliveInterval=15")
COPY_SECONDS = 1800


@dataclass(frozen=True)
class SshBoard(LinuxBoard):
    """`place` is user@host as ssh takes it, `port` its port ("": the configured one)."""

    place: str = ""
    port: str = ""

    def needs(self) -> list[str]:
        return [self.compiler, "ssh", "scp"]

    def _execute(self, program: Path, model: Path, arguments: Sequence):
        folder = ssh(self.place, self.port, "mktemp -d -t edgepos-XXXXXXXX").stdout.strip()
        if not _FOLDER.fullmatch(folder):
            raise EdgePosError(f"{self.name}: mktemp gave {folder[:80]!r} where a folder's name was expected")
        try:
            port = ("-P", self.port) if self.port else ()
            user, _, host = self.place.rpartition("@")
            to = f"{user}@" * bool(user) + (f"[{host}]" if ":" in host else host)
            for source, name in ((program, "edgepos-run"), (model, "model.gguf")):
                done = tools.run([tools.find("scp"), "-q", *_OPTIONS, *port, "--", source.resolve(), f"{to}:{folder}/{name}"], COPY_SECONDS)
                if done.returncode != 0:
                    raise EdgePosError(f"{self.name}: {name} cannot be copied: {tools.last_line(done.stderr)}")
            words = [str(word) for word in arguments]
            if not all(re.fullmatch(r"[A-Za-z0-9_.,-]+", word) for word in words):  # the shell there splits the command
                raise EdgePosError(f"{self.name}: an argument holds more than letters, digits and commas")
            return ssh(self.place, self.port, f"cd {folder} && chmod 700 edgepos-run && ./edgepos-run model.gguf {' '.join(words)}", RUN_SECONDS, check=False)
        finally:
            ssh(self.place, self.port, f"rm -rf {folder}", check=False)


def ssh(place: str, port: str, command: str, seconds: float = 60, check: bool = True):
    """Run a command there. Raises EdgePosError when the machine does not answer or, with `check`, when the command fails."""
    options = (*_OPTIONS, *(("-p", port) if port else ()))
    done = tools.run([tools.find("ssh"), *options, "--", place, command], seconds)
    if done.returncode == 255:
        raise EdgePosError(f"{place} does not answer to ssh: {tools.last_line(done.stderr)}")
    if check and done.returncode != 0:
        raise EdgePosError(f"{place}: {command.split()[0]} ended with {done.returncode}: {tools.last_line(done.stderr)}")
    return done


def ssh_board(name: str) -> SshBoard:
    """The board that `ssh://user@host:port` names; asks it what it is. Raises UnsupportedError for other names and systems, EdgePosError when it is silent."""
    match = _PLACE.fullmatch(name)
    if not match or (match[3] and not 0 < int(match[3]) < 65536):
        raise UnsupportedError(f"{name!r} is no machine that ssh could reach; write ssh://user@host or ssh://user@host:port")
    host = match[2].strip("[]")
    place, port = (f"{match[1]}@{host}" if match[1] else host), match[3] or ""
    words = ssh(place, port, "uname -sm").stdout.split()
    if len(words) != 2 or words[0] != "Linux":
        raise UnsupportedError(f"{name}: Linux is needed there, uname says {' '.join(words)[:80]!r}")
    target = linux_target(words[1])
    compiler = target.gcc
    if tools.missing(compiler) and is_host(target):
        compiler = "cc"
    board = SshBoard(name, f"{target.name} ({words[1]})", compiler, emulated=False, target=target, link_flags=("-static",), place=place, port=port)
    return board.with_what_is_there()
