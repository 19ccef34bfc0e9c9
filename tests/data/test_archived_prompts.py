"""The prompts of a recorded run, chosen by pass rate and by a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.errors import DataError, InvalidValue, RunNotFound
from schemas.event import Event, Purpose
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptSubmitted
from schemas.recorded import CommonVersion
from schemas.rollouts import Origin, RolloutCompleted, WeightSpan
from slime_events.analysis.query import samples_where
from slime_events.core.config.data import DataSettings
from slime_events.core.state.apply import apply
from slime_events.core.state.run import RunState
from slime_events.loop.prompts.archived_prompts import (
    ArchivedPrompts,
    archived_prompts,
    archived_rollouts,
    read_members,
    read_rows,
)
from slime_events.plugins.sample import Sample
from slime_events.plugins.sample_view import group_samples
from slime_events.plugins.texts import Texts
from tests import made
from tests.cli.small_run import GROUPS, REJECTED, RUN, events, small_run
from tests.lineage.opened import opened


@pytest.fixture
async def archive(tmp_path: Path) -> str:
    """Four groups with one right answer of two, and one with none, which was rejected."""
    return made.archived(tmp_path, (await small_run()).records, closed=False)


async def read(data: DataSettings) -> ArchivedPrompts | None:
    """For prompts alone."""
    return await archived_prompts(data, samples_where, samples=1, ahead=0)


@pytest.mark.parametrize(
    ("settings", "groups"),
    [
        ({}, GROUPS),
        ({"archive_max_pass_rate": 0.2}, (REJECTED,)),
        ({"archive_min_pass_rate": 0.2, "archive_max_pass_rate": 0.8}, tuple(g for g in GROUPS if g != REJECTED)),
        ({"pass_reward": 0.0, "archive_min_pass_rate": 1.0}, GROUPS),
        ({"archive_where": "SELECT group_id FROM groups WHERE verdict = 'rejected'"}, (REJECTED,)),
    ],
)
async def test_who_may_be_drawn(archive: str, settings: dict[str, Any], groups: tuple[str, ...]) -> None:
    rows_ = await read(DataSettings(archive_prompts=archive, **settings))
    assert rows_ is not None
    assert rows_.path.endswith(f"/{RUN}")
    assert [rows_.rows[row].groups for row in rows_.eligible] == [[group] for group in groups]
    assert [row.groups for row in rows_.rows] == [[group] for group in GROUPS], "the rest keep their places"
    assert set(rows_.rates()) == set(rows_.eligible)


async def test_each_group_with_its_recorded_rollouts_is_a_row(archive: str) -> None:
    data = DataSettings(archive_prompts=archive, archive_reuse="rollouts", archive_max_staleness=3)
    rollouts = await archived_prompts(data, samples_where, samples=2, ahead=1)
    assert rollouts is not None
    assert rollouts.rollouts is not None
    assert [row.groups for row in rollouts.rows] == [[group] for group in GROUPS]
    common = CommonVersion(10, 0)
    numbers = {GROUPS[row]: group.number(common) for row, group in rollouts.rollouts.groups.items()}
    assert numbers == {group: 10 - (group not in GROUPS[:3]) for group in GROUPS}
    assert [GROUPS[row] for row in rollouts.rollouts.in_time(11, common)] == list(GROUPS)
    assert [GROUPS[row] for row in rollouts.rollouts.in_time(12, common)] == list(GROUPS[:3])
    first = rollouts.rollouts.reused(0, GROUPS[0], common)
    assert (first.samples, first.oldest, first.bound) == ((f"{GROUPS[0]}-s0", f"{GROUPS[0]}-s1"), 10, 3)


async def test_a_buffer_filter_is_shown_the_newest_group_as_it_was_graded(archive: str) -> None:
    """Show the filter what the run's own filter got."""
    data = DataSettings(archive_prompts=archive, buffer_filter_path="mine.py:choose")
    rows_ = await read(data)
    assert rows_ is not None
    state, texts, shown = RunState(run=RUN), Texts(), dict[str, list[Any]]()
    for recorded in (await small_run()).records:
        event = recorded.envelope.event
        if isinstance(event, GroupAccepted | GroupRejected):
            shown[event.group] = group_samples(texts.with_texts(state.groups[event.group]))
        apply(state, recorded)
        texts.apply(event, state)
    for number, row in enumerate(rows_.rows):
        assert [member.reward for member in row.members if isinstance(member, Sample)] == list(row.rewards)
        for index, (mine, runs) in enumerate(zip(row.members, shown[row.graded], strict=True)):
            assert isinstance(mine, Sample)
            assert (mine.group_index, mine.index) == (number, index)
            runs.group_index, runs.index = number, index
            assert mine == runs
            assert mine.response


