"""`CustomGenerate`: rollouts that a user's generate function makes, from their request to their end in the log."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from schemas.errors import Conflict, PlugPointError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested, Timings
from schemas.subjects import everything_about
from serve_apps.generate.completion import Made, completions
from serve_apps.generate.function import GenerateFunction
from serve_apps.generate.journal import Journal
from serve_apps.generate.rollout_context import Desk, Rests
from serve_apps.generate.sampling import sampling_params
from serve_apps.generate.session import Session
from serve_apps.generate.setup import GenerateSetup
from serve_apps.generate.turn_log import Record
from serve_apps.generate.user_loop import UserLoop
from serve_apps.prompts import Prompts
from serve_apps.rollout import Rollout
from slime_events.core.trajectory import Fetch
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards.outcome import Graded, Outcome, RewardFailure, Value, outcome_event, value_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import sample_to_make
from slime_events.plugins.tokenizer import load_tokenizer
from storage.cancellation import check_cancelled
from storage.log import EventLog


class CustomGenerate:
    """Runs the function for one rollout after the other, or many side by side: `room` at most."""

    def __init__(self, setup: GenerateSetup, tokenizer: Any, log: EventLog, fetch: Fetch, room: int) -> None:
        """Raises PlugPointError and its kinds for a function that cannot be used."""
        self._function = GenerateFunction(setup.path, setup.user_dir)
        self._timeout_s, self._tokenizer, self._log, self._fetch = setup.timeout_s, tokenizer, log, fetch
        self._args = ArgsView(setup.args)
        self._prompts, self._loop = Prompts(log), UserLoop(room)

    def close(self) -> None:
        """Let go of the functions' thread."""
        self._loop.stop()

    async def make(self, rollout: Rollout, desk: Desk) -> None:
        """Run the function, and say what came of it: the samples, or that the rollout rests.

        Goes on after the last turn that the log holds. Raises what the worker says as rollout.failed: PlugPointError
        for what the function did, EngineError for what became of its engine; and Conflict, StorageError.
        """
        request = rollout.request
        record = await self._read(rollout)
        prompt = await self._prompts.of(request.group)
        journal = Journal(rollout, record, desk)
        try:
            returned = await self._run(request, prompt, journal)
            record.check_all_claimed()
        except Rests:
            await desk.append([msgspec.structs.replace(rollout.rest(), length=record.generated)])
            return
        finally:
            journal.close()
        made = Made(
            request,
            self._fetch(request.prompt),
            journal.turns,
            prompt.metadata,
            rollout.engine,
            self._tokenizer,
            Timings(queued=rollout.queued, generating=time.perf_counter() - rollout.begun),
        )
        events = completions(returned, made)
        await desk.append([*events, *self._rewards(returned, events, request)])

    async def _read(self, rollout: Rollout) -> Record:
        """What the log holds of the rollout's turns; the fence moves to the last of it."""
        sample = rollout.request.sample
        record = Record(sample, self._fetch)
        subject = everything_about(self._log.run, sample)
        async for recorded in self._log.read(1, subject):
            event = recorded.envelope.event
            if isinstance(event, RolloutCompleted):
                raise Conflict(f"{sample} was completed meanwhile", subject=subject, expected=rollout.known.position)
            record.apply(event)
            rollout.known.position = recorded.position
        return record

    async def _run(self, request: RolloutRequested, prompt: PromptSubmitted, journal: Journal) -> Any:
        """What the function returns; what went wrong in its turns goes before what it made of that."""
        session = Session(
            journal, asyncio.get_running_loop(), self._tokenizer, request.sampling, self._args, prompt.tools
        )
        call = self._function(
            self._args,
            sample_to_make(request, prompt),
            sampling_params(request.sampling),
            evaluation=request.purpose is Purpose.EVAL,
            session=session,
        )
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                returned = await self._loop.run(call)
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            check_cancelled()  # else what was cancelled is the function's own
            if journal.failure is not None:
                raise journal.failure from error
            if limit.expired():
                raise PlugPointError(
                    f"the generate function {self._function.name} took longer than {self._timeout_s:g} s for "
                    f"{request.sample} (--generate-timeout)"
                ) from error
            raise error if isinstance(error, SlimeEventsError) else self._function.broke(error) from error
        if journal.failure is not None:
            raise journal.failure
        return returned

    def _rewards(self, returned: Any, events: list[RolloutCompleted], request: RolloutRequested) -> list[Event]:
        """Of the samples that the function graded itself; a grader of whole groups goes over its head, as in slime."""
        samples: list[Sample] = returned if isinstance(returned, list) else [returned]
        if self._args.group_rm:
            return []
        in_order = [*samples[1:], samples[0]]
        graded = [(sample, event) for sample, event in zip(in_order, events, strict=True) if sample.reward is not None]
        return [self._reward(sample, event, request) for sample, event in graded]

    def _reward(self, sample: Sample, event: RolloutCompleted, request: RolloutRequested) -> Event:
        key = self._args.reward_key
        if request.purpose is Purpose.EVAL:
            key = self._args.eval_reward_key or key
        found = value_of(sample.reward, key)
        name, digest = self._function.name, self._function.digest
        outcome: Outcome
        if isinstance(found, Value):
            outcome = Graded(value=found.value, detail=found.detail, grader=name, grader_digest=digest)
        else:
            outcome = RewardFailure(kind=found.kind, message=found.message, grader=name, grader_digest=digest)
        return outcome_event(event.sample, event.group, outcome)


@contextlib.asynccontextmanager
async def custom_generate(
    setup: GenerateSetup | None, log: EventLog, fetch: Fetch, *, room: int
) -> AsyncIterator[CustomGenerate | None]:
    """The run's own generate function, ready to run; None where it has none. room: rollouts in flight at most."""
    if setup is None:
        yield None
        return
    custom = CustomGenerate(setup, load_tokenizer(setup.tokenizer), log, fetch, room)
    try:
        yield custom
    finally:
        custom.close()
