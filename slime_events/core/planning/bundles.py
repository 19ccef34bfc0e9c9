"""`bundles_of`: the bundles of a run's Ray placement groups."""

from __future__ import annotations

from collections.abc import Sequence

from schemas.placements import PackStrategy, PlacedRole, PlacementPlanned, PlannedBundles
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
    counts = count_ranks([node.free for node in nodes], needs.request)
    if counts is None:
        return None
    homes = [node.id for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
    members: dict[str, list[int]] = {home: [] for home in homes}
    for rank, index in enumerate(order_ranks(homes, needs.together)):
        members[homes[index]].append(rank)
    strategy = PackStrategy.STRICT_PACK if len(members) == 1 else PackStrategy.PACK
    among_ranks = needs.shared and needs.engines <= needs.ranks
    ranks = (
        PlannedBundles(role=PlacedRole.RANK, members=tuple(own), gpus=needs.rank_gpus, strategy=strategy, nodes=(home,))
        for home, own in members.items()
    )
    engines = PlannedBundles(
        role=PlacedRole.ENGINE,
        members=tuple(range(needs.engines)),
        gpus=needs.engine_gpus,
        nodes=tuple(members) if among_ranks else (),
    )
    return (*ranks, engines) if needs.engines else (*ranks, *_on_cpus(PlacedRole.ENGINE, [""] * needs.external))


def bundles_on_cpus(needs: Needs, nodes: Sequence[str]) -> tuple[PlannedBundles, ...]:
    """Return the bundles of ranks and engines on CPUs, by machine. Ray counts nothing for them: they need no group.

    nodes: ids of the machines, the launcher's first; if there is one, or none, bundles name no machine.
    """
    count = needs.engines + needs.external
    if len(nodes) < 2:
        return (*_on_cpus(PlacedRole.RANK, [""] * needs.ranks), *_on_cpus(PlacedRole.ENGINE, [""] * count))
    ranks, engines = rank_homes(needs.ranks, nodes, needs.together), engine_homes(count, nodes)
    return (*_on_cpus(PlacedRole.RANK, ranks), *_on_cpus(PlacedRole.ENGINE, engines))


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
