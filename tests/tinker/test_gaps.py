"""Numbers of a model's calls: which are taken by what is refused or never came, and which are left alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from schemas.commands import CommandDone, CommandGiven, CommandKind
from serve_apps.http.tinker import numbers
from serve_apps.http.tinker.numbers import MOST_NUMBER, Numbers
from tests.tinker.lone import MODEL, Lone

STEP = CommandKind.OPTIM_STEP
HOUR = 3600 * 10**9


@pytest.fixture
async def lone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lone:
    """Play one model with its creation, an hour after everything."""
    lone = Lone(tmp_path)
    await lone.say(command_given(0), CommandDone(command=f"{MODEL}-000000", version=0))
    after(monkeypatch, lone, HOUR)
    return lone


def after(monkeypatch: pytest.MonkeyPatch, lone: Lone, nanoseconds: int) -> None:
    """Move the clock to this time after the last event."""
    at = lone.log.event_at(1).envelope.at + nanoseconds
    monkeypatch.setattr(numbers, "time", SimpleNamespace(time_ns=lambda: at))


def command_given(number: int) -> CommandGiven:
    return CommandGiven(command=f"{MODEL}-{number:06d}", model=MODEL, number=number, kind=STEP, source="quiz")


async def refused(lone: Lone) -> list[int]:
    return [event.number for event in await lone.events(CommandGiven) if event.refused]


async def test_a_refused_call_takes_its_number_once(lone: Lone) -> None:
    own = Numbers(lone.worker)
    for why in ("no such rate", "another reason"):
        await own.refuse(MODEL, 1, STEP, "quiz", why)
    taken = await lone.last()
    assert (taken.command, taken.model, taken.number, taken.kind) == (f"{MODEL}-000001", MODEL, 1, STEP)
    assert (taken.source, taken.refused) == ("quiz", "no such rate")
    assert await refused(lone) == [1]


async def test_numbers_that_no_call_has_are_not_taken(lone: Lone) -> None:
    own = Numbers(lone.worker)
    for number in (-1, 0, 1_000_000_000):
        await own.refuse(MODEL, number, STEP, "quiz", "no")
    await own.refuse("tinker-0123456789abcdef-m9", 1, STEP, "quiz", "no")
    assert await refused(lone) == []
    await own.refuse(MODEL, 999_999_999, STEP, "quiz", "no")
    assert await refused(lone) == [MOST_NUMBER]


async def test_what_was_left_out_for_long_is_taken_in_order(lone: Lone) -> None:
    await lone.say(command_given(2), command_given(5))
    assert await Numbers(lone.worker).fill(command_given(5)) == ""
    assert await refused(lone) == [1, 3, 4]
    taken = await lone.last()
    assert (taken.source, taken.kind) == ("quiz", CommandKind.FORWARD)
    assert await Numbers(lone.worker).fill(command_given(5)) == ""
    assert await refused(lone) == [1, 3, 4], "as often as it is looked at"


async def test_nothing_before_a_call_that_was_carried_out_is_looked_for(lone: Lone) -> None:
    await lone.say(command_given(3), CommandDone(command=f"{MODEL}-000003", version=1), command_given(5))
    await Numbers(lone.worker).fill(command_given(5))
    assert await refused(lone) == [4]


@pytest.mark.parametrize(("waited_s", "taken"), [(59.9, []), (60.0, [1])])
async def test_a_call_is_waited_for_a_minute(
    lone: Lone, monkeypatch: pytest.MonkeyPatch, waited_s: float, taken: list[int]
) -> None:
    await lone.say(command_given(2))
    at = (await lone.log.last(lone.log.event_at(3).envelope.subject)).envelope.at  # type: ignore[union-attr]
    monkeypatch.setattr(numbers, "time", SimpleNamespace(time_ns=lambda: at + round(waited_s * 1e9)))
    await Numbers(lone.worker).fill(command_given(2))
    assert await refused(lone) == taken


async def test_the_call_that_waits_longest_counts(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number 2 came long ago; 4 has come only now, and 3 is not overdue."""
    await lone.say(command_given(2), command_given(4))
    monkeypatch.setattr(numbers, "GAP_S", 0.0)
    early, late = (lone.log.event_at(place).envelope.at for place in (3, 4))
    assert early < late
    monkeypatch.setattr(numbers, "time", SimpleNamespace(time_ns=lambda: early))
    await Numbers(lone.worker).fill(command_given(4))
    assert await refused(lone) == [1]


async def test_a_call_that_is_not_in_the_log_waits_from_now_on(lone: Lone) -> None:
    await Numbers(lone.worker).fill(command_given(2))
    assert await refused(lone) == []


async def test_a_gap_that_is_too_large_is_never_filled(lone: Lone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "MOST_MISSING", 2)
    await lone.say(command_given(4))
    assert await Numbers(lone.worker).fill(command_given(4))
    assert await refused(lone) == []
    await lone.say(command_given(3))
    assert await Numbers(lone.worker).fill(command_given(3)) == ""
    assert await refused(lone) == [1, 2]
    assert await Numbers(lone.worker).fill(command_given(4)) == ""
