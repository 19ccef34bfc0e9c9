"""`GraderPool`: grading in processes, with a time limit that truly ends a stuck grader.

    samples -> queue of units -> one task per process -> batches over a socket -> outcomes, unit by unit

A unit is one call of the grader: a sample, or a group. When a unit passes its limit, its process is killed, the unit
fails as `timeout`, and the others of its batch are graded by the process's successor. A unit whose process dies is
tried once more, alone (someone else may have killed the process), then fails as `worker_died`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from schemas.errors import SlimeEventsError
from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.job import Unit, slim
from slime_events.plugins.rewards.outcome import Outcome
from slime_events.plugins.rewards.process import GraderProcess, StruckWhileLoading
from slime_events.plugins.sample import Sample
from storage.cancellation import end_all

BATCH = 32
"""Units that a process gets at once; small enough that a stuck one does not hold many behind it."""
CONCURRENT_BATCH = 256
"""The same for an async grader, whose units wait side by side."""
STARTS = 3
"""Times that a process is started before a signal that ends it while it loads is the grader's fault."""
GRACE = 0.25
"""Seconds beyond the limit before a process is killed, so that an async grader's own limit strikes first."""


class GraderPool:
    """`settings.rm_workers` processes that grade by `settings`. One event loop owns it; use it as `async with`.

    args: further names that a user's function sees on its `args`. user_dir: folder of the user's code, default the
    working directory. log: file for what graders print, default this process's stderr.
    """

    def __init__(
        self,
        settings: RewardSettings,
        *,
        args: Mapping[str, Any] | None = None,
        user_dir: Path | None = None,
        log: Path | None = None,
        start_deadline: float = 60.0,
    ) -> None:
        self._settings = settings
        self._setup = messages.Setup(settings, dict(args or {}), str((user_dir or Path.cwd()).resolve()))
        self._log = log
        self._start_deadline = start_deadline
        self._queue: deque[Unit] = deque()
        self._arrived = asyncio.Event()
        self._processes: dict[int, GraderProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: SlimeEventsError | None = None
        self.ready = messages.Ready("", "", False)
        """The run's own grader, its digest, and whether it is async; empty where each sample names its own."""

    async def __aenter__(self) -> GraderPool:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all processes and wait until each has loaded its grader.

        Raises what is wrong with the grader: UnknownGrader, PlugPointMissing, NameTaken, PlugPointError, or
        DeadlineExceeded where it takes too long.
        """
        slots = range(max(1, self._settings.rm_workers))
        started = await asyncio.gather(*map(self._start_process, slots), return_exceptions=True)
        if errors := [each for each in started if isinstance(each, BaseException)]:
            await self.close()
            raise errors[0]
        self.ready = self._processes[0].ready
        self._tasks = [asyncio.create_task(self._serve(slot), name=f"grader-{slot}") for slot in slots]

    @property
    def pids(self) -> list[int]:
        """Process ids of the graders that run now."""
        return [process.pid for process in self._processes.values()]

    async def grade(
        self, samples: Sequence[Sample], *, evaluation: bool = False, deadline: float | None = None
    ) -> list[Outcome]:
        """Grade each sample by itself; outcomes in the samples' order. Nothing a grader does raises here.

        evaluation: use --eval-reward-key. deadline: seconds for the whole call, beside each sample's own limit; what
        is not graded by then fails as `timeout`. Raises only where grader processes can no longer be started.
        """
        return await self._grade([([sample], False) for sample in samples], evaluation, deadline)

    async def grade_group(
        self, samples: Sequence[Sample], *, evaluation: bool = False, deadline: float | None = None
    ) -> list[Outcome]:
        """Grade a group: at once by the user's function under --group-rm, else sample by sample."""
        if not (self._settings.group_rm and self._settings.custom_rm_path):
            return await self.grade(samples, evaluation=evaluation, deadline=deadline)
        return await self._grade([(list(samples), True)], evaluation, deadline)

    async def close(self, deadline: float = 1.0) -> None:
        """End all processes; what is not graded fails as `worker_died`. Nothing is left running."""
        await end_all(*self._tasks)
        self._tasks = []
        processes, self._processes = list(self._processes.values()), {}
        await asyncio.gather(*(process.stop(deadline) for process in processes))
        while self._queue:
            self._queue.popleft().fail(RewardFailureKind.WORKER_DIED, "the grader pool was closed", self.ready)

    async def _grade(
        self, calls: Sequence[tuple[list[Sample], bool]], evaluation: bool, deadline: float | None
    ) -> list[Outcome]:
        if self._broken is not None:
            raise self._broken
        units = [self._enqueue(samples, group, evaluation) for samples, group in calls]
        if not units:
            return []
        self._arrived.set()
        try:
            await asyncio.wait([unit.future for unit in units], timeout=deadline)
        finally:
            for unit in units:
                if not unit.future.done():
                    unit.fail(RewardFailureKind.TIMEOUT, f"not graded within {deadline} s", self.ready)
        return [outcome for unit in units for outcome in unit.future.result()]

    def _enqueue(self, samples: list[Sample], group: bool, evaluation: bool) -> Unit:
        try:
            sent = [slim(sample, self._settings) for sample in samples]
            unit = Unit(messages.encode(messages.Unit(sent, group, evaluation)), len(samples))
        except (OverflowError, msgspec.EncodeError, RecursionError) as error:
            unit = Unit(b"", len(samples))
            unit.fail(RewardFailureKind.RAISED, f"the sample cannot be sent to a grader: {error}", self.ready)
            return unit
        self._queue.append(unit)
        return unit

    async def _serve(self, slot: int) -> None:
        """One process's work, for ever; a process that is gone gets a successor."""
        while True:
            batch = await self._next_batch()
            try:
                if not (slot in self._processes and self._processes[slot].alive):
                    await self._start_process(slot)
                await self._grade_batch(slot, batch)
            except SlimeEventsError as error:
                self._break(error, batch)
                return
            except asyncio.CancelledError:
                self._queue.extendleft(reversed(batch))
                raise

    async def _next_batch(self) -> list[Unit]:
        while True:
            while self._queue and self._queue[0].future.done():
                self._queue.popleft()
            if self._queue:
                break
            self._arrived.clear()
            await self._arrived.wait()
        if self._queue[0].alone:
            return [self._queue.popleft()]
        most = CONCURRENT_BATCH if self.ready.concurrent else BATCH
        share = math.ceil(len(self._queue) / max(1, len(self._tasks)))
        batch: list[Unit] = []
        while self._queue and not self._queue[0].alone and len(batch) < min(most, share):
            batch.append(self._queue.popleft())
        return batch

    async def _grade_batch(self, slot: int, batch: list[Unit]) -> None:
        process = self._processes[slot]
        began = time.monotonic()
        try:
            async with contextlib.aclosing(
                process.grade([unit.payload for unit in batch], self._settings.rm_timeout + GRACE)
            ) as answers:
                async for done in answers:
                    batch[done.unit].resolve(done.outcomes)
                    began = time.monotonic()
            return
        except TimeoutError:
            kind = RewardFailureKind.TIMEOUT
        except (asyncio.IncompleteReadError, ConnectionError):
            kind = RewardFailureKind.WORKER_DIED
        current = process.current()
        await process.kill(stack=kind is RewardFailureKind.TIMEOUT)
        del self._processes[slot]
        message = self._what_happened(kind, process)
        self._settle(batch, current, kind, message, time.monotonic() - began)

    def _what_happened(self, kind: RewardFailureKind, process: GraderProcess) -> str:
        log = "" if self._log is None else f"; where it was: {self._log}"
        if kind is RewardFailureKind.TIMEOUT:
            return f"grading took longer than {self._settings.rm_timeout:g} s; its process was ended{log}"
        return f"the grader process {process.ending()} on this sample{log}"

    def _settle(
        self, batch: list[Unit], current: int | None, kind: RewardFailureKind, message: str, seconds: float
    ) -> None:
        """Fail the unit that a process was lost on; queue the others again, in front."""
        open_units = [unit for unit in batch if not unit.future.done()]
        blamed = batch[current] if current is not None else None
        if blamed not in open_units:
            blamed = open_units[0] if len(open_units) == 1 else None
        for unit in reversed(open_units):
            if unit is blamed and (kind is RewardFailureKind.TIMEOUT or unit.deaths):
                unit.fail(kind, message, self.ready, seconds)
                continue
            unit.deaths += unit is blamed
            unit.alone = unit.alone or unit is blamed or blamed is None
            self._queue.appendleft(unit)
        self._arrived.set()

    async def _start_process(self, slot: int) -> None:
        """A process that a signal ends while it loads is tried again: somebody may have killed it."""
        for tries_left in reversed(range(STARTS)):
            try:
                self._processes[slot] = await GraderProcess.start(self._setup, self._log, self._start_deadline)
                return
            except StruckWhileLoading:
                if not tries_left:
                    raise
            except OSError as error:
                raise SlimeEventsError(
                    f"a grader process cannot be started: {error}; lower --rm-workers ({self._settings.rm_workers})"
                ) from error

    def _break(self, error: SlimeEventsError, batch: list[Unit]) -> None:
        self._broken = error
        for unit in (*batch, *self._queue):
            if not unit.future.done():
                unit.future.set_exception(error)
        self._queue.clear()
