"""`doctor --ray-address` over three real machines of Ray on one, the third with six faults."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slime_events.app.cli.checks import Check, Outcome
from slime_events.app.cli.cluster_checks import cluster_checks
from slime_events.app.launch.node_survey import Survey, survey
from slime_events.app.launch.seen_places import seen_places
from slime_events.core.run.own_python import own_path
from storage.nats.ports import free_port

HEAD, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"
START_S = 60.0
BEHIND = "import time; read = time.time_ns; time.time_ns = lambda: read() - 90_000_000_000\n"
"""A clock that is 90 s behind."""
SMI = '#!/bin/sh\necho "H100, 1024, 81559"\n'


class Machines:
    """Three machines of a Ray on loopback addresses. The third has its own mounts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs, self.port = folder, folder / "runs", free_port()
        self.ray = f"{HEAD}:{self.port}"
        self.runs.mkdir()
        faults = folder / "faults"
        (faults / "torch-2.0.0.dist-info").mkdir(parents=True)
        (faults / "torch-2.0.0.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: torch\nVersion: 2.0.0\n"
        )
        (faults / "sitecustomize.py").write_text(BEHIND)
        (faults / "nvidia-smi").write_text(SMI)
        (faults / "nvidia-smi").chmod(0o755)

    def start(self) -> None:
        head = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder / 'ray'}"]
        self._start(HEAD, head)
        self._start(SECOND, [f"--address={self.ray}"])
        faults = str(self.folder / "faults")
        path = os.pathsep.join(filter(None, [faults, own_path().get("PYTHONPATH", os.environ.get("PYTHONPATH"))]))
        own = {"PATH": f"{faults}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": path}
        hidden = f"mount -t tmpfs none {self.runs} && exec"
        self._start(
            THIRD, [f"--address={self.ray}", "--num-gpus=1"], ["unshare", "-m", "sh", "-c", f'{hidden} "$0" "$@"'], own
        )

    def _start(self, address: str, words: list[str], before: list[str] = [], own: dict[str, str] = {}) -> None:  # noqa: B006
        command = [*before, shutil.which("ray") or str(Path(sys.executable).parent / "ray"), "start", *words]
        command += [f"--node-ip-address={address}", "--num-cpus=1", "--object-store-memory=80000000"]
        environment = {**os.environ, **own_path(), "RAY_USAGE_STATS_ENABLED": "0", **own}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=START_S)

    def stop(self) -> None:
        """End all processes of this Ray: each has its folder on its command line."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != os.getpid() and any(str(self.folder / "ray") in word for word in process.cmdline()):
                    process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = Path("/tmp") / f"ray-{os.getpid()}"  # Ray's sockets need a short path
    folder.mkdir()
    machines = Machines(folder)
    try:
        machines.start()
        yield machines
    finally:
        machines.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.soak
def test_each_of_six_faults_is_found(machines: Machines) -> None:
    with socket.create_server((THIRD, 0)) as listener, seen_places([("--runs-dir", str(machines.runs))]) as places:
        port = listener.getsockname()[1]
        checked = {check.name: check for check in cluster_checks(survey(machines.ray, places, [port]))}
    faults = {name for name, check in checked.items() if check.outcome is not Outcome.OK}
    assert faults == {"versions", "clocks", "shared places", "ports", "memory of GPUs"}
    assert all(THIRD in checked[name].detail for name in faults)
    assert checked["collectives"].outcome is Outcome.OK
    assert [*machines.runs.iterdir()] == []


@pytest.mark.soak
def test_a_machine_that_hangs_is_named(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sixth fault. Ray still counts a machine that has just stopped."""
    monkeypatch.setattr("slime_events.app.launch.node_survey.ANSWER_S", 15.0)
    raylets = [process for process in psutil.process_iter() if _is_raylet_of(process, THIRD)]
    for process in raylets:
        process.suspend()
    try:
        checked = {check.name: check for check in cluster_checks(survey(machines.ray))}
    finally:
        for process in raylets:
            process.resume()
    assert raylets
    assert checked["machines"].outcome is Outcome.FAIL
    assert THIRD in checked["machines"].detail
    assert checked["network"].outcome is checked["collectives"].outcome is Outcome.OK


@pytest.mark.soak
def test_a_machine_that_ray_has_lost_is_named(machines: Machines) -> None:
    """Last, because the machine does not come back."""
    raylets = [process for process in psutil.process_iter() if _is_raylet_of(process, THIRD)]
    for process in raylets:
        process.kill()
    until = time.monotonic() + START_S
    while not (detail := _machines_of(survey(machines.ray)).detail).startswith(f"{THIRD}: Ray has lost it"):
        assert time.monotonic() < until, detail
    assert raylets
    assert _machines_of(survey(machines.ray)).outcome is Outcome.FAIL


def _machines_of(seen: Survey) -> Check:
    return next(check for check in cluster_checks(seen) if check.name == "machines")


def _is_raylet_of(process: psutil.Process, address: str) -> bool:
    with contextlib.suppress(psutil.Error):
        words = process.cmdline()
        return bool(words) and words[0].endswith("/raylet") and any(address in word for word in words)
    return False
