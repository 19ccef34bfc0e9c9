"""Test what a rollout function returned: its groups and whose prompts they answer, the generations in them,
its figures.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from schemas.errors import PlugPointError
from schemas.prompts import PromptWanted
from schemas.rollouts import Maker, RolloutRequested, Sampling, StopReason, WeightSpan
from serve_apps.rollouts.generate.journal import EndedTurn
from serve_apps.rollouts.generate.session import Session, current_session, session_of_process
from serve_apps.rollouts.rollout_function import runner as runners
from serve_apps.rollouts.rollout_function.calls import FunctionSession
from serve_apps.rollouts.rollout_function.data_source import DrawnGroups
from serve_apps.rollouts.rollout_function.evaluation import evaluated
from serve_apps.rollouts.rollout_function.function import ROLLOUT, RolloutFunction
from serve_apps.rollouts.rollout_function.outcome import drawn_group, groups_of
from serve_apps.rollouts.rollout_function.recorded_turns import MadeTurn, MadeTurns
from serve_apps.rollouts.rollout_function.runner import METRICS, _numbers, _outcome_events
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.rollout_types import RolloutFnEvalOutput, RolloutFnTrainOutput, call_rollout_fn
from slime_events.plugins.sample import Sample
from tests import made
from tests.rollout_function.scene import a_run, runner

ONE, TWO, THREE = (Sample(group_index=number) for number in (4, 4, 7))
LONE, ALONE = Sample(), Sample()
FUNCTION = RolloutFunction(ROLLOUT, "tests.rollout_function.functions:external")


def test_requests_in_an_older_outcome_are_of_the_function() -> None:
    """Its events have no schema, and requests of the first schema no maker."""
    request = made.requested("brought-000000-s0", function="mine:rollout")
    events = [[made.submitted("brought-000000"), request], [made.completed("brought-000000-s0")]]
    function_request = msgspec.structs.replace(request, maker=Maker.FUNCTION)
    assert _outcome_events(msgspec.msgpack.encode(events)) == [[events[0][0], function_request], events[1]]


@pytest.mark.parametrize(
    ("samples", "groups"),
    [
        ([[ONE], [TWO, [THREE]]], [[ONE], [TWO, [THREE]]]),
        ([ONE, TWO, THREE, ONE], [[ONE, TWO], [THREE], [ONE]]),
        ([LONE, ALONE, ONE], [[LONE], [ALONE], [ONE]]),
        ([], []),
        (None, None),
        ((ONE,), None),
        ([[ONE], []], None),
        ([[ONE], TWO], None),
        ([[ONE], ["a"]], None),
        ([[[]]], None),
        ([[[ONE, 3]]], None),
    ],
)
def test_groups_are_lists_or_samples_of_one_number(samples: Any, groups: Any) -> None:
    assert _ids(groups_of(samples)) == _ids(groups)


def _ids(value: Any) -> Any:
    return list(map(_ids, value)) if isinstance(value, list) else value and id(value)


@pytest.mark.parametrize(
    ("group", "name"),
    [
        ([Sample(session_id="a-s0", group_index=2)], "a"),
        ([Sample(session_id="x-s0", group_index=2)], "b"),
        ([Sample(session_id=3, group_index=2)], "b"),  # type: ignore[arg-type]
        ([Sample(), [Sample(), Sample(session_id="a-s1")]], "a"),
        ([Sample(session_id="x-s0", group_index=9)], None),
        ([Sample(group_index="2")], None),  # type: ignore[arg-type]
        ([Sample()], None),
    ],
)
def test_a_drawn_group_is_known_by_session_or_number(group: list[Any], name: str | None) -> None:
    assert drawn_group(group, {"a": 1, "b": 2}, {2: "b", 9: "gone"}) == name


def turn(prompt: list[int], tokens: list[int], call: str) -> MadeTurn:
    event = made.turn("c", engine="")
    ended = EndedTurn(event, np.array(tokens, np.int32), np.zeros(len(tokens), np.float32))
    return MadeTurn(np.array(prompt, np.int32), ended, call)


def calls(turns: MadeTurns, tokens: list[int]) -> list[str]:
    return [made_turn.call for made_turn in turns.of(np.array(tokens, np.int32))]


def test_generations_are_found_by_their_prompts_and_the_most_of_their_tokens() -> None:
    turns = MadeTurns(1)
    for recorded in (
        turn([1, 2], [3, 4, 5], "whole"),
        turn([1, 2], [3, 9], "part"),
        turn([1, 2, 3, 4, 5, 6], [7], "second"),
        turn([1], [8], "another"),
        turn([1, 2, 3, 4, 5, 6, 7], [8], "after"),
    ):
        turns.add(recorded, 0)
    assert calls(turns, [1, 2, 3, 4, 5, 6, 7]) == ["whole", "second"]
    assert calls(turns, [1, 2, 3, 9]) == ["part"]
    assert calls(turns, [1, 2, 3]) == ["whole"]
    assert calls(turns, [1, 2]) == []
    assert calls(turns, [1, 8]) == ["another"]


def test_generations_of_older_steps_are_forgotten() -> None:
    turns = MadeTurns(1)
    for step in range(3):
        turns.add(turn([step], [5], f"of step {step}"), step)
    turns.add(turn([0], [6], "later"), 2)
    turns.forget_before(2)
    assert [calls(turns, [step, 5]) for step in range(3)] == [[], ["of step 1"], ["of step 2"]]
    assert calls(turns, [0, 6]) == ["later"]
    turns.forget_before(9)
    assert [calls(turns, [step, 5]) for step in range(3)] == [[], [], []]


@pytest.mark.parametrize(
    ("metrics", "numbers"),
    [
        (None, {}),
        ({}, {}),
        ({"a": 1, "b": 0.5, 3: True, "c": "x", "d": None}, {"a": 1.0, "b": 0.5, "3": 1.0}),
        ([("a", 1)], {"a": 1.0}),
        (7, {}),
        ({str(n): n for n in range(METRICS + 1)}, {str(n): float(n) for n in range(METRICS)}),
    ],
)
def test_metrics_are_its_numbers(metrics: Any, numbers: dict[str, float]) -> None:
    assert _numbers(metrics) == numbers


@pytest.mark.parametrize("evaluation", [True, False])
def test_a_bare_result_counts_as_slimes(evaluation: bool) -> None:
    output = call_rollout_fn(
        lambda first, *, more, evaluation: [first, more, evaluation], 1, more=2, evaluation=evaluation
    )
    expected = [1, 2, evaluation]
    assert output == (RolloutFnEvalOutput(expected) if evaluation else RolloutFnTrainOutput(expected))  # type: ignore[arg-type]


def evaluation(data: Any, spans: tuple[WeightSpan, ...] = (), **args: Any) -> Any:
    seen = {"eval_reward_key": None, "reward_key": None, "n_samples_per_eval_prompt": 1} | args
    return list(evaluated(data, 4, FUNCTION, spans, SimpleNamespace(**seen)))  # type: ignore[arg-type]


def test_an_evaluation_has_the_figures_of_each_of_its_sets() -> None:
    samples = [Sample(response_length=2), Sample(response_length=5), "no sample"]
    data = {"a": {"rewards": [1, 0.0, None, 1.0], "samples": samples, "truncated": (1, 0)}, "b": {"rewards": (2.0,)}}
    first, second = evaluation(data, (WeightSpan(0, 1, 3), WeightSpan(0, 1, 6)), n_samples_per_eval_prompt=2)
    assert (first.dataset, first.version, first.mean, first.samples, first.failed) == ("a", 4, 0.5, 4, 1)
    assert (first.mean_length, first.oldest_version, first.newest_version) == (3.5, 3, 6)
    assert (first.rewards, first.truncated) == ((1.0, 0.0, 0.0, 1.0), (True, False))
    assert first.pass_rates == {"pass@1": 0.5, "pass@2": 1.0}
    assert (first.function, first.functions) == (FUNCTION.name, {FUNCTION.name: FUNCTION.digest})
    assert (second.mean, second.mean_length, second.truncated, second.pass_rates) == (2.0, 0.0, (), {})
    (alone,) = evaluation({"b": {"rewards": [1.0, 0.0, 1.0]}}, n_samples_per_eval_prompt=2)
    assert (alone.oldest_version, alone.newest_version, alone.pass_rates) == (4, 4, {})


def test_rewards_that_are_dicts_have_the_key_of_evaluations_first() -> None:
    data = {"a": {"rewards": [{"x": 1.0, "y": 2.0}]}}
    keys = [{"eval_reward_key": "x", "reward_key": "y"}, {"reward_key": "y"}, {}]
    assert [evaluation(data, **key)[0].mean for key in keys] == [1.0, 2.0, 0.0]


@pytest.mark.parametrize(
    "data", [None, {}, [1], {"a": {}}, {"a": {"rewards": []}}, {"a": [1.0]}, {"a/b c": {"rewards": [1.0]}}]
)
def test_what_is_no_evaluation_is_refused(data: Any) -> None:
    with pytest.raises(PlugPointError, match=f"{FUNCTION.name} .*evaluation of v4"):
        evaluation(data)


async def test_groups_that_were_given_back_are_drawn_first() -> None:
    counts: list[int] = []

    async def draw(count: int) -> list[list[Sample]]:
        counts.append(count)
        return [[Sample(index=100 + number)] for number in range(count)]

    source = DrawnGroups(draw)
    source.add_samples([[Sample(index=1)], [Sample(index=2)]])
    source.add_samples([[Sample(index=3)]])
    assert source.get_buffer_length() == 3
    drawn = [await asyncio.to_thread(source.get_samples, count) for count in (2, 2)]
    assert [[group[0].index for group in groups] for groups in drawn] == [[1, 2], [3, 100]]
    assert (counts, source.given_back) == ([0, 1], [])
    for wrong in ([[]], [Sample()], [[Sample()], [3]]):
        with pytest.raises(PlugPointError):
            source.add_samples(wrong)  # type: ignore[arg-type]
    assert source.given_back == []
    with pytest.raises(PlugPointError):
        DrawnGroups(None).get_samples(1)


async def test_it_waits_for_what_it_has_appended(tmp_path: Path) -> None:
    """Else it would call the function again for a step whose outcome it has not read yet."""
    async with a_run(tmp_path) as run:
        own_runner = runner(run, "external")
        await own_runner._append([[PromptWanted(total=3)], [PromptWanted(total=4), PromptWanted(total=5)]])
        newest = await run.log.position()
        assert own_runner._appended == newest
        await own_runner._append([[PromptWanted(total=3)]])
        assert own_runner._appended >= newest
        await own_runner._append([])
        assert [event.total for event in run.events(PromptWanted)][:3] == [3, 4, 5]


def tells(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Any]:
    """A rollout function that says what it is called with, and in whose session."""
    return [args, rollout_id, data_source, evaluation, current_session()]


async def tells_later(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> list[Any]:
    return tells(args, rollout_id, data_source, evaluation)


@pytest.mark.parametrize("name", ["tells", "tells_later"])
@pytest.mark.parametrize("evaluating", [True, False])
async def test_each_call_is_in_its_own_session(name: str, evaluating: bool) -> None:
    function = RolloutFunction(ROLLOUT, f"{__name__}:{name}")
    own, other = (Session(None, None, Sampling(max_new_tokens=1), ArgsView({})) for _ in range(2))  # type: ignore[arg-type]
    with session_of_process(other):
        output = await function(own.args, 3, "source", own, evaluation=evaluating)
    values = output.data if evaluating else output.samples
    assert values == [own.args, 3, "source", evaluating, own]


async def test_what_a_call_raises_names_the_function_and_the_call() -> None:
    function = RolloutFunction(ROLLOUT, "tests.rollout_function.functions:raises")
    own = Session(None, None, Sampling(max_new_tokens=1), ArgsView({}))  # type: ignore[arg-type]
    for evaluating, call in ((True, "v3"), (False, "step 3")):
        with pytest.raises(PlugPointError, match=rf"{ROLLOUT}: {function.name} .*{call}"):
            await function(own.args, 3, None, own, evaluation=evaluating)


class Noting:
    """A log that notes how many events come at once."""

    def __init__(self, log: Any) -> None:
        self._log, self.sizes = log, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    async def append(self, appends: Any) -> list[int]:
        self.sizes.append(len(appends))
        return list(await self._log.append(appends))


async def test_no_more_is_appended_at_once_than_a_log_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "MAX_BATCH", 4)
    async with a_run(tmp_path) as run:
        noting = Noting(run.log)
        own_runner = runner(run, "external", log=noting)
        totals = iter(range(1, 100))
        await own_runner._append([[PromptWanted(total=next(totals)) for _ in range(size)] for size in (1, 2, 2, 2, 1)])
    assert sum(noting.sizes) == 8
    assert max(noting.sizes) <= 4


async def test_after_an_abort_nothing_is_generated_until_it_is_reset(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        own_runner, commit = runner(run, "external"), Noting(run.log)
        calls = own_runner._open_calls(0, commit, lambda: (0, None))  # type: ignore[arg-type]
        session = FunctionSession(calls, None, Sampling(max_new_tokens=1), ArgsView({}))
        assert not calls.is_over
        await session.abort()
        assert (session.aborted, calls.aborted) == (True, True)
        ended = await calls.generate(np.array([1], np.int32), Sampling(max_new_tokens=1), None, {})
        assert (ended.event.stop, len(ended.tokens), commit.sizes) == (StopReason.ABORT, 0, [])
        session.reset()
        assert (session.aborted, calls.aborted) == (False, False)
        calls.has_returned = True
        assert calls.is_over


async def test_a_role_that_ends_leaves_no_call_under_way(tmp_path: Path) -> None:
    async with a_run(tmp_path) as run:
        role = run.start_role("function", runner(run, "wrapped").run())
        await run.until(RolloutRequested, purpose="call")
        await run.kill_role(role)
        assert not [task for task in asyncio.all_tasks() if "_make_step" in repr(task.get_coro())]
