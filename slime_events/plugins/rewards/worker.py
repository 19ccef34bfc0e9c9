"""`Worker`: grades jobs. `main`: the process of a pool, which reads batches of jobs, and answers job by job.

Before each step of a job it writes the job's number into a shared page, so that the pool knows which job to blame if
this process is stuck or dies. The process has no time limit for synchronous code: the pool kills it from outside, which
also works inside C code and with signals blocked.
"""

import asyncio
import copy
import faulthandler
import functools
import inspect
import mmap
import signal
import socket
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from schemas.errors import SlimeEventsError, UngradableSample
from schemas.rewards import RewardFailureKind
from schemas.text import raised_text, repr_text
from slime_events.core.child.frames import receive_frame, send_frame
from slime_events.core.child.inside import connect
from slime_events.core.child.limits import limit
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.args_view import ArgsView, for_one_call
from slime_events.plugins.plain_values import plain
from slime_events.plugins.rewards import messages, registry
from slime_events.plugins.rewards.choice import Choice, reward_key
from slime_events.plugins.rewards.outcome import Graded, Outcome, failure, signed, unreadable
from slime_events.plugins.rewards.teacher import graded

T = TypeVar("T")


class OverLimit(Exception):
    """The time limit of grading has passed. Distinct from a TimeoutError of the grader's own."""


async def with_timeout(awaitable: Awaitable[T], limit: float) -> T:
    """Return the result within `limit` seconds. Raises OverLimit."""
    try:
        async with asyncio.timeout(limit) as timer:
            return await awaitable
    except TimeoutError:
        if timer.expired():
            raise OverLimit from None
        raise


@types.coroutine
def marked(coroutine: Coroutine[Any, Any, Any], number: int, mark: Callable[[int], None]) -> Generator[Any, Any, Any]:
    """Run `coroutine`, with its job's number in the shared page whenever it runs."""
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
        except BaseException as thrown:  # pass a cancellation into the coroutine
            value, resume = thrown, coroutine.throw


class Worker:
    """Grades jobs one after the other. Jobs of async graders run concurrently on one event loop."""

    def __init__(
        self,
        setup: messages.Setup,
        mark: Callable[[int], None],
        loaded: Callable[[messages.Loaded], None] = lambda message: None,
    ) -> None:
        self._settings: RewardSettings = setup.settings
        self._own, self._loaded, self._announced = setup.own, loaded, set[Choice]()
        self._folder = Path(setup.user_dir)
        own = ArgsView.of(setup.settings).as_dict()
        self._args = {evaluation: _args(own | setup.args, evaluation) for evaluation in (False, True)}
        self._mark = mark

    @functools.cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.new_event_loop()

    def prepare(self) -> messages.Loaded:
        """Load the run's own function and its imports, before any sample's time runs."""
        if self._own is None:
            return messages.Loaded(Choice())
        function = registry.load(self._own, reward_key(self._settings), self._folder)
        if make := getattr(function.function, "make", None) if function.own else None:
            make(self._args[False])
        return self._announcement(self._own, function)

    def grade(self, jobs: Sequence[messages.Job], answer: Callable[[messages.Done], None]) -> None:
        """Grade all jobs. Calls `answer` with each job when it is done, in any order."""
        waiting = []
        for number, job in enumerate(jobs):
            try:
                grader = self._load(job)
            except SlimeEventsError as error:
                answer(messages.Done(number, [failure(RewardFailureKind.INVALID, str(error))] * len(job.samples)))
                continue
            if grader.concurrent:
                waiting.append((number, job, grader))
                continue
            self._mark(number)
            outcomes = self._grade_one(job, grader)
            self._mark(messages.IDLE)
            answer(messages.Done(number, outcomes))
        if waiting:
            self._loop.run_until_complete(self._grade_side_by_side(waiting, answer))

    def _load(self, job: messages.Job) -> registry.RewardFunction:
        function = registry.load(job.choice, reward_key(self._settings, evaluation=job.evaluation), self._folder)
        if job.choice not in self._announced:
            self._loaded(self._announcement(job.choice, function))
        return function

    def _announcement(self, choice: Choice, function: registry.RewardFunction) -> messages.Loaded:
        if not function.own:
            registry.import_heavy(function.name)
        self._announced.add(choice)
        return messages.Loaded(choice, function.name, function.digest, function.concurrent)

    def _grade_one(self, job: messages.Job, grader: registry.RewardFunction) -> list[Outcome]:
        grading = _Grading(job, grader)
        try:
            returned = self._call(job, grader)
            if inspect.isawaitable(returned):
                returned = self._loop.run_until_complete(with_timeout(returned, self._settings.rm_timeout))
        except BaseException as error:  # SystemExit too: only this sample fails
            return grading.raised(error, self._settings.rm_timeout)
        return grading.outcomes(returned)

    async def _grade_side_by_side(
        self,
        waiting: Sequence[tuple[int, messages.Job, registry.RewardFunction]],
        answer: Callable[[messages.Done], None],
    ) -> None:
        async def grade_job(number: int, job: messages.Job, grader: registry.RewardFunction) -> None:
            grading = _Grading(job, grader)
            try:
                call = marked(self._call(job, grader), number, self._mark)
                outcomes = grading.outcomes(await with_timeout(call, self._settings.rm_timeout))
            except BaseException as error:  # SystemExit too: only this sample fails
                outcomes = grading.raised(error, self._settings.rm_timeout)
            answer(messages.Done(number, outcomes))

        await asyncio.gather(*(grade_job(*each) for each in waiting))

    def _call(self, job: messages.Job, grader: registry.RewardFunction) -> Any:
        args = self._args[job.evaluation]
        if grader.own:
            args = for_one_call(args)
        return grader.function(args, job.samples if job.group else job.samples[0])


