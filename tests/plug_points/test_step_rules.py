"""Functions that see a step's samples, each by itself: what they may change, what they are given, what they decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from schemas.errors import PlugPointError
from slime_events.core.config.rollout import RolloutSettings
from slime_events.plugins.sample import Sample
from slime_events.plugins.step_functions import (
    CONVERT,
    EVAL_LOG,
    FILTER,
    LOG,
    PROCESS,
    RunDataSource,
    StepFunction,
    StepFunctions,
    flat,
)

FUNCTIONS = """
SEEN = []


class Odd:
    def __bool__(self):
        raise ValueError("neither")


class Unreadable(dict):
    def items(self):
        raise ValueError("unreadable")


def notes(*given): SEEN.append(given)
def yes(*given): SEEN.append(given); return 1
def no(rollout_id, args, samples, extra_metrics, rollout_time): return None
def odd(rollout_id, args, samples, extra_metrics, rollout_time): return Odd()
def leaves(args, samples): raise SystemExit(3)
def removes(args, *groups): groups[0][0][0].remove_sample = True
def rewards(args, *groups): groups[0][0][0].reward = 9.0
def attribute(args, *groups): groups[0][0][0].mine = 1
def deep(args, *groups): groups[0][0][0].tokens.append(1)
def drops(args, *groups): groups[0].pop()
def turns(args, *groups): groups[0].reverse()
def made(args, samples): SEEN.append(samples); return {"rewards": [float(n) for n, _ in enumerate(samples)]}
def four(args, samples, raw, rewards): SEEN.append((raw, rewards)); return {"rewards": rewards}
def unreadable(args, samples): return Unreadable(a=1)
def evaluation(*given): SEEN.append(given); return True
def draws(args, all_groups, data_source): data_source.get_samples(1)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own_steps.py"
    path.write_text(FUNCTIONS)
    return path


class Args:
    reward_key = "score"


def functions(file: Path, **named: str) -> StepFunctions:
    settings = RolloutSettings(**{setting: f"{file}:{name}" for setting, name in named.items()})
    return StepFunctions(settings, Args)


def seen(step_functions: StepFunctions) -> list[Any]:
    first = next(iter(step_functions.by_setting.values()))
    noted: list[Any] = first._function.__globals__["SEEN"]
    return noted


def groups() -> list[Any]:
    return [[Sample(index=0, reward={"score": 1.0}), [Sample(index=1), Sample(index=2)]], [Sample(index=3)]]


def test_samples_of_groups_are_in_their_order() -> None:
    assert [sample.index for sample in flat(groups())] == [0, 1, 2, 3]


@pytest.mark.parametrize("name", ["rewards", "attribute", "deep", "drops", "turns"])
@pytest.mark.parametrize("setting", [FILTER, PROCESS])
def test_what_they_may_not_change_is_refused(file: Path, setting: str, name: str) -> None:
    step_functions, some = functions(file, **{setting: name}), groups()
    with pytest.raises(PlugPointError, match=f"--{setting.replace('_', '-')}"):
        step_functions.look(some, some)


def test_only_the_filter_removes_samples(file: Path) -> None:
    some = groups()
    functions(file, **{FILTER: "removes"}).look(some, groups())
    assert [sample.remove_sample for sample in flat(some)] == [True, False, False, False]
    with pytest.raises(PlugPointError):
        functions(file, **{PROCESS: "removes"}).look(some, groups())


def test_the_filter_sees_what_is_kept_and_the_other_all(file: Path) -> None:
    step_functions, kept, every = functions(file, **{FILTER: "notes", PROCESS: "notes"}), groups()[:1], groups()
    step_functions.look(kept, every)
    (first, second) = seen(step_functions)
    assert first[1] is kept
    assert second[1] is every
    assert isinstance(second[2], RunDataSource)
    assert (type(first[0]), first[0] is second[0]) == (Args, False), "args are made anew for each"
    functions(file, **{LOG: "no"}).look(kept, every)


def test_its_data_source_draws_nothing(file: Path) -> None:
    with pytest.raises(PlugPointError):
        functions(file, **{PROCESS: "draws"}).look(groups(), groups())
    with pytest.raises(PlugPointError):
        RunDataSource().add_samples([])


@pytest.mark.parametrize(("name", "logs"), [("yes", True), ("no", False)])
def test_a_log_function_says_whether_it_logged(file: Path, name: str, logs: bool) -> None:
    step_functions, kept = functions(file, **{LOG: name}), groups()
    assert step_functions.logs(4, kept, {"a": 1.0}, 2.5) is logs
    if logs:
        ((step, args, samples, metrics, seconds),) = seen(step_functions)
        assert (step, type(args), samples, metrics, seconds) == (4, Args, flat(kept), {"a": 1.0}, 2.5)
    assert functions(file, **{FILTER: "notes"}).logs(4, kept, {}, 2.5) is False


def test_one_that_does_not_say_is_refused(file: Path) -> None:
    with pytest.raises(PlugPointError):
        functions(file, **{LOG: "odd"}).logs(0, groups(), {}, 0.0)


def test_an_evaluation_is_logged_with_its_rewards(file: Path) -> None:
    step_functions, some = functions(file, **{EVAL_LOG: "evaluation"}), groups()
    some[1][0].status, some[1][0].reward = Sample.Status.TRUNCATED, 0.5
    assert step_functions.logs_evaluation(3, "held", some) is True
    ((version, _, data, more),) = seen(step_functions)
    assert (version, more, data["held"]["samples"]) == (3, None, flat(some))
    assert data["held"]["rewards"] == [1.0, None, None, 0.5]
    assert data["held"]["truncated"] == [False, False, False, True]
    assert functions(file, **{LOG: "no"}).logs_evaluation(3, "held", some) is False


@pytest.mark.parametrize(("name", "rewards"), [("made", (0.0, 1.0, 2.0, 3.0)), ("four", (0.5, 0.5, 0.5, 0.5))])
def test_train_data_are_made_of_all_samples(file: Path, name: str, rewards: tuple[float, ...]) -> None:
    step_functions, some = functions(file, **{CONVERT: name}), groups()
    data = step_functions.convert(some, (1.0,) * 4, (0.5,) * 4)
    assert (data.raw_rewards, data.rewards, data.columns) == ((1.0,) * 4, rewards, ())
    assert seen(step_functions) == [flat(some) if name == "made" else ([1.0] * 4, [0.5] * 4)]


@pytest.mark.parametrize("name", ["leaves", "unreadable", "notes"])
def test_what_cannot_be_made_of_them_is_refused(file: Path, name: str) -> None:
    with pytest.raises(PlugPointError, match=f":{name}"):
        functions(file, **{CONVERT: name}).convert(groups(), (1.0,) * 4, (0.5,) * 4)


def test_their_code_is_told_by_setting(file: Path) -> None:
    step_functions = functions(file, **{FILTER: "removes", LOG: "no"})
    removes, logs = step_functions.by_setting[FILTER], step_functions.by_setting[LOG]
    assert step_functions.code(FILTER, PROCESS, LOG) == {removes.name: removes.digest, logs.name: logs.digest}
    assert step_functions.code(FILTER) == {removes.name: removes.digest}
    assert (removes.positional, logs.positional) == (2, 5)
    assert functions(file).by_setting == {}
    assert StepFunction(CONVERT, f"{file}:four").positional == 4
    with pytest.raises(PlugPointError):
        StepFunction(PROCESS, f"{file}:four")
