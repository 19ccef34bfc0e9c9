"""Test where ranks go so that engines fit beside them: exactly where anything fits at all, and groups stay whole."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slime_events.core.planning.placement import PlaceRequest, count_ranks, order_ranks, split_groups

machines = st.lists(st.integers(0, 6), max_size=4)


@st.composite
def wishes(draw: st.DrawFn) -> PlaceRequest:
    together = draw(st.integers(1, 4))
    return PlaceRequest(
        ranks=together * draw(st.integers(0, 4)),
        together=together,
        engines=draw(st.integers(0, 5)),
        each=draw(st.integers(1, 4)),
    )


def fits(free: list[int], counts: tuple[int, ...], place_request: PlaceRequest) -> bool:
    """Whether these ranks and all engines have their GPUs, an engine on one machine."""
    if any(count > gpus for count, gpus in zip(counts, free, strict=True)):
        return False
    room = sum((gpus - count) // place_request.each for gpus, count in zip(free, counts, strict=True))
    return sum(counts) == place_request.ranks and room >= place_request.engines


def all_counts(free: list[int], place_request: PlaceRequest) -> list[tuple[int, ...]]:
    """Every way in which everything fits."""
    ways = itertools.product(*(range(gpus + 1) for gpus in free))
    return [counts for counts in ways if fits(free, counts, place_request)]


@given(machines, wishes())
def test_ranks_and_engines_are_placed_exactly_where_they_fit(free: list[int], place_request: PlaceRequest) -> None:
    counts, ways = count_ranks(free, place_request), all_counts(free, place_request)
    if counts is None:
        assert ways == []
        return
    assert fits(free, counts, place_request)
    whole = [way for way in ways if all(count % place_request.together == 0 for count in way)]
    if whole:
        assert all(count % place_request.together == 0 for count in counts), "groups could be whole"
    used = [sum(count > 0 for count in way) for way in whole or ways]
    assert sum(count > 0 for count in counts) == min(used), "fewer machines would do"


def test_a_large_cluster_is_placed_at_once() -> None:
    counts = count_ranks([8] * 128, PlaceRequest(ranks=512, together=8, engines=64, each=8))
    assert counts is not None
    assert sorted(counts) == [0] * 64 + [8] * 64


def test_ranks_leave_a_whole_machine_to_an_engine_that_takes_one() -> None:
    """Spread over both, as Ray would do it, they leave an engine of eight no place."""
    assert count_ranks([8, 8], PlaceRequest(ranks=4, engines=1, each=8)) in ((4, 0), (0, 4))
    assert count_ranks([6, 6], PlaceRequest(ranks=4, together=2, engines=2, each=4)) == (2, 2)
    assert count_ranks([6, 6], PlaceRequest(ranks=4, together=4, engines=2, each=4)) == (2, 2), (
        "split, as nothing else fits"
    )
    assert count_ranks([4, 4], PlaceRequest(ranks=4, engines=2, each=3)) is None


@given(st.lists(st.sampled_from("abc"), max_size=12).map(sorted), st.integers(1, 4))
def test_each_machine_fills_as_many_whole_groups_as_it_can(places: list[str], together: int) -> None:
    order = order_ranks(places, together)
    assert sorted(order) == list(range(len(places)))
    ranks = [places[index] for index in order]
    groups = [set(ranks[start : start + together]) for start in range(0, len(ranks) - together + 1, together)]
    for machine in set(places):
        assert groups.count({machine}) >= places.count(machine) // together
    for place, next_one in itertools.pairwise(order):
        assert next_one > place or places[place] != places[next_one], "neighbours in the order of GPUs"


def test_groups_over_machines_are_counted() -> None:
    assert split_groups(["a", "a", "a", "b"], 2) == 1
    assert split_groups(["a", "a", "b", "b"], 2) == 0
    assert split_groups(["a", "b"], 1) == 0
    assert split_groups([], 4) == 0
