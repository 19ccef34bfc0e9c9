"""The fold of all draws, and the choice by it."""

from __future__ import annotations

from collections import Counter

import pytest

from schemas.arrays import pack_tokens
from schemas.envelope import enclose
from schemas.event import Event
from schemas.groups import GroupAccepted, GroupRejected, RejectionCause
from schemas.prompts import PromptRejected, PromptSubmitted, Source
from schemas.steps import StepCommitted
from slime_events.data.curriculum import Pool, uniform, weight
from slime_events.data.draws import Drawn, Draws
from storage.log import Append
from storage.memory_log import MemoryLog


def prompt(offset: int, row: int, *, seen: int = 1, path: str = "f") -> PromptSubmitted:
    source = Source(path=path, row=row, offset=offset, seen=seen)
    return PromptSubmitted(group=f"g{offset}", text="?", tokens=pack_tokens([1]), source=source)


def committed(step: int) -> StepCommitted:
    return StepCommitted(
        step=step, batch_digest="", parent_version=step, version=step + 1, weights_digest="", optimizer_digest="",
        samples=1, tokens=1,
    )  # fmt: skip


async def log_of(*events: Event) -> MemoryLog:
    log = MemoryLog("r")
    await log.append([Append(enclose("r", event, at=1, producer="test")) for event in events])
    return log


EVENTS = (
    prompt(0, 7),
    prompt(1, 8),
    PromptRejected(source=Source(path="f", row=9, offset=2, seen=1), reason="too long"),
    GroupAccepted(group="g0", samples=("a", "b"), rewards=(1.0, 0.0)),
    committed(0),
    prompt(3, 7),
    GroupRejected(group="g1", cause=RejectionCause.ROLLOUT_FAILED, reason="lost"),
    GroupRejected(group="g3", cause=RejectionCause.FILTER, reason="flat", rewards=(1.0, 1.0)),
    prompt(4, 8),
)


async def test_what_the_log_says_of_draws() -> None:
    log, draws = await log_of(*EVENTS, prompt(5, 3, seen=0, path="file in its order")), Draws()
    for recorded in log.records:
        draws.apply(recorded)
    assert draws.by_path == {
        "f": {
            7: Drawn(times=2, version=1, passed=1 * 0.5 + 2, answers=2 * 0.5 + 2),
            8: Drawn(times=2, version=1, is_open=True),
            9: Drawn(is_refused=True),
        }
    }
    assert (draws.position, draws.version) == (10, 1)


async def test_the_same_from_what_is_read_of_it() -> None:
    log = await log_of(*EVENTS)
    for end in range(len(EVENTS) + 1):
        read, folded = Draws(), Draws()
        await read.read(log, end)
        for recorded in log.records[:end]:
            folded.apply(recorded)
        assert read == folded


def test_pass_rates_near_one_half_go_first() -> None:
    rates = {0: (0.0, 8.0), 1: (4.0, 8.0), 2: (8.0, 8.0)}
    drawn = Counter(Pool(rates, {}, version=0, rest=1).draw(uniform(1, "f", number)) for number in range(2000))
    total = sum(weight(*rate) for rate in rates.values())
    for row, rate in rates.items():
        assert drawn[row] / 2000 == pytest.approx(weight(*rate) / total, abs=0.03)
    assert drawn[1] > 2 * drawn[0] > 0


def test_who_is_drawn_leaves_and_who_is_open_or_rests_waits() -> None:
    known = {
        0: Drawn(times=1, version=4, answers=8),
        1: Drawn(times=1, version=3, answers=8),
        2: Drawn(times=1, version=1, is_open=True),
        3: Drawn(times=1, version=0, is_refused=True),
    }
    pool = Pool(dict.fromkeys(range(5), (1.0, 2.0)), known, version=5, rest=2)
    chosen = []
    while (row := pool.draw(0.999)) is not None:
        chosen.append(row)
        pool.remove(row, refused=False)
    assert chosen == [4, 1]
    assert pool.longest_ago() == 2, "the run goes on with an open one rather than not at all"
    pool.remove(2, refused=True)
    assert pool.longest_ago() == 0
    assert pool.drawn == 5


def test_where_all_are_refused_there_is_none() -> None:
    pool = Pool({0: (0.0, 0.0)}, {}, version=0, rest=0)
    pool.remove(0, refused=True)
    assert pool.draw(0.5) is None
    assert pool.longest_ago() is None
