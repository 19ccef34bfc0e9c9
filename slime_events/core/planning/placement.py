"""`count_ranks` and `order_ranks`: place the ranks of a trainer on machines, so that engines fit beside them.

Ray places one process after the other. If it spreads ranks over two machines of eight GPUs, an engine of eight GPUs
never fits. This module counts ranks and engines together, and the ranks get their places first. It does not use Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from schemas.doc import doc


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A machine with GPUs, as Ray counts them."""

    id: Annotated[str, doc("Ray's node id")]
    address: str
    count: Annotated[int, doc("GPUs of the machine")]
    free: Annotated[int, doc("GPUs that no process has")]


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """Ranks and engines to place. Engines that share the GPUs of ranks do not count."""

    ranks: Annotated[int, doc("Ranks of the trainer, which take a GPU each")]
    together: Annotated[int, doc("Consecutive ranks that belong on one machine: the tensor parallel size")] = 1
    engines: Annotated[int, doc("Engines")] = 0
    each: Annotated[int, doc("GPUs of an engine, all on one machine")] = 1


@dataclass(frozen=True, slots=True)
class _Part:
    """A placement on the first machines."""

    machines: Annotated[int, doc("Machines with ranks")]
    room: Annotated[int, doc("Requested engines that fit on the GPUs left")]
    most: Annotated[tuple[int, ...], doc("Most ranks by machine")]


def count_ranks(free: Sequence[int], request: PlaceRequest) -> tuple[int, ...] | None:
    """Return the ranks on each machine, or None if ranks and engines do not all fit. free: free GPUs by machine.

    Keeps groups of `together` ranks on one machine, if that is possible for all groups, and uses as few machines for
    ranks as possible.
    """
    if request.ranks + request.engines * request.each > sum(free):
        return None
    if request.engines > sum(gpus // request.each for gpus in free):
        return None
    for unit in sorted({request.together, 1}, reverse=True):
        if request.ranks % unit == 0:
            counts = _fill_largest(free, request, unit) or _count_units(free, request, unit)
            if counts is not None:
                return counts
    return None


def _fill_largest(free: Sequence[int], request: PlaceRequest, unit: int) -> tuple[int, ...] | None:
    """Fill the largest machines, which are as few as possible; None if that leaves engines without a place."""
    counts, left = [0] * len(free), request.ranks
    for index in sorted(range(len(free)), key=lambda index: -free[index]):
        counts[index] = min(free[index] - free[index] % unit, left)
        left -= counts[index]
    room = sum((gpus - count) // request.each for gpus, count in zip(free, counts, strict=True))
    return tuple(counts) if left == 0 and room >= request.engines else None


def _count_units(free: Sequence[int], request: PlaceRequest, unit: int) -> tuple[int, ...] | None:
    """Place ranks in multiples of `unit`. Keeps the best placements for each number of ranks placed so far."""
    parts: dict[int, list[_Part]] = {0: [_Part(0, 0, ())]}
    for gpus in free:
        ways = _ways(gpus, request.each, unit)
        grown: dict[int, list[_Part]] = {}
        for placed, choices in parts.items():
            for most, room in ways:
                grown.setdefault(min(placed + most, request.ranks), []).extend(
                    _Part(part.machines + (most > 0), min(part.room + room, request.engines), (*part.most, most))
                    for part in choices
                )
        parts = {placed: _best(choices) for placed, choices in grown.items()}
    whole = [part for part in parts.get(request.ranks, ()) if part.room == request.engines]
    if not whole:
        return None
    left, counts = request.ranks, []
    for most in min(whole, key=lambda part: part.machines).most:
        counts.append(min(most, left))
        left -= counts[-1]
    return tuple(counts)


def _ways(gpus: int, each: int, unit: int) -> list[tuple[int, int]]:
    """Return the most ranks of a machine, in units, beside each number of engines on it, and that number."""
    ways = [(0, gpus // each)]
    for room in range(gpus // each, -1, -1):
        most = gpus - room * each
        if (most := most - most % unit) > ways[-1][0]:
            ways.append((most, room))
    return ways


def _best(choices: Sequence[_Part]) -> list[_Part]:
    """Drop each choice for which another one has as much room on as few machines."""
    kept: list[_Part] = []
    for part in sorted(choices, key=lambda part: (part.machines, -part.room)):
        if not kept or part.room > kept[-1].room:
            kept.append(part)
    return kept


def order_ranks(machines: Sequence[str], together: int) -> tuple[int, ...]:
    """Return indexes of places in the order of ranks. machines: machine by place, in the order of machines and GPUs.

    Each machine holds as many whole groups as it can. The places left over form the last groups.
    """
    places: dict[str, list[int]] = {}
    for index, machine in enumerate(machines):
        places.setdefault(machine, []).append(index)
    whole = [index for own in places.values() for index in own[: len(own) - len(own) % together]]
    rest = [index for own in places.values() for index in own[len(own) - len(own) % together :]]
    return (*whole, *rest)


def split_groups(machines: Sequence[str], together: int) -> int:
    """Return the number of groups of `together` ranks that are on several machines. machines: machine by rank."""
    return sum(len(set(machines[start : start + together])) > 1 for start in range(0, len(machines), together))


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The part of a run on one machine."""

    gpus: Annotated[int, doc("GPUs that are free on the machine")]
    ranks: int
    engines: Annotated[tuple[int, ...], doc("Numbers of its engines; an engine of several machines is on each")]


def place_all(free: Sequence[int], request: PlaceRequest, shared_engines: int = 0) -> tuple[NodeShare, ...] | None:
    """Return the part of each machine, or None if ranks and engines do not all fit. free: free GPUs by machine.

    shared_engines: engines on the GPUs of ranks, which `request` does not count. An engine with more GPUs than a
    machine takes whole machines.
    """
    each, largest = request.each, max(free, default=0)
    if each > largest:
        return _place_wide(free, request, shared_engines)
    counts = count_ranks(free, request)
    if counts is None:
        return None
    room = [(gpus - count) // each for gpus, count in zip(free, counts, strict=True)]
    if shared_engines:
        beside = [count // each for count in counts]
        room = beside if sum(beside) >= shared_engines else [gpus // each for gpus in free]
    left, begin, shares = shared_engines or request.engines, 0, []
    for gpus, ranks, most in zip(free, counts, room, strict=True):
        here = min(most, left - begin)
        shares.append(NodeShare(gpus, ranks, tuple(range(begin, begin + here))))
        begin += here
    return tuple(shares) if begin == left else None


def _place_wide(free: Sequence[int], request: PlaceRequest, shared_engines: int) -> tuple[NodeShare, ...] | None:
    """Place engines that take several whole machines of the same size each."""
    largest = max(free, default=0)
    if not largest or request.each % largest:
        return None
    span = request.each // largest
    whole = [index for index, gpus in enumerate(free) if gpus == largest]
    engines = shared_engines or request.engines
    taken = whole[len(whole) - engines * span :] if engines else []
    if engines * span > len(whole):
        return None
    numbers = {index: order // span for order, index in enumerate(taken)}
    for_ranks = [0 if index in numbers and not shared_engines else gpus for index, gpus in enumerate(free)]
    counts = count_ranks(for_ranks, PlaceRequest(request.ranks, request.together))
    if counts is None:
        return None
    return tuple(
        NodeShare(gpus, ranks, (numbers[index],) if index in numbers else ())
        for index, (gpus, ranks) in enumerate(zip(free, counts, strict=True))
    )
