"""A run whose steps are what a rollout function returns."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.batches import BatchSealed
from schemas.errors import LogUnavailable, PlugPointError
from schemas.groups import GroupRejected, RejectionCause
from schemas.ids import BROUGHT, INBOX
from schemas.inbox import InboxPrompt
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import (
    FailureKind,
    RolloutCompleted,
    RolloutFailed,
    RolloutProgressed,
    RolloutRequested,
    RolloutReturned,
)
from schemas.runs import RunFailed
from serve_apps.rollouts.rollout_function.calls import Calls
from serve_apps.rollouts.rollout_function.slime import loop as slime_loop
from slime_events.core.state.run import RunPhase
from storage.log import Append, Recorded
from tests.rollout_function import functions
from tests.rollout_function.scene import FUNCTIONS, a_run, check_log, runner
from tests.scripted_engine import Script
from tests.simulation.parts import Line


@pytest.mark.parametrize("staleness", [0, 2])
async def test_what_it_returns_is_the_batch(tmp_path: Path, staleness: int) -> None:
    async with a_run(tmp_path, max_staleness=staleness) as run:
        run.start_role("function", runner(run, "external").run())
        assert await run.finish() is RunPhase.FINISHED
    returned, sealed = run.events(RolloutReturned), run.events(BatchSealed)
    assert [event.groups for event in returned] == [event.groups for event in sealed]
    assert [event.step for event in returned] == [0, 1, 2]
    assert [event.metrics for event in returned] == [{"rollout/agents": 7.0, "minutes": 0.5}] * 3
    assert [event.function for event in returned] == [f"{FUNCTIONS}:external"] * 3
    assert [event.raw_rewards for event in sealed] == [(0.0, 1.0, 0.0, 1.0)] * 3
    assert [event.source.offset for event in run.events(PromptSubmitted)] == list(range(6))
    assert all(event.log_probs.n == 3 for event in run.events(RolloutCompleted))
    assert len({event.grader for event in run.events(RewardAssigned)}) == 1
    check_log(run)


@pytest.mark.parametrize("staleness", [0, 2])
async def test_it_is_called_once_for_each_step_with_numbered_samples(tmp_path: Path, staleness: int) -> None:
    functions.CALLED.clear()
    async with a_run(tmp_path, max_staleness=staleness) as run:
        run.start_role("function", runner(run, "numbered").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [step for _, step, _ in functions.CALLED] == [0, 1, 2]
    numbers = [number for _, _, drawn in functions.CALLED for number in drawn]
    assert numbers == [(number // 2, number) for number in range(12)]
    assert all(type(index) is int for _, index in numbers)


async def test_it_wraps_slimes_generation(tmp_path: Path) -> None:
    """Engines make what it asks for, and the log says which generations a sample's tokens are of."""
    async with a_run(tmp_path) as run:
        run.start_engine()
        run.start_role("function", runner(run, "wrapped").run())
        assert await run.finish() is RunPhase.FINISHED
    calls = run.events(RolloutRequested, purpose="call")
    assert len(calls) == len({each.sample for each in calls}) == 12
    assert {each.group.split("-")[1] for each in calls} == {"0", "1", "2"}, (
        "each of its step, and none of an evaluation"
    )
    assert all(request.function for request in run.events(RolloutRequested, purpose="train"))
    done = {event.sample: event for event in run.events(RolloutCompleted)}
    for step, batch in enumerate(run.events(BatchSealed)):
        for name in batch.samples:
            sample, (call,) = done[name], done[name].calls
            assert sample.digest == done[call].digest
            assert [span.version for span in sample.spans] == [step]
            assert sample.loss_mask is not None
            assert sample.loss_mask.data[:2] == b"\0\1"
    check_log(run)


