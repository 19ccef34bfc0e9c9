"""`Place`: this process among the trainer's ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

from schemas.doc import doc

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

T = TypeVar("T")


class Axis(StrEnum):
    """A direction in which ranks divide a model or a step. Each rank has a group of ranks along each axis."""

    TENSOR = "tensor"
    """Each rank has a part of every cut parameter, but not of experts. They see the same samples."""
    DATA = "data"
    """Each rank has the same parameters, but not the same experts, and its own samples."""
    PIPELINE = "pipeline"
    """Each rank has some of the layers."""
    CONTEXT = "context"
    """Each rank has a part of every sequence."""
    EXPERT = "expert"
    """Each rank has some of a layer's experts."""
    EXPERT_TENSOR = "expert tensor"
    """Each rank has a part of every expert that they share."""
    EXPERT_DATA = "expert data"
    """Each rank has the same parts of the same experts."""
    REPLICAS = "replicas"
    """Each rank has the same parameters, but not the same experts: data and context parallel ranks."""


_ALIKE = {Axis.EXPERT_TENSOR: Axis.TENSOR, Axis.EXPERT_DATA: Axis.DATA, Axis.REPLICAS: Axis.DATA}
"""Axes that are another axis if a model is not divided by experts or context."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank, device and process groups of this process."""

    rank: int
    world_size: int
    device: torch.device
    tensor: Annotated[dist.ProcessGroup, doc("Tensor parallel ranks, which see the same samples.")]
    data: Annotated[dist.ProcessGroup, doc("Data parallel ranks, which have the same part of the model.")]
    others: Annotated[
        Mapping[Axis, dist.ProcessGroup], doc("Groups along the other axes; without them, of size 1.")
    ] = field(default_factory=dict)

    def group(self, axis: Axis) -> dist.ProcessGroup:
        """Return this rank's group along an axis."""
        if axis in self.others:
            return self.others[axis]
        own = {Axis.TENSOR: self.tensor, Axis.DATA: self.data}
        return own[_ALIKE.get(axis, axis)]

    def size(self, axis: Axis) -> int:
        """Return the number of ranks along an axis."""
        is_known = axis in self.others or axis in (Axis.TENSOR, Axis.DATA) or axis in _ALIKE
        return self.group(axis).size() if is_known else 1

    def of_each_rank(self, mine: T) -> list[T]:
        """Gather a picklable value from each rank, in rank order. Collective."""
        import torch.distributed as dist

        everyone = [mine] * self.world_size
        if len(everyone) > 1:
            dist.all_gather_object(everyone, mine)
        return everyone

    def of_group(self, axis: Axis, mine: T) -> list[T]:
        """Gather a picklable value from each rank along an axis, in the group's order. Collective along the axis."""
        import torch.distributed as dist

        everyone = [mine] * self.size(axis)
        if len(everyone) > 1:
            dist.all_gather_object(everyone, mine, group=self.group(axis))
        return everyone
