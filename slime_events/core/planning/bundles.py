"""`bundles_of`: the bundles of a run's Ray placement groups."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.placements import PackStrategy, PlacedRole, PlacementPlanned, PlannedBundles
from slime_events.core.planning.group_places import members_of, place_groups
from slime_events.core.planning.homes import engine_homes, rank_homes
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode, count_ranks, order_ranks, split_groups


def bundles_of(needs: Needs, nodes: Sequence[GpuNode], *, on_gpus: bool) -> tuple[PlannedBundles, ...] | None:
    """Return the bundles of ranks, by machine, and of engines; None if they do not all fit. nodes: those with GPUs.

    A bundle of ranks names its machine, because a tensor parallel group belongs on one, and engines must fit beside
    ranks. An engine with GPUs of its own fits on any machine then, as all engines are equal; one that shares GPUs
    belongs on a machine of the ranks.
    """
    if not on_gpus:
        return bundles_on_cpus(needs, ())
    if needs.groups:
        return _of_groups(needs, nodes)
    counts = count_ranks([node.free for node in nodes], needs.request)
    if counts is None:
        return None
    homes = [node.id for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    among_ranks = needs.shared and needs.engines <= needs.ranks
    engines = PlannedBundles(
        role=PlacedRole.ENGINE,
        members=tuple(range(needs.engines)),
        gpus=needs.engine_gpus,
        nodes=tuple(dict.fromkeys(homes)) if among_ranks else (),
    )
    ranks = _ranks(needs, homes)
    return (*ranks, engines) if needs.engines else (*ranks, *_on_cpus(PlacedRole.ENGINE, [""] * needs.external))


def _ranks(needs: Needs, homes: Sequence[str]) -> tuple[PlannedBundles, ...]:
    """Return the bundles of ranks by machine. homes: machine of each place, in the order of machines."""
    members: dict[str, list[int]] = {home: [] for home in homes}
    for rank, index in enumerate(order_ranks(homes, needs.together)):
        members[homes[index]].append(rank)
    strategy = PackStrategy.STRICT_PACK if len(members) == 1 else PackStrategy.PACK
    return tuple(
        PlannedBundles(role=PlacedRole.RANK, members=tuple(own), gpus=needs.rank_gpus, strategy=strategy, nodes=(home,))
        for home, own in members.items()
    )


def _of_groups(needs: Needs, nodes: Sequence[GpuNode]) -> tuple[PlannedBundles, ...] | None:
    """Return the bundles of ranks and of engines of different sizes. Each names its machine, or not all would fit."""
    places = place_groups([node.free for node in nodes], needs.groups, needs.ranks, needs.together)
    if places is None:
        return None
    homes = [node.id for node, count in zip(nodes, places.ranks, strict=True) for _ in range(count)]
    return (*_ranks(needs, homes), *_engines(needs, [nodes[place].id for place in places.engines], on_gpus=True))


def _engines(needs: Needs, homes: Sequence[str], *, on_gpus: bool) -> tuple[PlannedBundles, ...]:
    """Return a bundle for each group and machine. homes: machine of each engine; empty: any machine."""
    groups = {group.name: group for group in needs.groups}
    members: dict[tuple[str, str], list[int]] = {}
    for group, number in members_of(needs.groups):
        members.setdefault((group.name, homes[number]), []).append(number)
    return tuple(
        PlannedBundles(
            role=PlacedRole.ENGINE,
            members=tuple(own),
            gpus=float(groups[name].each) if on_gpus else 0.0,
            nodes=(home,) if home else (),
            group=name,
        )
        for (name, home), own in members.items()
    )


def bundles_on_cpus(needs: Needs, nodes: Sequence[str]) -> tuple[PlannedBundles, ...]:
    """Return the bundles of ranks and engines on CPUs, by machine. Ray counts nothing for them: they need no group.

    nodes: ids of the machines, the launcher's first; if there is one, or none, bundles name no machine.
    """
    count = sum(group.engines for group in needs.groups) or needs.engines + needs.external
    if len(nodes) < 2:
        ranks, engines = [""] * needs.ranks, [""] * count
    else:
        ranks, engines = rank_homes(needs.ranks, nodes, needs.together), engine_homes(count, nodes)
    planned = _engines(needs, engines, on_gpus=False) if needs.groups else _on_cpus(PlacedRole.ENGINE, engines)
    return (*_on_cpus(PlacedRole.RANK, ranks), *planned)


def _on_cpus(role: PlacedRole, homes: Sequence[str]) -> tuple[PlannedBundles, ...]:
    """Return a bundle for each node. homes: node of each member; empty: any node."""
    return tuple(
        PlannedBundles(
            role=role,
            members=tuple(member for member, home in enumerate(homes) if home == node),
            gpus=0.0,
            nodes=(node,) if node else (),
        )
        for node in dict.fromkeys(homes)
    )


def split_of(planned: PlacementPlanned) -> int:
    """Return the number of tensor parallel groups that are on several machines."""
    homes = {rank: own.nodes for own in planned.bundles if own.role is PlacedRole.RANK for rank in own.members}
    names = ["".join(homes[rank]) for rank in sorted(homes)]
    return split_groups(names, planned.together)
