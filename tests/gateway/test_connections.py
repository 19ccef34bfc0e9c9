"""Connections of one server: who gives way, who is looked at, and how many there may be."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from serve_apps.http.gateway import connections
from serve_apps.http.gateway.connections import FILES, RESERVE, Connections, room_for

INFINITY = connections.resource.RLIM_INFINITY


class One:
    """A connection that keeps what happened to it."""

    def __init__(self, address: str = "a") -> None:
        self.address, self.dropped, self.looks = address, 0, list[float]()

    def look(self, now: float) -> None:
        self.looks.append(now)

    def drop(self) -> None:
        self.dropped += 1


class Clock:
    """Replace the loop's clock: hold what is to be called later."""

    def __init__(self) -> None:
        self.later: list[Callable[[], None]] = []

    def call_later(self, _: float, call: Callable[[], None]) -> object:
        self.later.append(call)
        return object()

    def tick(self) -> None:
        due, self.later = self.later, []
        for call in due:
            call()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(connections, "asyncio", SimpleNamespace(get_running_loop=lambda: clock))
    return clock


def added(shared: Connections, count: int, address: str = "a") -> list[One]:
    ones = [One(address) for _ in range(count)]
    for each in ones:
        shared.add(each)
    return ones


def dropped(ones: list[One]) -> list[int]:
    return [place for place, each in enumerate(ones) if each.dropped]


@pytest.mark.parametrize(("most", "share", "each"), [(8, 0.5, 4), (8, 1.0, 8), (8, 0.01, 1), (10, 0.79, 7)])
def test_an_address_has_its_share(most: int, share: float, each: int) -> None:
    shared = Connections(most, share)
    assert (shared.most, shared.per_address) == (most, each)


def test_who_has_waited_longest_gives_way() -> None:
    shared = Connections(2, 1.0)
    ones = added(shared, RESERVE + 2)
    assert (dropped(ones), len(shared)) == ([], RESERVE + 2)
    more = added(shared, 2, "b")
    assert (dropped(ones), dropped(more), len(shared)) == ([0, 1], [], RESERVE + 2)


def test_who_is_answered_does_not_give_way_and_waits_behind_others_then() -> None:
    shared = Connections(2, 1.0)
    ones = added(shared, RESERVE + 2)
    shared.begin(ones[0])
    shared.begin(ones[1])
    shared.end(ones[1])
    assert len(shared) == RESERVE + 2
    added(shared, 1, "b")
    assert dropped(ones) == [2]
    added(shared, RESERVE, "c")
    assert 0 not in dropped(ones)
    assert 1 in dropped(ones)


def test_one_address_makes_room_of_its_own() -> None:
    shared = Connections(10, 0.1)
    others = added(shared, 1, "b")
    ones = added(shared, RESERVE + 1)
    assert dropped(ones) == []
    more = added(shared, 1)
    assert (dropped(others), dropped(ones), dropped(more)) == ([], [0], [])


def test_where_all_are_answered_nobody_is_ended() -> None:
    shared = Connections(10, 0.1)
    ones = added(shared, RESERVE + 1)
    for each in ones:
        shared.begin(each)
    last = added(shared, 1)
    assert dropped(ones) == []
    assert dropped(last) == [0], "it is the one that waits"


def test_so_many_are_answered_at_once() -> None:
    shared = Connections(4, 0.5)
    ones, others = added(shared, 4), added(shared, 4, "b")
    shared.begin(ones[0])
    assert not shared.is_full(ones[1])
    shared.begin(ones[1])
    shared.begin(ones[1])
    assert shared.is_full(ones[2]), "its address has its share"
    assert not shared.is_full(others[0])
    shared.begin(others[0])
    shared.begin(others[1])
    assert shared.is_full(One("c"))
    shared.end(others[0])
    shared.end(others[0])
    assert not shared.is_full(One("c"))
    shared.end(ones[0])
    assert not shared.is_full(ones[2])
    shared.begin(ones[2])
    assert shared.is_full(ones[3]), "one that has ended makes room for one"


def test_what_is_gone_leaves_its_place() -> None:
    shared = Connections(2, 0.5)
    ones = added(shared, 3)
    shared.begin(ones[0])
    for each in (*ones, ones[0], One()):
        shared.remove(each)
    assert len(shared) == 0
    assert not shared.is_full(ones[0])
    more = added(shared, RESERVE + 1)
    assert dropped(more) == []
    assert shared._of_address == {"a": RESERVE + 1}
    for each in more:
        shared.remove(each)
    assert not shared._of_address, "addresses that are gone are forgotten"
    assert not shared._busy_of_address


def test_all_are_looked_at_while_there_are_any(clock: Clock) -> None:
    shared = Connections(4, 1.0)
    assert clock.later == []
    waits, busy = added(shared, 2)
    shared.begin(busy)
    assert len(clock.later) == 1
    clock.tick()
    clock.tick()
    assert [len(connection.looks) for connection in (waits, busy)] == [2, 2]
    assert waits.looks == sorted(waits.looks)
    assert len(clock.later) == 1
    for connection in (waits, busy):
        shared.remove(connection)
    clock.tick()
    assert clock.later == [], "nobody is there"
    (late,) = added(shared, 1)
    assert len(clock.later) == 1
    clock.tick()
    assert len(late.looks) == 1


@pytest.mark.parametrize(
    ("soft", "hard", "may", "room", "requested"),
    [
        (INFINITY, INFINITY, True, 100, None),
        (10_000, 10_000, True, 100, None),
        (100 + RESERVE + FILES, INFINITY, True, 100, None),
        (50, INFINITY, True, 100, 100 + RESERVE + FILES),
        (50, 10_000, True, 100, 100 + RESERVE + FILES),
        (50, RESERVE + FILES + 30, True, 30, RESERVE + FILES + 30),
        (RESERVE + FILES + 20, INFINITY, False, 20, 100 + RESERVE + FILES),
        (50, 60, True, 1, 60),
    ],
)
def test_there_is_room_for_as_many_as_files_may_be_open(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, may: bool, room: int, requested: int | None
) -> None:
    limits, set_ = [soft, hard], list[int]()

    def setrlimit(_: int, new_limits: tuple[int, int]) -> None:
        set_.append(new_limits[0])
        if not may:
            raise ValueError("not allowed")
        limits[:] = new_limits

    fake: Any = SimpleNamespace(
        RLIMIT_NOFILE=7, RLIM_INFINITY=INFINITY, getrlimit=lambda _: tuple(limits), setrlimit=setrlimit
    )
    monkeypatch.setattr(connections, "resource", fake)
    assert room_for(100) == room
    assert set_ == ([] if requested is None else [requested])
