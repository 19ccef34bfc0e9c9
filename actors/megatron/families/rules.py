"""`Rule`: the relation between a Megatron parameter and the Hugging Face tensors that it is made of.

Megatron keeps query, key and value in one matrix, interleaved by query group, and gate and up in another. torch is
imported on use, since a launcher reads families without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Self

from actors.step.place import Axis
from schemas.doc import doc

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rule(ABC):
    """A conversion between whole tensors and the parts of a parameter on the ranks of `axis`."""

    names: Annotated[tuple[str, ...], doc("Names of the Hugging Face tensors.")]
    shapes: Annotated[tuple[Shape, ...], doc("Shapes of the whole Hugging Face tensors.")]
    cut: Annotated[int | None, doc("Dimension that is cut over the ranks of `axis`; None if it is not cut.")]
    expert: Annotated[int | None, doc("Number of the layer's expert that has it; None if it is not an expert's.")] = (
        field(default=None, kw_only=True)
    )

    @property
    def axis(self) -> Axis:
        """The ranks that each have a part, if it is cut."""
        return Axis.TENSOR if self.expert is None else Axis.EXPERT_TENSOR

    @property
    def copies(self) -> Axis:
        """The ranks that each have the same part."""
        return Axis.REPLICAS if self.expert is None else Axis.EXPERT_DATA

    def of_expert(self, number: int) -> Self:
        """Return the rule for a parameter of an expert."""
        return replace(self, expert=number)

    @abstractmethod
    def merge(self, tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
        """Return this rank's parameter from the whole Hugging Face tensors."""

    @abstractmethod
    def split(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the whole Hugging Face tensors from the parts of all ranks of `axis`, in rank order."""


@dataclass(frozen=True, slots=True)
class Copy(Rule):
    """The parameter is one tensor, or the rank's part of it."""

    @classmethod
    def of(cls, name: str, *shape: int, cut: int | None = None) -> Copy:
        """Return the rule for a tensor of this name and shape."""
        return cls((name,), (shape,), cut)

    def merge(self, tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
        """Return the tensor, or the rank's chunk of it."""
        (whole,) = tensors
        return whole if self.cut is None else whole.chunk(ranks, self.cut)[rank]

    def split(self, parts: list[Tensor]) -> list[Tensor]:
        """Join the chunks."""
        import torch

        return [parts[0] if self.cut is None or len(parts) == 1 else torch.cat(parts, self.cut)]


@dataclass(frozen=True, slots=True)
class Qkv(Rule):
    """Query, key and value in one matrix: for each query group its queries, its key and its value."""

    groups: Annotated[int, doc("Query groups of the whole model.")]

    @classmethod
    def of(cls, names: tuple[str, str, str], shapes: tuple[Shape, Shape, Shape], groups: int) -> Qkv:
        """Return the rule for the weights or the biases of query, key and value."""
        return cls(names, shapes, 0, groups)

    def merge(self, tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
        """Interleave the tensors by query group, and return the rank's groups."""
        import torch

        blocks = [torch.unflatten(tensor, 0, (self.groups, -1)) for tensor in tensors]
        return torch.cat(blocks, 1).flatten(0, 1).chunk(ranks, 0)[rank]

    def split(self, parts: list[Tensor]) -> list[Tensor]:
        """Join the ranks' groups, and take query, key and value apart."""
        import torch

        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        rows = [shape[0] // self.groups for shape in self.shapes]
        blocks = torch.split(torch.unflatten(whole, 0, (self.groups, -1)), rows, 1)
        return [block.flatten(0, 1) for block in blocks]


@dataclass(frozen=True, slots=True)
class GateUp(Rule):
    """Gate above up in one matrix. A checkpoint has two tensors, or one that holds both."""

    @classmethod
    def of(cls, names: tuple[str, ...], rows: int, columns: int) -> GateUp:
        """Return the rule for one or two tensors. rows, columns: the shape of gate, and that of up."""
        return cls(names, ((2 * rows // len(names), columns),) * len(names), 0)

    def merge(self, tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
        """Return the rank's rows of gate, and below them its rows of up."""
        import torch

        halves = tensors if len(tensors) == 2 else tensors[0].chunk(2, 0)
        return torch.cat([half.chunk(ranks, 0)[rank] for half in halves])

    def split(self, parts: list[Tensor]) -> list[Tensor]:
        """Join the ranks' rows of gate, and those of up."""
        import torch

        halves = [torch.cat(pieces) for pieces in zip(*(part.chunk(2, 0) for part in parts), strict=True)]
        return halves if len(self.names) == 2 else [torch.cat(halves)]
