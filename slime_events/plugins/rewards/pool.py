"""`WorkerPool`: grading in processes, with a time limit that ends every stuck grader.

    jobs -> queue -> one task per process -> batches over a socket -> outcomes, job by job

A job is one call of the grader: a sample, or a group. If a job passes its limit, its process is killed, the job fails
as `timeout`, and the process's successor grades the rest of its batch. If the process dies, the job is retried once,
alone (the kill may have come from outside), then fails as `worker_died`. The same applies to a job that runs out of
memory (an earlier job may have filled it): it fails as `out_of_memory`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from schemas.doc import doc
from schemas.errors import SlimeEventsError
from schemas.rewards import RewardFailureKind
from schemas.text import message_text
from slime_events.core.child.frames import PeerEnded
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.rewards import messages
from slime_events.plugins.rewards.choice import Choice, Place, choose
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure, failure, signed
from slime_events.plugins.rewards.process import KilledWhileLoading, WorkerProcess
from slime_events.plugins.sample import Sample
from storage.cancellation import end_all, fail

BATCH = 32
"""Jobs sent to a process at once: few, so that a stuck job does not hold many behind it."""
CONCURRENT_BATCH = 256
"""Jobs sent at once to an async grader, which grades them concurrently."""
START_DEADLINE_S = 60.0
STARTS = 3
"""Attempts to start a process before a signal that ends it during loading counts as the grader's fault."""
GRACE = 0.25
"""Seconds after the limit until a process is killed, so that an async grader's own limit acts first."""


def _future() -> asyncio.Future[list[Outcome]]:
    return asyncio.get_running_loop().create_future()


@dataclasses.dataclass(eq=False, slots=True)
class PendingJob:
    """A job on its way to a process."""

    payload: Annotated[bytes, doc("Encoded job.")]
    samples: Annotated[int, doc("Number of samples.")]
    choice: Annotated[Choice, doc("Its function.")] = dataclasses.field(default_factory=Choice)
    deaths: Annotated[int, doc("How often a process died on the job.")] = 0
    alone: Annotated[bool, doc("Whether it is sent without other jobs.")] = False
    future: Annotated[asyncio.Future[list[Outcome]], doc("Its outcomes.")] = dataclasses.field(default_factory=_future)

    def resolve(self, outcomes: list[Outcome]) -> None:
        """Set the outcomes. Later calls are ignored."""
        if not self.future.done():
            self.future.set_result(outcomes)

    def fail(self, kind: RewardFailureKind, message: str, by: messages.Loaded, seconds: float = 0.0) -> None:
        """Set the same failure for each sample. `by` is the grader."""
        failed = signed(failure(kind, message), by.grader, by.digest, seconds)
        self.resolve([failed] * self.samples)


def _out_of_memory(done: messages.Done) -> bool:
    outcome = done.outcomes[0] if done.outcomes else None
    return isinstance(outcome, RewardFailure) and outcome.kind is RewardFailureKind.OUT_OF_MEMORY


def slim(sample: Sample, choice: Choice) -> Sample:
    """Return the sample without arrays that no built-in grader reads: at 4k tokens most of the cost of sending."""
    if choice.is_own:
        return sample
    return dataclasses.replace(sample, tokens=[], loss_mask=None, rollout_log_probs=None)


