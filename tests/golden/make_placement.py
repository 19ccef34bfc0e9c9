"""The placement of the golden run."""

from __future__ import annotations

from schemas.placements import (
    PackStrategy,
    PlacedRole,
    PlacementPlanned,
    PlannedBundles,
    PlannedEngine,
    PlannedFigures,
    PlannedFlow,
    PlannedMachine,
    PlannedRank,
)


def placement() -> PlacementPlanned:
    """Return a plan with every field: two ranks on a machine, and an engine of two GPUs beside them."""
    ranks = PlannedBundles(
        role=PlacedRole.RANK, members=(0, 1), gpus=1.0, cpus=1.0, strategy=PackStrategy.PACK, nodes=("n0",)
    )
    engines = PlannedBundles(role=PlacedRole.ENGINE, members=(0,), gpus=2.0)
    flow = PlannedFlow(
        generate_s=2.0,
        train_s=1.0,
        step_s=3.0,
        version_bytes=1000,
        version_s=0.5,
        log_bytes_s=10.0,
        archive_bytes_s=10.0,
        disk_a_day=1e6,
    )
    return PlacementPlanned(
        incarnation=0,
        device="cuda",
        ranks=2,
        together=2,
        engines=1,
        each=2,
        machines=(PlannedMachine(node="n0", address="10.0.0.1", gpus=4, free=4),),
        bundles=(ranks, engines),
        figures=PlannedFigures(
            gpu_bytes=80 << 30,
            rank=PlannedRank(bytes=60 << 30, state_bytes=40 << 30),
            engine=PlannedEngine(bytes=68 << 30, cached_tokens=1000),
            flow=flow,
        ),
        warnings=("a rank may need more",),
    )
