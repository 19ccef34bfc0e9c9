"""A grader process: reads batches from its pool, grades, answers unit by unit.

Before each step of a unit it writes the unit's number into a shared page, so that the pool knows whom to blame when
this process is stuck or dies. It has no time limit for synchronous code itself: the pool ends it from outside, which
also works inside C code and with signals blocked.
"""

from __future__ import annotations

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from schemas.errors import MissingPart, SlimeEventsError
from schemas.rewards import RewardFailureKind
from slime_events.core.config.reward import RewardSettings
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards import dispatch, messages, registry
from slime_events.plugins.rewards.outcome import Graded, NoValue, Outcome, RewardFailure, plain, value_of
from slime_events.plugins.rewards.timeouts import OverLimit, limited, marked
from slime_events.plugins.sample import Sample

_PR_SET_PDEATHSIG = 1
_unit_decoder = msgspec.msgpack.Decoder(messages.Unit)
_batch_decoder = msgspec.msgpack.Decoder(messages.Batch)


class Worker:
    """Grades units one after the other; units of async graders wait side by side on one event loop."""

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

    def grade(self, units: Sequence[messages.Unit], answer: Callable[[messages.Done], None]) -> None:
        """Grade all units; `answer` hears of each as it is done, in any order."""
        waiting = []
        for number, unit in enumerate(units):
            grader = self._grader(unit)
            if isinstance(grader, dispatch.Grader) and grader.concurrent:
                waiting.append((number, unit, grader))
                continue
            self._mark(number)
            outcomes = self._grade_now(unit, grader)
            self._mark(messages.IDLE)
            answer(messages.Done(number, outcomes))
        if waiting:
            self._loop.run_until_complete(self._grade_side_by_side(waiting, answer))

    def _grader(self, unit: messages.Unit) -> dispatch.Grader | SlimeEventsError:
        try:
            if unit.group and (found := self._group_grader(unit)):
                return found
            return dispatch.resolve(self._settings, unit.samples[0], evaluation=unit.evaluation, user_dir=self._folder)
        except SlimeEventsError as error:
            return error

    def _group_grader(self, unit: messages.Unit) -> dispatch.Grader | None:
        return dispatch.resolve_group(self._settings, evaluation=unit.evaluation, user_dir=self._folder)

    def _grade_now(self, unit: messages.Unit, grader: dispatch.Grader | SlimeEventsError) -> list[Outcome]:
        began = time.perf_counter()
        if isinstance(grader, SlimeEventsError):
            return [RewardFailure(kind=RewardFailureKind.RAISED, message=str(grader))] * len(unit.samples)
        before = _metadata_of(unit, grader)
        try:
            returned = self._call(unit, grader)
            if inspect.isawaitable(returned):
                returned = self._loop.run_until_complete(limited(returned, self._settings.rm_timeout))
        except Exception as error:
            return _raised(unit, grader, error, self._settings.rm_timeout, time.perf_counter() - began)
        return _outcomes(unit, grader, returned, before, time.perf_counter() - began)

    async def _grade_side_by_side(
        self, waiting: Sequence[tuple[int, messages.Unit, dispatch.Grader]], answer: Callable[[messages.Done], None]
    ) -> None:
        async def one(number: int, unit: messages.Unit, grader: dispatch.Grader) -> None:
            began = time.perf_counter()
            before = _metadata_of(unit, grader)
            try:
                call = marked(self._call(unit, grader), number, self._mark)
                returned = await limited(call, self._settings.rm_timeout)
                outcomes = _outcomes(unit, grader, returned, before, time.perf_counter() - began)
            except Exception as error:
                outcomes = _raised(unit, grader, error, self._settings.rm_timeout, time.perf_counter() - began)
            answer(messages.Done(number, outcomes))

        await asyncio.gather(*(one(*each) for each in waiting))

    def _call(self, unit: messages.Unit, grader: dispatch.Grader) -> Any:
        args = self._args[unit.evaluation]
        return grader.function(args, unit.samples if unit.group else unit.samples[0])


def _import_heavy(rm_type: str) -> None:
    for module in registry.HEAVY_IMPORTS.get(rm_type, ()):
        try:
            importlib.import_module(module)
        except ImportError as error:
            package = module.partition(".")[0].replace("_", "-")
            raise MissingPart(f"--rm-type {rm_type} needs {package}: pip install {package} ({error})") from error


def _args(values: dict[str, Any], evaluation: bool) -> ArgsView:
    if evaluation and values.get("eval_reward_key"):
        values = values | {"reward_key": values["eval_reward_key"]}
    return ArgsView(values)


def _metadata_of(unit: messages.Unit, grader: dispatch.Grader) -> list[dict[str, Any]]:
    return [dict(sample.metadata) for sample in unit.samples] if grader.own else []


def _outcomes(
    unit: messages.Unit, grader: dispatch.Grader, returned: Any, before: list[dict[str, Any]], seconds: float
) -> list[Outcome]:
    values = [returned]
    if unit.group:
        values = list(returned) if hasattr(returned, "__iter__") and not isinstance(returned, dict | str) else []
        if len(values) != len(unit.samples):
            what = f"{len(values)} values" if values else f"{type(returned).__name__} {str(returned)[:80]!r}"
            message = f"the group grader returned {what} for {len(unit.samples)} samples: it must return one for each"
            return [_failure(grader, RewardFailureKind.WRONG_TYPE, message, seconds)] * len(unit.samples)
    outcomes: list[Outcome] = []
    for index, value in enumerate(values):
        found = value_of(value, grader.reward_key)
        if isinstance(found, NoValue):
            outcomes.append(_failure(grader, found.kind, found.message, seconds))
            continue
        detail = found.detail
        if before and (changed := _changed(before[index], unit.samples[index].metadata)):
            detail = detail | {"metadata": changed}
        outcomes.append(
            Graded(value=found.value, detail=detail, seconds=seconds, grader=grader.name, grader_digest=grader.digest)
        )
    return outcomes


def _changed(before: dict[str, Any], after: Any) -> dict[str, Any]:
    if not isinstance(after, dict):
        return {}
    return {str(key): plain(value) for key, value in after.items() if key not in before or before[key] is not value}


def _raised(
    unit: messages.Unit, grader: dispatch.Grader, error: Exception, limit: float, seconds: float
) -> list[Outcome]:
    if isinstance(error, OverLimit):
        failure = _failure(grader, RewardFailureKind.TIMEOUT, f"grading took longer than {limit:g} s", seconds)
    else:
        message = f"the grader {grader.name} raised {type(error).__name__}: {error}{_line_of(error)}"
        failure = _failure(grader, RewardFailureKind.RAISED, message, seconds)
    return [failure] * len(unit.samples)


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
        worker.grade([_unit_decoder.decode(unit) for unit in batch.units], answer)
