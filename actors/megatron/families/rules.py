"""`Rule`: the relation between a Megatron parameter and the Hugging Face tensors that it is made of.

Megatron keeps query, key and value in one matrix, interleaved by query group, and gate and up in another. torch is
imported on use, since a launcher reads families without it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from actors.step.place import Axis
from schemas.doc import doc

if TYPE_CHECKING:
    from torch import Tensor

Shape = tuple[int, ...]


class Piece(NamedTuple):
    """A part of one of a rule's Hugging Face tensors, along the rule's `dim`."""

    tensor: Annotated[int, doc("Index of the tensor among the rule's names.")]
    start: int
    stop: int

    @property
    def size(self) -> int:
        """Positions along the axis."""
        return self.stop - self.start

    def of(self, tensor: Tensor, dim: int) -> Tensor:
        """Return the part of a whole tensor."""
        return tensor.narrow(dim, self.start, self.size)


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

    @property
    def dim(self) -> int:
        """The axis along which the parameter is made of `pieces`."""
        return self.cut or 0

    @abstractmethod
    def pieces(self, rank: int, ranks: int) -> list[Piece]:
        """Return the pieces of the Hugging Face tensors that make up this rank's parameter, in order."""

    def shape(self, rank: int, ranks: int) -> Shape:
        """Return the shape of this rank's parameter."""
        size = sum(piece.size for piece in self.pieces(rank, ranks))
        return (*self.shapes[0][: self.dim], size, *self.shapes[0][self.dim + 1 :])

    def merge(self, tensors: list[Tensor], rank: int, ranks: int) -> Tensor:
        """Return this rank's parameter from the whole Hugging Face tensors."""
        return self.merge_from(lambda piece: piece.of(tensors[piece.tensor], self.dim), rank, ranks)

    def merge_from(self, read: Callable[[Piece], Tensor], rank: int, ranks: int) -> Tensor:
        """Return this rank's parameter. read: returns a piece."""
        import torch

        parts = [read(piece) for piece in self.pieces(rank, ranks)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, self.dim)

    def split(self, parts: list[Tensor]) -> list[Tensor]:
        """Return the whole Hugging Face tensors from the parts of all ranks of `axis`, in rank order."""
        import torch

        taken: list[list[tuple[int, Tensor]]] = [[] for _ in self.names]
        for rank, part in enumerate(parts if self.cut is not None else parts[:1]):
            for offset, piece in self.placed(rank, len(parts)):
                taken[piece.tensor].append((piece.start, part.narrow(self.dim, offset, piece.size)))
        ordered = [[tensor for _, tensor in sorted(pieces, key=lambda item: item[0])] for pieces in taken]
        return [pieces[0] if len(pieces) == 1 else torch.cat(pieces, self.dim) for pieces in ordered]

    def placed(self, rank: int, ranks: int) -> Iterator[tuple[int, Piece]]:
        """Yield each of the `pieces` with its offset in the rank's parameter, along `dim`."""
        offset = 0
        for piece in self.pieces(rank, ranks):
            yield offset, piece
            offset += piece.size


def _share(length: int, rank: int, ranks: int) -> range:
    """Return the rank's positions on an axis, as `torch.chunk` cuts it."""
    size = -(-length // ranks)
    return range(min(rank * size, length), min((rank + 1) * size, length))


@dataclass(frozen=True, slots=True)
class Copy(Rule):
    """The parameter is one tensor, or the rank's part of it."""

    @classmethod
    def of(cls, name: str, *shape: int, cut: int | None = None) -> Copy:
        """Return the rule for a tensor of this name and shape."""
        return cls((name,), (shape,), cut)

    def pieces(self, rank: int, ranks: int) -> list[Piece]:
        """Return the tensor, or the rank's chunk of it."""
        own = _share(self.shapes[0][self.dim], *((0, 1) if self.cut is None else (rank, ranks)))
        return [Piece(0, own.start, own.stop)]


@dataclass(frozen=True, slots=True)
class SwappedHalves(Rule):
    """The parameter is one matrix whose halves of columns are exchanged. It is not cut over ranks."""

    @classmethod
    def of(cls, name: str, rows: int, columns: int) -> SwappedHalves:
        """Return the rule for a matrix of this name and shape. columns: an even number."""
        return cls((name,), ((rows, columns),), None)

    @property
    def dim(self) -> int:
        """The columns."""
        return 1

    def pieces(self, rank: int, ranks: int) -> list[Piece]:
        """Return the second half, then the first."""
        columns = self.shapes[0][1]
        return [Piece(0, columns // 2, columns), Piece(0, 0, columns // 2)]


@dataclass(frozen=True, slots=True)
class Qkv(Rule):
    """Query, key and value in one matrix: for each query group its queries, its key and its value."""

    groups: Annotated[int, doc("Query groups of the whole model.")]

    @classmethod
    def of(cls, names: tuple[str, str, str], shapes: tuple[Shape, Shape, Shape], groups: int) -> Qkv:
        """Return the rule for the weights or the biases of query, key and value."""
        return cls(names, shapes, 0, groups)

    def pieces(self, rank: int, ranks: int) -> list[Piece]:
        """Return the rows of the rank's groups, interleaved."""
        rows = [shape[0] // self.groups for shape in self.shapes]
        own = _share(self.groups, rank, ranks)
        return [Piece(i, group * size, (group + 1) * size) for group in own for i, size in enumerate(rows)]


@dataclass(frozen=True, slots=True)
class GateUp(Rule):
    """Gate above up in one matrix. A checkpoint has two tensors, or one that holds both."""

    @classmethod
    def of(cls, names: tuple[str, ...], rows: int, columns: int) -> GateUp:
        """Return the rule for one or two tensors. rows, columns: the shape of gate, and that of up."""
        return cls(names, ((2 * rows // len(names), columns),) * len(names), 0)

    def pieces(self, rank: int, ranks: int) -> list[Piece]:
        """Return the rank's rows of gate, then its rows of up."""
        if len(self.names) == 2:
            own = _share(self.shapes[0][0], rank, ranks)
            return [Piece(half, own.start, own.stop) for half in range(2)]
        rows = self.shapes[0][0] // 2
        own = _share(rows, rank, ranks)
        return [Piece(0, first + own.start, first + own.stop) for first in (0, rows)]
