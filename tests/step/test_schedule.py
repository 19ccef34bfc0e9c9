"""The order in which a schedule calls forward pass, loss and backward pass, and what it hands from one to the next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from actors.step.schedule import Gradients, Single


class Calls:
    """Records the calls of a schedule over a model with one weight."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.weight = torch.ones((), requires_grad=True)
        self.schedule = Single(lambda: self.context("held"), lambda: self.context("exchanged"), self.backward)

    @contextmanager
    def context(self, name: str) -> Iterator[None]:
        self.calls.append(name)
        yield

    def backward(self, loss: torch.Tensor) -> None:
        self.calls.append("backward")
        loss.backward()

    def forward(self, members: list[int]) -> torch.Tensor:
        self.calls.append(f"forward {members}")
        return self.weight * sum(members)

    def loss(self, output: torch.Tensor, members: list[int]) -> tuple[torch.Tensor, int]:
        self.calls.append(f"loss {members}")
        return output, len(members)


def test_ranks_exchange_gradients_with_the_last_micro_batch() -> None:
    calls = Calls()
    assert calls.schedule.run([[1, 2], [3]], calls.forward, calls.loss, Gradients.COMPLETE) == [2, 1]
    first = ["held", "forward [1, 2]", "loss [1, 2]", "backward"]
    assert calls.calls == [*first, "exchanged", "forward [3]", "loss [3]", "backward"]
    assert calls.weight.grad == 6.0


def test_gradients_of_a_pass_wait_for_the_next() -> None:
    calls = Calls()
    calls.schedule.run([[1], [2]], calls.forward, calls.loss, Gradients.ADD)
    assert "exchanged" not in calls.calls
    assert calls.calls.count("held") == 2
    assert calls.weight.grad == 3.0


def test_without_gradients_nothing_is_kept_for_a_backward_pass() -> None:
    calls = Calls()

    def keep(output: torch.Tensor, members: list[int]) -> tuple[None, torch.Tensor]:
        return None, output

    (output,) = calls.schedule.run([[4]], calls.forward, keep, Gradients.NONE)
    assert not output.requires_grad
    assert calls.calls == ["forward [4]"]


@pytest.mark.parametrize("gradients", Gradients)
def test_no_micro_batch_is_no_pass(gradients: Gradients) -> None:
    calls = Calls()
    assert calls.schedule.run([], calls.forward, calls.loss, gradients) == []
    assert calls.calls == []
