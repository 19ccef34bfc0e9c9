"""`Leases`: which events of a queue nobody holds, folded from calls without a server."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from storage.jetstream.call import Call
from storage.jetstream.leases import Leases
from storage.jetstream.own_time import CALLS

LEASE_S = CALLS * 1.0


@dataclass
class Queue:
    """A server and some takers: what is delivered, what is done, what each holds. One step is a call of each."""

    delivered: int = 0
    done: set[int] = field(default_factory=set)
    held: dict[str, set[int]] = field(default_factory=dict)
    folds: dict[str, Leases] = field(default_factory=dict)
    loose: dict[str, set[int]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    broke: set[str] = field(default_factory=set)
    given_back: list[tuple[str, int]] = field(default_factory=list)
    looks: list[tuple[str, int]] = field(default_factory=list)
    now: float = 0.0
    away: bool = False

    def join(self, *names: str) -> None:
        for name in names:
            self.folds[name], self.held[name] = Leases(name, LEASE_S), set()

    def kill(self, *names: str) -> None:
        for name in names:
            del self.folds[name]
        self.silent |= set(names)

    def deliver(self, name: str, count: int = 1) -> list[int]:
        positions = list(range(self.delivered + 1, self.delivered + count + 1))
        self.delivered += count
        self.held[name].update(positions)
        return positions

    def finish(self, name: str, *positions: int) -> None:
        self.held[name].difference_update(positions)
        self.done.update(positions)

    def step(self, count: int = 1, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.now += seconds
            for name in [name for name in self.folds if name not in self.silent]:
                self.say(name)

    def say(self, name: str) -> None:
        call = Call(
            name,
            LEASE_S,
            tuple(self.held[name]),
            tuple(self.loose.pop(name, ())),
            name in self.broke,
            self.folds[name].knows,
            listens=True,
        )
        self.broke.discard(name)
        for other, leases in list(self.folds.items()):
            if leases.hear(call, self.now):
                self.keep(other, leases)

    def keep(self, name: str, leases: Leases) -> None:
        self.given_back += [(name, position) for position in leases.orphans()]
        start = leases.begin_look()
        if start is None:
            if leases.begin_count():
                leases.count(self.delivered - len(self.done))
            return
        self.looks.append((name, start))
        if self.away:
            leases.look_again(start)
            return
        floor = next((number - 1 for number in range(1, self.delivered + 2) if number not in self.done), self.delivered)
        leases.looked(floor, range(max(start, floor + 1), self.delivered + 1))

    @property
    def positions(self) -> list[int]:
        return [position for _, position in self.given_back]


@pytest.fixture
def queue() -> Queue:
    """Three takers that know of each other; the keeper is `a`. Each holds two events."""
    queue = Queue()
    queue.join("a", "b", "c")
    queue.step(CALLS)
    for name in "abc":
        queue.deliver(name, 2)
    queue.step()
    assert queue.looks == [("a", 1)], "the first keeper looks at all of the queue, once"
    assert not queue.given_back
    queue.looks.clear()
    return queue


def test_what_is_held_is_left_alone_and_nothing_is_looked_up(queue: Queue) -> None:
    for number in range(200):
        queue.finish("b", min(queue.held["b"]))
        queue.deliver("b")
        queue.step()
        assert len(queue.held["b"]) == 2, number
    assert (queue.given_back, queue.looks) == ([], [])


@pytest.mark.parametrize(("lost", "keeper"), [("b", "a"), ("a", "b")])
def test_what_a_lost_taker_held_is_given_back_once_after_its_lease(queue: Queue, lost: str, keeper: str) -> None:
    held = sorted(queue.held[lost])
    queue.kill(lost)
    queue.step(CALLS // 2)
    assert not queue.given_back, "it may be slow"
    queue.step(CALLS // 2)
    assert queue.given_back == [(keeper, position) for position in held]
    queue.step(3 * CALLS)
    assert queue.positions == held


def test_what_was_delivered_after_its_last_call_is_given_back_too(queue: Queue) -> None:
    """And what other takers were given meanwhile is not."""
    held = [*sorted(queue.held["b"]), *queue.deliver("b", 3)]
    queue.kill("b")
    queue.deliver("c", 2)
    queue.step(CALLS // 2)
    queue.deliver("a", 2)
    queue.step(CALLS // 2 + 2)
    assert queue.positions == held


def test_two_at_once_and_the_keeper_among_them(queue: Queue) -> None:
    held = sorted(queue.held["a"] | queue.held["c"])
    queue.kill("a", "c")
    queue.step(CALLS)
    assert queue.given_back == [("b", position) for position in held]


def test_one_that_is_heard_again_in_time_keeps_what_it_holds(queue: Queue) -> None:
    queue.silent.add("b")
    queue.step(CALLS // 2 + 1)
    assert queue.looks, "it was missed already"
    queue.silent.clear()
    queue.step(5 * CALLS)
    assert not queue.given_back


def test_one_that_comes_back_late_takes_nothing_from_its_heir(queue: Queue) -> None:
    """Let both name the event for a while; the first in the log does it, and the other gives it up."""
    queue.silent.add("b")
    queue.step(CALLS + 1)
    assert len(queue.given_back) == 2
    queue.held["c"] |= queue.held["b"]
    queue.step()
    queue.silent.clear()
    queue.step()
    queue.loose["b"], queue.held["b"] = queue.held["b"], set()
    queue.step(5 * CALLS)
    assert len(queue.given_back) == 2


def test_what_a_live_taker_lets_go_is_given_back(queue: Queue) -> None:
    position = min(queue.held["c"])
    queue.held["c"].discard(position)
    queue.loose["c"] = {position}
    queue.step(4)
    assert queue.given_back == [("a", position)]


def test_what_is_done_is_not_given_back(queue: Queue) -> None:
    """Redeliver nothing that a lost taker finished: below the floor it is skipped, above it the server skips it."""
    queue.finish("a", *queue.held["a"])
    queue.step()
    queue.kill("b")
    queue.step(CALLS)
    assert queue.positions == [3, 4]


def test_a_second_loss_gives_back_what_no_heir_was_heard_with(queue: Queue) -> None:
    """The heir took it and was lost before its next call. What waits for an heir is passed over by the server."""
    held = sorted(queue.held["b"])
    queue.kill("b")
    queue.step(CALLS)
    assert queue.positions == held
    queue.kill("c")
    queue.step(CALLS)
    assert sorted(queue.positions[2:]) == [*held, 5, 6]
    queue.held["a"].update(held, (5, 6))
    queue.step()
    queue.join("d")
    queue.step(CALLS)
    queue.kill("d")
    queue.step(CALLS + 2)
    assert len(queue.positions) == 6, "the third loss has nothing to do with them"


def test_a_pause_of_the_keeper_or_of_the_server_makes_nobody_silent(queue: Queue) -> None:
    """Time is counted in own calls that came back: afterwards all are heard before anything is decided."""
    for _ in range(5):
        queue.now += 100 * LEASE_S
        queue.step()
    assert (queue.given_back, queue.looks) == ([], [])


def test_one_that_hears_others_late_after_a_break_waits_for_them(queue: Queue) -> None:
    queue.silent |= {"b", "c"}
    queue.step(CALLS // 2)
    queue.folds["a"].break_off()
    queue.step(CALLS // 2 - 1)
    queue.silent.clear()
    queue.step(CALLS)
    assert not queue.given_back


def test_what_was_on_the_way_to_one_whose_connection_broke_is_given_back(queue: Queue) -> None:
    lost = queue.deliver("b", 2)
    queue.held["b"].difference_update(lost)
    queue.broke.add("b")
    queue.step(4)
    assert queue.positions == lost


def test_a_look_that_fails_is_repeated(queue: Queue) -> None:
    held = [*sorted(queue.held["b"]), *queue.deliver("b")]
    queue.kill("b")
    queue.away = True
    queue.step(3 * CALLS)
    assert len(queue.looks) > CALLS
    assert not queue.given_back
    queue.away = False
    queue.step(4)
    assert queue.positions == held


def test_the_next_takers_of_a_queue_whose_takers_all_were_lost(queue: Queue) -> None:
    held = sorted(set().union(*queue.held.values()))
    queue.kill("a", "b", "c")
    queue.now += 1000.0
    queue.join("x", "y")
    queue.step(CALLS)
    assert queue.given_back == [("x", position) for position in held]
    assert all(leases.knows for leases in queue.folds.values())


def test_one_that_joins_looks_at_nothing_although_its_name_comes_first(queue: Queue) -> None:
    """It becomes the keeper once it has heard all that live."""
    queue.join("0")
    queue.step(2)
    assert not queue.folds["0"].is_keeper
    queue.step(CALLS)
    assert queue.folds["0"].is_keeper
    assert not queue.folds["a"].is_keeper
    assert all(start > 6 for _, start in queue.looks), "nothing that was there before"
    held = sorted(queue.held["c"])
    queue.kill("c")
    queue.step(CALLS + 1)
    assert queue.given_back == [("0", position) for position in held]


def test_one_that_leaves_with_nothing_is_no_keeper_any_more(queue: Queue) -> None:
    leaving = Call("a", 0.0, ())
    del queue.folds["a"]
    for leases in queue.folds.values():
        leases.hear(leaving, queue.now)
    queue.step()
    assert queue.folds["b"].is_keeper


def test_leases_may_differ() -> None:
    """A taker with a lease ten times as long calls a tenth as often."""
    leases = Leases("a", LEASE_S)
    slow, orphans = Call("b", 10 * LEASE_S, (7,), (), False, knows=True), list[int]()
    for step in range(200):
        if step % 10 == 0 and step < 100:
            leases.hear(slow, float(step))
        leases.hear(Call("a", LEASE_S, (), (), False, leases.knows, listens=True), float(step))
        orphans += leases.orphans()
        if leases.begin_look() is not None:
            leases.looked(0, ())
        assert not orphans or step > 90 + 5 * LEASE_S
    assert orphans == [7]


def test_what_was_lost_on_its_way_is_looked_up_once_the_server_counts_more_for_some_leases() -> None:
    """Between nodes of a cluster, so that no taker's connection broke and nobody is silent."""
    queue = Queue()
    queue.join("a", "b")
    held = queue.deliver("a", 3)
    queue.step(6)
    queue.delivered += 1
    queue.step(3 * CALLS)
    assert queue.given_back == [], "it may have been delivered just now"
    queue.step(2 * CALLS)
    assert {position for _, position in queue.given_back} == {4}
    queue.finish("a", *held)
    assert queue.held["a"] == set()


def test_a_count_that_differs_for_a_moment_is_no_sign() -> None:
    queue = Queue()
    queue.join("a")
    queue.step(6)
    looks = len(queue.looks)
    for _ in range(10):
        queue.delivered += 1
        queue.step(2 * CALLS)
        queue.held["a"].add(queue.delivered)
        queue.step(CALLS)
    assert (queue.given_back, len(queue.looks)) == ([], looks)
