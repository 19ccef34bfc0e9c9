"""`Listeners`: a few takers of a queue listen to the calls of all. Without a server."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.jetstream.call import Call
from storage.jetstream.listeners import LISTENERS, Listeners
from storage.jetstream.own_time import CALLS

LEASE_S = CALLS * 1.0


@dataclass
class Takers:
    """Takers that call in turns, as `RollCall` does. late: a call is heard only when all have called."""

    chances: random.Random = field(default_factory=lambda: random.Random(7))
    live: dict[str, Listeners] = field(default_factory=dict)
    now: float = 0.0
    late: bool = False
    most: int = 0

    def join(self, count: int) -> None:
        for _ in range(count):
            name = f"{self.chances.randrange(16**8):08x}"
            self.live[name] = Listeners(name, LEASE_S)

    def lose(self, names: set[str]) -> None:
        for name in names:
            del self.live[name]

    @property
    def listening(self) -> set[str]:
        return {name for name, taker in self.live.items() if taker.listens}

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.now += 1.0
            for name in self.live:
                self.say(name)
            missing = {
                name: taker.delay_s(self.chances.random()) for name, taker in self.live.items() if taker.is_missing
            }
            began = list[str]()
            for name in sorted(missing, key=lambda name: missing[name]):
                if self.live[name].is_missing:
                    self.live[name].listens = True
                    began.append(name)
                    if not self.late:
                        self.say(name)
            for name in began if self.late else ():
                self.say(name)
            self.most = max(self.most, len(self.listening))
            for taker in self.live.values():
                taker.listens = taker.listens and not taker.is_surplus

    def say(self, name: str) -> None:
        taker = self.live[name]
        named = taker.next_of(self.live) if taker.listens else ()
        call = Call(name, LEASE_S, (), listens=taker.listens, next=named)
        for other, heard in self.live.items():
            assert heard.hear(call, self.now) == (other == name)


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (3, 3), (4, 4), (300, LISTENERS + 1)])
def test_few_listen(count: int, expected: int) -> None:
    """The first to begin names four more, so one more than needed may listen."""
    takers = Takers()
    takers.join(count)
    takers.step(8)
    assert len(takers.listening) <= expected
    assert len(takers.listening) >= min(count, LISTENERS)
    before = takers.listening
    takers.step(20)
    assert takers.listening == before, "nobody joined, and nobody was lost"


def test_many_that_begin_at_once_stop_again() -> None:
    takers = Takers(late=True)
    takers.join(100)
    takers.step(8)
    assert takers.most == 100
    assert LISTENERS <= len(takers.listening) <= 2 * LISTENERS


def test_all_listeners_are_lost_and_those_that_they_named_begin() -> None:
    takers = Takers()
    takers.join(100)
    takers.step(8)
    first = takers.listening
    named = {name for name, taker in takers.live.items() if taker.delay_s(1.0) == 0.0} - first
    takers.lose(first)
    takers.step(CALLS // 2 + 2)
    assert len(takers.listening) >= LISTENERS
    assert takers.listening <= named


def test_a_connection_that_broke_makes_no_listener_silent() -> None:
    taker = Listeners("me", LEASE_S)
    for step in range(4):
        taker.hear(Call("a", LEASE_S, (), listens=True), float(step))
        taker.hear(Call("me", LEASE_S, ()), float(step))
    taker.hear(Call("me", LEASE_S, ()), 6.0)
    taker.break_off()
    taker.hear(Call("me", LEASE_S, ()), 8.0)
    assert not taker.is_missing
    for step in range(9, 14):
        taker.hear(Call("me", LEASE_S, ()), float(step))
    assert taker.is_missing


CHANGES = st.tuples(st.integers(0, 30), st.integers(0, 100), st.integers(0, 8))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 2**32), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 100), st.integers(0, 8)), max_size=6)
)
def test_some_listen_soon_after_any_joins_and_losses(seed: int, changes: list[tuple[int, int, int]]) -> None:
    """changes: how many join, the percentage that is lost, and the calls until the next change."""
    takers = Takers(random.Random(seed))
    takers.join(5)
    for joining, lost, steps in changes:
        takers.join(joining)
        names = sorted(takers.live)
        takers.lose(set(takers.chances.sample(names, len(names) * lost // 100)))
        takers.step(steps)
    takers.join(1)
    takers.step(2 * CALLS)
    assert min(LISTENERS, len(takers.live)) <= len(takers.listening) <= 2 * LISTENERS
