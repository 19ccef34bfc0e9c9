"""`idle`: settings that are set and have no effect in this run, with the reason. Most rules are at the fields."""

from __future__ import annotations

from collections.abc import Iterator

from slime_events.core.config.fields import Registered
from slime_events.core.config.rule_checks import without_effect
from slime_events.core.config.settings import TrainSettings
from slime_events.core.config.tables import MEGATRON_CUDA, MEGATRON_IDLE


def idle(settings: TrainSettings, registered: Registered) -> Iterator[str]:
    """Yield a sentence for each reason. settings: derived."""
    yield from without_effect(settings, registered)
    for name, reason in MEGATRON_IDLE.items():
        if name in settings.trainer.megatron:
            yield f"--{name.replace('_', '-')}: no effect; {reason}."
    evaluation = settings.evaluation
    for name, dataset in evaluation.eval_sets.items():
        if dataset.rm_type and settings.reward.custom_rm_path and not dataset.custom_rm_path:
            yield (
                f"{evaluation.where(name)}: custom_rm_path {settings.reward.custom_rm_path} grades it; its "
                f"rm_type {dataset.rm_type} is only in the metadata."
            )
    if settings.rollout.agents and settings.gateway.listens is None:
        yield "agents open sessions at a gateway, and this run has none: set gateway, or run `slime-events gateway`."


def idle_on_cpu(settings: TrainSettings) -> list[str]:
    """Return a sentence about the settings that have no effect on the CPU, if there are any."""
    unused = sorted(MEGATRON_CUDA & settings.trainer.megatron.keys())
    unused += ["colocate"] if settings.engine.colocate and not settings.engine.takes_turns else []
    return [f"{', '.join(unused)}: no effect on the CPU."] if unused else []


def crowded(settings: TrainSettings, cores: int) -> list[str]:
    """Return a sentence if a machine has more trainer ranks than cores, for a run on the CPU."""
    ranks = settings.trainer.actor_num_gpus_per_node
    if ranks <= cores:
        return []
    return [
        f"{ranks} trainer ranks on {cores} cores: they share the cores, so a step takes longer than with {cores} ranks "
        f"(--actor-num-gpus-per-node {cores})."
    ]
