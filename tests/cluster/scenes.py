"""Runs over three machines. Each scene returns what it saw, and raises AssertionError if that is wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from schemas.weights import WeightsPublished
from schemas.workers import WorkerLost
from tests.cluster.machines import Machines, wait_for
from tests.cluster.plan import beyond
from tests.run.tiny import events_of, of

STEPS = 10
FLAGS = [
    *(f"--num-rollout={STEPS}", "--rollout-batch-size=8", "--n-samples-per-prompt=4", "--global-batch-size=32"),
    *("--actor-num-gpus-per-node=2", "--console-port=0", "--eval-interval=100"),
]
BUCKET = "slime"
RUN_S = 240.0
NAMED_S = 30.0
"""Seconds in which a machine that sees something else must be named."""
STEP = re.compile(r"^step (\d+)/", re.MULTILINE)
RANK, ENGINE = "ray::RankActor", "ray::ServeReplica"


@dataclass
class Reference:
    """Digests of the weight versions of the run on one machine."""

    digests: dict[int, str] = field(default_factory=dict)


class Run:
    """A run whose launcher is on machine 1."""

    def __init__(self, machines: Machines, name: str, *, joins: bool = True, address: str = "") -> None:
        self._machines, self.name = machines, name
        self.output = machines.folder / f"{name}.txt"
        self._joins = ["--ray-address", address or machines.ray_address] if joins else []
        self._runs = ["--runs-dir", str(machines.shared)]
        self._program: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._begin(["demo", "--run", self.name, *FLAGS])

    def start_like(self, settings: Path, flags: list[str]) -> None:
        """Start a run with another one's settings file."""
        self._begin(["train", "--config", str(settings), "--run", self.name, *flags])

    def resume(self) -> None:
        self._begin(["resume", self.name])

    def _begin(self, words: list[str]) -> None:
        command = [str(Path(sys.executable).with_name("slime-events")), *words, *self._runs, *self._joins]
        self.output = self.output.with_name(f"{self.output.stem}+.txt")
        self._program = self._machines.begin(1, command, self.output)

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def version(self) -> int:
        """The newest weight version that the launcher has printed."""
        return max(map(int, STEP.findall(self.text)), default=0)

    def digests(self) -> dict[int, str]:
        """Return the digest of each version, from the log of the run, which is over."""
        published = of(events_of(self._machines.shared / self.name), WeightsPublished)
        return {event.version: event.digest[:12] for event in published}

    def until(self, version: int) -> None:
        """Wait for a version. Raises AssertionError if the run ends before."""
        wait_for(lambda: self.version >= version or self._is_over(), f"version {version} of {self.name}", RUN_S)
        assert self.version >= version, self.text[-3000:]

    def end(self) -> int:
        """Wait for the end, and return the exit code."""
        assert self._program is not None
        return self._program.wait(RUN_S)

    def _is_over(self) -> bool:
        assert self._program is not None
        return self._program.poll() is not None


def on_one_machine(machines: Machines, reference: Reference) -> str:
    run = Run(machines, "one", joins=False)
    run.start()
    assert run.end() == 0, run.text[-3000:]
    reference.digests |= run.digests()
    assert len(reference.digests) == STEPS + 1
    return f"{STEPS} versions, the last one {reference.digests[STEPS]}"


def on_three_machines(machines: Machines, reference: Reference) -> str:
    """Compare digests and where processes are, and look for sockets beyond the network."""
    run = Run(machines, "three")
    run.start()
    run.until(2)
    numbers = range(1, len(machines.machines) + 1)
    places = {kind: [n for n in numbers if count(machines, n, kind)] for kind in (RANK, ENGINE)}
    sockets = {n: machines.listening(n) for n in numbers}
    wide = {n: beyond(sockets[n], machines.machines[n - 1].address) for n in numbers}
    assert run.end() == 0, run.text[-3000:]
    assert run.digests() == reference.digests
    assert places == {RANK: [2], ENGINE: [3]}, f"rank 1 and engine are on machines {places}"
    assert not any(wide.values()), wide
    own = sum(not socket.is_ray_s for every in sockets.values() for socket in every)
    return (
        f"the same {STEPS} digests; ranks on machines 1 and 2, engine on 3; "
        f"{own} sockets of the run, none beyond {machines.machines[0].address}/24"
    )


def count(machines: Machines, number: int, kind: str) -> int:
    return sum(line.startswith(kind) for line in machines.processes(number))


def ranks_and_engines(machines: Machines, number: int) -> list[str]:
    return [line for line in machines.processes(number) if line.startswith(("ray::Rank", "ray::Trainer", ENGINE))]


