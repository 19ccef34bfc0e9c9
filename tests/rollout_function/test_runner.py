"""`FunctionRunner` by itself: where it starts, which groups are whose, what it grades, and what it leaves behind."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.batches import BatchSealed
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutReturned
from slime_events.core.state.run import RunPhase
from slime_events.core.state.state_fold import StateFold
from storage.follow import Follower
from storage.log import Readable, Recorded
from tests.rollout_function import functions
from tests.rollout_function.scene import a_run, check_log, runner
from tests.run.sockets import listening

WAIT_S = 20.0


class Keeper:
    """It has a snapshot of this position of the log."""

    def __init__(self, position: int) -> None:
        self.position, self.calls = position, 0

    async def restore(self, fold: StateFold, log: Readable) -> None:
        self.calls += 1
        async for recorded in log.read(1):
            if recorded.position <= self.position:
                fold.apply(recorded)


async def test_it_starts_at_the_snapshot_that_there_is(tmp_path: Path) -> None:
    """End at once for a run that has ended, whether the end is in the snapshot or behind it."""
    functions.CALLED.clear()
    async with a_run(tmp_path, steps=2) as run:
        run.start_role("function", runner(run, "numbered").run())
        assert await run.finish() is RunPhase.FINISHED
        end = run.log.records[-1].position
        for position in (0, end // 2, end - 1, end):
            keeper = Keeper(position)
            async with asyncio.timeout(WAIT_S):
                await runner(run, "numbered", keeper=keeper).run()
            assert keeper.calls == 1
    assert [step for _, step, _ in functions.CALLED] == [0, 1]


class OneByOne(Follower):
    """It is given one event at a time, of a log that is long."""

    _left: Sequence[Recorded] = ()

    async def next(self, wait_s: float) -> list[Recorded]:
        if not self._left:
            self._left = await super().next(wait_s)
        now, self._left = list(self._left[:1]), self._left[1:]
        return now

    @property
    def caught_up(self) -> bool:
        return super().caught_up and not self._left


async def test_nothing_is_begun_before_all_of_the_log_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    functions.CALLED.clear()
    async with a_run(tmp_path, steps=2) as run:
        run.start_role("function", runner(run, "numbered").run())
        assert await run.finish() is RunPhase.FINISHED
        monkeypatch.setattr("serve_apps.rollouts.rollout_function.runner.Follower", OneByOne)
        async with asyncio.timeout(WAIT_S):
            await runner(run, "numbered").run()
    assert [step for _, step, _ in functions.CALLED] == [0, 1]


async def test_of_two_at_once_one_makes_each_step(tmp_path: Path) -> None:
    async with a_run(tmp_path, max_staleness=1) as run:
        for name in ("one", "other"):
            run.start_role(name, runner(run, "picky").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [event.step for event in run.events(RolloutReturned)] == [0, 1, 2]
    check_log(run)


class Slow:
    """A way to the log of one that says what a step gave after another has."""

    def __init__(self, run: Any) -> None:
        self._run, self._log = run, run.log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, appends: Any) -> list[int]:
        if isinstance(appends[0].envelope.event, RolloutReturned) and appends[0].envelope.event.step == 0:
            await self._run.until(RolloutReturned, 1)
        return list(await self._log.append(appends))


class Late(Follower):
    """Follow a `Slow` log: hear late what another appended."""

    _held: Sequence[Recorded] = ()
    _rounds = 0

    async def next(self, wait_s: float) -> list[Recorded]:
        if not self._held:
            deliveries = await super().next(wait_s)
            if not (
                isinstance(self._log, Slow) and any(isinstance(r.envelope.event, RolloutReturned) for r in deliveries)
            ):
                return deliveries
            self._held, self._rounds = deliveries, 0
        self._rounds += 1
        if self._rounds < 3:
            await asyncio.sleep(0.05)
            return []
        now, self._held = list(self._held), ()
        return now


async def test_one_that_was_not_the_first_goes_on_from_what_the_other_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve_apps.rollouts.rollout_function.runner.Follower", Late)
    functions.CALLED.clear()
    async with a_run(tmp_path, max_staleness=1) as run:
        first = run.start_role("first", runner(run, "picky").run())
        run.start_role("slow", runner(run, "picky", log=Slow(run)).run())
        await run.until(RolloutReturned, 1)
        await run.kill_role(first)
        assert await run.finish() is RunPhase.FINISHED
    assert [step for _, step, _ in functions.CALLED] == [0, 0, 1, 2], "each of both made the first step once"
    (drawn,) = [groups for _, step, groups in functions.CALLED if step == 1]
    assert drawn[0] == ("prompt 2", 2), "with what the first had made of it"
    check_log(run)


async def test_samples_that_were_made_anew_are_of_the_group_with_their_number(tmp_path: Path) -> None:
    """And no group that is drawn has the number of one that was given back."""
    functions.CALLED.clear()
    async with a_run(tmp_path, max_staleness=1) as run:
        run.start_role("function", runner(run, "rebuilt").run())
        assert await run.finish() is RunPhase.FINISHED
    returned, drawn = run.events(RolloutReturned), {event.group for event in run.events(PromptSubmitted)}
    assert all(set(event.groups) <= drawn for event in returned)
    assert len({name for event in returned for name in event.groups}) == 6
    assert all(len(set(numbers)) == 3 for _, _, numbers in functions.CALLED)
    check_log(run)


@pytest.mark.parametrize("grades", [True, False])
async def test_a_sample_without_a_reward_has_none_where_nobody_grades(tmp_path: Path, grades: bool) -> None:
    async with a_run(tmp_path) as run:
        run.start_role("function", runner(run, "own_prompts", grades=grades).run())
        assert await run.finish() is RunPhase.FINISHED
    graders = {event.grader for event in run.events(RewardAssigned)}
    assert (graders == {"test"}) is grades
    if not grades:
        assert {event.value for event in run.events(RewardAssigned)} == {0.0}
        assert [set(event.raw_rewards) for event in run.events(BatchSealed)] == [{0.0}] * 3


async def test_neither_a_port_nor_a_thread_is_left_of_it(tmp_path: Path) -> None:
    functions.CALLED.clear()
    before, threads = listening(os.getpid()), set(threading.enumerate())
    async with a_run(tmp_path) as run:
        role: Any = run.start_role("function", runner(run, "with_a_port").run())
        assert await run.finish() is RunPhase.FINISHED
        async with asyncio.timeout(WAIT_S):
            await role
    ports = [port for _, _, port in functions.CALLED]
    assert len(set(ports)) == 3
    assert listening(os.getpid()) == before
    left = [each for each in set(threading.enumerate()) - threads if "listener" in each.name]
    for thread in left:
        await asyncio.to_thread(thread.join, WAIT_S)
    assert [thread for thread in left if thread.is_alive()] == []
