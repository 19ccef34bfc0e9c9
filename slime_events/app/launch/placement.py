"""`count_ranks` and `order_ranks`: on which machines the ranks of a trainer go, so that engines fit beside them.

Ray places one process after the other. Ranks that it spreads over two machines of eight GPUs leave no room for an
engine of eight, which then waits for ever. Here ranks and engines are counted together, and ranks get their places
first. Pure: no Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A machine with GPUs as Ray counts them. id: Ray's. free: GPUs that no process has, of `count`."""

    id: str
    address: str
    count: int
    free: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """ranks: a GPU each. together: consecutive ranks that belong on one machine (the tensor parallel size).
    engines: `each` GPUs each, all on one machine. Engines that share the GPUs of ranks count as none.
    """

    ranks: int
    together: int = 1
    engines: int = 0
    each: int = 1


@dataclass(frozen=True, slots=True)
class _Part:
    """A choice for the first machines. room: engines that fit beside, as many as are wanted at most."""

    machines: int
    room: int
    counts: tuple[int, ...]


def count_ranks(free: Sequence[int], wanted: Wanted) -> tuple[int, ...] | None:
    """Ranks on each machine; None where ranks and engines do not all fit. free: GPUs of each machine.

    Groups of `together` ranks stay whole where that is possible for all of them, and ranks are on as few machines as
    possible.
    """
    for unit in sorted({wanted.together, 1}, reverse=True):
        if wanted.ranks % unit == 0 and (counts := _count_units(free, wanted, unit)) is not None:
            return counts
    return None


def _count_units(free: Sequence[int], wanted: Wanted, unit: int) -> tuple[int, ...] | None:
    """`count_ranks` in multiples of `unit`: for each number of ranks placed so far, the choices worth keeping."""
    parts: dict[int, list[_Part]] = {0: [_Part(0, 0, ())]}
    for gpus in free:
        grown: dict[int, list[_Part]] = {}
        for placed, choices in parts.items():
            for count in range(0, min(gpus, wanted.ranks - placed) + 1, unit):
                room = (gpus - count) // wanted.each
                grown.setdefault(placed + count, []).extend(
                    _Part(one.machines + (count > 0), min(one.room + room, wanted.engines), (*one.counts, count))
                    for one in choices
                )
        parts = {placed: _worth_keeping(choices) for placed, choices in grown.items()}
    whole = [one for one in parts.get(wanted.ranks, ()) if one.room == wanted.engines]
    return min(whole, key=lambda one: one.machines).counts if whole else None


def _worth_keeping(choices: Sequence[_Part]) -> list[_Part]:
    """Those than which none has more room on as few machines."""
    kept: list[_Part] = []
    for one in sorted(choices, key=lambda one: (one.machines, -one.room)):
        if not kept or one.room > kept[-1].room:
            kept.append(one)
    return kept


def order_ranks(machines: Sequence[str], together: int) -> tuple[int, ...]:
    """Indexes of places in the order of ranks. machines: of each place, in the order of machines and GPUs.

    Each machine fills as many whole groups as it can; what is left of all of them makes the last groups.
    """
    places: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        places.setdefault(machine, []).append(index)
    whole = [index for own in places.values() for index in own[: len(own) - len(own) % together]]
    rest = [index for own in places.values() for index in own[len(own) - len(own) % together :]]
    return (*whole, *rest)


def split_groups(machines: Sequence[str], together: int) -> int:
    """Groups of `together` ranks that are on more than one machine. machines: of each rank."""
    return sum(len(set(machines[start : start + together])) > 1 for start in range(0, len(machines), together))
