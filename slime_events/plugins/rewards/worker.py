"""A grader process: reads batches from its pool, grades, answers job by job. `InlineGrader` grades without a process.

Before each step of a job it writes the job's number into a shared page, so that the pool knows which job to blame when
this process is stuck or dies. It has no time limit for synchronous code itself: the pool kills it from outside, which
also works inside C code and with signals blocked.
"""

import asyncio
import ctypes
import faulthandler
import functools
import importlib
import inspect
import mmap
import os
import signal
import socket
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import MissingPart, SlimeEventsError
from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards import dispatch, messages
from slime_events.plugins.rewards.outcome import Outcome, RewardFailure, outcome_of, plain
from slime_events.plugins.sample import Sample

_PR_SET_PDEATHSIG = 1
_job_decoder = msgspec.msgpack.Decoder(messages.Job)
_batch_decoder = msgspec.msgpack.Decoder(messages.Batch)


class OverLimit(Exception):
    """The grading time limit has passed; not a TimeoutError of the grader's own."""


async def with_timeout(awaitable: Awaitable[Any], limit: float) -> Any:
    """Its result within `limit` seconds. Raises OverLimit."""
    try:
        async with asyncio.timeout(limit) as timer:
            return await awaitable
    except TimeoutError:
        if timer.expired():
            raise OverLimit from None
        raise


@types.coroutine
def marked(coroutine: Coroutine[Any, Any, Any], number: int, mark: Callable[[int], None]) -> Generator[Any, Any, Any]:
    """Run `coroutine` with its job's number in the shared page while it has the processor."""
    resume: Callable[[Any], Any] = coroutine.send
    value: Any = None
    while True:
        mark(number)
        try:
            awaited = resume(value)
        except StopIteration as stop:
            return stop.value
        finally:
            mark(messages.IDLE)
        try:
            value = yield awaited
            resume = coroutine.send
        except BaseException as thrown:  # a cancellation goes into the coroutine, not past it
            value, resume = thrown, coroutine.throw


class Worker:
    """Grades jobs one after the other; jobs of async graders run side by side on one event loop."""

    def __init__(self, setup: messages.Setup, mark: Callable[[int], None]) -> None:
        self._settings: RewardSettings = setup.settings
        self._folder = Path(setup.user_dir)
        own = ArgsView.of(setup.settings).as_dict()
        self._args = {evaluation: _args(own | setup.args, evaluation) for evaluation in (False, True)}
        self._mark = mark

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def prepare(self) -> messages.Ready:
        """Load the run's own grader and what it imports, before any sample's time runs."""
        group = dispatch.resolve_group(self._settings, user_dir=self._folder)
        if group is None and not (self._settings.custom_rm_path or self._settings.rm_type):
            return messages.Ready("", "", False)  # each sample names its own
        grader = group or dispatch.resolve(self._settings, Sample(), user_dir=self._folder)
        if not grader.own:
            _import_heavy(grader.name.removeprefix(dispatch.BOXED))
        return messages.Ready(grader.name, grader.digest, grader.concurrent)

    def grade(self, jobs: Sequence[messages.Job], answer: Callable[[messages.Done], None]) -> None:
        """Grade all jobs; `answer` gets each as it is done, in any order."""
        waiting = []
        for number, job in enumerate(jobs):
            grader = self._grader(job)
            if isinstance(grader, dispatch.Grader) and grader.concurrent:
                waiting.append((number, job, grader))
                continue
            self._mark(number)
            outcomes = self._grade_one(job, grader)
            self._mark(messages.IDLE)
            answer(messages.Done(number, outcomes))
        if waiting:
            self._loop.run_until_complete(self._grade_side_by_side(waiting, answer))

    def _grader(self, job: messages.Job) -> dispatch.Grader | SlimeEventsError:
        try:
            evaluation, folder = job.evaluation, self._folder
            if job.group and (grader := dispatch.resolve_group(self._settings, evaluation=evaluation, user_dir=folder)):
                return grader
            return dispatch.resolve(self._settings, job.samples[0], evaluation=evaluation, user_dir=folder)
        except SlimeEventsError as error:
            return error

    def _grade_one(self, job: messages.Job, grader: dispatch.Grader | SlimeEventsError) -> list[Outcome]:
        began = time.perf_counter()
        if isinstance(grader, SlimeEventsError):
            return [RewardFailure(kind=RewardFailureKind.RAISED, message=str(grader))] * len(job.samples)
        before = _metadata_of(job, grader)
        try:
            returned = self._call(job, grader)
            if inspect.isawaitable(returned):
                returned = self._loop.run_until_complete(with_timeout(returned, self._settings.rm_timeout))
        except Exception as error:
            return _raised(job, grader, error, self._settings.rm_timeout, time.perf_counter() - began)
        return _outcomes(job, grader, returned, before, time.perf_counter() - began)

    async def _grade_side_by_side(
        self, waiting: Sequence[tuple[int, messages.Job, dispatch.Grader]], answer: Callable[[messages.Done], None]
    ) -> None:
        async def one(number: int, job: messages.Job, grader: dispatch.Grader) -> None:
            began = time.perf_counter()
            before = _metadata_of(job, grader)
            try:
                call = marked(self._call(job, grader), number, self._mark)
                returned = await with_timeout(call, self._settings.rm_timeout)
                outcomes = _outcomes(job, grader, returned, before, time.perf_counter() - began)
            except Exception as error:
                outcomes = _raised(job, grader, error, self._settings.rm_timeout, time.perf_counter() - began)
            answer(messages.Done(number, outcomes))

        await asyncio.gather(*(one(*each) for each in waiting))

    def _call(self, job: messages.Job, grader: dispatch.Grader) -> Any:
        args = self._args[job.evaluation]
        return grader.function(args, job.samples if job.group else job.samples[0])