@pytest.mark.parametrize("names", [("", "-1", "-2"), ("-1", "", "-2")])
async def test_samples_of_one_rollout_stay_together(names: tuple[str, ...]) -> None:
    group, events_ = GROUPS[0], list[Event]()
    for event in events():
        if isinstance(event, RolloutCompleted) and event.sample == f"{group}-s1":
            events_ += [replace(event, sample=event.sample + name, rollout=event.sample) for name in names]
        else:
            events_.append(event)
    run = await opened(events_, RUN)
    rows = await read_rows(run, 1.0)
    await read_members(run, dict(enumerate(rows)))
    first, second = rows[0].members
    assert isinstance(first, Sample)
    assert isinstance(second, list)
    assert [sample.session_id for sample in second] == [f"{group}-s1", f"{group}-s1-1", f"{group}-s1-2"]


async def test_nobody_left_and_no_archive(archive: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"of its 5 prompts none has a pass rate from 0\.9 to 1"):
        await read(DataSettings(archive_prompts=archive, archive_min_pass_rate=0.9))
    with pytest.raises(RunNotFound):
        await read(DataSettings(archive_prompts=f"{tmp_path}/nowhere"))
    assert await read(DataSettings()) is None


STARTED = made.started()


def prompted(group: str, **changes: Any) -> PromptSubmitted:
    return made.submitted(group, **{"text": "?", "label": "1"} | changes)


def accepted(group: str, *rewards: float) -> GroupAccepted:
    return made.accepted(group, rewards=rewards)


async def test_all_groups_of_a_prompt_are_one_row() -> None:
    events_ = [
        prompted("a"),
        prompted("b"),
        prompted("other", label="2"),
        prompted("evaluated", purpose=Purpose.EVAL),
        accepted("a", 1.0, 0.5),
        made.rejected("b", RejectionCause.REWARD_FAILED),
        accepted("other", 0.0),
    ]
    first, other = await read_rows(await opened(events_), 0.5)
    assert (first.groups, first.passed, first.answers, first.rewards, first.pass_rate) == (
        ["a", "b"],
        2,
        2,
        (1.0, 0.5),
        1.0,
    )
    assert (other.groups, other.pass_rate) == (["other"], 0.0)
    more = [*events_, prompted("c"), accepted("c", 0.0, 1.0)]
    again, _ = await read_rows(await opened(more), 0.75)
    assert (again.groups, again.passed, again.answers, again.rewards) == (["a", "b", "c"], 2, 4, (0.0, 1.0))
    each = await read_rows(await opened(more), 0.75, each_group=True)
    assert [row.groups for row in each] == [["a"], ["b"], ["other"], ["c"]]


async def test_chats_of_one_text_are_different_prompts() -> None:
    chats = [[{"role": "user", "content": text}] for text in ("x", "y", "x")]
    prompts = [prompted(f"c{number}", text="?", messages=chat) for number, chat in enumerate(chats)]
    rows = await read_rows(await opened([*prompts, *(accepted(f"c{number}", 1.0) for number in range(3))]), 1.0)
    assert [row.groups for row in rows] == [["c0", "c2"], ["c1"]]


def completed(sample: str, *versions: int, **changes: Any) -> RolloutCompleted:
    spans = tuple(WeightSpan(place, place + 1, version) for place, version in enumerate(versions))
    return made.completed(sample, length=len(versions), spans=spans, **changes)


async def test_groups_with_all_their_own_rollouts_alone() -> None:
    """Further samples of a rollout count with it, and what was recalled itself does not count."""
    origin = Origin(run="p", sample="x", position=1, spans=())
    events_ = [
        completed("whole-s0", 3, 1),
        completed("whole-s0-1", 4, rollout="whole-s0"),
        completed("whole-s1", 2),
        completed("lacking-s0", 1),
        completed("lacking-s0-1", 1, rollout="lacking-s0"),
        completed("recalled-s0", 1, origin=origin),
        completed("recalled-s1", 1, origin=origin),
    ]
    rows = {"whole": 4, "lacking": 2, "recalled": 7}
    rollouts = await archived_rollouts(await opened([STARTED, *events_]), rows, samples=2, bound=3, ahead=3)
    assert list(rollouts.groups) == [4]
    group = rollouts.groups[4]
    assert (group.samples, group.oldest, group.newest) == ({"whole-s0", "whole-s1"}, 1, 4)
    assert group.number(CommonVersion(9, 4)) == 6
    assert group.number(CommonVersion(9, 0)) == 5, "of two lines that have parted what is newer is farther"
    with pytest.raises(InvalidValue):
        await archived_rollouts(await opened([STARTED, *events_]), rows, samples=2, bound=2, ahead=3)


async def test_recorded_rollouts_are_in_time_up_to_their_bound() -> None:
    rollouts = await archived_rollouts(
        await opened([STARTED, completed("g-s0", 5)]), {"g": 0}, samples=1, bound=4, ahead=2
    )
    common = CommonVersion(5, 5)
    assert [rollouts.in_time(version, common) for version in (6, 7, 8)] == [[0], [0], []]
