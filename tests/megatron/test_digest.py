"""The digest of an optimizer's state: every tensor of it, of every parameter."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch
import torch.distributed as dist

from actors.megatron.optimizer_digest import optimizer_digest
from actors.step.place import Place


def stepped(*, main_weights: bool = False) -> SimpleNamespace:
    """Two parameters in two groups, after one step; as Megatron chains its optimizers."""
    torch.manual_seed(0)
    first, second, third = (torch.nn.Parameter(torch.randn(3)) for _ in range(3))
    adam = torch.optim.Adam([{"params": [first, second]}, {"params": [third]}])
    for parameter in (first, second, third):
        parameter.grad = torch.ones(3)
    adam.step()
    part = SimpleNamespace(optimizer=adam)
    if main_weights:
        part.fp32_from_float16_groups = []
    return SimpleNamespace(chained_optimizers=[part])


def digest(optimizer: SimpleNamespace) -> str:
    """Return the digest that one rank computes."""
    alone = cast(dist.ProcessGroup, SimpleNamespace(size=lambda: 1, rank=lambda: 0))
    place = Place(0, 1, torch.device("cpu"), tensor=alone, data=alone)
    return optimizer_digest(optimizer, torch.nn.Module(), None, place)  # type: ignore[arg-type]


def state(optimizer: SimpleNamespace, group: int, index: int) -> dict[str, torch.Tensor]:
    adam = optimizer.chained_optimizers[0].optimizer
    state_of_parameter: dict[str, torch.Tensor] = adam.state[adam.param_groups[group]["params"][index]]
    return state_of_parameter


@pytest.mark.parametrize(
    "change",
    [
        lambda adam: state(adam, 0, 0)["exp_avg"].add_(1e-6),
        lambda adam: state(adam, 0, 1)["exp_avg"].add_(1e-6),
        lambda adam: state(adam, 1, 0)["exp_avg"].add_(1e-6),
        lambda adam: state(adam, 0, 0)["exp_avg_sq"].add_(1e-6),
        lambda adam: state(adam, 1, 0)["step"].add_(1),
    ],
)
def test_any_change_of_it_is_another_digest(change: Callable[[SimpleNamespace], object]) -> None:
    changed = stepped()
    change(changed)
    assert digest(changed) != digest(stepped()) == digest(stepped())


@pytest.mark.parametrize("main_weights", [False, True])
def test_main_weights_are_part_of_it_where_the_model_has_others(main_weights: bool) -> None:
    """Leave main weights out if the model has none: its parameters are the weights, with a digest of their own."""
    changed = stepped(main_weights=main_weights)
    with torch.no_grad():
        changed.chained_optimizers[0].optimizer.param_groups[1]["params"][0].add_(1.0)
    assert (digest(changed) != digest(stepped(main_weights=main_weights))) is main_weights
