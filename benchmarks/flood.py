"""Measure how a producer that floods a run slows its steps: the demo's training with and without incoming prompts.

In one run, phases with and without a sending producer alternate: over HTTP through the run's gateway, then over NATS.
The prompts are the demo's own questions, so that every step has the same work. The producer has the lowest priority
(nice 19), as if it were on another machine; the run itself takes the prompts.

python -m benchmarks.flood run FOLDER PORT STEPS     the run
python -m benchmarks.flood send FOLDER PORT          the producer, which reads commands from its standard input
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from asyncio import TaskGroup
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import httpx
import msgspec
import nats
from nats.aio.client import Client as NatsClient

from benchmarks.critical_path import step_times
from benchmarks.demo_run import DEADLINE_S
from benchmarks.figure import Better, Figure
from benchmarks.processes import Watch
from schemas.errors import TrainerError
from schemas.prompts import PromptSubmitted
from schemas.steps import StepCommitted
from schemas.subjects import of_type
from serve_apps.http.gateway.sources import Sources
from slime_events.core.config.settings import TrainSettings
from storage.log import Recorded
from storage.nats.accounts import Access, file_of
from storage.nats.ports import free_port
from storage.open_log import open_run_log

RUN = "flood"
PER_S, BATCH = 1500, 300
"""Prompts per second, and prompts per message or request."""
STEPS, PHASE, FIRST = 62, 7, 5
"""Steps of the run; steps of a phase, of which the first does not count; steps before the first phase."""
WAYS = ("http", "nats")


def measure(steps: int = STEPS) -> list[Figure]:
    """Return the median step with a flood over the median step without, for HTTP and NATS."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events, cpu = flooded(folder, steps)
    return figures(events, cpu)


def flooded(folder: Path, steps: int) -> tuple[list[Recorded], list[tuple[int, dict[str, float]]]]:
    """Run with the producer's phases; return all events, and samples of CPU seconds by role."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.flood", "run", str(folder), str(port), str(steps)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / "output").open("wb") as output:
        run = subprocess.Popen(command, stdout=output, stderr=output, env=environment, stdin=subprocess.DEVNULL)
    try:
        with Watch(run.pid) as watch:
            asyncio.run(_come_and_go(folder, port, steps, run))
            run.wait(DEADLINE_S)
    finally:
        run.terminate()
        run.wait()
    if run.returncode:
        raise TrainerError(f"the run ended with {run.returncode}: {(folder / 'output').read_text()[-1500:]}")
    return asyncio.run(_events(folder / "runs" / RUN)), watch.cpu


def way_of(step: int) -> str | None:
    """Return how the producer sends during a step; None if it is silent."""
    phase = (step - FIRST) // PHASE
    return None if step < FIRST or phase % 2 == 0 else WAYS[phase // 2 % len(WAYS)]


def is_counted(step: int) -> bool:
    """Whether a step counts: the run's first steps and the first step of a phase, which is mixed, do not."""
    return step >= FIRST and (step - FIRST) % PHASE != 0


def figures(events: Sequence[Recorded], cpu: Sequence[tuple[int, dict[str, float]]]) -> list[Figure]:
    """Return the figures of a run."""
    times = {time.step: time.wall for time in step_times(events) if is_counted(time.step)}
    ends = {e.envelope.event.step: e.envelope.at for e in events if isinstance(e.envelope.event, StepCommitted)}
    came = [e.envelope.at for e in events if isinstance(e.envelope.event, PromptSubmitted) and _is_outside(e)]
    quiet = [wall for step, wall in times.items() if way_of(step) is None]
    results = []
    for way in WAYS:
        steps = [step for step in times if way_of(step) == way]
        seconds = sum(times[step] for step in steps)
        count = sum(ends[step] - times[step] * 1e9 <= at < ends[step] for step in steps for at in came)
        note = f"{statistics.median(times[s] for s in steps):.3f} s against {statistics.median(quiet):.3f} s; "
        note += f"{count / seconds:,.0f} prompts/s came in during {len(steps)} steps, {len(came):,} in all"
        ratio = statistics.median(times[step] for step in steps) / statistics.median(quiet)
        spans = [(ends[s] - int(times[s] * 1e9), ends[s], way_of(s) == way) for s in times if way_of(s) in (way, None)]
        note += f"; {_by_role(cpu, spans)}"
        name = f"step while a producer floods over {way.upper()}"
        results.append(Figure(name=name, value=ratio, unit="x", target=1.05, better=Better.LOWER, note=note))
    return results


def _is_outside(recorded: Recorded) -> bool:
    event = recorded.envelope.event
    return isinstance(event, PromptSubmitted) and bool(event.share)


def _by_role(cpu: Sequence[tuple[int, dict[str, float]]], spans: Sequence[tuple[int, int, bool]]) -> str:
    """Return the additional cores that each role used while prompts came in."""
    used = {flooded: dict[str, float]() for flooded in (True, False)}
    seconds = {True: 0.0, False: 0.0}
    for (t0, before), (t1, after) in pairwise(cpu):
        inside = {flooded for start, end, flooded in spans if start <= t0 and t1 <= end + (t1 - t0)}
        if len(inside) != 1:
            continue
        (flooded,) = inside
        seconds[flooded] += (t1 - t0) / 1e9
        for role, spent in after.items():
            used[flooded][role] = used[flooded].get(role, 0.0) + spent - before.get(role, 0.0)
    more = {
        role: used[True][role] / max(seconds[True], 1e-9) - used[False].get(role, 0.0) / max(seconds[False], 1e-9)
        for role in used[True]
    }
    ordered = sorted(more.items(), key=lambda item: -abs(item[1]))
    return "cores more: " + ", ".join(f"{role} {share:+.3f}" for role, share in ordered)


