"""`RayMachine`: a machine of the Ray that this process has joined, and what it answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from schemas.doc import doc
from schemas.redaction import shown
from slime_events.core.planning.homes import at_home

EXPECTED = frozenset({1, 4})
"""Ray's DeathReason of a machine that was stopped on purpose: `ray stop`, or an autoscaler that found it idle."""


@dataclass(frozen=True, slots=True)
class RayMachine:
    """A machine, as Ray counts it."""

    node: Annotated[str, doc("Ray's node id")]
    address: Annotated[str, doc("on the network of its Ray")]
    gpus: Annotated[int, doc("GPUs that Ray counts there")]

    @property
    def only(self) -> dict[str, Any]:
        """The options of a task or an actor that may run on this machine alone, which may just have joined."""
        return on_node(self.node)


def ray_machines() -> list[RayMachine]:
    """Return the machines that Ray counts as alive, in the order of their addresses."""
    import ray

    machines = [
        RayMachine(str(node["NodeID"]), str(node["NodeManagerAddress"]), int(node["Resources"].get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(machines, key=lambda machine: (_address_key(machine.address), machine.node))


def lost_machines() -> dict[str, str]:
    """Return the addresses of machines that Ray has lost and that have not come back, with Ray's reason."""
    import ray

    return lost_of(ray.nodes())


def lost_of(nodes: list[Mapping[str, Any]]) -> dict[str, str]:
    """Return `lost_machines` of the rows of `ray.nodes`. A machine that comes back has a new row."""
    alive = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    return {
        str(node["NodeManagerAddress"]): str(node.get("DeathReasonMessage") or "no reason given")
        for node in nodes
        if not node["Alive"] and node["NodeManagerAddress"] not in alive and node.get("DeathReason") not in EXPECTED
    }


def lost_nodes() -> dict[str, str]:
    """Return the addresses of all machines that have left Ray, by node id. A machine that comes back has a new id."""
    import ray

    return {str(node["NodeID"]): str(node["NodeManagerAddress"]) for node in ray.nodes() if not node["Alive"]}


def on_node(node: str, *, or_elsewhere: bool = False) -> dict[str, Any]:
    """Return the options of an actor on a machine. or_elsewhere: any other machine will do if that one is lost."""
    from ray.util.placement_group import NODE_ID_LABEL_KEY

    return at_home(NODE_ID_LABEL_KEY, node, or_elsewhere=or_elsewhere)


def own_node() -> str:
    """Return Ray's id of this machine."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def answer_of(reference: Any, seconds: float, limit_s: float) -> tuple[Any, str]:
    """Return a machine's answer and no reason, or the reason why there is none. Waits `seconds` at most.

    limit_s: seconds that the machine has had by then, for the reason.
    """
    import ray

    try:
        return ray.get(reference, timeout=max(0.0, seconds)), ""
    except ray.exceptions.GetTimeoutError:
        return None, f"it has not answered within {limit_s:.0f} s: check its Ray with `ray status`"
    except ray.exceptions.RayError as error:
        last = str(getattr(error, "cause", None) or error).strip().splitlines()[-1:]
        return None, f"it cannot run this package ({shown(' '.join(last))}): install the same version there"


def _address_key(address: str) -> tuple[int, int, str]:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return 0, 0, address
    return ip.version, int(ip), ""
