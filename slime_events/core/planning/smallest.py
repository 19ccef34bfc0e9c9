"""`smallest_fits`: the smallest changes with which a run that does not fit would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from msgspec import structs

from schemas.doc import doc
from slime_events.core.config.settings import TrainSettings
from slime_events.core.machine.gpus import gpus
from slime_events.core.planning.assumptions import GIB
from slime_events.core.planning.engine_memory import engine_bytes
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.layout_search import differences, divides_batch, smallest_trainer
from slime_events.core.planning.model import ModelShape, PlannedModel
from slime_events.core.planning.needs import Needs
from slime_events.core.planning.placement import place_all
from slime_events.core.planning.plan import Plan, Resource, Verdict, make_plan

ENGINE_SIZES = (1, 2, 4, 8, 16, 32, 64)
MOST_GPUS, MOST_PARTS = 4096, 64
"""GPUs of the largest trainer and of the largest engine that are tried."""
RECOMPUTE: dict[str, str | int] = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}
"""Megatron's settings with which only the input of each layer is kept, as in slime's scripts."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which the run would fit."""

    change: Annotated[str, doc("What to change, as flags or as hardware.")]
    gpus: Annotated[int, doc("GPUs of the run then.")]
    verdict: Verdict


def smallest_fits(plan: Plan, settings: TrainSettings, model: PlannedModel) -> tuple[Remedy, ...]:
    """Return at most one remedy of each kind: more GPUs, a larger layout, larger engines, GPUs with more memory."""
    if plan.verdict is Verdict.FITS or plan.needs.groups:  # a file of groups is not a flag to change
        return ()
    tries = (_machines, _fewer_engines, _recompute, _more_ranks, _larger_layout, _larger_engine, _smaller_share, _apart)
    remedies = [remedy for attempt in tries if (remedy := attempt(plan, settings, model)) is not None]
    if all(remedy.verdict is not Verdict.FITS for remedy in remedies):
        remedies += _together(plan, settings, model)
    memory = _memory(plan)
    return (*remedies, *([memory] if memory else []))