async def _events(run: Path) -> list[Recorded]:
    async with open_run_log(run) as log:
        return [recorded async for recorded in log.read()]


async def _come_and_go(folder: Path, port: int, steps: int, run: subprocess.Popen[bytes]) -> None:
    """Let the producer send in its phases. Raises TrainerError if the run ends before."""
    path = folder / "runs" / RUN
    async with asyncio.timeout(DEADLINE_S):
        while not file_of(path / "nats", Access.PRODUCER).is_file() or not await _answers(port):
            if run.poll() is not None:
                raise TrainerError(f"the run ended with {run.returncode}: {(folder / 'output').read_text()[-1500:]}")
            await asyncio.sleep(0.5)
    words = [sys.executable, "-m", "benchmarks.flood", "send", str(folder), str(port)]
    sender = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE)
    assert sender.stdin is not None
    try:
        async with open_run_log(path) as log:
            now: str | None = None
            async for recorded in log.read(1, of_type(RUN, "step.committed"), follow=True):
                event = recorded.envelope.event
                assert isinstance(event, StepCommitted)
                if event.step + 1 >= steps:
                    return
                if (way := way_of(event.step + 1)) != now:
                    sender.stdin.write(f"{way or 'none'}\n".encode())
                    now = way
    finally:
        sender.kill()
        await sender.wait()


async def _answers(port: int) -> bool:
    async with httpx.AsyncClient() as client:
        with contextlib.suppress(httpx.TransportError):
            return (await client.get(f"http://127.0.0.1:{port}/healthz")).status_code == 200
    return False


def run_demo(folder: Path, port: int, steps: int) -> None:
    """Run the demo in this process."""
    from slime_events.app.demo.settings import prepare_demo
    from slime_events.app.launch.run import Launch
    from slime_events.app.launch.view import PlainView
    from slime_events.core.config.derivations import derive

    demo, replace = prepare_demo(folder / "data"), msgspec.structs.replace
    settings: TrainSettings = replace(
        demo,
        run=replace(demo.run, run=RUN, runs_dir=str(folder / "runs")),
        rollout=replace(demo.rollout, num_rollout=steps),
        evaluation=replace(demo.evaluation, eval_interval=None, eval_prompt_data=[]),
        gateway=replace(demo.gateway, gateway=f"127.0.0.1:{port}"),
    )
    Launch(derive(settings)[0], PlainView()).run_to_end()


class Sender:
    """Sends at a steady pace in its phases."""

    def __init__(self, folder: Path, port: int) -> None:
        self._run, self._url = folder / "runs" / RUN, f"http://127.0.0.1:{port}"
        lines = (folder / "data" / "train.jsonl").read_text().splitlines()
        self._questions = [json.loads(line) for line in lines]
        self._sent, self._way = 0, "none"

    async def send(self) -> None:
        """Send until killed."""
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # resets an inherited policy
        os.setpriority(os.PRIO_PROCESS, 0, 19)
        token = Sources(self._run).issue("flood")
        to = json.loads(file_of(self._run / "nats", Access.PRODUCER).read_text())
        client = await nats.connect(to["url"], user=to["user"], password=to["password"])
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=60) as http, TaskGroup() as group:
            group.create_task(self._listen())
            at = time.monotonic()
            while True:
                at = max(at + BATCH / PER_S, time.monotonic())
                await asyncio.sleep(at - time.monotonic())
                if self._way == "http":
                    group.create_task(self._over_http(http, self._prompts()))
                elif self._way == "nats":
                    group.create_task(self._over_nats(client, self._prompts()))

    async def _listen(self) -> None:
        while line := await asyncio.to_thread(sys.stdin.readline):
            self._way = line.strip()

    def _prompts(self) -> bytes:
        some = []
        for _ in range(BATCH):
            question = self._questions[self._sent % len(self._questions)]
            some.append({"key": str(self._sent), "prompt": question["messages"], "label": question["label"]})
            self._sent += 1
        return json.dumps(some).encode()

    async def _over_http(self, client: httpx.AsyncClient, prompts: bytes) -> None:
        where, headers = f"/v1/runs/{RUN}/prompts", {"content-type": "application/json"}
        answer = await client.post(where, content=prompts, headers=headers)
        assert answer.status_code == 202, answer.text

    async def _over_nats(self, client: NatsClient, prompts: bytes) -> None:
        reply = await client.request(f"slime.{RUN}.inbox.prompts", prompts, timeout=60)
        assert json.loads(reply.data)["accepted"], reply.data


if __name__ == "__main__":
    what, where, listens, *more = sys.argv[1:]
    if what == "run":
        run_demo(Path(where), int(listens), int(more[0]))
    else:
        asyncio.run(Sender(Path(where), int(listens)).send())
