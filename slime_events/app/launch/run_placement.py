"""`plan_placement`: decide where the processes of a run are, before any of them starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from schemas.errors import InvalidValue
from schemas.placements import PlacementPlanned, PlannedEngine, PlannedFigures, PlannedFlow, PlannedMachine, PlannedRank
from slime_events.app.launch.gpu_facts import machines
from slime_events.app.launch.gpu_preflight import check_count
from slime_events.app.launch.machine_facts import facts_of
from slime_events.app.launch.plan_preflight import changes_text
from slime_events.app.launch.run_plan import planned_model
from slime_events.core.config.settings import TrainSettings
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.bundles import bundles_of, bundles_on_cpus
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import GpuNode
from slime_events.core.planning.plan import Plan, make_plan


def plan_placement(
    settings: TrainSettings, nodes: Sequence[GpuNode], incarnation: int, homes: Sequence[GpuNode] = ()
) -> PlacementPlanned:
    """Return the placement of a run. nodes: machines with GPUs, with those that are free now.

    homes: all machines for processes on CPUs, the launcher's first; empty if there is only this one.

    Raises InvalidValue if they are too few, with what is missing and the smallest changes that would fit.
    """
    needs, on_gpus = Needs.of(settings), settings.engine.device == "cuda"
    if not on_gpus:
        check_count(settings.engine.device, needs, nodes)
        engines = 0 if settings.debug.debug_train_only or needs.external else settings.engine.replicas
        return _placement(replace(needs, engines=engines), homes if len(homes) > 1 else (), incarnation, None)
    model = planned_model(settings)
    free = tuple(node.free for node in nodes if node.free)
    facts = replace(facts_of(machines(settings.run.ray_address)), gpus=free, source="Ray")
    plan = make_plan(facts, settings, model, Assumptions())
    try:
        check_count("cuda", needs, nodes)
    except InvalidValue as error:
        raise InvalidValue(f"{error}{changes_text(plan, settings, model)}") from error
    return _placement(needs, nodes, incarnation, plan)


def _placement(needs: Needs, nodes: Sequence[GpuNode], incarnation: int, plan: Plan | None) -> PlacementPlanned:
    bundles = bundles_of(needs, nodes, on_gpus=True) if plan else bundles_on_cpus(needs, [node.id for node in nodes])
    assert bundles is not None, "what is not refused has places"
    return PlacementPlanned(
        incarnation=incarnation,
        device="cpu" if plan is None else "cuda",
        ranks=needs.ranks,
        together=needs.together,
        engines=needs.engines + needs.external,
        each=0 if plan is None or needs.external else needs.each,
        shared=needs.shared,
        machines=tuple(
            PlannedMachine(node=node.id, address=node.address, gpus=node.count, free=node.free) for node in nodes
        ),
        bundles=bundles,
        figures=None if plan is None else figures_of(plan),
        warnings=() if plan is None else tuple(shortage.reason for shortage in plan.shortages),
    )


def figures_of(plan: Plan) -> PlannedFigures | None:
    """Return the numbers of a plan; None if the memory of a GPU is unknown, on which they depend."""
    rank, engine, speed, volumes = plan.rank, plan.engine, plan.speed, plan.volumes
    if plan.facts.gpu_bytes is None:
        return None
    return PlannedFigures(
        gpu_bytes=plan.facts.gpu_bytes,
        rank=PlannedRank(bytes=int(rank.total), state_bytes=int(rank.state)) if rank else None,
        engine=PlannedEngine(bytes=int(engine.total), cached_tokens=int(engine.cached)) if engine else None,
        flow=PlannedFlow(
            generate_s=speed.generate_s,
            train_s=speed.train_s,
            step_s=speed.step_s,
            version_bytes=int(volumes.version_bytes),
            version_s=volumes.version_s,
            log_bytes_s=volumes.log_bytes_s,
            archive_bytes_s=volumes.archive_bytes_s,
            disk_a_day=volumes.disk_a_day,
        )
        if speed and volumes
        else None,
    )
