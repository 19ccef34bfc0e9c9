"""`place_groups`: machines of engines of different sizes, and of the ranks beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc
from slime_events.core.config.engine_groups import EngineGroup
from slime_events.core.planning.placement import NodeShare, PlaceRequest, count_ranks


@dataclass(frozen=True, slots=True)
class GroupPlaces:
    """The machine of each process, by index."""

    ranks: Annotated[tuple[int, ...], doc("Ranks on each machine")]
    engines: Annotated[tuple[int, ...], doc("Machine of each engine, in the order of the groups")]

    def shares(self, free: Sequence[int]) -> tuple[NodeShare, ...]:
        """Return the part of each machine."""
        return tuple(
            NodeShare(gpus, ranks, tuple(number for number, place in enumerate(self.engines) if place == index))
            for index, (gpus, ranks) in enumerate(zip(free, self.ranks, strict=True))
        )


def members_of(groups: Sequence[EngineGroup]) -> Iterator[tuple[EngineGroup, int]]:
    """Yield the group and the number of each engine. Numbers begin at 0 and continue from group to group."""
    number = 0
    for group in groups:
        for _ in range(group.engines):
            yield group, number
            number += 1


def place_groups(
    free: Sequence[int], groups: Sequence[EngineGroup], ranks: int, together: int = 1
) -> GroupPlaces | None:
    """Return the places, or None if ranks and engines do not all fit. free: free GPUs by machine.

    The largest engines come first, each on the machine where it leaves the fewest GPUs. Sizes of engines usually divide
    each other (1, 2, 4, 8), and then no other order fits more. GPUs of placeholders stay free, on any machine.
    """
    left, places = list(free), dict[int, int]()
    for group, number in sorted(members_of(groups), key=lambda member: -member[0].each):
        able = [index for index, gpus in enumerate(left) if gpus >= group.each]
        if not able:
            return None
        places[number] = min(able, key=lambda index: (left[index], -index))
        left[places[number]] -= group.each
    counts = count_ranks(left, PlaceRequest(ranks, together))
    reserved = sum(group.gpus for group in groups if group.reserved)
    if counts is None or sum(left) - ranks < reserved:
        return None
    return GroupPlaces(counts, tuple(places[number] for number in sorted(places)))