def _again(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Plan:
    """Plan changed settings on as many machines as they need."""
    facts = plan.facts
    first = make_plan(facts, settings, model, plan.assumed)
    if Resource.GPUS not in {shortage.resource for shortage in first.shortages}:
        return first
    return make_plan(_enough(facts, first), settings, model, plan.assumed)


def _enough(facts: Facts, plan: Plan) -> Facts:
    """Return machines like the largest one, as many as ranks and engines need."""
    size, needs = facts.largest or 8, plan.needs
    machines = most = -(-needs.total // size)
    if not needs.shared and needs.each <= size:  # engines are not divided over machines
        most = -(-needs.ranks // size) + -(-needs.engines // (size // needs.each))
    while machines < most and place_all((size,) * machines, needs.request) is None:
        machines += 1
    return replace(facts, gpus=(size,) * machines)


def _tried(plan: Plan, settings: TrainSettings, model: PlannedModel, change: str) -> Remedy | None:
    """Return the change to these settings if they fit, with a smaller share for engines that share GPUs if needed."""
    again = _again(plan, settings, model)
    if _is_short(again, Resource.SHARED_MEMORY) and (flag := _share_beside(again)) is not None:
        percent, text = flag
        smaller = _again(plan, _with_share(settings, percent), model)
        if smaller.verdict is Verdict.FITS:
            return Remedy(f"{change} {text}".strip(), smaller.needs.total, smaller.verdict)
    return (
        None if again.verdict is Verdict.TOO_SMALL or not change else Remedy(change, again.needs.total, again.verdict)
    )


def _share_beside(plan: Plan) -> tuple[int, str] | None:
    """Return the largest share of a GPU for weights and cache of an engine beside a rank, in percent, and its flag."""
    size, rank, engine = plan.facts.gpu_bytes, plan.rank, plan.engine
    if size is None or rank is None or engine is None:
        return None
    percent = 100 * (size - rank.total - engine.runtime) // size
    return (percent, f"--sglang-mem-fraction-static {percent / 100}") if percent > 0 else None


def _with_share(settings: TrainSettings, percent: int) -> TrainSettings:
    sglang = settings.engine.sglang | {"mem_fraction_static": percent / 100}
    return structs.replace(settings, engine=structs.replace(settings.engine, sglang=sglang))


def _is_short(plan: Plan, resource: Resource) -> bool:
    return any(shortage.resource is resource for shortage in plan.shortages)


def _machines(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try as many machines as the settings ask for."""
    if not _is_short(plan, Resource.GPUS):
        return None
    facts = _again(plan, settings, model).facts
    count = len(facts.gpus)
    return _tried(plan, settings, model, f"{count} machine{'' if count == 1 else 's'} of {gpus(facts.largest)}")


def _fewer_engines(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try as many engines as fit beside the ranks on the machines that are there."""
    if not _is_short(plan, Resource.GPUS) or plan.needs.shared:
        return None
    for engines in range(plan.needs.engines - 1, 0, -1):
        total = engines * plan.needs.each
        engine = structs.replace(settings.engine, rollout_num_gpus=total)
        fewer = structs.replace(settings, engine=engine)
        if place_all(plan.facts.gpus, Needs.of(fewer).request) is not None:
            return _tried(plan, fewer, model, f"--rollout-num-gpus {total}")
    return None


def _recompute(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try to compute layers again in the backward pass."""
    if not _is_short(plan, Resource.RANK_MEMORY):
        return None
    megatron = settings.trainer.megatron | RECOMPUTE
    trainer = structs.replace(settings.trainer, megatron=megatron)
    return _tried(plan, structs.replace(settings, trainer=trainer), model, _flags(RECOMPUTE))


def _together(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Iterator[Remedy]:
    """Try several changes at once: recomputed layers, the smallest trainer, the smallest engine, GPUs not shared."""
    changes, trainer, engine = list[str](), settings.trainer, settings.engine
    if _is_short(plan, Resource.RANK_MEMORY):
        megatron = trainer.megatron | RECOMPUTE
        smaller = smallest_trainer(
            structs.replace(trainer, megatron=megatron), plan.facts, plan.load, plan.assumed, model
        )
        if smaller is None:
            return
        changes.append(differences(trainer, smaller))
        trainer = smaller
    total = plan.needs.engines * plan.needs.each
    if _is_short(plan, Resource.ENGINE_MEMORY) and plan.facts.gpu_bytes is not None:
        size, total = _smallest_engine(plan, settings, model.shape, plan.facts.gpu_bytes)
        engine = structs.replace(engine, rollout_num_gpus_per_engine=size, rollout_num_gpus=total)
        changes.append(f"--rollout-num-gpus-per-engine {size}{f' --rollout-num-gpus {total}' * (not engine.colocate)}")
    if engine.colocate:
        changes.append(_own_gpus(total))
        engine = structs.replace(engine, colocate=False, rollout_num_gpus=total)
    remedy = _tried(plan, structs.replace(settings, trainer=trainer, engine=engine), model, " ".join(changes))
    if remedy is not None:
        yield remedy


def _smallest_engine(plan: Plan, settings: TrainSettings, shape: ModelShape, gpu_bytes: int) -> tuple[int, int]:
    """Return the GPUs of the smallest engine that holds a longest sample, or of the largest one, and of all engines."""
    size = total = 0
    for size in ENGINE_SIZES:
        total = -(-plan.needs.engines * plan.needs.each // size) * size
        engine = structs.replace(settings.engine, rollout_num_gpus_per_engine=size, rollout_num_gpus=total)
        if engine_bytes(shape, engine, gpu_bytes, plan.assumed).cached >= plan.load.longest:
            break
    return size, total


def _flags(megatron: Mapping[str, object]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in megatron.items())


def _more_ranks(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try more copies of the model: they divide the optimizer's state."""
    size = plan.facts.gpu_bytes
    if plan.rank is None or size is None or not _is_short(plan, Resource.RANK_MEMORY):
        return None
    nodes, each = settings.trainer.actor_num_nodes, settings.trainer.actor_num_gpus_per_node
    whole = max(each, plan.facts.machine)
    counts = [(1, more) for more in (2, 4, 8) if nodes == 1 and each < more <= whole]
    counts += [(more, whole) for more in range(nodes + 1, MOST_GPUS // whole + 1)]
    for count, ranks in counts:
        trainer = structs.replace(settings.trainer, actor_num_nodes=count, actor_num_gpus_per_node=ranks)
        if model.refusal(trainer) is not None or not divides_batch(trainer):
            continue
        rank = model.rank(trainer, plan.load, plan.assumed)
        if rank.total <= size:
            change = f"--actor-num-nodes {count} --actor-num-gpus-per-node {ranks}"
            return _tried(plan, structs.replace(settings, trainer=trainer), model, change)
        if rank.total - rank.optimizer > size:
            return None  # no number of copies is enough
    return None


def _larger_layout(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try larger tensor parallel sizes within a machine, with sequence parallelism, on more ranks if they need them."""
    if not _is_short(plan, Resource.RANK_MEMORY):
        return None
    trainer, tensor = settings.trainer, settings.trainer.tensor_model_parallel_size
    nodes, each = trainer.actor_num_nodes, trainer.actor_num_gpus_per_node
    while (tensor := 2 * tensor) <= plan.facts.machine:
        ranks = max(each, tensor) if nodes == 1 else each
        tried = structs.replace(
            trainer, tensor_model_parallel_size=tensor, sequence_parallel=True, actor_num_gpus_per_node=ranks
        )
        if model.refusal(tried) is None and divides_batch(tried):
            more = f" --actor-num-gpus-per-node {ranks}" * (ranks != each)
            change = f"--tensor-model-parallel-size {tensor} --sequence-parallel{more}"
            if remedy := _tried(plan, structs.replace(settings, trainer=tried), model, change):
                return remedy
    return None


def _larger_engine(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try engines of more GPUs each, fewer of them on the same GPUs."""
    if not _is_short(plan, Resource.ENGINE_MEMORY):
        return None
    size = settings.engine.rollout_num_gpus_per_engine
    while (size := 2 * size) <= MOST_PARTS:
        total = max(size, plan.needs.engines * plan.needs.each)
        engine = structs.replace(settings.engine, rollout_num_gpus_per_engine=size, rollout_num_gpus=total)
        change = f"--rollout-num-gpus-per-engine {size} --rollout-num-gpus {total}"
        if remedy := _tried(plan, structs.replace(settings, engine=engine), model, change):
            return remedy
    return None


def _smaller_share(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try a smaller share of a shared GPU for engines."""
    return _tried(plan, settings, model, "") if _is_short(plan, Resource.SHARED_MEMORY) else None


def _apart(plan: Plan, settings: TrainSettings, model: PlannedModel) -> Remedy | None:
    """Try GPUs of their own for engines that share them with ranks."""
    if not plan.needs.shared:
        return None
    total = plan.needs.engines * plan.needs.each
    engine = structs.replace(settings.engine, colocate=False, rollout_num_gpus=total)
    return _tried(plan, structs.replace(settings, engine=engine), model, _own_gpus(total))


def _own_gpus(total: int) -> str:
    return f"--rollout-num-gpus {total}, without --colocate"


def _memory(plan: Plan) -> Remedy | None:
    """Name the memory of a GPU that would be enough for the estimate, in whole GiB."""
    if plan.facts.gpu_bytes is None or plan.nodes is None or plan.rank is None:
        return None
    if {shortage.resource for shortage in plan.shortages} != {Resource.RANK_MEMORY} or plan.needs.shared:
        return None
    return Remedy(f"GPUs of {-(-plan.rank.total // GIB)} GiB", plan.needs.total, Verdict.FITS)
