"""`Layout`: how a model is cut over ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
VIRTUAL_LAYERS = "num_layers_per_virtual_pipeline_stage"
"""A setting of Megatron-LM, which its core does not have."""
VIRTUAL = {
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    VIRTUAL_LAYERS: "num-layers-per-virtual-pipeline-stage",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
"""Megatron's settings for an interleaved pipeline, and their flags."""
SLOTS = {
    "account_for_embedding_in_pipeline_split": "account-for-embedding-in-pipeline-split",
    "account_for_loss_in_pipeline_split": "account-for-loss-in-pipeline-split",
}
"""Megatron's settings by which the embedding, or the output layer, counts as a layer, and their flags."""


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
    embedding_counts: Annotated[bool, doc("The embedding counts as a layer of the first stage.")] = False
    output_counts: Annotated[bool, doc("The output layer counts as a layer of the last stage.")] = False
    virtual: Annotated[int | None, doc("Virtual stages of each rank of a pipeline; None for a single stage.")] = None
    virtual_layers: Annotated[int | None, doc("Layers of each virtual stage, in place of their number.")] = None
    group: Annotated[int | None, doc("Micro batches that a virtual stage runs in turn; None for `pipeline`.")] = None
    sequence: Annotated[bool, doc("Tensor parallel ranks divide the tokens between the cut parameters.")] = field(
        default=False, kw_only=True
    )

    @classmethod
    def of(cls, settings: TrainerSettings) -> Layout:
        """Return the layout that the settings ask for."""
        tensor, flags = settings.tensor_model_parallel_size, settings.megatron
        # Tensor parallel ranks have parts of experts too, unless experts have a number of their own.
        axes = zip(EXPERT_AXES, (1, tensor), strict=True)
        expert, expert_tensor = (_ranks(flags.get(name), name, default) for name, default in axes)
        first, last = (_layers(flags.get(name), flag) for name, flag in STAGES.items())
        embedding, output = (bool(flags.get(name)) for name in SLOTS)
        virtual, each, group = (_layers(flags.get(name), flag) for name, flag in VIRTUAL.items())
        return cls(
            tensor,
            settings.pipeline_model_parallel_size,
            settings.context_parallel_size,
            expert,
            expert_tensor,
            first,
            last,
            embedding_counts=embedding,
            output_counts=output,
            virtual=virtual,
            virtual_layers=each,
            group=group,
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

    def virtual_stages(self, layers: int) -> int:
        """Return the number of virtual stages of each rank, 1 without an interleaved schedule.

        layers: of a model that `check` accepts.
        """
        if self.virtual_layers is not None:
            return self._places(layers) // self.pipeline // self.virtual_layers
        return self.virtual or 1

    def stages(self, layers: int) -> list[list[range]]:
        """Return the layers of each virtual stage of each rank of a pipeline, numbered from 0 on.

        layers: of a model that `check` accepts.
        """
        parts = self.virtual_stages(layers)
        sizes = [[count // parts] * parts for count in self._counts(layers)]
        sizes[0][0] -= self.embedding_counts
        sizes[-1][-1] -= self.output_counts
        stages: list[list[range]] = [[] for _ in sizes]
        begin = 0
        for part in range(parts):  # the first virtual stages of all ranks come before the second ones
            for rank, own in enumerate(sizes):
                stages[rank].append(range(begin, begin + own[part]))
                begin += own[part]
        return stages

    def _places(self, layers: int) -> int:
        """Return the number of layers, with the embedding and the output layer if they count as layers."""
        return layers + self.embedding_counts + self.output_counts

    def _counts(self, layers: int) -> list[int]:
        """Return the layers of each rank, with the embedding and the output layer if they count as layers."""
        ends = {0: self.first_stage, self.pipeline - 1: self.last_stage} if self.pipeline > 1 else {}
        own = {rank: count for rank, count in ends.items() if count is not None}
        between = [rank for rank in range(self.pipeline) if rank not in own]
        base, more = divmod(self._places(layers) - sum(own.values()), max(1, len(between)))
        return [own.get(rank, base + (rank in between[:more])) for rank in range(self.pipeline)]

    def _check_stages(self, layers: int) -> None:
        """Raise ImpossibleCombination if the stages do not have all layers, the middle ones the same number each."""
        counts = zip(STAGES.values(), (self.first_stage, self.last_stage), strict=True)
        own = {flag: count for flag, count in counts if count}
        both = zip(SLOTS.values(), (self.embedding_counts, self.output_counts), strict=True)
        slots = [flag for flag, counts in both if counts]
        counted = zip(VIRTUAL.values(), (self.virtual, self.virtual_layers, self.group), strict=True)
        virtual = {flag: count for flag, count in counted if count is not None}
        if self.pipeline == 1:
            if alone := [*own, *slots, *virtual]:
                raise ImpossibleCombination(
                    f"--{' and --'.join(alone)} need a pipeline: set pipeline-model-parallel-size above 1"
                )
            return
        if own and slots:
            raise ImpossibleCombination(
                f"--{' and --'.join([*own, *slots])} exclude each other, as in Megatron: leave one of them out"
            )
        stages, left = self.pipeline - len(own), self._places(layers) - sum(own.values())
        stated = "".join(f" with --{flag} {count}" for flag, count in own.items())
        stated += "".join(f" with --{flag}" for flag in slots)
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
        self._check_virtual(layers, virtual, stated)

    def _check_virtual(self, layers: int, virtual: Mapping[str, int], stated: str) -> None:
        """Raise ImpossibleCombination if the layers of a rank cannot be cut into virtual stages of the same size.

        virtual: the flags for it, with their values. stated: those for the layers of a rank.
        """
        stages, each, group = VIRTUAL.values()
        if stages in virtual and each in virtual:
            raise ImpossibleCombination(f"--{stages} and --{each} say the same: leave one of them out")
        if group in virtual and len(virtual) == 1:
            raise ImpossibleCombination(f"--{group} {self.group} needs --{stages}, too")
        if self.group is not None and self.group < self.pipeline:
            raise ImpossibleCombination(
                f"--{group} {self.group} must not be below pipeline-model-parallel-size {self.pipeline}"
            )
        if each in virtual and (self.first_stage or self.last_stage):
            raise ImpossibleCombination(
                f"--{each} {self.virtual_layers}{stated}: all ranks have the same number of virtual stages, so set "
                f"--{stages} instead"
            )
        for flag in virtual.keys() & {stages, each}:
            for count in self._counts(layers):
                if count % virtual[flag]:
                    raise ImpossibleCombination(
                        f"--{flag} {virtual[flag]}: the {count} layers of a rank of pipeline-model-parallel-size "
                        f"{self.pipeline}{stated} cannot be cut into virtual stages of the same size"
                    )


def _layers(value: object, flag: str) -> int | None:
    """Return a number of layers or stages; None if it is not set. Raises InvalidValue."""
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
    again = settings.megatron.get("moe_layer_recompute") or "moe" in str(settings.megatron.get("recompute_modules"))
    if balances and layout.pipeline > 1 and again:
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
    if (parts := layout.virtual_stages(architecture.num_layers)) > 1:
        # A rank holds the experts of its layers by sample: those of one stage would replace those of another.
        virtual = VIRTUAL["virtual_pipeline_model_parallel_size" if layout.virtual_layers is None else VIRTUAL_LAYERS]
        raise ImpossibleCombination(
            f"{flag} needs a single virtual stage on each rank of pipeline-model-parallel-size {layout.pipeline}, and "
            f"there are {parts}: leave out --{virtual}"
        )


def _ranks(value: object, name: str, default: int) -> int:
    """Return a number of ranks; `default` if it is not set. Raises InvalidValue."""
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise InvalidValue(f"--{name.replace('_', '-')} {value!r}: it takes a whole number above 0")
    return value
