"""A decided group as its rollouts, and the arguments and points that users' functions are called with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec import UNSET
from msgspec.structs import replace

from schemas.arrays import pack_tokens, unpack
from schemas.event import Event
from schemas.groups import GroupAccepted
from schemas.rewards import RewardAssigned
from schemas.rollouts import RolloutCompleted
from slime_events.core.config.settings import TrainSettings
from slime_events.core.state.apply import apply
from slime_events.core.state.group import GroupState
from slime_events.core.state.run import RunState
from slime_events.core.tokens.trajectory import Trajectory
from slime_events.plugins.args_view import ArgsView
from slime_events.plugins.sample import Sample, Status
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.slime.aliases import _current_name
from slime_events.plugins.texts import Texts
from slime_events.plugins.trainer_points import LOSS, POST_PROCESS, points_in_use, rank_args
from storage.memory_log import MemoryLog
from tests import made
from tests.cli.small_run import GROUPS, RUN, events, recorded


def group_before_and_after(events_: list[Event], name: str) -> tuple[GroupState, GroupState]:
    """A group before its verdict: as the state has it, and with its texts."""
    state, texts = RunState(run=RUN), Texts()
    for record in recorded(events_):
        event = record.envelope.event
        if isinstance(event, GroupAccepted) and event.group == name:
            break
        apply(state, record)
        texts.apply(event, state)
    return state.groups[name], texts.with_texts(state.groups[name])


def test_rollouts_are_in_their_order_with_all_that_a_filter_may_look_at() -> None:
    first, second = group_samples(group_before_and_after(list(events()), GROUPS[1])[1])
    assert isinstance(first, Sample)
    assert isinstance(second, Sample)
    assert [(sample.group_index, sample.index, sample.session_id) for sample in (first, second)] == [
        (1, 2, f"{GROUPS[1]}-s0"), (1, 3, f"{GROUPS[1]}-s1")
    ]  # fmt: skip
    assert [sample.reward for sample in (first, second)] == [0.0, 1.0]
    assert (first.label, first.status, first.response_length) == ("42", Status.COMPLETED, 3)
    assert (first.prompt, first.response) == (f"What is {GROUPS[1]}?", "is 42")
    assert (first.tokens, first.rollout_log_probs, first.loss_mask) == ([], None, None)
    bare, _ = group_samples(group_before_and_after(list(events()), GROUPS[1])[0])
    assert isinstance(bare, Sample)
    assert bare.response == ""


def test_tokens_are_there_where_they_are_given() -> None:
    _, group = group_before_and_after(list(events()), GROUPS[0])
    trajectories: dict[str, Trajectory] = {}
    ended = [event for event in events() if isinstance(event, RolloutCompleted) and event.group == GROUPS[0]]
    for event in ended:
        trajectory = trajectories[event.sample] = Trajectory(event.sample, pack_tokens([1]))
        trajectory.complete(event, unpack)
        trajectory.loss_mask = np.array([0, 1, 1], np.int8) if event.sample.endswith("s1") else None
    first, second = (sample for sample in group_samples(group, trajectories) if isinstance(sample, Sample))
    assert (first.tokens, first.rollout_log_probs, first.loss_mask) == ([10, 11, 12], [-0.5, -0.25, -0.125], None)
    assert second.loss_mask == [0, 1, 1]


def test_a_rollout_of_several_samples_is_a_list_of_them() -> None:
    name, events_ = GROUPS[1], list[Event]()
    for event in events():
        if isinstance(event, RolloutCompleted) and event.sample == f"{name}-s0":
            events_.append(replace(event, sample=f"{name}-s0-1", rollout=event.sample))
        if isinstance(event, RewardAssigned) and event.sample == f"{name}-s0":
            events_.append(replace(event, sample=f"{name}-s0-1", value=5.0))
        events_.append(event)
    several, alone = group_samples(group_before_and_after(events_, name)[1])
    assert isinstance(several, list)
    assert isinstance(alone, Sample)
    assert sorted((sample.reward, sample.index) for sample in several if isinstance(sample.reward, float)) == [
        (0.0, 2),
        (5.0, 2),
    ]
    assert alone.index == 3


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        ("http://${OWN_HOST}/x", "http://here/x"),
        ("${OWN_HOST}", "here"),
        ("OWN_HOST", "OWN_HOST"),
        ("http://${OWN_NOWHERE}", "http://${OWN_NOWHERE}"),
        (3, 3),
        (["${OWN_HOST}"], ["${OWN_HOST}"]),
    ],
)
def test_secrets_are_filled_in_for_the_function_that_needs_them(
    monkeypatch: pytest.MonkeyPatch, value: Any, seen: Any
) -> None:
    monkeypatch.setenv("OWN_HOST", "here")
    monkeypatch.delenv("OWN_NOWHERE", raising=False)
    settings = made.settings(rollout={"custom_config": {"tool": value}})
    args = ArgsView.of_run(settings)
    assert (args.tool, rank_args(settings)["tool"]) == (seen, seen)
    assert ("tool" in args, "tools" in args, "tool" in list(args)) == (True, False, True)


def test_points_in_use_are_those_that_are_named() -> None:
    assert list(points_in_use(TrainSettings())) == []
    settings = made.settings(
        algorithm={"custom_loss_function_path": "a.b"}, reward={"custom_reward_post_process_path": "c.d"}
    )
    assert list(points_in_use(settings)) == [(LOSS, "a.b"), (POST_PROCESS, "c.d")]


@pytest.mark.parametrize("until_trained", [True, False])
async def test_texts_of_accepted_groups_are_read_again_where_they_are_needed(until_trained: bool) -> None:
    records = recorded(list(events()))
    state, live = RunState(run=RUN), Texts(until_trained=until_trained)
    accepted = next(record.position for record in records if isinstance(record.envelope.event, GroupAccepted))
    for record in records[:accepted]:
        apply(state, record)
        live.apply(record.envelope.event, state)
    log = MemoryLog(RUN)
    await log.restore(records[:accepted])
    again = Texts(until_trained=until_trained)
    await again.restore(log, state)
    group = state.groups[GROUPS[0]]
    texts = [sample.text for sample in again.with_texts(group).samples.values()]
    assert texts == (["is 42", "is 42"] if until_trained else [UNSET, UNSET])
    assert again.with_texts(group) == live.with_texts(group)


@pytest.mark.parametrize(
    ("module", "now"),
    [
        ("slime_events.filters.base_types", "slime_events.plugins.filters.base_types"),
        ("slime_events.rewards", "slime_events.plugins.rewards"),
        ("slime_events.rewardsome", None),
        ("slime_events.core", None),
    ],
)
def test_modules_have_their_names_of_today(module: str, now: str | None) -> None:
    assert _current_name(module) == now
