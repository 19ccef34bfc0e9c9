"""`FunctionRunner`: calls a user's rollout function for each step, and turns its result into events.

    a step's weights exist -> the function, in a thread -> rollout.returned -> the events that its outcome names

The result is one event, appended once for each step. All other events follow from it. So a function that is called
again, because its process was lost, still has one outcome.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Annotated, Any

import msgspec
import zstandard

from schemas.arrays import Array, pack
from schemas.doc import doc
from schemas.errors import Conflict, PlugPointError
from schemas.event import Event
from schemas.ids import returned_id, sample_id
from schemas.prompts import PromptSubmitted, PromptWanted
from schemas.rewards import RewardAssigned, RewardFailed
from schemas.rollouts import Maker, Place, RolloutCompleted, RolloutFailed, RolloutRequested, RolloutReturned
from schemas.subjects import about
from schemas.text import raised_text, repr_text, valid_text
from serve_apps.rollouts.generate.function import UserLoop
from serve_apps.rollouts.generate.listener import Listener
from serve_apps.rollouts.generate.session import session_of_process
from serve_apps.rollouts.rollout import Prompts
from serve_apps.rollouts.rollout_function.calls import CallContext, Calls, FunctionSession
from serve_apps.rollouts.rollout_function.data_source import DrawnGroups, Groups
from serve_apps.rollouts.rollout_function.evaluation import evaluated
from serve_apps.rollouts.rollout_function.function import RolloutFunction
from serve_apps.rollouts.rollout_function.outcome import OutcomeContext, drawn_group, flat, groups_of, outcome_of
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurns
from slime_events.core.run.participant import Participant, run_events_before
from slime_events.core.state.keeper import StateKeeper
from slime_events.core.state.run import RunState
from slime_events.core.state.snapshot import Snapshot
from slime_events.core.state.state_fold import StateFold
from slime_events.core.tokens.trajectory import Fetch
from slime_events.loop.conductor.decide import function_eval_due
from slime_events.loop.conductor.plan import Plan, at_boundary, may_decide
from slime_events.plugins.args_view import ArgsView, CallArgs
from slime_events.plugins.sample import Sample, carried
from slime_events.plugins.sample_view import requested_sample
from slime_events.plugins.tokenizer import Tokenizer
from storage.cancellation import end_all
from storage.compression import decompress
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import MAX_BATCH, in_batches, once

log = logging.getLogger(__name__)

TICK_S = 0.25
METRICS = 10_000  # metrics of a function that are kept
KEPT_BYTES = 64 * 1024 * 1024  # of a sample that is given back: it goes into the blob store
OutcomeEvent = PromptSubmitted | RolloutRequested | RolloutCompleted | RolloutFailed | RewardAssigned | RewardFailed
_outcome = msgspec.msgpack.Decoder(list[list[OutcomeEvent]])
_kept = msgspec.msgpack.Decoder(list[tuple[str, list[dict[str, Any]]]])


def packed(value: object) -> Array:
    """Encode a value as `RolloutReturned` carries it."""
    return pack(memoryview(zstandard.compress(msgspec.msgpack.encode(value))).cast("b"), "int8")


def _outcome_events(data: bytes) -> list[list[OutcomeEvent]]:
    """Return the events of an outcome. They have no schema: in older outcomes the requests have no maker."""
    return [
        [msgspec.structs.replace(event, maker=Maker.FUNCTION) if isinstance(event, RolloutRequested) else event
         for event in events]
        for events in _outcome.decode(data)
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunnerContext:
    """Dependencies and settings of a runner."""

    plan: Plan
    tokenizer: Tokenizer
    args: Annotated[ArgsView, doc("The functions' `args`.")]
    fetch: Annotated[Fetch, doc("Reads large arrays from the blob store.")]
    offload: Annotated[Callable[[Any], Awaitable[Any]], doc("Moves an event's large arrays to the blob store.")]
    grades: Annotated[bool, doc("Whether the run has graders; without them samples without a reward get 0.")] = True
    vocabulary: Annotated[int | None, doc("Number of token ids of the model; None if unknown.")] = None


class FunctionRunner:
    """Calls `train` for steps and `evaluate` for evaluations. None means that the run does that itself."""

    def __init__(
        self,
        worker: Participant,
        context: RunnerContext,
        train: RolloutFunction | None,
        evaluate: RolloutFunction | None = None,
        keeper: StateKeeper[Snapshot] | None = None,
    ) -> None:
        self._worker, self._context, self._train, self._evaluate = worker, context, train, evaluate
        self._keeper: StateKeeper[Snapshot] = keeper or StateKeeper(None)
        self._folded, self._prompts = StateFold(worker.log.run), Prompts(worker.log)
        self._turns = MadeTurns(context.plan.staleness_bound + 1)
        self._calls: list[Calls] = []
        self._kept: list[tuple[str, list[dict[str, Any]]]] = []
        self._handed: dict[str, PromptSubmitted] = {}
        self._numbers: dict[int, str] = {}
        self._draws, self._http = asyncio.Lock(), UserLoop(1, "listener")
        self._news = asyncio.Event()
        self._appended = 0
        self._starts = self._first = self._first_evaluation = True
        self._over = False

    @property
    def _state(self) -> RunState:
        return self._folded.state

    @property
    def _step(self) -> int:
        """First step that the function has not returned."""
        return max(self._state.by_function.next, self._state.next_step)

    async def run(self) -> None:
        """Run until the run is over. Raises PlugPointError if a function raises, or returns an invalid result."""
        await self._keeper.restore(self._folded, self._worker.log)
        for recorded in await run_events_before(self._state.position + 1, self._worker):
            self._over = self._worker.is_over(self._over, recorded.envelope.event)
        tasks: dict[str, asyncio.Task[None]] = {}
        try:
            async with (
                GroupCommit(self._worker.log) as commit,
                Follower(self._worker.log, self._state.position + 1) as follower,
            ):
                while not (self._over and follower.caught_up):
                    for recorded in await follower.next(TICK_S):
                        self._folded.apply(recorded)
                        self._over = self._worker.is_over(self._over, recorded.envelope.event)
                        for calls in self._calls:
                            calls.apply(recorded)
                    self._notify()
                    for name in [name for name, task in tasks.items() if task.done()]:
                        tasks.pop(name).result()
                    if not follower.caught_up or self._over or self._state.position < self._appended:
                        continue
                    if self._starts:
                        self._starts = False
                        await self._finish(self._step - 1)
                    else:
                        self._begin(tasks, commit)
        finally:
            await end_all(*tasks.values())
            self._http.stop()

    def _begin(self, tasks: dict[str, asyncio.Task[None]], commit: GroupCommit) -> None:
        """Start the calls that are due."""
        state, plan = self._state, self._context.plan
        if not may_decide(state, plan):
            return
        is_due = self._step < plan.steps and not at_boundary(self._step, state, plan)
        if self._train is not None and is_due and "train" not in tasks:
            tasks["train"] = asyncio.create_task(self._make_step(self._step, self._train, commit))
        version = function_eval_due(state, plan)
        if self._evaluate is not None and version is not None and "evaluate" not in tasks:
            tasks["evaluate"] = asyncio.create_task(self._make_evaluation(version, self._evaluate, commit))

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _make_step(self, step: int, function: RolloutFunction, commit: GroupCommit) -> None:
        looks_up, self._first = self._first, False
        begun, version = time.perf_counter(), self._state.published
        self._handed, self._numbers = {}, {}
        source = DrawnGroups(self._draw)
        calls = self._open_calls(step, commit, lambda: (self._state.published, None), looks_up=looks_up)
        output = await self._called(function, step, source, calls, evaluation=False)
        groups = groups_of(output.samples)
        if not groups:
            what = "no groups" if groups == [] else f"{repr_text(output.samples)}, not a list of lists of samples"
            raise function.error(step, f"returned {what}", evaluation=False)
        context = self._outcome_context(function, version)
        outcome = await asyncio.to_thread(outcome_of, groups, self._handed, self._numbers, context)
        events = [[await self._context.offload(event) for event in some] for some in outcome.events]
        kept = self._given_back(source.given_back, set(outcome.groups))
        held = {*outcome.groups, *(name for name, _ in kept)}
        returned = RolloutReturned(
            step=step,
            function=function.name,
            digest=function.digest,
            groups=tuple(outcome.groups),
            outcome=packed(events),
            kept=packed(kept),
            dropped=tuple(name for name in self._handed if name not in held),
            metrics=_numbers(output.metrics),
            seconds=time.perf_counter() - begun,
        )
        try:
            await self._append([[await self._context.offload(returned)]])
        except Conflict:  # another process of this role was first: fold its event, which has the groups it kept
            there = await self._worker.log.last(self._returned(step))
            self._appended = max(self._appended, there.position if there else 0)
            self._starts = self._first = True
            return
        self._kept = kept
        await self._append(events)
        self._turns.forget_before(step)

    async def _finish(self, step: int) -> None:
        """Append the events that a lost process has not appended for the newest returned step."""
        last = await self._worker.log.last(self._returned(step))
        if last is None or not isinstance(last.envelope.event, RolloutReturned):
            return
        returned: RolloutReturned = last.envelope.event
        self._kept = _kept.decode(self._unpacked(returned.kept))
        await self._append(_outcome_events(self._unpacked(returned.outcome)))

    def _returned(self, step: int) -> str:
        return about(self._worker.log.run, "rollout", returned_id(step, evaluation=False))

    def _unpacked(self, array: Array) -> bytes:
        return decompress(self._context.fetch(array).tobytes())

    async def _append(self, together: Sequence[Sequence[Event]]) -> None:
        """Append in order. The events of each inner list are stored in one call."""
        units = [[once(self._worker.enclose(event)) for event in events] for events in together]
        longest = max(map(len, units), default=1)
        for batch in in_batches(
            units, lambda unit: sum(len(append.encoded()) for append in unit), MAX_BATCH // longest
        ):
            self._appended = max(
                self._appended, *await self._worker.log.append([append for unit in batch for append in unit])
            )

    def _outcome_context(self, function: RolloutFunction, version: int) -> OutcomeContext:
        context, state = self._context, self._state
        return OutcomeContext(
            function,
            context.plan,
            self._turns,
            context.tokenizer,
            self._worker.id,
            version,
            order=state.counts.groups_requested,
            offset=state.cursors.get(function.name, 0),
            reward_key=context.args.reward_key,
            ungraded=None if context.grades else 0.0,
            vocabulary=context.vocabulary,
        )

    def _open_calls(
        self, step: int, commit: GroupCommit, versions: Callable[[], tuple[int, int | None]], **more: bool
    ) -> Calls:
        context, plan = self._context, self._context.plan
        decode = context.tokenizer.decode
        shared = CallContext(self._worker, commit, context.fetch, plan.seed, plan.max_attempts, self._turns, decode)
        calls = Calls(shared, step, versions, **more)
        self._calls = [calls, *(earlier for earlier in self._calls if not earlier.is_over)]
        return calls

    async def _called(
        self, function: RolloutFunction, rollout_id: int, source: DrawnGroups, calls: Calls, *, evaluation: bool
    ) -> Any:
        args = CallArgs(self._context.args, lambda: listener.open())
        session = FunctionSession(calls, self._context.tokenizer, self._context.plan.sampling, args)
        listener = Listener(session, self._http, lambda: None)
        try:
            with session_of_process(session):
                return await function(args, rollout_id, source, session, evaluation=evaluation)
        finally:
            calls.has_returned = True
            await listener.close()

    async def _draw(self, groups: int) -> Groups:
        """Return the next groups for the function: those given back, those waiting in the log, and new ones."""
        async with self._draws:
            drawn, self._kept = list(map(_samples, self._kept[:groups])), self._kept[groups:]
            for group in drawn:
                name = drawn_group(group, self._state.groups, {})
                if name is not None:
                    await self._hand(name, group)
            while len(drawn) < groups:
                name = next((name for name in self._state.waiting if self._is_free(name)), None)
                if name is not None:
                    drawn.append(await self._hand(name))
                    continue
                await self._want(groups - len(drawn))
                await self._news.wait()
            return drawn

    def _is_free(self, name: str) -> bool:
        state = self._state.by_function
        taken = name in self._handed or any(name == kept for kept, _ in self._kept)
        return not taken and name not in state.dropped and state.step_of(name) is None

    async def _want(self, more: int) -> None:
        """Request `more` new prompts from the conductor, beyond the drawn ones. Requests that are still open count."""
        state = self._state.by_function
        total = max(state.wanted, state.drawn + more)
        if total > state.wanted:
            with contextlib.suppress(Conflict):  # the request is already in the log
                await self._append([[PromptWanted(total=total)]])

    async def _hand(self, name: str, group: list[Sample] | None = None) -> list[Sample]:
        """Note a group as handed to the function. A new group gets numbers that no other open group has."""
        prompt, plan = await self._prompts.of(name), self._context.plan
        self._handed[name] = prompt
        if group is None:
            order = next(n for n in count(self._state.counts.groups_requested) if n not in self._numbers)
            group = [
                requested_sample(_shown_request(prompt, index, order, plan), prompt) for index in range(plan.samples)
            ]
        if group[0].group_index is not None:
            self._numbers[group[0].group_index] = name
        return group

    def _given_back(self, groups: Groups, returned: set[str]) -> list[tuple[str, list[dict[str, Any]]]]:
        """Return the groups to keep: those given back but not returned, then those that were not handed out again."""
        kept = []
        for group in groups:
            name = drawn_group(group, self._handed, self._numbers) or ""
            if name not in returned:
                kept.append((name, [carried(sample.to_dict(), "sample", room=KEPT_BYTES) for sample in flat(group)]))
        return [*kept, *self._kept]

    async def _make_evaluation(self, version: int, function: RolloutFunction, commit: GroupCommit) -> None:
        newest = version if self._context.plan.eval_exact else None
        begun, looks_up, self._first_evaluation = time.perf_counter(), self._first_evaluation, False
        versions = (version, newest)
        calls = self._open_calls(version, commit, lambda: versions, evaluation=True, looks_up=looks_up)
        output = await self._called(function, version, DrawnGroups(None), calls, evaluation=True)
        try:
            events: list[Event] = list(evaluated(output.data, version, function, calls.spans, self._context.args))
        except PlugPointError:
            raise
        except BaseException as error:  # a user's object may raise anything when it is read
            what = f"returned an unreadable object: {raised_text(error)}"
            raise function.error(version, what, evaluation=True) from error
        returned = RolloutReturned(
            step=version,
            function=function.name,
            digest=function.digest,
            evaluation=True,
            metrics=_numbers(output.metrics),
            seconds=time.perf_counter() - begun,
        )
        with contextlib.suppress(Conflict):  # another process of this role was first
            await self._append([[*events, returned]])


def _samples(kept: tuple[str, list[dict[str, Any]]]) -> list[Sample]:
    return [Sample.from_dict(fields) for fields in kept[1]]


def _shown_request(prompt: PromptSubmitted, index: int, order: int, plan: Plan) -> RolloutRequested:
    """Return a sample's request as the function sees it. The real one is appended after the function returns."""
    return RolloutRequested(
        sample=sample_id(prompt.group, index),
        group=prompt.group,
        index=index,
        prompt=prompt.tokens,
        sampling=plan.sampling,
        seed=0,
        place=Place(order * plan.samples + index, order),
    )


def _numbers(metrics: Any) -> dict[str, float]:  # a user's object
    """Return the function's metrics that are numbers."""
    try:
        items = islice(dict(metrics or {}).items(), METRICS)
        return {valid_text(str(name), 200): float(value) for name, value in items if isinstance(value, int | float)}
    except BaseException as error:  # a user's object may raise anything; metrics must not end a run
        log.warning("cannot read the metrics of the rollout function: %s", raised_text(error))
        return {}
