"""Share small settings on the demo's model, a view that waits for things, and readers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil

from slime_events.app.demo.settings import prepare_demo
from slime_events.app.launch.run import Launch
from slime_events.core.config.derivations import derive
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.group import SamplePhase
from slime_events.core.state.run import RunState
from slime_events.model.progress import Progress, StepLine
from storage.log import Recorded
from storage.open_log import open_run_log

GROUPS, SAMPLES = 8, 4
START_S = 240.0
"""How long a whole run of few steps may take on a busy machine, from its command to its end."""
MARK = "SLIME_EVENTS_TEST_RUN"
"""Everything that a run starts inherits this variable: so that what it leaves behind can be found."""


def tiny(folder: Path, name: str, /, **components: dict[str, Any]) -> TrainSettings:
    """The demo with `GROUPS` x `SAMPLES` samples a step and no evaluation. components: fields to change."""
    settings = prepare_demo(folder / "data")
    base: dict[str, dict[str, Any]] = {
        "run": {"run": name, "runs_dir": str(folder / "runs")},
        "rollout": {"num_rollout": 3, "rollout_batch_size": GROUPS, "n_samples_per_prompt": SAMPLES},
        "evaluation": {"eval_interval": None, "eval_prompt_data": []},
        "trainer": {"global_batch_size": None, "lr_warmup_iters": 0},
    }
    for component in {*base, *components}:
        changes = base.get(component, {}) | components.get(component, {})
        part = msgspec.structs.replace(getattr(settings, component), **changes)
        settings = msgspec.structs.replace(settings, **{component: part})
    return derive(settings)[0]


class Watching:
    """Keep the messages for a `View`, and wake all that wait for a state of the run."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.lines: list[StepLine] = []
        self.progress: Progress | None = None
        self._changed = asyncio.Event()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._changed.set()

    def begin(self, progress: Progress) -> None:
        self.progress = progress

    def step(self, line: StepLine, progress: Progress, steps: int) -> None:
        self.lines.append(line)

    def tick(self, progress: Progress, steps: int) -> None:
        self.progress = progress
        self._changed.set()

    def close(self) -> None:
        pass

    async def until(self, holds: Callable[[Progress], bool], deadline_s: float = START_S) -> Progress:
        """The run's progress once `holds` is true of it."""
        async with asyncio.timeout(deadline_s):
            while self.progress is None or not holds(self.progress):
                self._changed.clear()
                await self._changed.wait()
        return self.progress

    def pid_of(self, role: str) -> int:
        """Return the process id of this role."""
        assert self.progress is not None
        return next(worker.pid for worker in reversed(self.progress.figures.workers) if worker.role == role)


Action = Callable[[Watching], Awaitable[Any]]


async def run_with(settings: TrainSettings, *actions: Action, view: Watching | None = None) -> dict[str, Any]:
    """Launch, with actions beside it. An action that fails ends the run."""
    view = view or Watching()
    run = asyncio.create_task(Launch(settings, view).run())
    beside = [asyncio.create_task(action(view)) for action in actions]  # type: ignore[arg-type]
    try:
        pending: set[asyncio.Task[Any]] = {run, *beside}
        while run in pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        return run.result()
    finally:
        for task in (run, *beside):
            task.cancel()
        await asyncio.gather(run, *beside, return_exceptions=True)


def events_of(folder: Path) -> list[Recorded]:
    """The whole log of a run that is over."""

    async def read() -> list[Recorded]:
        async with open_run_log(folder) as log:
            return [recorded async for recorded in log.read()]

    return asyncio.run(read())


def of(events: list[Recorded], kind: type) -> list[Any]:
    """The events of one type."""
    return [recorded.envelope.event for recorded in events if isinstance(recorded.envelope.event, kind)]


def running(state: RunState) -> int:
    """Rollouts that have said something and are not done."""
    return sum(s.phase is SamplePhase.RUNNING for g in state.groups.values() for s in g.samples.values())


def left_behind(mark: str, wait_s: float = 30.0) -> list[str]:
    """Command lines of processes that carry the mark and have not ended after `wait_s`; ours is none of them."""
    end = time.monotonic() + wait_s
    while processes := marked(mark):
        if time.monotonic() > end:
            break
        time.sleep(0.2)
    return [_line(process) for process in processes]


def marked(mark: str) -> list[psutil.Process]:
    """Processes that carry the mark and live; ours is none of them.

    Ray's agents are not seen: their titles lie where the mark was. They end within a minute of their raylet.
    """
    processes = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                processes.append(process)
        except (psutil.Error, OSError):
            continue  # it has just ended
    return [process for process in processes if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _line(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid} ended just now"
