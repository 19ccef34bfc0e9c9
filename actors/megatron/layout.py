"""`Layout`: how a model is cut over ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from schemas.doc import doc
from schemas.errors import ImpossibleCombination, InvalidValue
from slime_events.core.config.combinations import BALANCE_LOSSES, is_on

if TYPE_CHECKING:
    from actors.megatron.families.architecture import Architecture
    from slime_events.core.config.trainer import TrainerSettings

EXPERT_AXES = ("expert_model_parallel_size", "expert_tensor_parallel_size")
"""Megatron's settings for the ranks of experts, which are among the further flags of the trainer."""
STAGES = {
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
}
"""Megatron's settings for the layers of the first and the last stage of a pipeline, and their flags."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of ranks along each axis of parallelism."""

    tensor: Annotated[int, doc("Ranks that each hold a part of every cut parameter.")] = 1
    pipeline: Annotated[int, doc("Ranks that each hold some of the layers.")] = 1
    context: Annotated[int, doc("Ranks that each hold a part of every sequence.")] = 1
    expert: Annotated[int, doc("Ranks that each hold some of a layer's experts.")] = 1
    expert_tensor: Annotated[int, doc("Ranks that each hold a part of every expert.")] = 1
    first_stage: Annotated[int | None, doc("Layers of the first stage of a pipeline; None for as many as others.")] = (
        None
    )
    last_stage: Annotated[int | None, doc("Layers of its last stage.")] = None
    sequence: Annotated[bool, doc("Tensor parallel ranks divide the tokens between the cut parameters.")] = field(
        default=False, kw_only=True
    )

    @classmethod
    def of(cls, settings: TrainerSettings) -> Layout:
        """Return the layout that the settings ask for."""
        tensor = settings.tensor_model_parallel_size  # of experts too, unless they have a number of their own
        return cls(
            tensor,
            settings.pipeline_model_parallel_size,
            settings.context_parallel_size,
            *(
                _ranks(settings.megatron.get(name), name, default)
                for name, default in zip(EXPERT_AXES, (1, tensor), strict=True)
            ),
            *(_layers(settings.megatron.get(name), flag) for name, flag in STAGES.items()),
            sequence=settings.sequence_parallel and tensor > 1,
        )

    def check(self, architecture: Architecture) -> None:
        """Raise ImpossibleCombination if the model cannot be cut like this."""
        self._check_experts(architecture)
        if architecture.experts is not None and self.tensor > 1 and not self.sequence:
            raise ImpossibleCombination(
                f"mixtures of experts with tensor-model-parallel-size {self.tensor} need sequence parallelism: set "
                "sequence-parallel"
            )
        self._check_stages(architecture.num_layers)
        names = ("vocab_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
        sizes = {name: getattr(architecture, name) for name in names}
        if architecture.latent is not None:
            sizes |= architecture.latent.cut_sizes
        for name, size in sizes.items():
            if size % self.tensor:
                raise ImpossibleCombination(
                    f"{name} {size} of the checkpoint cannot be cut over tensor-model-parallel-size {self.tensor}"
                )

    def _check_experts(self, architecture: Architecture) -> None:
        """Raise ImpossibleCombination if the experts of a layer cannot be cut like this."""
        experts = architecture.experts
        if experts is None:
            if self.expert > 1 or self.expert_tensor not in (1, self.tensor):
                raise ImpossibleCombination(
                    f"{architecture.model_class} has no experts: leave out expert-model-parallel-size and "
                    "expert-tensor-parallel-size"
                )
            return
        cuts = (
            (experts.count, "experts of a layer", "expert-model-parallel-size", self.expert),
            (
                experts.ffn_hidden_size,
                "inner values of an expert",
                "expert-tensor-parallel-size",
                self.expert_tensor,
            ),
        )
        for size, what, flag, ranks in cuts:
            if size % ranks:
                raise ImpossibleCombination(f"{size} {what} in the checkpoint cannot be cut over {flag} {ranks}")
        if self.expert == 1 and self.expert_tensor != self.tensor:
            # Without expert parallelism, Megatron sums experts' gradients over the ranks of all other parameters.
            raise ImpossibleCombination(
                f"expert-tensor-parallel-size {self.expert_tensor} with tensor-model-parallel-size {self.tensor} needs "
                "expert-model-parallel-size above 1: the gradients of experts would be wrong. Set both to the same"
            )

    def check_ranks(self, ranks: int) -> None:
        """Raise ImpossibleCombination if a trainer cannot have this number of ranks."""
        own = {"tensor": self.tensor, "pipeline": self.pipeline, "context": self.context}
        of_experts = {"expert": self.expert, "expert-tensor": self.expert_tensor, "pipeline": self.pipeline}
        for axes in (own, of_experts):
            if ranks % math.prod(axes.values()):
                product = " x ".join(f"{size} ({axis} parallel)" for axis, size in axes.items())
                raise ImpossibleCombination(f"{ranks} trainer ranks do not divide into groups of {product}")

    def _check_stages(self, layers: int) -> None:
        """Raise ImpossibleCombination if the stages do not have all layers, the middle ones the same number each."""
        counts = zip(STAGES.values(), (self.first_stage, self.last_stage), strict=True)
        own = {flag: count for flag, count in counts if count}
        if self.pipeline == 1:
            if own:
                raise ImpossibleCombination(
                    f"--{' and --'.join(own)} need a pipeline: set pipeline-model-parallel-size above 1"
                )
            return
        stages, left = self.pipeline - len(own), layers - sum(own.values())
        stated = "".join(f" with --{flag} {count}" for flag, count in own.items())
        if left % stages if stages else left:
            raise ImpossibleCombination(
                f"{layers} layers of the checkpoint cannot be cut over pipeline-model-parallel-size "
                f"{self.pipeline}{stated}: the stages between must have the same number of layers"
            )
        if left < stages:
            raise ImpossibleCombination(
                f"{layers} layers of the checkpoint do not give a layer to each stage of pipeline-model-parallel-size "
                f"{self.pipeline}{stated}"
            )


def _layers(value: object, flag: str) -> int | None:
    """Return a number of layers; None if it is not set. Raises InvalidValue."""
    if value is not None and (type(value) is not int or value < 1):
        raise InvalidValue(f"--{flag} {value!r}: it takes a whole number above 0")
    return value


def replays_routing(settings: TrainerSettings) -> bool:
    """Return whether passes of a step use experts that were chosen before."""
    return settings.use_routing_replay or settings.use_rollout_routing_replay


def check_routing(settings: TrainerSettings, architecture: Architecture) -> None:
    """Raise ImpossibleCombination if the layout allows no replay of the routing, or no balance of experts."""
    layout = Layout.of(settings)
    names = ("moe_router_bias_update_rate", *BALANCE_LOSSES)
    balances = [name for name in names if is_on(settings.megatron.get(name))]
    if balances and layout.pipeline > 1 and "moe" in str(settings.megatron.get("recompute_modules")):
        # A layer of experts that is computed again does not have the arguments of its micro batch.
        raise ImpossibleCombination(
            f"{balances[0].replace('_', '-')} with pipeline-model-parallel-size {layout.pipeline} does not go with "
            "recompute-modules moe: use recompute-granularity full, or leave moe out"
        )
    if not replays_routing(settings):
        return
    flag = "use-rollout-routing-replay" if settings.use_rollout_routing_replay else "use-routing-replay"
    if architecture.experts is None:
        raise ImpossibleCombination(f"{flag}: {architecture.model_class} has no experts")
    if settings.megatron.get("moe_router_fusion"):
        raise ImpossibleCombination(f"{flag} needs a router of Megatron's: leave out moe-router-fusion")


def _ranks(value: object, name: str, default: int) -> int:
    """Return a number of ranks; `default` if it is not set. Raises InvalidValue."""
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise InvalidValue(f"--{name.replace('_', '-')} {value!r}: it takes a whole number above 0")
    return value