async def test_calls_of_steps_before_hear_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show new events to calls under way only; else each step would make every event dearer."""
    shown, all_calls, looked_up = Counter[int](), list[Calls](), list[bool]()

    class Noted(Calls):
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            all_calls.append(self)
            looked_up.append(more["looks_up"])

        def apply(self, recorded: Recorded) -> None:
            shown[recorded.position] += 1
            super().apply(recorded)

    monkeypatch.setattr("serve_apps.rollouts.rollout_function.runner.Calls", Noted)
    async with a_run(tmp_path, steps=6) as run:
        run.start_engine()
        maker = runner(run, "wrapped")
        run.start_role("function", maker.run())
        assert await run.finish() is RunPhase.FINISHED
    assert (len(all_calls), max(shown.values())) == (6, 1)
    held = {step for turns in maker._turns._by_prompt.values() for step, _ in turns}
    assert 5 in held
    assert len(held) <= 3, "no sample may be of generations that are older"
    assert looked_up == [True] + [False] * 5, "the log has none of this process but what it has asked for itself"
    assert all(calls_.is_over for calls_ in all_calls)
    assert [{span.version for span in calls_.spans} for calls_ in all_calls] == [{step} for step in range(6)]


async def test_generations_go_on_after_a_kill(tmp_path: Path) -> None:
    """The function is called again for the step, and gets the generations that the log has: none is made twice."""
    functions.CALLED.clear()
    async with a_run(tmp_path) as run:
        run.start_engine(Script(chunk=2, seconds_per_chunk=0.02))
        first = run.start_role("function", runner(run, "wrapped").run())
        await run.until(RolloutCompleted, 2)
        await run.kill_role(first)
        run.start_role("function", runner(run, "wrapped").run())
        assert await run.finish() is RunPhase.FINISHED
    steps = [step for name, step, _ in functions.CALLED if name == "wrapped"]
    assert len(steps) == 4
    assert set(steps) == {0, 1, 2}
    drawn = [entry for entry in functions.CALLED if entry[1] == steps[steps.index(1)]]
    assert drawn[0] == drawn[-1]
    assert len(run.events(RolloutRequested, purpose="call", attempt=0)) == 12
    assert [event.step for event in run.events(RolloutReturned)] == [0, 1, 2]
    assert len(run.events(PromptSubmitted)) == 6
    check_log(run)


@pytest.mark.parametrize("lost", [0, 1, 4, 9])
async def test_an_outcome_is_whole_after_a_kill(tmp_path: Path, lost: int) -> None:
    """Kill it between `rollout.returned` and the events that follow from it, after this number of them."""
    async with a_run(tmp_path, groups=4) as run:
        line = Line(run.log)
        dying = runner(run, "external", log=_Dying(line, lost))
        first = run.start_role("function", dying.run())
        with pytest.raises(LogUnavailable):
            await first
        assert line.is_cut
        run.forget_role(first)
        run.start_role("function", runner(run, "external").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [event.step for event in run.events(RolloutReturned)] == [0, 1, 2]
    assert [len(event.samples) for event in run.events(BatchSealed)] == [8, 8, 8]
    check_log(run)


async def test_it_may_bring_groups_of_its_own(tmp_path: Path) -> None:
    """Return any number of groups, graded by the run's grader."""
    async with a_run(tmp_path) as run:
        run.start_role("function", runner(run, "own_prompts").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [len(event.groups) for event in run.events(BatchSealed)] == [3, 1, 1]
    prompts = run.events(PromptSubmitted)
    assert [prompt.group for prompt in prompts] == [f"{BROUGHT}-{number:06d}" for number in range(5)]
    assert {prompt.dataset for prompt in prompts} == {BROUGHT}
    assert {event.grader for event in run.events(RewardAssigned)} == {"test"}
    trained = run.ranks.trained[0].samples
    assert np.isnan(trained[0].rollout_log_probs).all()
    assert trained[0].oldest_version == 0
    check_log(run)


async def test_groups_that_are_given_back_come_again(tmp_path: Path) -> None:
    """Return them with the function's changes; what it neither returned nor gave back is rejected."""
    functions.CALLED.clear()
    async with a_run(tmp_path, max_staleness=1) as run:
        first = run.start_role("function", runner(run, "picky").run())
        await run.until(RolloutReturned, 1)
        await run.kill_role(first)
        run.start_role("function", runner(run, "picky").run())
        assert await run.finish() is RunPhase.FINISHED
    by_step = {step: groups for _, step, groups in functions.CALLED}
    assert by_step[0] == [(f"prompt {n}", 0) for n in range(4)]
    assert by_step[1] == [("prompt 2", 2), *((f"prompt {n}", 0) for n in (4, 5, 6))]
    rejected = run.events(GroupRejected)
    assert {event.cause for event in rejected} == {RejectionCause.NOT_RETURNED}
    assert [event.group for event in rejected][:2] == ["train-0-000003", "train-0-000006"]
    (second,) = run.events(RolloutReturned, step=1)
    assert second.groups[0] == "train-0-000002"
    check_log(run)


async def test_a_sample_that_cannot_be_trained_on_rejects_its_group(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        run.start_role("function", runner(run, "broken_sample").run())
        assert await run.finish() is RunPhase.FINISHED
    assert [len(event.groups) for event in run.events(BatchSealed)] == [1, 1, 1]
    assert {event.cause for event in run.events(GroupRejected)} == {RejectionCause.ROLLOUT_FAILED}
    assert all("has 0 tokens" in event.message for event in run.events(RolloutFailed))
    check_log(run)


@pytest.mark.parametrize(
    ("name", "what"), [("raises", "the agents are away"), ("no_groups", "no groups"), ("a_number", "7")]
)
async def test_a_function_that_fails_ends_its_process(tmp_path: Path, name: str, what: str) -> None:
    async with a_run(tmp_path) as run:
        with pytest.raises(PlugPointError, match=f"--rollout-function-path: {FUNCTIONS}:{name} .*{what}.*step 0"):
            await runner(run, name).run()


@pytest.mark.parametrize("name", ["nothing_usable", "hangs"])
async def test_a_run_that_cannot_go_on_fails(tmp_path: Path, name: str) -> None:
    async with a_run(tmp_path, deadline_s=2.0) as run:
        run.start_role("function", runner(run, name).run())
        assert await run.finish() is RunPhase.FAILED
    (failed,) = run.events(RunFailed)
    assert name != "hangs" or failed.waited_for == "the rollout function to return step 0"


async def test_prompts_from_outside_go_to_it(tmp_path: Path) -> None:
    async with a_run(tmp_path, prompts=[]) as run:
        run.start_role("function", runner(run, "external").run())
        sent = [InboxPrompt(key=f"k{number}", prompt=f"from outside {number}", label="1") for number in range(6)]
        await run.inbox.accept(msgspec.json.encode(sent))
        assert await run.finish() is RunPhase.FINISHED
    assert {event.dataset for event in run.events(PromptSubmitted)} == {INBOX}
    assert [len(event.groups) for event in run.events(BatchSealed)] == [2, 2, 2]
    check_log(run)


async def test_aborted_samples_go_on_in_the_next_step(tmp_path: Path) -> None:
    """Keep the tokens that they had in the log when they were aborted."""
    async with a_run(tmp_path, max_staleness=1, steps=2) as run:
        functions.GENERATING.append(threading.Event())
        run.start_engine(Script(chunk=2, seconds_per_chunk=0.2))
        run.start_role("function", runner(run, "partial").run())
        await run.until(RolloutProgressed, 2)
        functions.GENERATING[-1].set()
        assert await run.finish() is RunPhase.FINISHED
    aborted = [event for event in run.events(RolloutFailed) if event.kind is FailureKind.ABORTED]
    assert len(aborted) == 2
    (second,) = run.events(RolloutReturned, step=1)
    assert second.groups == ("train-0-000000",)
    done = {event.sample: event for event in run.events(RolloutCompleted)}
    for name in ("train-0-000000-s0", "train-0-000000-s1"):
        sample = done[name]
        assert sample.length == 24
        assert len(sample.calls) == 2
        assert sample.calls[0] in {event.sample for event in aborted}
    check_log(run)


async def test_slimes_loop_filters_and_aborts(tmp_path: Path) -> None:
    """`generate_rollout` within a function: its metrics, and what was under way at its end is aborted in the log."""
    async with a_run(tmp_path) as run:
        run.start_engine(Script(chunk=2, seconds_per_chunk=0.005))
        looped = runner(run, "looped", over_sampling_batch_size=4)
        run.start_role("function", looped.run())
        assert await run.finish() is RunPhase.FINISHED
    assert [event.metrics["rollout/mine"] for event in run.events(RolloutReturned)] == [0.0, 1.0, 2.0]
    assert [len(event.samples) for event in run.events(BatchSealed)] == [4, 4, 4]
    check_log(run)


class _Dying:
    """Cut the way to the log this number of events after `rollout.returned`."""

    def __init__(self, line: Line, after: int) -> None:
        self._line, self._after, self._returned = line, after, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)

    async def append(self, appends: Sequence[Append]) -> list[int]:
        if not self._returned:
            positions = await self._line.append(appends)
            self._returned = any(isinstance(append.envelope.event, RolloutReturned) for append in appends)
            return positions
        if self._after:
            await self._line.append(appends[: self._after])
        self._line.is_cut = True
        return await self._line.append(appends)


async def test_a_group_that_fails_leaves_no_other_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async def group(args: Any, group: list[int], *_: Any, **__: Any) -> list[Any]:
        if group == [0]:
            raise ValueError("the first")
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr("slime.rollout.sglang_rollout.generate_and_rm_group", group)
    state = SimpleNamespace(sampling_params={})
    monkeypatch.setattr("slime.rollout.sglang_rollout.GenerateState", lambda args: state)
    args = SimpleNamespace(rollout_batch_size=2, over_sampling_batch_size=None, dynamic_sampling_filter_path=None)
    with pytest.raises(ValueError, match="the first"):
        await slime_loop.generate_rollout_async(args, 0, lambda _: [[0], [1]])
    assert asyncio.all_tasks() == {asyncio.current_task()}
