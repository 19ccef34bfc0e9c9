"""Which sockets are reported: what is beyond loopback, with port and reason."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from slime_events.app.cli.checks import Outcome
from slime_events.app.cli.sockets import Listener, check_sockets, listeners
from slime_events.app.launch.run_lock import MARK


@pytest.mark.parametrize(
    ("address", "is_open"),
    [
        *[(host, False) for host in ("127.0.0.1", "127.0.1.1", "::1", "::ffff:127.0.0.1")],
        *[(host, True) for host in ("0.0.0.0", "::", "10.0.0.5", "::ffff:10.0.0.5", "fe80::1")],
    ],
)
def test_what_others_can_reach(address: str, is_open: bool) -> None:
    assert Listener(address, 1, "x").is_open == is_open


def test_each_open_socket_has_port_and_reason() -> None:
    sockets = [Listener("127.0.0.1", 1, "raylet"), Listener("::", 39515, "ray::ServeReplica:x"), Listener("::", 2, "?")]
    check = check_sockets(sockets)
    assert check.outcome is Outcome.WARN
    assert "[::]:39515 (Ray Serve's calls to an engine's replica)" in check.detail
    assert "[::]:2 (it belongs to a run)" in check.detail
    assert "127.0.0.1" not in check.detail
    assert check.mend
    assert check_sockets(sockets[:1]).outcome is Outcome.OK


def test_processes_of_a_run_are_looked_at() -> None:
    program = (
        "import socket, sys; s = socket.create_server(('0.0.0.0', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {MARK: "test"},
    ) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        there = {(listener.address, listener.port) for listener in listeners()}
        process.communicate("\n")
    assert ("0.0.0.0", port) in there
    with socket.create_server(("127.0.0.1", 0)) as own:
        assert own.getsockname()[1] not in {listener.port for listener in listeners()}
