"""Machines of a trainer's ranks, compared with their plan."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from schemas.errors import RankLost
from slime_events.core.planning.homes import Home, Standing, standing_of


def own_host() -> Home:
    """Return the machine of this process."""
    import ray

    return Home(str(ray.get_runtime_context().get_node_id()), str(ray.util.get_node_ip_address()))


def moved_ranks(homes: Sequence[Home], hosts: Sequence[Home], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the ranks that are not on their planned machine because it is lost; empty if there are none.

    hosts: machine of each rank. rows: of `ray.nodes`. Raises RankLost if Ray has chosen another machine than planned
    although that one is alive, so that the ranks start again.
    """
    rows, moved = list(rows), list[str]()
    for rank, (home, host) in enumerate(zip(homes, hosts, strict=True)):
        standing = standing_of(home, host.node, rows)
        if standing is Standing.MISPLACED:
            raise RankLost(f"Ray started rank {rank} on {host.address}, and its place is on {home.address}")
        if standing is Standing.MOVED:
            moved.append(f"rank {rank} is on {host.address}, as {home.address} is lost")
    return "; ".join(moved)
