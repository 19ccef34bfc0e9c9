"""`Schedule`: the order of passes over micro batches.

Forward pass and loss are apart, so that a schedule such as Megatron's pipeline may call the forward pass.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Protocol, TypeVar

import torch
from torch import Tensor

from schemas.doc import doc

Output = TypeVar("Output")
Figures = TypeVar("Figures")
Forward = Callable[[list[int]], Output]
"""Runs the forward pass of a micro batch, named by its samples. Only the last stage of a pipeline has an output."""
Loss = Callable[[Output, list[int]], tuple[Tensor | None, Figures]]
"""(output of the forward pass, micro batch) -> (loss, figures without gradient). The loss is None without gradients."""


class Gradients(Enum):
    """Use of the gradients of a run over micro batches."""

    NONE = "none"
    """No backward pass."""
    ADD = "add"
    """They are added to this rank's gradients, which a later run completes."""
    COMPLETE = "complete"
    """They are added, and the last micro batch completes the sum, so that ranks may exchange it."""


class Schedule(Protocol):
    """Runs micro batches through a model."""

    def run(
        self, batches: Sequence[list[int]], forward: Forward[Output], loss: Loss[Output, Figures], gradients: Gradients
    ) -> list[Figures]:
        """Run forward and, if there are gradients, backward passes; return the figures in the order of `batches`."""
        ...


@dataclass(frozen=True, slots=True)
class Single:
    """One micro batch after the other, each through the whole model."""

    held: Annotated[Callable[[], AbstractContextManager[None]], doc("context in which ranks exchange no gradients")]
    exchanged: Annotated[Callable[[], AbstractContextManager[None]], doc("context of the last pass of an update")]
    backward: Annotated[Callable[[Tensor], None], doc("adds the gradients of a loss")]

    def run(
        self, batches: Sequence[list[int]], forward: Forward[Output], loss: Loss[Output, Figures], gradients: Gradients
    ) -> list[Figures]:
        """See `Schedule`."""
        figures = []
        for place, members in enumerate(batches):
            if gradients is Gradients.NONE:
                with torch.no_grad():
                    figures.append(loss(forward(members), members)[1])
                continue
            is_last = gradients is Gradients.COMPLETE and place == len(batches) - 1
            with self.exchanged() if is_last else self.held():
                value, own = loss(forward(members), members)
                assert value is not None, "a pass with gradients has a loss"
                self.backward(value)
                del value  # with its graph, before the next forward pass
            figures.append(own)
        return figures