class WorkerPool:
    """`settings.rm_workers` processes that grade by `settings`. It belongs to one event loop; use it as `async with`.

    `args` are additional attributes of a user function's `args`. `user_dir` is the folder of the user's code, by
    default the working directory. `log` is the file for the output of graders, by default this process's stderr.
    """

    def __init__(
        self,
        settings: RewardSettings,
        *,
        args: Mapping[str, Any] | None = None,
        user_dir: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self.settings = settings
        self.own = choose(settings, Sample())
        loads = self.own.name and self.own.place in (Place.POOL, Place.INLINE)
        folder = str((user_dir or Path.cwd()).resolve())
        self._setup = messages.Setup(settings, dict(args or {}), folder, self.own if loads else None)
        self._log = log
        self._queue: deque[PendingJob] = deque()
        self._arrived = asyncio.Event()
        self._processes: dict[int, WorkerProcess] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._broken: SlimeEventsError | None = None
        self._loaded: dict[Choice, messages.Loaded] = {}

    async def __aenter__(self) -> WorkerPool:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start all processes and wait until each has loaded its grader.

        Raises the grader's error: UnknownGrader, PlugPointMissing, NameTaken, PlugPointError, or DeadlineExceeded if
        loading takes too long.
        """
        slots = range(max(1, self.settings.rm_workers))
        started = await asyncio.gather(*map(self._start_process, slots), return_exceptions=True)
        if errors := [each for each in started if isinstance(each, BaseException)]:
            await self.close()
            raise errors[0]
        self._tasks = [asyncio.create_task(self._serve(slot), name=f"grader-{slot}") for slot in slots]

    @property
    def pids(self) -> list[int]:
        """Process ids of the running graders."""
        return [process.child.pid for process in self._processes.values()]

    async def grade(self, jobs: Sequence[messages.Job]) -> list[Outcome]:
        """Grade. Returns an outcome for each sample, in order. An error in a grader is an outcome.

        Raises only if processes can no longer be started.
        """
        if self._broken is not None:
            raise self._broken
        pending = list(map(self._enqueue, jobs))
        if not pending:
            return []
        self._arrived.set()
        try:
            await asyncio.wait([job.future for job in pending])
        finally:
            for job in pending:
                job.future.cancel()  # has an effect only on a job that is not done: its result is no longer needed
        return [outcome for job in pending for outcome in job.future.result()]

    def loaded(self, choice: Choice) -> messages.Loaded:
        """Return the name and digest of a function in events. Without a digest if no process has loaded it."""
        return self._loaded.get(choice, messages.Loaded(choice, choice.name))

    async def close(self, deadline: float = 1.0) -> None:
        """End all processes. Jobs that are not graded fail as `worker_died`."""
        await end_all(*self._tasks)
        self._tasks = []
        processes, self._processes = list(self._processes.values()), {}
        await asyncio.gather(*(process.stop(deadline) for process in processes))
        while self._queue:
            job = self._queue.popleft()
            job.fail(RewardFailureKind.WORKER_DIED, "the grader pool was closed", self.loaded(job.choice))

    def _enqueue(self, job: messages.Job) -> PendingJob:
        pending = PendingJob(b"", len(job.samples), job.choice)
        try:
            sent = [slim(sample, job.choice) for sample in job.samples]
            pending.payload = messages.encode_job(msgspec.structs.replace(job, samples=sent))
        except (TypeError, ValueError, OverflowError, msgspec.MsgspecError, RecursionError) as error:
            message = f"the sample cannot be sent to a grader: {message_text(error)}"
            pending.fail(RewardFailureKind.RAISED, message, self.loaded(job.choice))
            return pending
        self._queue.append(pending)
        return pending

    async def _serve(self, slot: int) -> None:
        """Serve jobs with one process, until cancelled. A lost process is replaced."""
        while True:
            batch = await self._next_batch()
            try:
                if slot in self._processes and not self._processes[slot].child.runs:
                    await self._processes.pop(slot).kill()
                if slot not in self._processes:
                    await self._start_process(slot)
                await self._grade_batch(slot, batch)
            except SlimeEventsError as error:
                self._break(error, batch)
                return
            except asyncio.CancelledError:
                self._queue.extendleft(reversed(batch))
                raise

    async def _next_batch(self) -> list[PendingJob]:
        while True:
            while self._queue and self._queue[0].future.done():
                self._queue.popleft()
            if self._queue:
                break
            self._arrived.clear()
            await self._arrived.wait()
        if self._queue[0].alone:
            return [self._queue.popleft()]
        most = CONCURRENT_BATCH if self.loaded(self.own).concurrent else BATCH
        share = math.ceil(len(self._queue) / max(1, len(self._tasks)))
        batch: list[PendingJob] = []
        while self._queue and not self._queue[0].alone and len(batch) < min(most, share):
            batch.append(self._queue.popleft())
        return batch

    async def _grade_batch(self, slot: int, batch: list[PendingJob]) -> None:
        process = self._processes[slot]
        current: int | None = None
        began = time.monotonic()
        try:
            async with contextlib.aclosing(
                process.grade([msgspec.Raw(job.payload) for job in batch], self.settings.rm_timeout + GRACE)
            ) as answers:
                async for done in answers:
                    if _out_of_memory(done):
                        kind, current = RewardFailureKind.OUT_OF_MEMORY, done.job
                        break
                    batch[done.job].resolve(done.outcomes)
                    began = time.monotonic()
                else:
                    return
        except TimeoutError:
            kind = RewardFailureKind.TIMEOUT
        except (PeerEnded, msgspec.DecodeError):
            kind = RewardFailureKind.WORKER_DIED  # or a grader wrote into the process's connection
        current = process.current() if current is None else current
        await process.kill(stack=kind is RewardFailureKind.TIMEOUT)
        del self._processes[slot]
        message = self._loss_message(kind, process)
        self._settle(batch, current, kind, message, time.monotonic() - began)

    def _loss_message(self, kind: RewardFailureKind, process: WorkerProcess) -> str:
        log = "" if self._log is None else f"; its stack: {self._log}"
        if kind is RewardFailureKind.TIMEOUT:
            return f"grading took longer than {self.settings.rm_timeout:g} s; its process was ended{log}"
        if kind is RewardFailureKind.OUT_OF_MEMORY:
            most = f"{self.settings.rm_memory_gb:g} GB (--rm-memory-gb)"
            return f"the grader ran out of memory on this sample (limit: {most}); its process was ended"
        return f"the grader process {process.child.ending()} on this sample{log}"

    def _settle(
        self, batch: list[PendingJob], current: int | None, kind: RewardFailureKind, message: str, seconds: float
    ) -> None:
        """Fail the job that caused the loss of the process. Put the others back at the front of the queue."""
        open_jobs = [job for job in batch if not job.future.done()]
        blamed = batch[current] if current is not None else None
        if blamed not in open_jobs:
            blamed = open_jobs[0] if len(open_jobs) == 1 else None
        for job in reversed(open_jobs):
            if job is blamed and (kind is RewardFailureKind.TIMEOUT or job.deaths):
                job.fail(kind, message, self.loaded(job.choice), seconds)
                continue
            job.deaths += job is blamed
            job.alone = job.alone or job is blamed or blamed is None
            self._queue.appendleft(job)
        self._arrived.set()

    async def _start_process(self, slot: int) -> None:
        """Start a process. If a signal ends it during loading, start it again: the kill may have come from outside."""
        for tries_left in reversed(range(STARTS)):
            try:
                self._processes[slot] = await WorkerProcess.start(
                    self._setup, self._loaded, self._log, START_DEADLINE_S
                )
                return
            except KilledWhileLoading:
                if not tries_left:
                    raise
            except OSError as error:
                raise SlimeEventsError(
                    f"a grader process cannot be started: {error}; lower --rm-workers ({self.settings.rm_workers})"
                ) from error

    def _break(self, error: SlimeEventsError, batch: list[PendingJob]) -> None:
        self._broken = error
        for job in (*batch, *self._queue):
            fail(job.future, error)
        self._queue.clear()
