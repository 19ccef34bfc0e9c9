"""`smallest_trainer`: the layout with which a model is trained on the fewest GPUs."""

from __future__ import annotations

from itertools import product

from msgspec import structs

from slime_events.core.config.trainer import TrainerSettings
from slime_events.core.planning.assumptions import Assumptions
from slime_events.core.planning.facts import Facts
from slime_events.core.planning.model import PlannedModel, TokenLoad

AXES = (1, 2, 4, 8, 16, 32, 64)
"""Sizes of the tensor, pipeline and expert parallel axes that are tried."""
LAYOUT = (
    "actor_num_nodes",
    "actor_num_gpus_per_node",
    "tensor_model_parallel_size",
    "sequence_parallel",
    "pipeline_model_parallel_size",
    "context_parallel_size",
)


def smallest_trainer(
    trainer: TrainerSettings, facts: Facts, load: TokenLoad, assumed: Assumptions, model: PlannedModel
) -> TrainerSettings | None:
    """Return the layout on the fewest GPUs whose fullest rank fits: tensor within a machine, pipeline, experts."""
    size, machine = facts.gpu_bytes or 0, facts.machine
    worlds = [ranks for ranks in (1, 2, 4, 8) if ranks < machine]
    worlds += [machine * 2**power for power in range(10)]
    for world in worlds:
        if 6 * model.shape.parameters > world * size:
            continue  # weights and gradients, divided over all ranks
        nodes, each = (1, world) if world <= machine else (world // machine, machine)
        for tensor, pipeline, expert in product(AXES[:4], AXES[:5], AXES if model.shape.experts else AXES[:1]):
            if tensor > machine or tensor * pipeline > world:
                continue
            axes = {"expert_model_parallel_size": expert} | ({"expert_tensor_parallel_size": 1} if expert > 1 else {})
            tried = structs.replace(
                trainer,
                actor_num_nodes=nodes,
                actor_num_gpus_per_node=each,
                tensor_model_parallel_size=tensor,
                sequence_parallel=tensor > 1,
                pipeline_model_parallel_size=pipeline,
                context_parallel_size=1,
                megatron=trainer.megatron | (axes if model.shape.experts else {}),
            )
            allowed = model.refusal(tried) is None and divides_batch(tried)
            if allowed and model.rank(tried, load, assumed).total <= size:
                return tried
    return None


def differences(before: TrainerSettings, after: TrainerSettings) -> str:
    """Return the flags of settings that differ."""
    changed: dict[str, object] = {
        name: getattr(after, name) for name in LAYOUT if getattr(before, name) != getattr(after, name)
    }
    changed |= {name: value for name, value in after.megatron.items() if before.megatron.get(name) != value}
    return " ".join(
        f"--{name.replace('_', '-')}{'' if value is True else f' {value}'}" for name, value in changed.items()
    )


def divides_batch(trainer: TrainerSettings) -> bool:
    """Return whether the copies of the model share an optimizer step's samples equally, as a start demands."""
    copies = trainer.world_size // (
        trainer.tensor_model_parallel_size * trainer.pipeline_model_parallel_size * trainer.context_parallel_size
    )
    return trainer.global_batch_size is None or trainer.global_batch_size % copies == 0
