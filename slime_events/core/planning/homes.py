"""`Home`: the machine of a rank or an engine on CPUs, for which Ray counts nothing, and whether it is there."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from schemas.doc import doc
from schemas.placements import PlacedRole, PlacementPlanned

MOVED = "moved"
"""Fact of a `worker.joined`: processes that are on other machines than planned, and why."""

RAY_NODE = "ray_node"
"""Fact of an engine's `worker.joined`: Ray's id of its machine."""


class Home(NamedTuple):
    """The planned machine of a process."""

    node: Annotated[str, doc("Ray's node id")]
    address: Annotated[str, doc("on the network of its Ray")]


class Standing(enum.StrEnum):
    """Place of a process, compared with its plan."""

    AT_HOME = "at home"
    MOVED = "moved"
    """Its machine is lost."""
    MISPLACED = "misplaced"
    """Ray started it on another machine, although its own is alive."""


def rank_homes(ranks: int, nodes: Sequence[str], together: int = 1) -> list[str]:
    """Return the node of each rank: spread as evenly as possible, rank 0 on the first node.

    Consecutive ranks are neighbours, and groups of `together` ranks are on one node. Nodes at the end stay empty if
    there are more nodes than groups.
    """
    groups = -(-ranks // together)
    used = min(groups, len(nodes))
    return [nodes[rank // together * used // groups] for rank in range(ranks)]


def engine_homes(engines: int, nodes: Sequence[str]) -> list[str]:
    """Return the node of each engine: one after the other, from the last node on, which has the fewest ranks."""
    return [nodes[-1 - engine % len(nodes)] for engine in range(engines)]


def homes_of(planned: PlacementPlanned, role: PlacedRole) -> tuple[Home, ...]:
    """Return the home of each rank or engine; nothing if Ray counts GPUs for them, or the plan names no machines."""
    addresses = {machine.node: machine.address for machine in planned.machines}
    homes = {
        member: Home(bundles.nodes[0], addresses[bundles.nodes[0]])
        for bundles in planned.bundles
        if bundles.role is role and not bundles.gpus and len(bundles.nodes) == 1
        for member in bundles.members
    }
    return tuple(homes[member] for member in sorted(homes))


def standing_of(home: Home, node: str, rows: Iterable[Mapping[str, Any]]) -> Standing:
    """Return the standing of a process that is on `node`. rows: of `ray.nodes`."""
    if node == home.node:
        return Standing.AT_HOME
    alive = any(row["NodeID"] == home.node and row["Alive"] for row in rows)
    return Standing.MISPLACED if alive else Standing.MOVED


def at_home(key: str, node: str, *, or_elsewhere: bool) -> dict[str, Any]:
    """Return the options of an actor that Ray starts on a node, for which it waits until it knows that node.

    key: Ray's label of a node's id. or_elsewhere: any other node will do if that one is lost. An affinity instead
    fails, or takes another node, if the node that Ray asks for a place has not heard of it yet: of an actor without
    resources Ray asks any node.
    """
    others: dict[str, Any] = {"fallback_strategy": [{"label_selector": {key: f"!{node}"}}]} if or_elsewhere else {}
    return {"label_selector": {key: node}, **others}
