"""Sample hooks, and generate functions that a prompt names: what they leave is what the log holds."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from schemas.arrays import unpack
from schemas.errors import PlugPointError, PlugPointMissing
from schemas.prompts import PromptSubmitted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted, RolloutFailed
from schemas.turns import TurnRecorded
from serve_apps.rollouts.generate.function import DEFAULT, GenerateSetup, generate_setup
from serve_apps.rollouts.generate.hooks import SampleHook
from serve_apps.rollouts.generate.slime.requests import ROUTER
from slime_events.core.config.data import DataSettings
from slime_events.core.config.settings import TrainSettings
from slime_events.loop.conductor.prompts import PromptFeed
from slime_events.loop.conductor.user_data_source import UserDataSource
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.loader import digest_of, load_function, name_of
from slime_events.plugins.sample import Sample
from slime_events.plugins.slime.aliases import install_slime_aliases
from tests import made
from tests.generate.scene import ARGS, a_run, check_log, events
from tests.simulation.crash import Crash, Fate, Half
from tests.simulation.parts import Letters
from tests.simulation.simulation import make_plan

USERS = Path(__file__).parents[1] / "harness" / "users" / "plug_points"
HOOK, MASK = f"{USERS}/sample_hook.py:note_length", f"{USERS}/sample_hook.py:mask_truncated"


def setup(path: str = DEFAULT, *hooks: str, **args: Any) -> GenerateSetup:
    return GenerateSetup(
        path=path, user_dir=str(USERS), timeout_s=10.0, args={**ROUTER, **ARGS, **args}, tokenizer="", hooks=hooks
    )


async def test_hooks_run_before_the_end_of_a_rollout_is_appended(tmp_path: Path) -> None:
    run = a_run(tmp_path, setup(DEFAULT, HOOK, MASK))
    await run.run()
    (done,) = events(run, RolloutCompleted)
    assert done.metadata == {"length": done.length, "asked_at": 0, "evaluated": False}
    assert done.loss_mask is not None
    assert not unpack(done.loss_mask).any()  # 24 tokens, cut off
    hooks = [load_function(path) for path in (HOOK, MASK)]
    assert {name_of(each): digest_of(each) for each in hooks}.items() <= done.functions.items()
    assert len(done.functions) == 3
    check_log(run)


async def test_a_hooked_rollout_goes_on_after_a_crash(tmp_path: Path) -> None:
    run = a_run(tmp_path, setup(DEFAULT, HOOK), fate=Fate([Crash(7, Half.AFTER, role="engine0")]))
    await run.run()
    assert run.fate.exhausted
    (done,) = events(run, RolloutCompleted)
    assert done.metadata["length"] == done.length
    check_log(run)


async def test_evaluations_have_hooks_too(tmp_path: Path) -> None:
    plan = make_plan(steps=1, groups=1, samples=1, eval_every=1, eval_names=("held_out",))
    run = a_run(tmp_path, setup(DEFAULT, HOOK), plan, evaluations={"held_out": ["what?"]})
    await run.run()
    evaluated = {done.group.split("-")[0]: done.metadata["evaluated"] for done in events(run, RolloutCompleted)}
    assert sorted(evaluated.values()) == [False, True]


async def test_slimes_own_generate_and_spans(tmp_path: Path) -> None:
    run = a_run(tmp_path, setup(f"{USERS}/turn_by_name.py:generate"))
    await run.run()
    (done,) = events(run, RolloutCompleted)
    assert (done.length, done.metadata["same"], done.metadata["spans"]) == (6, True, ["turn"])
    assert len(events(run, TurnRecorded)) == 1


def two_kinds(folder: Path) -> PromptFeed:
    data = DataSettings(data_source_path=f"{USERS}/named_source.py:TwoKinds")
    return PromptFeed(None, {}, data, Letters(), UserDataSource(data, ArgsView({}), Letters(), 200))


async def test_a_prompt_may_name_its_generate_function(tmp_path: Path) -> None:
    run = a_run(tmp_path, setup(""), make_plan(steps=2, groups=2, samples=1), feed=two_kinds)
    await run.run()
    assert not events(run, RolloutFailed)
    named = {prompt.group for prompt in events(run, PromptSubmitted) if prompt.generate_function_path}
    done = events(run, RolloutCompleted)
    assert {event.group: event.length for event in done} == {
        event.group: 2 if event.group in named else 24 for event in done
    }
    assert {event.group for event in done if event.functions} == {event.group for event in done} & named
    assert {len(done), len(events(run, TurnRecorded))} == {4, 2}
    check_log(run)


async def test_a_panel_by_slimes_group_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_slime_aliases()

    async def async_rm(args: Any, sample: Sample) -> float:
        return sample.tokens[-1] / 256

    monkeypatch.setattr(importlib.import_module("slime.rollout.rm_hub"), "async_rm", async_rm, raising=False)
    run = a_run(tmp_path, setup(f"{USERS}/panel.py:generate"))
    await run.run()
    assert not events(run, RolloutFailed)
    first, second = events(run, RolloutCompleted)
    assert {first.metadata["best"], second.metadata["best"]} == {True, False}
    rewards = {event.sample: event.value for event in events(run, RewardAssigned)}
    assert rewards.keys() == {first.sample, second.sample}
    check_log(run)


def hook(function: Any) -> SampleHook:
    sample_hook = SampleHook.__new__(SampleHook)
    sample_hook._function, sample_hook._names, sample_hook.name = function, [], "mine:hook"
    return sample_hook


@pytest.mark.parametrize(("returned", "message"), [(3, "must return a Sample or None"), ([Sample()], "returned")])
async def test_a_hook_that_returns_something_else_fails_the_rollout(returned: Any, message: str) -> None:
    with pytest.raises(PlugPointError, match=message):
        await hook(lambda args, sample: returned)(ArgsView({}), Sample(), rollout_id=0, evaluation=False)


async def test_a_hook_that_raises_is_named_with_its_line() -> None:
    with pytest.raises(PlugPointError, match=r"mine:hook raised ZeroDivisionError.*test_hooks.py"):
        await hook(lambda args, sample: 1 / 0)(ArgsView({}), Sample(), rollout_id=0, evaluation=False)


async def test_each_sample_of_a_list_has_its_call() -> None:
    seen = []
    samples = [Sample(index=1), Sample(index=2)]
    left = await hook(lambda args, sample: seen.append(sample.index))(
        ArgsView({}), samples, rollout_id=0, evaluation=False
    )
    assert (seen, left) == ([1, 2], samples)


def test_the_setup_of_a_run() -> None:
    assert generate_setup(TrainSettings()) is None
    hooked = generate_setup(made.settings(rollout={"rollout_sample_hook_path": [HOOK]}))
    assert hooked is not None
    assert (hooked.path, hooked.hooks) == (DEFAULT, (HOOK,))
    sourced = generate_setup(made.settings(data={"data_source_path": "my.source"}))
    assert sourced is not None
    assert sourced.path == ""
    with pytest.raises(PlugPointMissing):
        generate_setup(made.settings(rollout={"rollout_sample_hook_path": ["sample_hook.py:nothing"]}))
