"""The fold of all draws, and the choice by it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest

from schemas.event import Event, Purpose
from schemas.groups import RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.recorded import CommonVersion, Recalled
from schemas.runs import Branched
from slime_events.loop.prompts.draw_stats import DrawStats, Pool, PromptStats, uniform, weight
from tests import made


def prompt(offset: int, row: int, *, seen: int = 1, path: str = "f") -> PromptSubmitted:
    source = Source(path=path, row=row, offset=offset, seen=seen)
    return made.submitted(f"g{offset}", text="?", source=source)


async def folded(*events: Event, **settings: Any) -> DrawStats:
    draws = DrawStats(**settings)
    for recorded in (await made.log(*events)).records:
        draws.apply(recorded)
    return draws


EVENTS = (
    prompt(0, 7),
    prompt(1, 8),
    PromptRejected(source=Source(path="f", row=9, offset=2, seen=1), reason="too long"),
    made.accepted("g0", samples=("a", "b"), rewards=(1.0, 0.0)),
    made.committed(0),
    prompt(3, 7),
    made.rejected("g1", RejectionCause.ROLLOUT_FAILED, reason="lost"),
    made.rejected("g3", reason="flat", rewards=(1.0, 1.0)),
    prompt(4, 8),
)


async def test_what_the_log_says_of_draws() -> None:
    log, draws = await made.log(*EVENTS, prompt(5, 3, seen=0, path="file in its order")), DrawStats()
    for recorded in log.records:
        draws.apply(recorded)
    assert draws.by_path == {
        "f": {
            7: PromptStats(times=2, version=1, passed=1 * 0.5 + 2, answers=2 * 0.5 + 2),
            8: PromptStats(times=2, version=1, is_open=True),
            9: PromptStats(is_refused=True),
        }
    }
    assert (draws.position, draws.version) == (10, 1)


async def test_the_same_from_what_is_read_of_it() -> None:
    log = await made.log(*EVENTS)
    for end in range(len(EVENTS) + 1):
        read, whole = DrawStats(), DrawStats()
        await read.read(log, end)
        for recorded in log.records[:end]:
            whole.apply(recorded)
        assert read == whole


async def test_what_is_no_draw_leaves_no_trace() -> None:
    """A prompt or a bad line of a file in its order, and whatever no group of these is about."""
    bad = PromptRejected(source=Source(path="f", row=9, offset=-1, line=9), reason="not_json")
    other = made.accepted("g5", samples=("a",), rewards=(1.0,))
    assert (await folded(prompt(5, 3, seen=0), bad, other)).by_path == {}


async def test_a_reward_of_exactly_the_bar_passes() -> None:
    rewards = (0.5, 0.49, 0.51, 1.0)
    draws = await folded(prompt(0, 1), made.accepted("g0", samples=("a",) * 4, rewards=rewards), pass_reward=0.5)
    assert draws.of("f", 1) == PromptStats(times=1, version=0, passed=3, answers=4)


RECALLED = Recalled(run="p", samples=("a",), common=CommonVersion(1, 1), oldest=1, bound=2)
ACCEPTED = made.accepted("g0", samples=("a",), rewards=(1.0,))


@pytest.mark.parametrize(
    ("events", "is_open"),
    [
        ((), True),
        ((ACCEPTED,), True),
        ((ACCEPTED, made.sealed(groups=("g0",), digest="")), False),
        ((ACCEPTED, made.sealed(groups=("g9",), digest="")), True),
        ((made.rejected("g0", RejectionCause.STALE, reason="old"),), False),
    ],
)
async def test_recorded_rollouts_are_open_until_a_batch_has_them(events: tuple[Event, ...], is_open: bool) -> None:
    draws = await folded(msgspec.structs.replace(prompt(0, 1), recalled=RECALLED), *events)
    assert draws.of("f", 1).is_open is is_open


async def test_a_branch_knows_what_its_parent_knew() -> None:
    before = await folded(*EVENTS)
    branched = Branched(
        run="p", where="w", position=9, version=6, weights_digest="", optimizer_digest="", draws=before.drawn_before()
    )
    draws = await folded(made.started(branched=branched), prompt(9, 9, path="other"))
    stats = dict(before.by_path["f"])
    stats[8].is_open = False  # it is the parent's, and comes to no verdict here
    assert draws.by_path == {"f": stats, "other": {9: PromptStats(times=1, version=6, is_open=True)}}
    assert stats[9].is_refused


async def test_the_draws_of_some_groups_alone() -> None:
    """Whatever they were drawn by; a group of that name in an evaluation is none of them."""
    evaluated = msgspec.structs.replace(prompt(1, 8, seen=0), purpose=Purpose.EVAL)
    draws = await folded(prompt(0, 7, seen=0), evaluated, prompt(2, 9), only={"g0", "g1"})
    assert draws.by_path == {"f": {7: PromptStats(times=1, version=0, is_open=True)}}


def test_pass_rates_near_one_half_go_first() -> None:
    rates = {0: (0.0, 8.0), 1: (4.0, 8.0), 2: (8.0, 8.0)}
    drawn = Counter(Pool(rates, {}, version=0, rest=1).draw(uniform(1, "f", number)) for number in range(2000))
    total = sum(weight(*rate) for rate in rates.values())
    for row, rate in rates.items():
        assert drawn[row] / 2000 == pytest.approx(weight(*rate) / total, abs=0.03)
    assert drawn[1] > 2 * drawn[0] > 0


@pytest.mark.parametrize(
    ("passed", "answers", "chance"),
    [(0, 0, 0.25), (0, 2, 0.1875), (2, 2, 0.1875), (1, 2, 0.25), (4, 8, 0.25), (0, 8, 0.09)],
)
def test_a_prompt_s_chance_is_that_of_its_pass_rate(passed: float, answers: float, chance: float) -> None:
    """p (1 - p), with one answer of each kind more than there is."""
    assert weight(passed, answers) == pytest.approx(chance)


def test_where_one_row_ends_the_next_begins() -> None:
    pool = Pool(dict.fromkeys((3, 5), (1.0, 2.0)), {}, version=0, rest=0)
    assert [pool.draw(at) for at in (0.0, 0.49, 0.5, 0.99)] == [3, 3, 5, 5]


def test_who_is_drawn_leaves_and_who_is_open_or_rests_waits() -> None:
    stats = {
        0: PromptStats(times=1, version=4, answers=8),
        1: PromptStats(times=1, version=3, answers=8),
        2: PromptStats(times=1, version=1, is_open=True),
        3: PromptStats(times=1, version=0, is_refused=True),
    }
    pool = Pool(dict.fromkeys(range(5), (1.0, 2.0)), stats, version=5, rest=2)
    chosen = []
    while (row := pool.draw(0.999)) is not None:
        chosen.append(row)
        pool.remove(row, refused=False)
    assert chosen == [4, 1]
    assert pool.longest_ago() == 2, "the run takes an open one rather than none"
    pool.remove(2, refused=True)
    assert pool.longest_ago() == 0
    assert pool.drawn == 5


def test_how_often_a_prompt_was_drawn() -> None:
    """In the log, and since then in the pool."""
    pool = Pool({1: (0.0, 0.0), 2: (0.0, 0.0)}, {1: PromptStats(times=3, version=-9)}, version=0, rest=0)
    for row in (1, 2, 2):
        pool.remove(row, refused=False)
    assert (pool.times(1), pool.times(2), pool.times(3), pool.drawn) == (4, 2, 0, 2)


def test_where_all_are_refused_there_is_none() -> None:
    pool = Pool({0: (0.0, 0.0)}, {}, version=0, rest=0)
    pool.remove(0, refused=True)
    assert pool.draw(0.5) is None
    assert pool.longest_ago() is None
