"""`Place`: this process among the trainer's ranks."""

from dataclasses import dataclass
from typing import Annotated, TypeVar

import torch
import torch.distributed as dist

from schemas.doc import doc

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Rank, device and process groups of this process."""

    rank: int
    world_size: int
    device: torch.device
    tensor: Annotated[dist.ProcessGroup, doc("Tensor parallel ranks, which see the same samples.")]
    data: Annotated[dist.ProcessGroup, doc("Data parallel ranks, which have the same part of the model.")]

    def of_each_rank(self, mine: T) -> list[T]:
        """Gather a picklable value from each rank, in rank order. Collective."""
        everyone = [mine] * self.world_size
        if len(everyone) > 1:
            dist.all_gather_object(everyone, mine)
        return everyone
