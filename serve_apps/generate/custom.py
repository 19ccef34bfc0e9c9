"""`CustomGenerate`: rollouts made by a user's generate function, from their request to their end in the log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from schemas.errors import Conflict, PlugPointError, SlimeEventsError
from schemas.event import Event, Purpose
from schemas.prompts import PromptSubmitted
from schemas.rollouts import RolloutCompleted, RolloutRequested
from schemas.subjects import everything_about
from serve_apps.generate.completion import Made, completions
from serve_apps.generate.function import GenerateFunction, GenerateSetup, UserLoop
from serve_apps.generate.journal import Journal, TurnLog
from serve_apps.generate.session import Session, sampling_params
from serve_apps.rollout import Prompts, Rollout, RolloutContext, Suspended
from slime_events.core.trajectory import Fetch
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rewards.outcome import outcome_event, outcome_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import sample_to_make
from slime_events.plugins.tokenizer import load_tokenizer
from storage.cancellation import check_cancelled
from storage.log import EventLog


class CustomGenerate:
    """Runs the function for one rollout after the other, or for `room` of them at a time."""

    def __init__(self, setup: GenerateSetup, tokenizer: Any, log: EventLog, fetch: Fetch, room: int) -> None:
        """Raises PlugPointError and its kinds for a function that cannot be used."""
        self._function = GenerateFunction(setup.path, setup.user_dir)
        self._timeout_s, self._tokenizer, self._log, self._fetch = setup.timeout_s, tokenizer, log, fetch
        self._args = ArgsView(setup.args)
        self._prompts, self._loop = Prompts(log), UserLoop(room)

    def close(self) -> None:
        """End the functions' thread."""
        self._loop.stop()

    async def make(self, rollout: Rollout, context: RolloutContext) -> None:
        """Run the function, and append its result: the samples, or that the rollout is suspended.

        Continues after the last turn in the log. Raises what the worker appends as rollout.failed: PlugPointError
        where the function is at fault, EngineError where its engine is; and Conflict, StorageError.
        """
        request = rollout.request
        turn_log = await self._read(rollout)
        prompt = await self._prompts.of(request.group)
        journal = Journal(rollout, turn_log, context)
        try:
            returned = await self._run(request, prompt, journal)
            turn_log.check_all_claimed()
        except Suspended:
            await context.append([msgspec.structs.replace(rollout.suspended(), length=turn_log.generated)])
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
            rollout.timings(),
        )
        events = completions(returned, made)
        await context.append([*events, *self._rewards(returned, events, request)])

    async def _read(self, rollout: Rollout) -> TurnLog:
        """The rollout's turns in the log; the fence moves to the last of them."""
        sample = rollout.request.sample
        turn_log = TurnLog(sample, self._fetch)
        subject = everything_about(self._log.run, sample)
        async for recorded in self._log.read(1, subject):
            event = recorded.envelope.event
            if isinstance(event, RolloutCompleted):
                raise Conflict(f"{sample} was completed meanwhile", subject=subject, expected=rollout.known.position)
            turn_log.apply(event)
            rollout.known.position = recorded.position
        return turn_log

    async def _run(self, request: RolloutRequested, prompt: PromptSubmitted, journal: Journal) -> Any:
        """What the function returns. An error in its turns goes before what the function made of it."""
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
            raise error if isinstance(error, SlimeEventsError) else self._function.error_of(error) from error
        if journal.failure is not None:
            raise journal.failure
        return returned

    def _rewards(self, returned: Any, events: list[RolloutCompleted], request: RolloutRequested) -> list[Event]:
        """Rewards of the samples that the function graded itself. As in slime, a group grader overrides them."""
        if self._args.group_rm:
            return []
        samples: list[Sample] = returned if isinstance(returned, list) else [returned]
        key = self._args.reward_key
        if request.purpose is Purpose.EVAL:
            key = self._args.eval_reward_key or key
        name, digest = self._function.name, self._function.digest
        graded = [
            (event, outcome_of(sample.reward, key, grader=name, grader_digest=digest))
            for sample, event in zip([*samples[1:], samples[0]], events, strict=True)
            if sample.reward is not None
        ]
        return [outcome_event(event.sample, event.group, outcome) for event, outcome in graded]


@contextlib.asynccontextmanager
async def custom_generate(
    setup: GenerateSetup | None, log: EventLog, fetch: Fetch, *, room: int
) -> AsyncIterator[CustomGenerate | None]:
    """The run's generate function, ready to run; None where it has none. room: rollouts in flight at most."""
    if setup is None:
        yield None
        return
    custom = CustomGenerate(setup, load_tokenizer(setup.tokenizer), log, fetch, room)
    try:
        yield custom
    finally:
        custom.close()
