"""`RankPlaces`: a Ray placement group with the planned bundles of all ranks of a trainer.

The group lasts as long as the run, so the place of a rank that is started again is free. Engines are not in the group:
Ray Serve makes a group for each of its replicas (`serve_apps.deployment`). All engines take the same number of GPUs, so
once the ranks have their places, an engine can go to any place where it fits, and the other engines still fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from schemas.errors import DeadlineExceeded
from schemas.placements import PlacedRole, PlacementPlanned
from slime_events.app.launch.ray_machines import own_node, ray_machines
from slime_events.core.machine.gpus import gpus
from slime_events.core.planning.placement import GpuNode

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

PLACE_S = 60.0
"""Seconds in which Ray must give places that it has counted as free, or report their GPUs."""
LOOK_S = 0.5


def gpu_nodes() -> list[GpuNode]:
    """Return the machines with GPUs of the Ray that this process has joined, in the order of their addresses."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    return [
        GpuNode(machine.node, machine.address, machine.gpus, int(free.get(machine.node, {}).get("GPU", 0)))
        for machine in ray_machines()
        if machine.gpus
    ]


def cpu_nodes() -> list[GpuNode]:
    """Return all machines of the Ray that this process has joined, without GPUs: this one first, then by address."""
    own = own_node()
    machines = sorted(ray_machines(), key=lambda machine: machine.node != own)
    return [GpuNode(machine.node, machine.address, 0, 0) for machine in machines]


class RankPlaces:
    """The reserved places of a trainer's ranks."""

    def __init__(self, group: PlacementGroup, bundles: Mapping[int, int]) -> None:
        """bundles: index of the bundle of each rank."""
        self._group, self._bundles = group, dict(bundles)

    @classmethod
    def reserve(cls, planned: PlacementPlanned, given_up: Callable[[], bool] = lambda: False) -> RankPlaces | None:
        """Reserve the places; None if the plan has no ranks on GPUs. Blocks for some seconds.

        given_up: whether the run is ending. Raises DeadlineExceeded if Ray does not give the places in `PLACE_S`
        seconds.
        """
        import ray
        from ray.util.placement_group import NODE_ID_LABEL_KEY

        own = [bundles for bundles in planned.bundles if bundles.role is PlacedRole.RANK and bundles.gpus]
        if not own:
            return None
        share, ranks = own[0].gpus, [rank for bundles in own for rank in bundles.members]
        homes = [bundles.nodes[0] for bundles in own for _ in bundles.members]
        labels = [{NODE_ID_LABEL_KEY: home} for home in homes]
        group = ray.util.placement_group([{"GPU": share}] * len(homes), own[0].strategy, bundle_label_selector=labels)
        until = time.monotonic() + PLACE_S
        while not group.wait(LOOK_S):
            if given_up() or time.monotonic() > until:
                ray.util.remove_placement_group(group)
                raise DeadlineExceeded(
                    f"Ray did not give the trainer's ranks {gpus(len(homes))} within {PLACE_S:.0f} s, although it "
                    "counted them as free: another job has them. Start again when that job has ended"
                )
        return cls(group, dict(zip(ranks, _sorted_places(group, homes, share), strict=True)))

    def of(self, rank: int) -> PlacementGroupSchedulingStrategy:
        """Return the scheduling strategy of a rank's actor."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, self._bundles[rank])


def _sorted_places(group: PlacementGroup, homes: Sequence[str], share: float) -> list[int]:
    """Return bundles in the order of their machines and GPUs, as neighbours have the fastest connection.

    Only a process in a bundle can ask for the bundle's GPU.
    """
    if len(homes) < 2:
        return list(range(len(homes)))
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    task = ray.remote(num_cpus=0, num_gpus=share)(_own_gpu)
    tasks = [
        task.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, n)).remote() for n in range(len(homes))
    ]
    try:
        devices: list[str] = ray.get(tasks, timeout=PLACE_S)
    except ray.exceptions.GetTimeoutError as error:
        ray.util.remove_placement_group(group)
        raise DeadlineExceeded(
            f"Ray did not report the GPUs of the trainer's ranks within {PLACE_S:.0f} s: see `ray status`"
        ) from error
    machines = {home: number for number, home in enumerate(dict.fromkeys(homes))}
    return sorted(range(len(homes)), key=lambda n: (machines[homes[n]], _device_key(devices[n])))


def _own_gpu() -> str:
    """Return the GPU of a Ray worker, a number or a UUID. Runs in the worker."""
    import ray

    return str(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])


def _device_key(device: str) -> tuple[int, str]:
    return (int(device), "") if device.isdigit() else (0, device)
