"""`Grader`: assigns every completed sample a reward, or records why it has none.

    rollout.completed -> process pool with a time limit -> reward.assigned | reward.failed

A slow sample delays only its own group: each group is graded and appended separately.
"""

import asyncio
import logging
from functools import partial

from schemas.errors import Conflict, EventTooLarge, SchemaError
from schemas.event import Event
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from schemas.subjects import about
from slime_events.core.run.participant import Participant, run_events_before, subjects_of
from slime_events.core.telemetry.current_span import call_in_span
from slime_events.core.telemetry.span_place import SpanPlace, grade_place
from slime_events.core.tokens.trajectory import Fetch, Trajectory, read_trajectory
from slime_events.loop.training.pending_rewards import PendingRewards
from slime_events.plugins.rewards.choice import OUTSIDE
from slime_events.plugins.rewards.dispatcher import Dispatcher
from slime_events.plugins.rewards.outcome import outcome_event, refused, without_detail
from storage.cancellation import end_all
from storage.follow import Follower
from storage.group_commit import GroupCommit
from storage.log import Append, Fence, Recorded
from storage.payloads import Offload

log = logging.getLogger(__name__)

Gradings = dict[asyncio.Task[None], set[str]]
"""Grading tasks with the samples that each still has to grade."""


class Grader:
    """Grades samples and appends the outcomes.

    start: position before which all samples are graded. fetch: reads arrays for a user's graders, which see tokens,
    log-probs and loss mask; None if no grader sees them. offload: stores long arrays that graders return.
    """

    def __init__(
        self,
        worker: Participant,
        dispatcher: Dispatcher,
        commit: GroupCommit,
        *,
        whole_groups: bool,
        start: int = 1,
        fetch: Fetch | None = None,
        offload: Offload | None = None,
    ) -> None:
        self._worker, self._dispatcher, self._commit, self._start_at = worker, dispatcher, commit, start
        self._fetch, self._offload = fetch, offload
        self._whole_groups = whole_groups
        self._pending = PendingRewards(whole_groups=whole_groups)

    async def run(self) -> None:
        """Grade until the run is over. Raises errors of the dispatcher; an error in a grader is an outcome."""
        over, tasks = False, Gradings()
        for recorded in await run_events_before(self._start_at, self._worker):
            over = self._worker.is_over(over, recorded.envelope.event)
        try:
            followed = subjects_of(self._worker.log.run, self._pending.folded)
            async with Follower(self._worker.log, self._start_at, followed) as follower:
                while not (over and follower.caught_up):
                    for recorded in await follower.next(wait_s=0.25):
                        self._pending.apply(recorded)
                        over = self._worker.is_over(over, recorded.envelope.event)
                        _cancel_rewarded(tasks, recorded.envelope.event)
                    if follower.caught_up:
                        for group, completed in self._pending.take():
                            tasks[self._grading(group, completed)] = set(completed)
                    for task in [task for task in tasks if task.done()]:
                        del tasks[task]
                        if not task.cancelled():
                            task.result()
        finally:
            await end_all(*tasks)

    def _grading(self, group: str, completed: dict[str, Recorded]) -> asyncio.Task[None]:
        # Samples that are graded together have the group's first span as theirs.
        (*_, sample), grade = completed, partial(self._grade, group, completed)
        place = grade_place(sample, group) if len(completed) == 1 else SpanPlace(f"submit/{group}", None, group)
        return asyncio.create_task(call_in_span(self._worker.log.run, place, grade), name=f"grade-{group}")

    async def _chunked(self, completed: dict[str, Recorded]) -> dict[str, Trajectory]:
        """Return the trajectories of samples whose tokens are in chunks, if graders see tokens."""
        if self._fetch is None:
            return {}
        events = [recorded.envelope.event for recorded in completed.values()]
        chunked = [event.sample for event in events if isinstance(event, RolloutCompleted) and event.start]
        return {name: await read_trajectory(self._worker.log, name, self._fetch) for name in chunked}

    async def _grade(self, group: str, completed: dict[str, Recorded]) -> None:
        samples = self._pending.samples(group, completed, self._fetch, await self._chunked(completed))
        to = self._dispatcher
        grade = to.grade_group if self._whole_groups or len(completed) > 1 else to.grade
        outcomes = await grade(samples, evaluation=self._pending.is_evaluation(group))
        appends = []
        for (sample, recorded), outcome in zip(completed.items(), outcomes, strict=True):
            event = outcome_event(sample, group, outcome)
            event = await self._offload(event) if self._offload else event
            # The fence is on rewards and failures: a sample has one of them.
            fence = Fence(about(self._worker.log.run, "reward", event.entity()), 0)
            appends.append(Append(self._worker.enclose(event, cause=recorded.envelope.id), fence))
        # A whole group is one append: a partly graded group would never be due again.
        calls = [appends] if self._whole_groups else [[append] for append in appends]
        results = await asyncio.gather(*map(self._submit, calls), return_exceptions=True)
        for call, result in zip(calls, results, strict=True):
            if isinstance(result, EventTooLarge | SchemaError):
                await self._store_less(call, result)
            elif isinstance(result, Conflict):
                _log_conflict(call)
            elif isinstance(result, BaseException):
                raise result

    def _submit(self, call: list[Append]) -> asyncio.Future[list[int]]:
        try:
            return self._commit.submit(call)
        except (EventTooLarge, SchemaError) as error:
            result: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
            result.set_exception(error)
            return result

    async def _store_less(self, call: list[Append], error: EventTooLarge | SchemaError) -> None:
        """Append outcomes that the log refused: first without the graders' details, then as failures.

        An oversized or invalid return value costs its sample or group and never ends the grader.
        """
        for reduce in (without_detail, partial(refused, error=error)):
            try:
                events = [reduce(append.envelope.event) for append in call]
                await self._commit.append(
                    [
                        Append(self._worker.enclose(event, cause=append.envelope.cause), append.fence)
                        for event, append in zip(events, call, strict=True)
                    ]
                )
            except (EventTooLarge, SchemaError) as again:
                log.warning("the log refuses a reward: %s", again)
            except Conflict:
                return _log_conflict(call)
            else:
                return None
        raise error


def _log_conflict(call: list[Append]) -> None:
    log.info("%s was graded by another grader", ", ".join(append.envelope.event.entity() for append in call))


def _cancel_rewarded(gradings: Gradings, event: Event) -> None:
    """Cancel gradings whose samples have all received their rewards from outside."""
    if not isinstance(event, RewardAssigned) or event.grader.partition(":")[0] != OUTSIDE:
        return
    for task, samples in gradings.items():
        samples.discard(event.sample)
        if not samples:
            task.cancel()
