"""`Layout`: how a model is cut over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from schemas.doc import doc
from schemas.errors import ImpossibleCombination

if TYPE_CHECKING:
    from actors.megatron.families.architecture import Architecture
    from slime_events.core.config.trainer import TrainerSettings


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of ranks along each axis of parallelism."""

    tensor: Annotated[int, doc("Ranks that each hold a part of every cut parameter.")] = 1
    pipeline: Annotated[int, doc("Ranks that each hold some of the layers.")] = 1
    context: Annotated[int, doc("Ranks that each hold a part of every sequence.")] = 1
    expert: Annotated[int, doc("Ranks that each hold some of a layer's experts.")] = 1

    @classmethod
    def of(cls, settings: TrainerSettings) -> Layout:
        """Return the layout that the settings ask for."""
        return cls(
            settings.tensor_model_parallel_size,
            settings.pipeline_model_parallel_size,
            settings.context_parallel_size,
            int(settings.megatron.get("expert_model_parallel_size") or 1),
        )

    def check(self, architecture: Architecture) -> None:
        """Raise ImpossibleCombination if the model cannot be cut like this."""
        if self.pipeline > 1 or self.context > 1:
            raise ImpossibleCombination(
                "the trainer runs tensor and data parallelism: set pipeline-model-parallel-size and "
                "context-parallel-size to 1"
            )
        if self.expert > 1:
            raise ImpossibleCombination("each rank has all experts of a layer: set expert-model-parallel-size to 1")
        if architecture.experts is not None and self.tensor > 1:
            raise ImpossibleCombination(
                "the trainer runs mixtures of experts without tensor parallelism: set tensor-model-parallel-size to 1"
            )
        for name in ("vocab_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"):
            size = getattr(architecture, name)
            if size % self.tensor:
                raise ImpossibleCombination(
                    f"{name} {size} of the checkpoint cannot be cut over tensor-model-parallel-size {self.tensor}"
                )