def machine_lost(number: int) -> Callable[[Machines, Reference], str]:
    """Return the scene in which a machine other than the launcher's is lost in a run and comes back."""

    def scene(machines: Machines, reference: Reference) -> str:
        run = Run(machines, f"without{number}")
        run.start()
        run.until(1)
        had = [kind.removeprefix("ray::") for kind in (RANK, ENGINE) if count(machines, number, kind)]
        where = {n: processes for n in (1, 2, 3) if (processes := ranks_and_engines(machines, n))}
        assert had, f"machine {number} has no process to lose: {where}"
        machines.kill(number)
        begun, before = time.monotonic(), run.version
        run.until(min(before + 2, STEPS))
        seconds = time.monotonic() - begun
        assert run.end() == 0, run.text[-3000:]
        machines.start(number)
        machines.start_ray(number)
        assert run.digests() == reference.digests
        events, address = events_of(machines.shared / run.name), machines.machines[number - 1].address
        reasons = [event.reason for event in of(events, WorkerLost) if event.role == "engine"]
        assert reasons == ([f"its machine {address} is lost"] if ENGINE.removeprefix("ray::") in had else []), reasons
        lost = " and ".join(had)
        return f"lost after version {before} with {lost}; two more {seconds:.0f} s later; the same digests at the end"

    return scene


def objects_only(machines: Machines, reference: Reference) -> str:
    """Machines 2 and 3 have nothing but the model and an S3 server."""
    first, copy = machines.shared / "one", machines.folder / "copy"
    shutil.copytree(first / "data", copy)
    machines.start_store(BUCKET)
    for number in (2, 3):
        machines.kill(number)
        machines.start(number, unshared=True)
        machines.call(number, ["mkdir", str(first)])
        machines.call(number, ["cp", "-r", str(copy), str(first / "data")])
        machines.start_ray(number)
    run = Run(machines, "objects")
    urls = [f"--{name}-url=s3://{BUCKET}/{name}" for name in ("weights", "blob", "archive")]
    try:
        run.start_like(first / "settings.toml", urls)
        assert run.end() == 0, run.text[-3000:]
        there = [machines.call(number, ["ls", str(machines.shared / run.name)]).split() for number in (2, 3)]
    finally:
        for number in (2, 3):
            machines.kill(number)
            machines.start(number)
            machines.start_ray(number)
    assert all(set(names) <= {"logs"} for names in there), there
    assert run.digests() == reference.digests
    return f"the same {STEPS} digests; weights, payloads and archive in s3://{BUCKET}; elsewhere process logs only"


def launcher_lost(machines: Machines, reference: Reference) -> str:
    """Lose the machine of the launcher, the log and Ray's head."""
    run = Run(machines, "resumed")
    run.start()
    run.until(1)
    machines.kill_all()
    before, begun = run.version, time.monotonic()
    machines.start_all()
    run.resume()
    assert run.end() == 0, run.text[-3000:]
    assert run.digests() == reference.digests
    return f"lost after version {before}; {time.monotonic() - begun:.0f} s later the same digests at the end"


def unshared(machines: Machines, reference: Reference) -> str:
    """One machine has another folder at the path of the runs."""
    machines.kill(3)
    machines.start(3, unshared=True)
    machines.start_ray(3)
    try:
        return refused(Run(machines, "unshared"), machines.machines[2].address, str(machines.shared))
    finally:
        machines.kill(3)
        machines.start(3)
        machines.start_ray(3)


def wrong_address(machines: Machines, reference: Reference) -> str:
    """The address of Ray is one that only the launcher's machine reaches, and so the log's is."""
    address = f"127.0.0.1:{machines.ray_address.rpartition(':')[2]}"
    return refused(Run(machines, "wrong", address=address), machines.machines[1].address, "127.0.0.1")


def refused(run: Run, machine: str, what: str) -> str:
    begun = time.monotonic()
    run.start()
    code, seconds = run.end(), time.monotonic() - begun
    lines = [line for line in run.text.splitlines() if f"machine {machine}" in line and what in line]
    assert code != 0, run.text[-3000:]
    assert lines, run.text[-3000:]
    assert seconds < NAMED_S, f"after {seconds:.0f} s"
    return f"after {seconds:.0f} s: {lines[0].strip()}"


SCENES: dict[str, Callable[[Machines, Reference], str]] = {
    "one machine": on_one_machine,
    "three machines": on_three_machines,
    "unshared path": unshared,
    "wrong address": wrong_address,
    "machine 3 lost": machine_lost(3),
    "machine 2 lost": machine_lost(2),
    "only S3 shared": objects_only,
    "machine 1 lost": launcher_lost,
}
