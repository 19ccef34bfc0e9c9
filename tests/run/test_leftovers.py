"""A killed launcher's engines and programs on a Ray that it had joined are ended by the next launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime_events.app.launch.run_lock import MARK
from slime_events.core.run.own_python import ROOT

WAIT_S = 60.0
SLEEPS = ["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]
"""A program that starts another and ends, so that Ray does not find the other as a child of an actor."""
LAUNCH = "from tests.run.test_leftovers import *; launch({address!r}, Path({folder!r}))"


class Engine:
    """Replace an engine's replica: it writes its process, and that of a program that outlives it."""

    def __init__(self, file: str) -> None:
        program = subprocess.run(SLEEPS, capture_output=True, check=True, start_new_session=True)
        Path(f"{file}.{os.getpid()}").write_text(json.dumps([os.getpid(), int(program.stdout)]))

    def __call__(self) -> None:
        """Serve wants something that can be called."""


def launch(address: str, folder: Path) -> None:
    """Deploy an engine, and wait to be killed. In a process of its own."""
    from ray import serve

    from slime_events.app.launch.cluster import Cluster
    from slime_events.app.launch.own_ray import make_small

    make_small()  # which leaves loopback addresses as they are
    cluster = Cluster(address)
    cluster.start()
    cluster.serve([serve.deployment(Engine, ray_actor_options={"num_cpus": 0}).bind(str(folder / "engine"))], "r")
    (folder / "ready").touch()
    time.sleep(600)


def wait_for(condition: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def scene(folder: Path) -> None:
    """Kill a launcher on a Ray of two machines, and print its processes and those that the next one ended."""
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster as FakeMachines

    from slime_events.app.launch.cluster import Cluster
    from slime_events.app.launch.own_ray import make_small

    make_small()
    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
    machines = FakeMachines(initialize_head=True, head_node_args=small | {"include_dashboard": False})
    machines.add_node(**small)
    program = LAUNCH.format(address=machines.address, folder=str(folder))
    first = subprocess.Popen([sys.executable, "-P", "-c", program], env=os.environ | {MARK: "killed"})
    cluster = Cluster(machines.address)
    try:
        wait_for((folder / "ready").exists)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        left = [pid for file in folder.glob("engine.*") for pid in json.loads(file.read_text())]
        before = [psutil.pid_exists(pid) for pid in left]
        os.environ[MARK] = "next"
        cluster.start()
        count = cluster.end_leftovers("killed", "r")
        wait_for(lambda: not any(map(psutil.pid_exists, left)))
        apps, again = list(serve.status().applications), cluster.end_leftovers("killed", "r")
        print("\n" + json.dumps([before, count, apps, again, len(ray.nodes())]))
    finally:
        first.kill()
        cluster.stop()
        machines.shutdown()


@pytest.mark.real
@pytest.mark.soak
def test_engines_of_a_killed_launcher_and_their_programs_are_ended_on_every_machine(tmp_path: Path) -> None:
    program = f"from tests.run.test_leftovers import *; scene(Path({str(tmp_path)!r}))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    before, count, apps, again, machines = json.loads(done.stdout.splitlines()[-1])
    assert before == [True, True], "Ray ends neither by itself"
    assert count == 1, "the program; the engine ends with its deployment"
    assert (apps, again, machines) == ([], 0, 2)
