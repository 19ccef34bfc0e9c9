"""The parts of a replay: which events are decisions, when two are one, what may come next, and prompts out of a log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.arrays import pack_tokens
from schemas.envelope import enclose
from schemas.event import Event, Purpose, type_of
from schemas.ids import LOADED
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from slime_events.analysis.replay.cycles import Cycle, Cycles
from slime_events.analysis.replay.equality import is_decision, is_same
from slime_events.analysis.replay.feeds import CachedFeed, RecordedFeed
from slime_events.analysis.replay.replay import _cached, settings_under
from slime_events.analysis.replay.report import Kind, ReplayReport, difference
from slime_events.core.state.group import GroupState, SampleState
from slime_events.core.state.run import RunState
from slime_events.plugins.filters.decide import FilterDecision
from storage.log import Recorded
from tests import made
from tests.conductor.driver import keep_all, make_plan
from tests.conductor.test_feed import Rows


def prompt(offset: int, *, path: str = "f", **fields: Any) -> PromptSubmitted:
    return made.submitted(**{"group": f"g{offset}"} | fields, source=Source(path=path, offset=offset))


def refused(offset: int, dataset: str = "train") -> PromptRejected:
    return PromptRejected(source=Source(path="f", offset=offset), reason="r", dataset=dataset)


ACCEPTED = made.accepted("g0", samples=("a",), rewards=(1.0,), figures={"mean": 1.0, "std": 0.5})


@pytest.mark.parametrize(
    ("event", "decided"),
    [
        (prompt(0), True), (prompt(0, path="inbox"), False), (prompt(0, dataset=LOADED), False), (refused(0), True),
        (refused(-1), False), (refused(0, "held"), False), (ACCEPTED, True),
        (made.assigned("s", grader=""), False),
    ],
)  # fmt: skip
def test_what_the_conductor_decides(event: Event, decided: bool) -> None:
    assert is_decision(event) is decided


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True), ({"filter": "m:f", "filter_digest": "d"}, True), ({"reason": "why"}, False),
        ({"figures": {"mean": 1.0 + 1e-12, "std": 0.5}}, True), ({"figures": {"mean": 1.01, "std": 0.5}}, False),
        ({"figures": {"mean": 1.0}}, False), ({"figures": {"mean": 1.0, "std": 0.5, "max": 1.0}}, False),
        ({"rewards": (0.5,)}, False),
    ],
)  # fmt: skip
def test_two_that_are_one_decision(changes: dict[str, Any], same: bool) -> None:
    other = msgspec.structs.replace(ACCEPTED, **changes)
    assert is_same(ACCEPTED, other) is is_same(other, ACCEPTED) is same


def test_other_tokens_are_another_prompt() -> None:
    assert not is_same(prompt(0), prompt(0, tokens=pack_tokens([2])))
    assert is_same(prompt(0), prompt(0, tokens=pack_tokens([1])))


A, B, C = (prompt(offset) for offset in range(3))


def test_a_conductor_in_the_midst_of_a_turn_begins_no_other() -> None:
    cycle = Cycle([A], at=1, not_by="one")
    assert not cycle.takes(A, "one")
    assert cycle.takes(A, "another")
    assert cycle.next is None
    assert not cycle.takes(A, "another")


def test_turns_are_kept_while_each_has_what_comes() -> None:
    cycles = Cycles()
    for events, at in (([A, B], 1), ([A, C], 2), ([A], 3), ([], 4)):
        cycles.add(Cycle(events, at))
    assert not cycles.takes(C, "p")
    assert cycles.takes(A, "p")
    assert cycles.open, "one of them is appended"
    cycles.add(Cycle([A, C], 5))
    assert cycles.takes(C, "p")
    assert cycles.open
    cycles.add(Cycle([B, C], 6))
    assert cycles.takes(B, "p")
    assert not cycles.open
    assert not cycles.takes(A, "p")


def test_a_turn_of_the_same_words_begins_anew_beside_one_that_is_half_said() -> None:
    cycles = Cycles()
    cycles.add(Cycle([A, A], 1))
    assert cycles.takes(A, "p")
    cycles.add(Cycle([A, A], 2))
    assert cycles.takes(A, "p")
    assert cycles.takes(A, "p")
    assert cycles.open


def test_after_a_difference_cycles_go_on_that_had_another_decision_about_it() -> None:
    rejected = made.rejected("g0")
    cycles = Cycles()
    cycles.add(Cycle([rejected, B], 1))
    cycles.add(Cycle([C, A], 2))
    near = cycles.nearest(ACCEPTED)
    assert near is not None
    assert near.next == rejected
    cycles.begin_anew(ACCEPTED)
    assert not cycles.takes(A, "p")
    assert cycles.takes(B, "p")


def test_prompts_out_of_a_log() -> None:
    feed = RecordedFeed()
    held = [prompt(0, path="h", purpose=Purpose.EVAL, dataset="held", version=version) for version in (0, 2)]
    for event in (prompt(0), *held, refused(1), prompt(2), prompt(9, path="inbox"), prompt(3), ACCEPTED):
        feed.add(event)
    assert feed.prompts == 6
    assert feed.take({}, 2) == [prompt(0), refused(1), prompt(2)]
    assert feed.take({"f": 1}, 1) == [refused(1), prompt(2)]
    assert feed.take({"f": 3, "g": 9}, 5) == [prompt(3)]
    assert [feed.evaluation("held", version) for version in (0, 2, 1)] == [[held[0]], [held[1]], []]


def test_prompts_of_two_sources_between_each_other() -> None:
    feed = RecordedFeed()
    for event in (prompt(0), prompt(0, path="g"), prompt(1), prompt(1, path="g")):
        feed.add(event)
    assert feed.take({"g": 1}, 9) == [prompt(0), prompt(1), prompt(1, path="g")]


class Counted(Rows):
    calls = 0

    def take(self, cursors: Any, count: int) -> Any:
        self.calls += 1
        return super().take(cursors, count)


@pytest.mark.parametrize("follows_log", [False, True])
def test_rows_are_remembered_until_something_may_change_them(follows_log: bool) -> None:
    counted = Counted()
    feed = CachedFeed(counted, follows_log=follows_log)
    assert [len(feed.take({}, count)) for count in (2, 2, 3)] == [2, 2, 3]
    assert len(feed.take({"f": 9}, 3)) == 1
    assert counted.calls == 3
    feed.take({"f": 9}, 3).clear()
    feed.observe(None)  # type: ignore[arg-type]
    assert len(feed.take({"f": 9}, 3)) == 1
    assert counted.calls == (4 if follows_log else 3)


def test_a_group_is_judged_again_when_it_has_changed() -> None:
    rewards: list[float | None] = []

    def judge(group: GroupState) -> FilterDecision:
        rewards.append(group.samples["g-s0"].reward)
        return keep_all(group)

    once = _cached(judge)
    group = GroupState(group="g", prompt=pack_tokens([1]), samples={"g-s0": SampleState(sample="g-s0", reward=0.5)})
    for reward in (0.5, 0.5, 1.0, 1.0):
        group.samples["g-s0"].reward = reward
        once(group)
    assert rewards == [0.5, 1.0]


def test_what_is_tried_goes_over_what_was_said() -> None:
    values = {"rollout": {"num_rollout": 3, "max_staleness": 1}}
    settings = settings_under(values, {"rollout": {"max_staleness": 2}, "algorithm": {"gamma": 0.5}})
    assert (settings.rollout.num_rollout, settings.rollout.max_staleness, settings.algorithm.gamma) == (3, 2, 0.5)


def test_how_two_differ() -> None:
    def difference_of(decided: Event | None) -> Any:
        recorded = Recorded(1, "", enclose("r", ACCEPTED, at=0, producer="conductor"), b"")
        return difference(recorded, decided, RunState(run="r"), make_plan(), at=1, why="")

    rejected = made.rejected("g0")
    elsewhere = msgspec.structs.replace(rejected, group="g9")
    other = msgspec.structs.replace(ACCEPTED, rewards=(0.5,))
    assert [difference_of(decided).kind for decided in (rejected, elsewhere, other, None)] == [
        Kind.OTHER, Kind.INSTEAD, Kind.OTHER, Kind.NOT_NOW,
    ]  # fmt: skip
    assert [difference_of(decided).verdict_flips for decided in (rejected, elsewhere, other, None)] == [
        True,
        False,
        False,
        False,
    ]
    assert (difference_of(rejected).fields, difference_of(other).fields) == ((), ("rewards",))
    report = ReplayReport(run="r", differences=[difference_of(rejected), difference_of(other)])
    report.decisions.update(map(type_of, (ACCEPTED, ACCEPTED, rejected)))
    assert (report.decisions, report.compared) == ({"group.accepted": 2, "group.rejected": 1}, 3)
    assert [verdict.decided for verdict in report.verdicts] == [rejected]
