"""`examples/the_loop.py` as a user runs it: a real run started, followed and asked by the public API. Meanwhile
nothing of it listens beyond loopback.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.run.sockets import Listening, listening

pytestmark = pytest.mark.real
DEADLINE_S = 600.0
LOOK_S = 0.25


def test_the_whole_loop(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        run = subprocess.Popen(
            [sys.executable, str(ROOT / "examples" / "the_loop.py"), str(tmp_path)],
            stdout=file,
            stderr=file,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        sockets: set[Listening] = set()
        until = time.monotonic() + DEADLINE_S
        while run.poll() is None and time.monotonic() < until:
            sockets |= listening(run.pid)
            time.sleep(LOOK_S)
        run.kill()
    lines = out.read_text().splitlines()
    assert run.wait() == 0, "\n".join(lines)
    assert sum("is committed as weight version" in line for line in lines) == 3
    assert lines.count("run loop is finished") == 2, "from its folder and from its archive alone"
    assert any("rollout.completed" in line for line in lines)
    assert [socket for socket in sockets if not socket.on_loopback] == []
    for part in ("nats-server", "gcs_server", "raylet", "ray::ServeReplica", "sglang::scheduler", "ray::TrainerActor"):
        assert any(part in socket.process for socket in sockets), f"a socket of {part} was seen"
