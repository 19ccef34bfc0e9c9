"""Hosts that are forked from a template, with a host that imports nothing instead of SGLang's."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from serve_apps.deployment import template_name
from serve_apps.engines.template import UNUSED_S, ask_template
from slime_events.core.child.process_table import runs
from slime_events.core.run.run_address import Incarnation, RunAddress
from storage.jetstream.address import NatsAddress
from storage.own_socket import address

HOST = """
import json, os, socket, sys
from pathlib import Path
from serve_apps.engines.template import Job, leave_template

job = leave_template(sys.argv[3], Job(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]), os.getppid()))
said = dict(pid=os.getpid(), parent=os.getppid(), session=os.getsid(0), folder=str(job.folder), owner=job.owner,
            temporary=os.environ.get("TMPDIR"))
print(os.getpid(), flush=True)
job.connection.sendall(json.dumps(said).encode())
job.connection.recv(1)
"""
OWNER = """
import socket, subprocess, sys
ours, theirs = socket.socketpair()
command = [sys.executable, "-c", sys.argv[1], str(theirs.fileno()), sys.argv[2], sys.argv[3]]
host = subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True)
print(ours.recv(4096).decode(), flush=True)
host.wait()
"""
RAYLET = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", *sys.argv[1:]]).wait()
"""
END_S = 10.0


class Asked:
    """The owner's end of a host that is made here."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.settimeout(END_S)

    def read_answer(self) -> dict[str, Any]:
        self.theirs.close()
        answer: dict[str, Any] = json.loads(self.ours.recv(4096))
        return answer

    def has_ended(self) -> bool:
        return self.ours.recv(1) == b""


@pytest.fixture
def template(tmp_path: Path) -> Iterator[tuple[str, Asked, subprocess.Popen[bytes]]]:
    name, first = secrets.token_hex(8), Asked()
    fd = first.theirs.fileno()
    host = subprocess.Popen(
        [sys.executable, "-c", HOST, str(fd), str(tmp_path), name], pass_fds=[fd], start_new_session=True
    )
    yield name, first, host
    for pid in _templates(name):
        os.kill(pid, signal.SIGKILL)
    host.wait()


def _templates(name: str, *hosts: int) -> list[int]:
    """Processes that lead a session and carry the name in their command, but for these hosts."""
    named = (process for process in psutil.process_iter(["cmdline"]) if name in (process.info["cmdline"] or ()))
    return [process.pid for process in named if process.pid not in hosts and os.getsid(process.pid) == process.pid]


def _template(name: str, *hosts: int) -> int:
    """The only one, once it leads its session."""
    until = time.monotonic() + END_S
    while not (pids := _templates(name, *hosts)) and time.monotonic() < until:
        time.sleep(0.05)
    (pid,) = pids
    return pid


def _ends(pid: int) -> bool:
    until = time.monotonic() + END_S
    while runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not runs(pid)


def test_a_later_host_is_a_copy_with_a_job_of_its_own(
    template: tuple[str, Asked, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name, first, host = template
    answer = first.read_answer()
    assert (answer["pid"], answer["owner"]) == (host.pid, os.getpid())
    host.kill()
    assert first.has_ended(), "the template does not hold the first host's socket"

    second, folder = Asked(), tmp_path / "second"
    with (tmp_path / "log").open("ab") as log:
        pid = ask_template(name, folder, second.theirs.fileno(), log.fileno())
    answer = second.read_answer()
    assert answer["pid"] == answer["session"] == pid
    assert (answer["owner"], answer["folder"], answer["temporary"]) == (os.getpid(), str(folder), str(folder))
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert second.has_ended()
    assert _ends(pid), "the template collects it"
    assert (tmp_path / "log").read_text() == f"{pid}\n"


def test_a_second_first_host_leaves_no_other_template(
    template: tuple[str, Asked, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    name, first, host = template
    first.read_answer()
    other = Asked()
    fd = other.theirs.fileno()
    second = subprocess.Popen([sys.executable, "-c", HOST, str(fd), str(tmp_path), name], pass_fds=[fd])
    assert other.read_answer()["pid"] == second.pid
    assert _template(name, host.pid)
    other.ours.close()
    second.wait()


def test_without_a_template_there_is_no_host(tmp_path: Path) -> None:
    question = Asked()
    with (tmp_path / "log").open("ab") as log:
        assert ask_template(secrets.token_hex(8), tmp_path, question.theirs.fileno(), log.fileno()) is None


def test_it_ends_with_its_owners_and_their_parent(tmp_path: Path) -> None:
    assert END_S < UNUSED_S, "or this test could not tell"
    name = secrets.token_hex(8)
    raylet = subprocess.Popen(
        [sys.executable, "-c", RAYLET, OWNER, HOST, str(tmp_path), name], stdout=subprocess.PIPE, text=True
    )
    assert raylet.stdout is not None
    raylet.stdout.readline()  # the host's own line
    started = json.loads(raylet.stdout.readline())
    pid = _template(name, started["pid"])
    for pid_ in (started["pid"], started["owner"]):
        os.kill(pid_, signal.SIGKILL)
    raylet.wait()
    raylet.stdout.close()
    assert _ends(pid)


def test_two_runs_of_one_name_on_one_ray_have_no_template_together() -> None:
    def name(folder: str = "/runs/a", url: str = "nats://10.0.0.1:4222", number: int = 0, raylet: int = 7) -> str:
        joined = RunAddress(
            run="a" * 100,  # an abstract socket's address has 107 bytes
            nats=NatsAddress(url=url),
            folder=folder,
            blob_url="",
            archive_url="",
            weights_url="",
            incarnation=Incarnation(number=number),
        )
        return template_name(joined, raylet)

    names = [name(), name(folder="/runs/b"), name(url="nats://10.0.0.2:4222"), name(number=1), name(raylet=8)]
    assert len({*names, name()}) == len(names)
    assert all(len(address(f"{each}-{'0' * 16}")) <= 107 for each in names)
