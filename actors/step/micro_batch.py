"""`MicroBatch`: samples that a rank passes through a model together."""

from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

import torch
from torch import Tensor

from schemas.doc import doc

Layout = TypeVar("Layout")


@dataclass(frozen=True, slots=True)
class MicroBatch(Generic[Layout]):
    """Samples concatenated to one sequence without padding."""

    token_ids: Annotated[Tensor, doc("int64 [1, tokens]")]
    position_ids: Annotated[Tensor, doc("int64 [1, tokens]")]
    packed: Annotated[Layout, doc("the backend's layout of the sequences and of the positions that predict targets")]
    targets: Annotated[Tensor, doc("int64 [targets]: response tokens to predict")]
    responses: Annotated[list[int], doc("response tokens of each sample")]
    kept: Annotated[
        Tensor | None,
        doc(
            "int64 [2, pairs]: (target index, id) pairs of the ids from which a target was sampled; a target without "
            "pairs was sampled from all ids; None if all targets were"
        ),
    ] = None
    targets_of: Annotated[
        Tensor | None, doc("int64 [response tokens]: target of each response token, if samples share targets")
    ] = None

    def by_sample(self, values: Tensor) -> list[Tensor]:
        """Divide [targets] into [response] per sample."""
        every = values if self.targets_of is None else values.index_select(0, self.targets_of)
        return list(torch.split(every, self.responses))