def _args(values: dict[str, Any], evaluation: bool) -> ArgsView:
    if evaluation and values.get("eval_reward_key"):
        values = values | {"reward_key": values["eval_reward_key"]}
    return ArgsView(values)


class _Grading:
    """Grading of one job, which begins now. Turns the grader's result or exception into outcomes."""

    def __init__(self, job: messages.Job, grader: registry.RewardFunction) -> None:
        self._job, self._grader = job, grader
        self._metadata = [copy.copy(sample.metadata) for sample in job.samples] if grader.own else []
        self._began = time.perf_counter()

    def outcomes(self, returned: object) -> list[Outcome]:
        """Return the result as outcomes. A result that raises when it is read is a failure."""
        try:
            return self._returned(returned)
        except BaseException as error:  # a user's object may raise anything when it is read
            return self._signed([unreadable(error)] * len(self._job.samples))

    def _returned(self, returned: Any) -> list[Outcome]:  # a user's object, of any type
        samples, values = self._job.samples, [returned]
        if self._job.group:
            is_many = hasattr(returned, "__iter__") and not isinstance(returned, dict | str)
            values = list(islice(returned, len(samples) + 1)) if is_many else []
            if len(values) != len(samples):
                many = len(returned) if hasattr(returned, "__len__") else f"{len(samples)} or more"
                what = f"{many} values" if values else f"{type(returned).__name__} {repr_text(returned, 80)}"
                message = f"the group grader returned {what} for {len(samples)} samples: it must return one for each"
                return self._signed([failure(RewardFailureKind.WRONG_TYPE, message)] * len(samples))
        key = self._grader.reward_key
        outcomes = [graded(value, sample, key) for value, sample in zip(values, samples, strict=True)]
        for index, before in enumerate(self._metadata[: len(outcomes)]):
            outcome, changed = outcomes[index], _changed(before, samples[index].metadata)
            if isinstance(outcome, Graded) and changed:
                outcomes[index] = msgspec.structs.replace(outcome, detail=outcome.detail | {"metadata": changed})
        return self._signed(outcomes)

    def raised(self, error: BaseException, limit: float) -> list[Outcome]:
        if isinstance(error, OverLimit):
            failed = failure(RewardFailureKind.TIMEOUT, f"grading took longer than {limit:g} s")
        elif isinstance(error, MemoryError):
            error.__traceback__ = None  # frees the memory of the grader's frames, for this answer
            failed = failure(RewardFailureKind.OUT_OF_MEMORY, f"the grader {self._grader.name} ran out of memory")
        elif isinstance(error, UngradableSample):
            failed = failure(RewardFailureKind.INVALID, str(error))
        else:
            message = f"the grader {self._grader.name} raised {raised_text(error)}{_line_of(error)}"
            failed = failure(RewardFailureKind.RAISED, message)
        return self._signed([failed] * len(self._job.samples))

    def _signed(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        name, digest, seconds = self._grader.name, self._grader.digest, time.perf_counter() - self._began
        return [signed(outcome, name, digest, seconds) for outcome in outcomes]


def _changed(before: object, after: object) -> dict[str, Any]:
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return {}
    changed = {key: value for key, value in after.items() if key not in before or before[key] is not value}
    return dict(plain(changed)) if changed else {}


def _line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" ({Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno})" if trace else ""


def main(descriptor: str, parent: str, mark: str) -> None:
    """Serve one pool until it closes the connection or dies."""
    with connect(descriptor, parent) as connection:
        faulthandler.enable()
        faulthandler.register(signal.SIGUSR1, chain=False)  # the pool requests a stack before it kills a stuck process
        page = mmap.mmap(int(mark), messages.MARK.size)
        page[:] = messages.MARK.pack(messages.IDLE)
        serve(connection, lambda number: messages.MARK.pack_into(page, 0, number))


def serve(connection: socket.socket, mark: Callable[[int], None]) -> None:
    """Read the setup, then grade batches until the connection ends."""

    def answer(message: messages.Answer) -> None:
        send_frame(connection, messages.encode(message))

    payload = receive_frame(connection)
    if payload is None:
        return
    try:
        setup = msgspec.msgpack.decode(payload, type=messages.Setup)
        limit(setup.settings.rm_memory_gb)
        worker = Worker(setup, mark, answer)
        answer(worker.prepare())
    except SlimeEventsError as error:
        answer(messages.SetupFailed(type(error).__name__, str(error)))
        return
    while (payload := receive_frame(connection)) is not None:
        worker.grade(messages.decode_jobs(payload), answer)
