"""`edgepos verify --on ssh://…` against an ssh server on the loopback: what it does there, and what it refuses."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from boards import require

from edgepos import EdgePosError, UnsupportedError, targets
from edgepos.targets.ssh import ssh, ssh_board

SSHD = "/usr/sbin/sshd"
SECONDS = 120  # to start on a busy machine


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The port of a server that lets in this user with a key of its own, and a folder with bin/ whose ssh and scp use that key."""
    require("ssh", "scp", "ssh-keygen", SSHD)
    home = tmp_path_factory.mktemp("sshd")
    home.chmod(0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True, timeout=60)
    shutil.copy(home / "user.pub", home / "authorized_keys")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lines = [f"Port {port}", "ListenAddress 127.0.0.1", f"HostKey {home / 'host'}", f"AuthorizedKeysFile {home / 'authorized_keys'}", f"PidFile {home / 'pid'}"]
    lines += ["StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password", "Subsystem sftp internal-sftp", f"SetEnv TMPDIR={home / 'tmp'}"]
    (home / "sshd_config").write_text("\n".join(lines) + "\n")
    (home / "config").write_text(f"Host *\n  IdentityFile {home / 'user'}\n  IdentitiesOnly yes\n  StrictHostKeyChecking no\n  UserKnownHostsFile {home / 'known'}\n")
    (home / "tmp").mkdir()  # of its own: others may work in the usual one
    (home / "bin").mkdir()
    for name in ("ssh", "scp"):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {shutil.which(name)} -F {home / "config"} "$@"\n')
        program.chmod(0o755)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with open(home / "log", "wb") as log, subprocess.Popen([SSHD, "-D", "-e", "-f", home / "sshd_config"], stderr=log) as running:
        end = time.monotonic() + SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < end and running.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
        yield port, home
        running.terminate()


@pytest.fixture
def place(server, monkeypatch):
    port, home = server
    monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return f"ssh://{getpass.getuser()}@127.0.0.1:{port}"


def test_a_machine_is_verified_and_left_as_it_was(bundle, place, server):
    opened = bundle("stories260K")
    said = targets.verify(opened, place)
    assert f"digest {opened.program.header.digest:016x}" in said and "meaningless" not in said and "processor has" in said
    assert targets.generate(opened, place, [1, 2, 3], 5) == targets.generate(opened, "host", [1, 2, 3], 5)
    port, home = server
    folder = ssh(place.removeprefix("ssh://").rpartition(":")[0], str(port), "mktemp -d -t edgepos-XXXXXXXX").stdout.strip()
    assert list((home / "tmp").iterdir()) == [Path(folder)]  # where they would be


def test_a_machine_that_does_not_answer(bundle, place):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with pytest.raises(EdgePosError, match="127.0.0.1 does not answer to ssh: .*refused"):
        targets.verify(bundle("stories260K"), f"{place.rpartition(':')[0]}:{free}")


@pytest.mark.parametrize(
    "name",
    ["ssh://", "ssh://-oProxyCommand=id", "ssh://a@-oProxyCommand=id", "ssh://-l@host", "ssh://u@h;id", "ssh://u@h:0", "ssh://u@h:70000", "ssh://u@h:22;id",
     "ssh://u@h/x", "ssh://u u@h", "ssh://$(id)@h", "ssh://u@h\n", "ssh://u@`id`", "ssh:u@h", "ssh://u@[::1"],
)  # fmt: skip
def test_places_that_are_none(name, monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("a program was started"))
    with pytest.raises(UnsupportedError, match="is no machine that ssh could reach"):
        ssh_board(name)