class InlineGrader:
    """Grades in this very process what needs no time limit (`IMMEDIATE`); outcomes as from a process of the pool."""

    def __init__(self, settings: RewardSettings) -> None:
        self._settings = settings
        self._worker = Worker(messages.Setup(settings, {}, str(Path.cwd())), mark=lambda number: None)

    def accepts(self, samples: Sequence[Sample]) -> bool:
        """Whether the graders of all samples are `IMMEDIATE`."""
        return {dispatch.grader_name(self._settings, sample) for sample in samples} <= dispatch.IMMEDIATE

    def grade(self, samples: Sequence[Sample], *, evaluation: bool) -> list[Outcome]:
        """Grade each sample by itself; outcomes in the samples' order. An error in a grader is an outcome."""
        outcomes: list[Outcome] = []
        jobs = [messages.Job([sample], False, evaluation) for sample in samples]
        self._worker.grade(jobs, lambda done: outcomes.extend(done.outcomes))
        return outcomes


def _import_heavy(rm_type: str) -> None:
    for module in dispatch.HEAVY_IMPORTS.get(rm_type, ()):
        try:
            importlib.import_module(module)
        except ImportError as error:
            package = module.partition(".")[0].replace("_", "-")
            raise MissingPart(f"--rm-type {rm_type} needs {package}: pip install {package} ({error})") from error


def _args(values: dict[str, Any], evaluation: bool) -> ArgsView:
    if evaluation and values.get("eval_reward_key"):
        values = values | {"reward_key": values["eval_reward_key"]}
    return ArgsView(values)


def _metadata_of(job: messages.Job, grader: dispatch.Grader) -> list[dict[str, Any]]:
    return [dict(sample.metadata) for sample in job.samples] if grader.own else []


def _outcomes(
    job: messages.Job, grader: dispatch.Grader, returned: Any, before: list[dict[str, Any]], seconds: float
) -> list[Outcome]:
    values = [returned]
    if job.group:
        values = list(returned) if hasattr(returned, "__iter__") and not isinstance(returned, dict | str) else []
        if len(values) != len(job.samples):
            what = f"{len(values)} values" if values else f"{type(returned).__name__} {str(returned)[:80]!r}"
            message = f"the group grader returned {what} for {len(job.samples)} samples: it must return one for each"
            return [_failure(grader, RewardFailureKind.WRONG_TYPE, message, seconds)] * len(job.samples)
    outcomes: list[Outcome] = []
    for index, value in enumerate(values):
        outcome = outcome_of(value, grader.reward_key, grader=grader.name, grader_digest=grader.digest, seconds=seconds)
        if isinstance(outcome, RewardFailure):
            outcome = _failure(grader, outcome.kind, outcome.message, seconds)
        elif before and (changed := _changed(before[index], job.samples[index].metadata)):
            outcome = msgspec.structs.replace(outcome, detail=outcome.detail | {"metadata": changed})
        outcomes.append(outcome)
    return outcomes


def _changed(before: dict[str, Any], after: Any) -> dict[str, Any]:
    if not isinstance(after, dict):
        return {}
    return {str(key): plain(value) for key, value in after.items() if key not in before or before[key] is not value}


def _raised(
    job: messages.Job, grader: dispatch.Grader, error: Exception, limit: float, seconds: float
) -> list[Outcome]:
    if isinstance(error, OverLimit):
        failure = _failure(grader, RewardFailureKind.TIMEOUT, f"grading took longer than {limit:g} s", seconds)
    else:
        message = f"the grader {grader.name} raised {type(error).__name__}: {error}{_line_of(error)}"
        failure = _failure(grader, RewardFailureKind.RAISED, message, seconds)
    return [failure] * len(job.samples)


def _failure(grader: dispatch.Grader, kind: RewardFailureKind, message: str, seconds: float) -> RewardFailure:
    return RewardFailure(
        kind=kind, message=message[:2000], seconds=seconds, grader=grader.name, grader_digest=grader.digest
    )


def _line_of(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""


def main(connection_fd: int, mark_fd: int, parent: int) -> None:
    """Serve one pool until it closes the connection or dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, chain=False)  # the pool asks for a stack before it ends a stuck process
    page = mmap.mmap(mark_fd, messages.MARK.size)
    page[:] = messages.MARK.pack(messages.IDLE)
    with socket.socket(fileno=connection_fd) as connection:
        serve(connection, lambda number: messages.MARK.pack_into(page, 0, number))


def serve(connection: socket.socket, mark: Callable[[int], None]) -> None:
    """Setup, then batches until the end of the connection."""

    def answer(message: messages.Answer) -> None:
        connection.sendall(messages.frame(messages.encode(message)))

    payload = messages.receive_frame(connection)
    if payload is None:
        return
    try:
        worker = Worker(msgspec.msgpack.decode(payload, type=messages.Setup), mark)
        answer(worker.prepare())
    except SlimeEventsError as error:
        answer(messages.SetupFailed(type(error).__name__, str(error)))
        return
    while (payload := messages.receive_frame(connection)) is not None:
        batch = _batch_decoder.decode(payload)
        worker.grade([_job_decoder.decode(job) for job in batch.jobs], answer)
