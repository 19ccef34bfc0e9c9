"""`RankPlaces`: a placement group of Ray's that holds a GPU, or a part of one, for each rank of a trainer.

The group lasts as long as the run, so a rank that is started again finds its place free. Engines are no part of it:
Ray Serve places its replicas by itself, and takes no group of somebody else's. They need none, as all engines take
the same number of GPUs: where ranks have their places, an engine goes wherever it fits, and the others still do.
"""

import ipaddress
import time
from collections.abc import Callable, Sequence
from typing import Any

from schemas.errors import DeadlineExceeded
from slime_events.app.launch.gpu_preflight import Needs
from slime_events.app.launch.placement import GpuNode, count_ranks, order_ranks, split_groups
from slime_events.core.gpus import gpus

PLACE_S = 60.0
"""In which Ray gives places that it has counted as free, or says where they are."""
LOOK_S = 0.5


def gpu_nodes() -> list[GpuNode]:
    """The machines with GPUs of the Ray that this process has joined, in the order of their addresses."""
    import ray
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    nodes = [
        GpuNode(node["NodeID"], node["NodeManagerAddress"], count, int(free.get(node["NodeID"], {}).get("GPU", 0)))
        for node in ray.nodes()
        if node["Alive"] and (count := int(node["Resources"].get("GPU", 0)))
    ]
    return sorted(nodes, key=lambda node: (_address_key(node.address), node.id))


class RankPlaces:
    """split: groups of tensor parallel ranks that are on several machines."""

    def __init__(self, group: Any, order: Sequence[int], split: int) -> None:
        self._group, self._order = group, tuple(order)
        self.split = split

    @classmethod
    def reserve(
        cls, needs: Needs, nodes: Sequence[GpuNode], share: float, given_up: Callable[[], bool] = lambda: False
    ) -> "RankPlaces":
        """Blocks for some seconds. nodes: as `gpu_nodes` has them. share: of a GPU that a rank takes. given_up: whether
        nobody waits any more.

        Raises DeadlineExceeded where Ray does not give the places in `PLACE_S`.
        """
        import ray
        from ray.util.placement_group import NODE_ID_LABEL_KEY

        counts = count_ranks([node.free for node in nodes], needs.wanted)
        if counts is None:
            raise DeadlineExceeded(f"the run's GPUs have been taken by others of this Ray: it needs {needs}")
        homes = [node.id for node, count in zip(nodes, counts, strict=True) for _ in range(count)]
        labels = [{NODE_ID_LABEL_KEY: home} for home in homes]
        group = ray.util.placement_group([{"GPU": share}] * len(homes), "PACK", bundle_label_selector=labels)
        until = time.monotonic() + PLACE_S
        while not group.wait(LOOK_S):
            if given_up() or time.monotonic() > until:
                ray.util.remove_placement_group(group)
                raise DeadlineExceeded(
                    f"Ray did not give the trainer's ranks {gpus(len(homes))} in {PLACE_S:.0f} s, which it counted as "
                    "free: another of its jobs has them. Start again once that has ended"
                )
        places = _sorted_places(group, homes, share)
        order = order_ranks([homes[index] for index in places], needs.together)
        bundles = [places[index] for index in order]
        return cls(group, bundles, split_groups([homes[index] for index in bundles], needs.together))

    def of(self, rank: int) -> Any:
        """The scheduling strategy of a rank's actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, self._order[rank])


def _sorted_places(group: Any, homes: Sequence[str], share: float) -> list[int]:
    """Bundles in the order of their machines and GPUs: neighbours are fastest connected. Only a process that is in a
    bundle is told the GPU.
    """
    if len(homes) < 2:
        return list(range(len(homes)))
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    task = ray.remote(num_cpus=0, num_gpus=share)(_own_gpu)
    asked = [
        task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, n)).remote() for n in range(len(homes))
    ]
    try:
        devices: list[str] = ray.get(asked, timeout=PLACE_S)
    except ray.exceptions.GetTimeoutError as error:
        ray.util.remove_placement_group(group)
        raise DeadlineExceeded(f"Ray did not say in {PLACE_S:.0f} s which GPUs the trainer's ranks have") from error
    machines = {home: number for number, home in enumerate(dict.fromkeys(homes))}
    return sorted(range(len(homes)), key=lambda n: (machines[homes[n]], _device_key(devices[n])))


def _own_gpu() -> str:
    """In a worker of Ray: its GPU, a number or a UUID."""
    import ray

    return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


def _device_key(device: str) -> tuple[int, str]:
    return (int(device), "") if device.isdigit() else (0, device)


def _address_key(address: str) -> tuple[int, int, str]:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return 0, 0, address
    return ip.version, int(ip), ""
