"""Parts of `python -m tests.cluster`, without Ray."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.__main__ import missing
from tests.cluster.machines import Machines, wait_for
from tests.cluster.plan import Listening, Machine, beyond, hub_commands, parse_listening, removal_commands

OUTPUT = """\
LISTEN 0 128 10.77.31.1:24222 0.0.0.0:* users:(("nats-server",pid=10,fd=7))
LISTEN 0 128 0.0.0.0:10007 0.0.0.0:* users:(("ray::TrainerAct",pid=11,fd=7))
LISTEN 0 128 0.0.0.0:23007 0.0.0.0:* users:(("ray::TrainerAct",pid=11,fd=9))
LISTEN 0 128 0.0.0.0:6379 0.0.0.0:* users:(("gcs_server",pid=12,fd=7))
LISTEN 0 128 *:30000 *:* users:(("python",pid=13,fd=7))
LISTEN 0 128 [::1]:30001 [::]:*
LISTEN 0 128 127.0.0.1%lo:30002 0.0.0.0:*
LISTEN 0 128 192.0.2.7:30003 0.0.0.0:* users:(("python",pid=13,fd=8))
"""
LISTENS = "import socket, time; s = socket.create_server(('', 23456)); print('on', flush=True); time.sleep(600)"


def test_sockets_beyond_the_network_are_those_that_are_not_ray_s() -> None:
    sockets = parse_listening(OUTPUT)
    assert len(sockets) == 8
    assert sockets[0] == Listening("10.77.31.1", 24222, "nats-server", 10)
    assert [(socket.host, socket.port) for socket in beyond(sockets, "10.77.31.1")] == [
        ("0.0.0.0", 23007),
        ("*", 30000),
        ("192.0.2.7", 30003),
    ]
    assert beyond(sockets[:1], "10.77.31.2") == sockets[:1]


def test_commands_touch_namespaces_alone() -> None:
    commands = [*hub_commands("c"), *Machine("c", 2).commands(), *removal_commands(["c-2", "c-hub"])]
    assert all(" c-2" in command or " c-hub" in command for command in commands)
    assert Machine("c", 2).address.endswith(".2")


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_machines_reach_each_other_and_leave_nothing(tmp_path: Path) -> None:
    before = _namespaces()
    with Machines(2) as machines:
        init = machines._inits[2].pid
        output = tmp_path / "output"
        machines.begin(2, [sys.executable, "-S", "-c", LISTENS], output)
        wait_for(lambda: output.exists() and "on" in output.read_text(), "a server on machine 2")
        dials = "import socket; print(socket.create_connection(('10.77.31.2', 23456)).getsockname()[0])"
        assert machines.call(1, [sys.executable, "-S", "-c", dials]).strip() == "10.77.31.1"
        assert [socket.port for socket in beyond(machines.listening(2), "10.77.31.2")] == [23456]
        assert machines.listening(1) == []
        assert sum(LISTENS in line for line in machines.processes(2)) == 1
        machines.call(1, ["touch", str(machines.shared / "all"), str(machines.folder / "own" / "mine")])
        assert machines.call(2, ["ls", str(machines.shared)]) == "all\n"
        assert "mine" not in machines.call(2, ["ls", str(machines.folder / "own")])
        machines.kill(2)
        assert not Path(f"/proc/{init}").exists()
        machines.start(2, unshared=True)
        assert machines.call(2, ["ls", str(machines.shared)]) == ""
        folder = machines.folder
    assert _namespaces() == before
    assert not folder.exists()


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_a_failure_leaves_nothing_either() -> None:
    before = _namespaces()
    with pytest.raises(RuntimeError), Machines(1) as machines:
        raise RuntimeError
    assert _namespaces() == before
    assert not machines.folder.exists()


def _namespaces() -> str:
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
